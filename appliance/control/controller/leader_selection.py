"""Who leads a partition: pure functions from what is known to a leader, one for each occasion.

| occasion | who is chosen | ISR afterwards |
|---|---|---|
| new partition | first live replica | live replicas |
| leader offline | first live replica that is in sync | live part of the ISR |
| the same, unclean election allowed, nobody in sync lives | first live replica | that one alone |

None means that nobody can be chosen: the partition keeps its ISR and has no leader. An unclean choice loses
acknowledged records, so it is off unless the topic says `unclean.leader.election.enable`. The occasions that
come with moving leaders (preferred replica, reassignment, controlled shutdown) join this table when they are
built.

Source: Kafka's `core/src/main/scala/kafka/controller/Election.scala` and `PartitionStateMachine.scala`,
release 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Election:
    """The chosen leader and the in-sync replicas it begins with."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False


def of_new_partition(replicas: Sequence[int], live: Collection[int]) -> Election | None:
    """A partition that has no record yet: whoever lives is in sync."""
    isr = tuple(replica for replica in replicas if replica in live)
    return Election(isr[0], isr) if isr else None


def of_offline_partition(
    replicas: Sequence[int], isr: Sequence[int], *, live: Collection[int], unclean_allowed: bool = False
) -> Election | None:
    """A partition whose leader is gone."""
    in_sync = tuple(replica for replica in isr if replica in live)
    for replica in replicas:
        if replica in in_sync:
            return Election(replica, in_sync)
    if unclean_allowed:
        for replica in replicas:
            if replica in live:
                return Election(replica, (replica,), unclean=True)
    return None
