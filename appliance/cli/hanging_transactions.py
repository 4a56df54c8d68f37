"""Hanging transactions: open in a partition, and of no coordinator (KIP-664).

A read_committed consumer stops before the first open transaction of a partition. A coordinator ends every transaction
that it knows, at the latest after the transaction's timeout. A transaction hangs if its producer has no transactional
id, or if the coordinator's open transaction does not name the partition.

The rule is that of `TransactionsCommand.java` of Apache Kafka 4.3. The last step is added here: what looks hanging is
looked at once more, because a transaction may have ended between the answer of the leader and that of the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.cli.cluster_view import ClusterView, PartitionView
from appliance.cli.transaction_view import (
    PartitionProducer,
    describe_transactions,
    list_transactions,
    partition_producers,
)
from appliance.cluster import TopicPartition


def hanging_transactions(
    view: ClusterView, address: str, partitions: Sequence[PartitionView], *, now_ms: int, older_than_ms: int
) -> list[PartitionProducer]:
    """Return the producers of `partitions` whose open transaction hangs and had no record for `older_than_ms`.

    Raises:
        BrokerError: a leader or a coordinator does not answer or refuses.
    """
    old = [
        each
        for each in partition_producers(view, partitions)
        if each.is_open and now_ms - each.told.last_timestamp > older_than_ms
    ]
    if not old:
        return []
    suspects = _of_no_coordinator(view, address, old)
    suspected = {each.place for each in suspects}
    again = {
        (each.place, each.told.producer_id): each.told.current_txn_start_offset
        for each in partition_producers(view, [one for one in partitions if _place(one) in suspected])
    }
    return [
        each
        for each in suspects
        if again.get((each.place, each.told.producer_id)) == each.told.current_txn_start_offset
    ]


def _of_no_coordinator(
    view: ClusterView, address: str, old: Sequence[PartitionProducer]
) -> list[PartitionProducer]:
    """Those of `old` whose producer no coordinator knows, or whose transaction does not name the partition."""
    producer_ids = sorted({each.told.producer_id for each in old})
    ids = {
        each.told.producer_id: each.told.transactional_id
        for each in list_transactions(view, producer_ids=producer_ids)
    }
    described = describe_transactions(address, sorted(set(ids.values())))
    named = {(each.told.producer_id, place) for each in described.values() for place in each.partitions()}
    return [each for each in old if (each.told.producer_id, each.place) not in named]


def _place(partition: PartitionView) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)
