"""How a member of a consumer group gets from the partitions it has to those it should have (KIP-848).

    STABLE                 has its target of this epoch, or follows a newer one as soon as there is one
    UNREVOKED_PARTITIONS   has to give partitions up first, and stays in its epoch until it says that it has
    UNRELEASED_PARTITIONS  is in the target's epoch with what is free; what others still own comes later

A partition is given to a member only when nobody owns it, so no partition has two owners at any time.

Worked example, the target moves partition 1 from A to B, epoch 5 to 6:

    A heartbeats: assigned {0}, revoking {1}, UNREVOKED_PARTITIONS in epoch 5
    B heartbeats: assigned {}, UNRELEASED_PARTITIONS in epoch 6, because A owns 1
    A says that it owns {0}: STABLE in epoch 6; 1 is free
    B heartbeats: assigned {1}, STABLE in epoch 6

Source: Kafka's `CurrentAssignmentBuilder.java`.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from appliance.control.coordinator.group.consumer_records import (
    Assignment,
    CurrentAssignment,
    MemberState,
)


def reconcile(
    current: CurrentAssignment,
    target: Assignment,
    *,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[UUID, int], bool],
) -> CurrentAssignment:
    """The member's next step, or what it has if there is none.

    Args:
        owned: what the member says it owns; None if it did not say.
        is_free: whether nobody owns a partition.
    """
    match current.state:
        case MemberState.STABLE:
            if current.member_epoch == target_epoch:
                return current
            epoch = current.member_epoch
        case MemberState.UNREVOKED_PARTITIONS:
            if _still_owns(owned, current.revoking):
                return current
            # All of it is given up: the member has done its part of the next epoch.
            epoch = current.member_epoch + 1
        case MemberState.UNRELEASED_PARTITIONS:
            epoch = current.member_epoch
    return _step(current, target, epoch=epoch, target_epoch=target_epoch, owned=owned, is_free=is_free)


def _step(
    current: CurrentAssignment,
    target: Assignment,
    *,
    epoch: int,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[UUID, int], bool],
) -> CurrentAssignment:
    kept: dict[UUID, frozenset[int]] = {}
    revoking: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in current.assigned.items():
        wanted = target.get(topic_id, frozenset())
        _put(kept, topic_id, partitions & wanted)
        _put(revoking, topic_id, partitions - wanted)
    if revoking and _still_owns(owned, revoking):
        return CurrentAssignment(
            epoch,
            current.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoking,
        )
    unreleased = False
    assigned = dict(kept)
    for topic_id, wanted in target.items():
        missing = wanted - kept.get(topic_id, frozenset())
        free = frozenset(partition for partition in missing if is_free(topic_id, partition))
        unreleased = unreleased or len(free) < len(missing)
        _put(assigned, topic_id, kept.get(topic_id, frozenset()) | free)
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    following = CurrentAssignment(target_epoch, current.member_epoch, state=state, assigned=assigned)
    unchanged = (current.member_epoch, current.state, current.assigned) == (target_epoch, state, assigned)
    return current if unchanged and not current.revoking else following


def _put(into: dict[UUID, frozenset[int]], topic_id: UUID, partitions: frozenset[int]) -> None:
    if partitions:
        into[topic_id] = partitions


def _still_owns(owned: Assignment | None, revoking: Assignment) -> bool:
    """Whether the member has anything of `revoking` yet; one that does not say has."""
    if owned is None:
        return True
    return any(partitions & owned.get(topic_id, frozenset()) for topic_id, partitions in revoking.items())


def owns_no_more_than(owned: Assignment | None, assigned: Assignment) -> bool:
    """Whether the member says what it owns, and all of that is assigned to it."""
    if owned is None:
        return False
    return all(partitions <= assigned.get(topic_id, frozenset()) for topic_id, partitions in owned.items())
