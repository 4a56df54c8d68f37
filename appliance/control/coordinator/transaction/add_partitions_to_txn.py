"""AddPartitionsToTxn 0-5: the answer, with the error of each partition.

A partition that does not exist has UNKNOWN_TOPIC_OR_PARTITION, the others of its transaction
OPERATION_NOT_ATTEMPTED. Else all partitions have the same error; those that are only verified have their own.
Before version 2 PRODUCER_FENCED is INVALID_PRODUCER_EPOCH; before 5 TRANSACTION_ABORTABLE is INVALID_TXN_STATE. From 4
on a request names many transactions, and speaks for `transaction.version` 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from appliance.cluster import TopicPartition
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.coordinator_errors import told_to_producer

MANY_TRANSACTIONS_SINCE: Final = 4
ABORTABLE_SINCE: Final = 5
FENCED_SINCE: Final = 2

Errors = Mapping[TopicPartition, int]


def response_of(
    transactions: Sequence[AddPartitionsToTxnTransaction], errors: Sequence[Errors], version: int
) -> AddPartitionsToTxnResponse:
    """Return the answer; `errors` has those of each transaction."""
    results = [
        _results(transaction.topics, each, version)
        for transaction, each in zip(transactions, errors, strict=True)
    ]
    if version < MANY_TRANSACTIONS_SINCE:
        return AddPartitionsToTxnResponse(results_by_topic=results[0])
    return AddPartitionsToTxnResponse(
        results_by_transaction=tuple(
            AddPartitionsToTxnResult(transaction.transactional_id, topics)
            for transaction, topics in zip(transactions, results, strict=True)
        )
    )


def _results(
    topics: Sequence[AddPartitionsToTxnTopic], errors: Errors, version: int
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    fenced, abortable = version >= FENCED_SINCE, version >= ABORTABLE_SINCE
    return tuple(
        AddPartitionsToTxnTopicResult(
            topic.name,
            tuple(
                AddPartitionsToTxnPartitionResult(
                    index,
                    told_to_producer(
                        errors[TopicPartition(topic.name, index)],
                        knows_fenced=fenced,
                        knows_abortable=abortable,
                    ),
                )
                for index in topic.partitions
            ),
        )
        for topic in topics
    )
