"""AddPartitionsToTxn (24), versions 0-5: a producer is about to write to these partitions in its transaction.

Up to v3 a client names one transaction. From v4 on a broker names many, to add their partitions or only to verify that
they were added (KIP-890); a client that speaks v4 needs CLUSTER_ACTION. v5 may answer TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class AddPartitionsToTxnTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[int, ...] = ()


class AddPartitionsToTxnTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool = False
    topics: tuple[AddPartitionsToTxnTopic, ...] = ()


class AddPartitionsToTxnRequest(msgspec.Struct, frozen=True):
    """One transaction in the fields beside `transactions` up to v3, in `transactions` from v4 on."""

    WIRE_NAMES: ClassVar[dict[str, str]] = {
        "v3_and_below_transactional_id": "transactional_id",
        "v3_and_below_producer_id": "producer_id",
        "v3_and_below_producer_epoch": "producer_epoch",
        "v3_and_below_topics": "topics",
    }

    transactions: tuple[AddPartitionsToTxnTransaction, ...] = ()
    transactional_id: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    topics: tuple[AddPartitionsToTxnTopic, ...] = ()


class AddPartitionsToTxnPartitionResult(msgspec.Struct, frozen=True):
    partition_index: int
    partition_error_code: int = 0


class AddPartitionsToTxnTopicResult(msgspec.Struct, frozen=True):
    name: str
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = ()


class AddPartitionsToTxnResult(msgspec.Struct, frozen=True):
    transactional_id: str
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = ()


class AddPartitionsToTxnResponse(msgspec.Struct, frozen=True):
    """`results_by_topic` up to v3, `results_by_transaction` from v4 on."""

    WIRE_NAMES: ClassVar[dict[str, str]] = {"results_by_topic_v3_and_below": "results_by_topic"}

    error_code: int = 0
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = ()
    results_by_topic: tuple[AddPartitionsToTxnTopicResult, ...] = ()
    throttle_time_ms: int = 0
