"""Whether a partition may be reassigned as a client asks, and what it is then: Kafka's checks, nothing done yet.

| refused with | when |
|---|---|
| INVALID_REQUEST | a partition named twice in one request |
| UNKNOWN_TOPIC_OR_PARTITION | no such topic, or it is being deleted; no such partition |
| INVALID_REPLICA_ASSIGNMENT | no replica, one twice, a slot that is not live (and holds no copy already) |
| INVALID_REPLICA_ASSIGNMENT | only replicas that would go are in sync |
| INVALID_REPLICATION_FACTOR | more or fewer replicas, where the client forbids it |
| NO_REASSIGNMENT_IN_PROGRESS | nothing to call back |

Source: Kafka's `ReplicationControlManager.alterPartitionReassignments`, release 4.3, and KIP-455.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from appliance.channels.control_channel import AlterReassignments, PartitionOutcome, Reassignment
from appliance.cluster import PartitionImage, TopicImage
from appliance.control.controller.partition_changes import (
    cancelled,
    original_replicas,
    reassigned_to,
    target_replicas,
)
from appliance.control.controller.placement import InvalidAssignment, check_assignment
from appliance.control.controller.slot_states import SlotStates
from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode

Decided = dict[str, dict[int, PartitionImage]]


def plan_reassignments(
    request: AlterReassignments, topics: Mapping[str, TopicImage], slots: SlotStates
) -> tuple[Decided, list[PartitionOutcome]]:
    """What is to change, and what is said of each partition once it has; each is decided for itself."""
    decided: Decided = {}
    outcomes: list[PartitionOutcome] = []
    times = Counter((each.topic, each.partition) for each in request.partitions)
    for wanted in request.partitions:
        try:
            if times[wanted.topic, wanted.partition] > 1:
                raise RejectedRequest(ErrorCode.INVALID_REQUEST, "The partition is named more than once.")
            after = _planned(wanted, topics, slots, allow_factor_change=request.allow_factor_change)
        except RejectedRequest as refusal:
            outcomes.append(PartitionOutcome(wanted.topic, wanted.partition, refusal.code, refusal.message))
            continue
        if after is not None:
            decided.setdefault(wanted.topic, {})[wanted.partition] = after
        outcomes.append(PartitionOutcome(wanted.topic, wanted.partition))
    return decided, outcomes


def partition_of(topics: Mapping[str, TopicImage], topic: str, number: int) -> PartitionImage:
    """Raises RejectedRequest (UNKNOWN_TOPIC_OR_PARTITION)."""
    image = topics.get(topic)
    if image is None or not 0 <= number < len(image.partitions):
        raise RejectedRequest(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {number} of '{topic[:249]}'."
        )
    return image.partitions[number]


def _planned(
    wanted: Reassignment, topics: Mapping[str, TopicImage], slots: SlotStates, *, allow_factor_change: bool
) -> PartitionImage | None:
    partition = partition_of(topics, wanted.topic, wanted.partition)
    seen = slots.of(topics[wanted.topic].topic_id, wanted.partition)
    if wanted.replicas is None:
        return cancelled(partition, seen)
    _check_target(wanted.replicas, partition, slots)
    factor = len(original_replicas(partition))
    if not allow_factor_change and len(wanted.replicas) != factor:
        raise RejectedRequest(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is {factor} and may not become {len(wanted.replicas)}.",
        )
    if not partition.adding and wanted.replicas == target_replicas(partition) and not partition.removing:
        return None
    return reassigned_to(partition, wanted.replicas, seen)


def _check_target(replicas: Sequence[int], partition: PartitionImage, slots: SlotStates) -> None:
    allowed = {*slots.live(), *original_replicas(partition)} & set(slots.all)
    try:
        check_assignment([replicas], sorted(allowed))
    except InvalidAssignment as fault:
        raise RejectedRequest(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(fault)) from fault
