"""From a partition as it is, and what happened, to the partition as it should be: pure functions, None for no change.

What holds of every change, and what the tests hold against random histories of them:

- `partition_epoch` grows by one with each change; `leader_epoch` with each change of leader, and when replicas go.
- The leader is in the ISR, the ISR is part of the replicas and never empty.
- The ISR grows only by what the leader proposes, and never loses its last member: who was last in sync is
  remembered while nobody leads.
- A leader is chosen from the ISR, but for unclean elections.

Sources: Kafka's `PartitionChangeBuilder.java`, `ReplicationControlManager.java` (4.3) and KIP-455, KIP-497.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from appliance.cluster import NO_LEADER, PartitionImage
from appliance.control.controller.leader_selection import (
    Election,
    of_controlled_shutdown,
    of_offline_partition,
    of_preferred_replica,
    of_reassigned_partition,
)
from appliance.control.controller.slot_states import PartitionSlots
from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode

ENOUGH = 2
"""With so many members an ISR need not wait for one whose process has died: one more may, and nothing is lost."""


def reviewed(
    partition: PartitionImage,
    slots: PartitionSlots,
    *,
    unclean_allowed: bool = False,
    min_insync: int = 1,
    finishing: bool = True,
) -> PartitionImage | None:
    """What the states of the slots ask for: another leader, a smaller ISR, and if `finishing` the end of a
    reassignment. `min_insync`: with fewer members the partition takes no records with acks=all."""
    after = _led(partition, slots, unclean_allowed=unclean_allowed)
    after = _in_sync(after, slots, leader_before=partition.leader, enough=max(ENOUGH, min_insync))
    return stepped(partition, _reassigned(after, slots) if finishing else after)


def stepped(before: PartitionImage, after: PartitionImage) -> PartitionImage | None:
    """`after` with the epochs that follow those of `before`; None where nothing has changed."""
    if after == before:
        return None
    fenced = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
    left = dict.fromkeys((*before.leaving, *before.replicas))
    return replace(
        after,
        leaving=tuple(each for each in left if each not in after.replicas),
        leader_epoch=before.leader_epoch + fenced,
        partition_epoch=before.partition_epoch + 1,
    )


def preferred(partition: PartitionImage, slots: PartitionSlots) -> PartitionImage | None:
    """With the leader that the placement meant.

    Raises:
        RejectedRequest: PREFERRED_LEADER_NOT_AVAILABLE, ELECTION_NOT_NEEDED.
    """
    if partition.leader == partition.replicas[0]:
        raise RejectedRequest(ErrorCode.ELECTION_NOT_NEEDED, "The leader is the preferred one already.")
    chosen = of_preferred_replica(partition.replicas, partition.isr, live=_leaders(partition, slots))
    if chosen is None:
        raise RejectedRequest(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader {partition.replicas[0]} is not in sync, or does not live.",
        )
    return stepped(partition, _elected(partition, chosen))


def unclean(partition: PartitionImage, slots: PartitionSlots) -> PartitionImage | None:
    """With any leader at all, where there is none.

    Raises:
        RejectedRequest: ELIGIBLE_LEADERS_NOT_AVAILABLE, ELECTION_NOT_NEEDED.
    """
    if partition.leader != NO_LEADER and slots.may_lead(partition.leader):
        raise RejectedRequest(ErrorCode.ELECTION_NOT_NEEDED, "The partition has a leader already.")
    chosen = of_offline_partition(
        partition.replicas,
        partition.isr,
        live=_leaders(partition, slots),
        staying=_staying(partition, slots),
        unclean_allowed=True,
    )
    if chosen is None:
        raise RejectedRequest(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No live replica can lead.")
    return stepped(partition, _elected(partition, chosen))


def with_isr(
    partition: PartitionImage,
    isr: tuple[int, ...],
    slots: PartitionSlots,
    *,
    proposer: int,
    leader_epoch: int,
    partition_epoch: int,
) -> PartitionImage | None:
    """With the ISR that `proposer`, who says that it leads, proposes.

    Raises:
        RejectedRequest: the state of another moment, no leader, or members that cannot be.
    """
    if proposer != partition.leader:
        raise RejectedRequest(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{proposer} does not lead; {partition.leader} does."
        )
    if leader_epoch != partition.leader_epoch:
        raise RejectedRequest(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"The leader epoch is {partition.leader_epoch}, not {leader_epoch}.",
        )
    if partition_epoch != partition.partition_epoch:
        raise RejectedRequest(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The partition epoch is {partition.partition_epoch}, not {partition_epoch}.",
        )
    members = set(isr)
    if len(members) != len(isr) or partition.leader not in members or not members <= set(partition.replicas):
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST, "An ISR must contain the leader and only replicas, each once."
        )
    unable = [each for each in isr if each != partition.leader and not slots.may_follow(each)]
    if unable:
        raise RejectedRequest(ErrorCode.INELIGIBLE_REPLICA, f"{unable} do not live.")
    if members == set(partition.isr):
        return None
    # In the order of the replicas, so that equal sets are equal.
    after = replace(partition, isr=tuple(each for each in partition.replicas if each in members))
    return stepped(partition, _reassigned(after, slots))


def without_storage(
    partition: PartitionImage,
    slot: int,
    slots: PartitionSlots,
    *,
    lasting: bool = True,
    broken: Collection[int] = (),
    unclean_allowed: bool = False,
) -> PartitionImage | None:
    """After the storage of `slot`'s copy failed: the copy is in sync no more, and leads no more.

    Where nobody else in sync can lead now, nobody leads until one can: who else is in sync has all that was
    acknowledged, and this copy may have lost of it. Where that is not `lasting`, as with a full disk, it stays what
    it is until another can lead. So does the last one in sync: its directory may come back with the records. Unless a
    copy that was not in sync may lead, once nobody in sync is waited for; `broken` are slots whose copies have failed
    as well, and are not tried at that, or two of them would hand it to and fro for ever.
    """
    rest = tuple(each for each in partition.isr if each != slot)
    leader = partition.leader
    if leader == slot:
        live = tuple(each for each in _leaders(partition, slots) if each != slot)
        chosen = of_offline_partition(partition.replicas, rest, live=live, staying=rest)
        if chosen is None and unclean_allowed and not any(map(slots.may_come_back, rest)):
            sound = tuple(each for each in live if each not in broken)
            chosen = of_offline_partition(partition.replicas, rest, live=sound, unclean_allowed=True)
        if chosen is None and not (lasting and rest):
            return None
        leader, rest = (NO_LEADER, rest) if chosen is None else (chosen.leader, chosen.isr)
    return stepped(partition, replace(partition, leader=leader, isr=rest or partition.isr))


def raised(
    partition: PartitionImage, log_epoch: int, slots: PartitionSlots, *, longest_slot: int
) -> PartitionImage:
    """Return the partition in a leader epoch above `log_epoch`, led by the slot that has the longest log.

    The store was restored from a backup, so its ISR, and perhaps its replicas, are those of another time. The longest
    log alone counts as in sync; the other replicas join when they have caught up. A slot that is no replica becomes
    one: the partition was moved there after the backup. Where its worker cannot lead now, nobody leads until it can.
    """
    replicas = partition.replicas
    return replace(
        partition,
        leader=longest_slot if slots.may_lead(longest_slot) else NO_LEADER,
        leader_epoch=max(partition.leader_epoch, log_epoch) + 1,
        replicas=replicas if longest_slot in replicas else (*replicas, longest_slot),
        isr=(longest_slot,),
        leaving=tuple(each for each in partition.leaving if each != longest_slot),
        partition_epoch=partition.partition_epoch + 1,
    )


def reassigned_to(
    partition: PartitionImage, target: tuple[int, ...], slots: PartitionSlots
) -> PartitionImage | None:
    """On its way to `target`; a reassignment that is under way gives way to this one.

    Raises:
        RejectedRequest: INVALID_REPLICA_ASSIGNMENT when only replicas that it would drop at once are in sync.
    """
    original = original_replicas(partition)
    adding = tuple(each for each in target if each not in original)
    removing = tuple(each for each in original if each not in target)
    replicas = (*target, *removing)
    isr = tuple(each for each in partition.isr if each in replicas)
    if not isr:
        raise RejectedRequest(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "None of the remaining replicas is in sync."
        )
    after = replace(partition, replicas=replicas, isr=isr, adding=adding, removing=removing)
    after = _led(after, slots, unclean_allowed=False)
    return stepped(partition, _reassigned(after, slots))


def cancelled(partition: PartitionImage, slots: PartitionSlots) -> PartitionImage | None:
    """With the replicas of before its reassignment.

    Raises:
        RejectedRequest: NO_REASSIGNMENT_IN_PROGRESS; INVALID_REPLICA_ASSIGNMENT when only new replicas are in sync.
    """
    if not is_reassigning(partition):
        raise RejectedRequest(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "The partition is not being reassigned.")
    original = original_replicas(partition)
    isr = tuple(each for each in partition.isr if each in original)
    if not isr:
        raise RejectedRequest(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "None of the old replicas is in sync, so cancelling would lose records.",
        )
    # Those that stay first, as they were; KIP-455 keeps no memory of the order with those that were to go.
    after = replace(partition, replicas=original, isr=isr, adding=(), removing=())
    if after.leader not in original:
        chosen = of_reassigned_partition(original, isr, live=_leaders(after, slots))
        after = replace(after, leader=chosen.leader if chosen else NO_LEADER)
    return stepped(partition, after)


def is_reassigning(partition: PartitionImage) -> bool:
    return bool(partition.adding or partition.removing)


def original_replicas(partition: PartitionImage) -> tuple[int, ...]:
    """Those that held the partition before the reassignment that is under way."""
    return tuple(each for each in partition.replicas if each not in partition.adding)


def target_replicas(partition: PartitionImage) -> tuple[int, ...]:
    """Those that hold the partition when no reassignment is under way any more."""
    return tuple(each for each in partition.replicas if each not in partition.removing)


def _led(partition: PartitionImage, slots: PartitionSlots, *, unclean_allowed: bool) -> PartitionImage:
    leader = partition.leader
    if leader != NO_LEADER and leader in partition.replicas and slots.may_lead(leader):
        return partition
    live, staying = _leaders(partition, slots), _staying(partition, slots)
    if leader in slots.stopped:
        chosen = of_controlled_shutdown(partition.replicas, partition.isr, live=live, stopping=slots.stopped)
    else:
        chosen = of_offline_partition(partition.replicas, partition.isr, live=live, staying=staying)
    if chosen is None and leader != NO_LEADER and slots.may_come_back(leader):
        return partition
    if chosen is None and unclean_allowed and not any(map(slots.may_come_back, partition.isr)):
        chosen = of_offline_partition(
            partition.replicas, partition.isr, live=live, staying=staying, unclean_allowed=True
        )
    if chosen is not None:
        return _elected(partition, chosen)
    # Its slot is no broker any more, or has another copy than this one.
    if leader != NO_LEADER and slots.is_live(leader) and leader in partition.replicas:
        return partition
    return replace(partition, leader=NO_LEADER)


def _elected(partition: PartitionImage, chosen: Election) -> PartitionImage:
    return replace(partition, leader=chosen.leader, isr=chosen.isr)


def _in_sync(
    partition: PartitionImage, slots: PartitionSlots, *, leader_before: int, enough: int
) -> PartitionImage:
    """An ISR without those that acks=all would wait for in vain, or for too long.

    Who is gone leaves. Who has just died leaves too where enough others are in sync; else it is waited for, so that
    records do not come to lie in fewer places than before. A leader that died has died as a follower as well: its
    slot's replica process must open the log that it left first.
    """
    leader = partition.leader
    if leader == NO_LEADER:
        return partition
    staying = tuple(each for each in partition.isr if each == leader or slots.stays_in_sync(each))
    died = leader_before if leader_before != leader and not slots.may_lead(leader_before) else NO_LEADER
    awake = tuple(each for each in staying if each == leader or (each != died and slots.may_follow(each)))
    isr = awake if len(awake) >= enough else staying
    return partition if isr == partition.isr else replace(partition, isr=isr)


def _reassigned(partition: PartitionImage, slots: PartitionSlots) -> PartitionImage:
    """Without the replicas that go, once those that come are in sync and one of the rest can lead."""
    if not is_reassigning(partition) or not set(partition.adding) <= set(partition.isr):
        return partition
    target = target_replicas(partition)
    isr = tuple(each for each in partition.isr if each in target)
    leader = partition.leader
    if leader not in target:
        chosen = of_reassigned_partition(target, isr, live=_leaders(partition, slots))
        if chosen is None:
            return partition
        leader = chosen.leader
    return replace(partition, replicas=target, isr=isr, leader=leader, adding=(), removing=())


def _leaders(partition: PartitionImage, slots: PartitionSlots) -> tuple[int, ...]:
    return tuple(each for each in partition.replicas if slots.may_lead(each))


def _staying(partition: PartitionImage, slots: PartitionSlots) -> tuple[int, ...]:
    return tuple(each for each in partition.replicas if slots.stays_in_sync(each))
