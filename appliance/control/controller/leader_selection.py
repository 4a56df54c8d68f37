"""Who leads a partition: pure functions from what is known to a leader, one for each occasion.

| occasion | who is chosen | ISR afterwards |
|---|---|---|
| new partition | first live replica | live replicas |
| leader offline | first replica in sync that may lead | the ISR without those that do not stay |
| the same, unclean election allowed, nobody in sync may lead | first replica that may lead | that one alone |
| reassigned partition | first target replica in sync that may lead | the ISR |
| preferred replica | the first replica, if it is in sync and may lead | the ISR |
| controlled shutdown | first other replica in sync that may lead | the ISR without the slot that stops |
| no-op | the leader there is | the ISR |

None means that nobody can be chosen: the partition keeps what it has. An unclean choice loses acknowledged records,
so it is off unless the topic says `unclean.leader.election.enable`, or an operator asks for one election by hand.

Source: Kafka's `core/src/main/scala/kafka/controller/Election.scala` and `PartitionStateMachine.scala`,
release 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec


class Election(msgspec.Struct, frozen=True):
    """The chosen leader and the in-sync replicas it begins with."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False


def of_new_partition(replicas: Sequence[int], live: Collection[int]) -> Election | None:
    """A partition that has no record yet: whoever lives is in sync."""
    isr = tuple(replica for replica in replicas if replica in live)
    return Election(isr[0], isr) if isr else None


def of_offline_partition(
    replicas: Sequence[int],
    isr: Sequence[int],
    *,
    live: Collection[int],
    staying: Collection[int] | None = None,
    unclean_allowed: bool = False,
) -> Election | None:
    """A partition whose leader is gone.

    Args:
        live: those that may lead.
        staying: those that keep their place in the ISR as followers; by default those that may lead.
    """
    for replica in replicas:
        if replica in isr and replica in live:
            stays = live if staying is None else staying
            return Election(replica, tuple(each for each in isr if each == replica or each in stays))
    if unclean_allowed:
        for replica in replicas:
            if replica in live:
                return Election(replica, (replica,), unclean=True)
    return None


def of_reassigned_partition(
    target: Sequence[int], isr: Sequence[int], *, live: Collection[int]
) -> Election | None:
    """A partition whose leader is none of the replicas that it moves to."""
    for replica in target:
        if replica in isr and replica in live:
            return Election(replica, tuple(isr))
    return None


def of_preferred_replica(
    replicas: Sequence[int], isr: Sequence[int], *, live: Collection[int]
) -> Election | None:
    """The leader that the placement meant."""
    preferred = replicas[0]
    return Election(preferred, tuple(isr)) if preferred in isr and preferred in live else None


def of_controlled_shutdown(
    replicas: Sequence[int], isr: Sequence[int], *, live: Collection[int], stopping: Collection[int]
) -> Election | None:
    """A partition whose leader is told to stop: it serves until the next one takes over."""
    rest = tuple(replica for replica in isr if replica not in stopping)
    for replica in replicas:
        if replica in rest and replica in live:
            return Election(replica, rest)
    return None


def no_op(leader: int, isr: Sequence[int]) -> Election:
    """Return the leader and the ISR as they are: Kafka's `NoOpLeaderSelector`.

    Nothing calls it, because an election that would change nothing is not begun. It stands here so that the five
    selectors that Kafka has are in one place.
    """
    return Election(leader, tuple(isr))
