"""Which slots hold a partition's replicas: Kafka's round robin, or the assignment somebody gave by hand.

The order of a partition's replicas matters: the first one is its preferred leader. With slots 0 to 4, a start
of 0 and three replicas (a row a partition):

    partition 0: 0 1 2       partition 5: 0 2 3       partition 10: 0 3 4
    partition 1: 1 2 3       partition 6: 1 3 4       ...
    partition 2: 2 3 4       partition 7: 2 4 0
    partition 3: 3 4 0       partition 8: 3 0 1
    partition 4: 4 0 1       partition 9: 4 1 2

Leaders go round; followers follow at a distance that grows by one with each round, so that the partitions a
slot led are spread over all others when it stops. A partition's place depends on its number and the start
only: partitions added later lie where they would have lain at once.

Source: Kafka's `AdminUtils.assignReplicasToBrokersRackUnaware`; there the first distance is random too, here
it is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID


class InvalidAssignment(ValueError):
    """An assignment by hand that Kafka would refuse; the text says why."""


def start_for(topic_id: UUID, slot_count: int) -> int:
    """Index of the slot that leads partition 0: random by topic, the same whenever it is asked."""
    return topic_id.int % slot_count


def start_of(replicas_of_first: Sequence[int], slots: Sequence[int]) -> int:
    """The start that fits an existing topic: where its partition 0 leads, or where that slot would be now."""
    preferred = replicas_of_first[0]
    return next((index for index, slot in enumerate(slots) if slot >= preferred), 0)


def place(
    partitions: range, replication_factor: int, *, slots: Sequence[int], start: int
) -> list[tuple[int, ...]]:
    """Replicas of each partition in `partitions`, the preferred leader first.

    Args:
        partitions: partition numbers to place.
        replication_factor: from 1 to the number of slots; the caller has checked it.
        slots: node ids, ascending.
        start: index in `slots` of the leader of partition 0.
    """
    count = len(slots)
    if not 1 <= replication_factor <= count:
        raise ValueError(f"{replication_factor} replicas on {count} slots")
    placed = []
    for partition in partitions:
        first = (start + partition) % count
        shift = partition // count
        followers = ((first + 1 + (shift + j) % (count - 1)) % count for j in range(replication_factor - 1))
        placed.append((slots[first], *(slots[follower] for follower in followers)))
    return placed


def check_assignment(assignment: Sequence[Sequence[int]], slots: Sequence[int]) -> None:
    """Refuses what Kafka refuses of an assignment by hand: one list of replicas for each partition.

    Source: Kafka's `ReplicationControlManager.validateManualPartitionAssignment`.

    Raises:
        InvalidAssignment: no partition or replica, a slot twice, an unknown slot, or lists of unlike length.
    """
    if not assignment:
        raise InvalidAssignment("The manual partition assignment is empty.")
    for number, replicas in enumerate(assignment):
        if not replicas:
            raise InvalidAssignment("The manual partition assignment includes an empty replica list.")
        if len(set(replicas)) != len(replicas):
            raise InvalidAssignment(
                f"The manual partition assignment of partition {number} includes a broker more than once."
            )
        for slot in replicas:
            if slot not in slots:
                raise InvalidAssignment(
                    f"The manual partition assignment includes broker {slot}, but no such broker is registered."
                )
        if len(replicas) != len(assignment[0]):
            raise InvalidAssignment(
                f"The manual partition assignment gives partition {number} {len(replicas)} replicas, "
                f"but partition 0 {len(assignment[0])}."
            )
