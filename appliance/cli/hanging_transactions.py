"""Hanging transactions: open in a partition, and of no coordinator (KIP-664).

A read_committed consumer stops before the first open transaction of a partition. A coordinator ends every transaction
that it knows, at the latest after the transaction's timeout. A transaction hangs if its producer has no transactional
id, or if the coordinator's open transaction does not name the partition.

The rule is that of `TransactionsCommand.java` of Apache Kafka 4.3. Two steps are added here. Where a partition of
`__transaction_state` cannot be read, nothing is called hanging. What looks hanging is looked at once more, because a
transaction may have ended between the answer of the leader and that of the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.cli.cluster_view import ClusterView, PartitionView
from appliance.cli.transaction_view import (
    PartitionProducer,
    describe_transactions,
    list_transactions,
    partition_producers,
    require_every_coordinator,
)
from appliance.cluster import TopicPartition


def hanging_transactions(
    view: ClusterView, address: str, partitions: Sequence[PartitionView], *, now_ms: int, older_than_ms: int
) -> list[PartitionProducer]:
    """Return the producers of `partitions` whose open transaction hangs and had no record for `older_than_ms`.

    Raises:
        BrokerError: a leader or a coordinator does not answer or refuses, or transactions of an unreadable partition of
            `__transaction_state` cannot be told from hanging ones.
    """
    old = [
        each
        for each in partition_producers(view, partitions)
        if each.is_open and now_ms - each.told.last_timestamp > older_than_ms
    ]
    if not old:
        return []
    suspects = _of_no_coordinator(view, address, old)
    if not suspects:
        return []
    require_every_coordinator(view, address)
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


def coordinated_as(view: ClusterView, address: str, producer: PartitionProducer) -> str | None:
    """Return the transactional id whose open transaction names the partition of `producer`; None if it hangs there.

    Raises:
        BrokerError: as `hanging_transactions`.
    """
    ids = _coordinated(view, address, [producer])
    if not ids:
        require_every_coordinator(view, address)
    return ids.get((producer.told.producer_id, producer.place))


def _of_no_coordinator(
    view: ClusterView, address: str, old: Sequence[PartitionProducer]
) -> list[PartitionProducer]:
    """Those of `old` whose producer no coordinator knows, or whose transaction does not name the partition."""
    named = _coordinated(view, address, old)
    return [each for each in old if (each.told.producer_id, each.place) not in named]


def _coordinated(
    view: ClusterView, address: str, producers: Sequence[PartitionProducer]
) -> dict[tuple[int, TopicPartition], str]:
    """(producer id, partition) → transactional id, for each partition of the producers' open transactions."""
    producer_ids = sorted({each.told.producer_id for each in producers})
    ids = {each.told.transactional_id for each in list_transactions(view, producer_ids=producer_ids)}
    described = describe_transactions(address, sorted(ids))
    return {
        (each.told.producer_id, place): name
        for name, each in described.items()
        for place in each.partitions()
    }


def _place(partition: PartitionView) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)
