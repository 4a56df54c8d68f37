"""AlterPartitionReassignments 0-1: the controller decides, partition by partition; answers when they have begun."""

from __future__ import annotations

from collections import Counter

from appliance.channels.control_channel import AlterReassignments, PartitionOutcome, Reassignment
from appliance.protocol.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.partition_answers import (
    TIMEOUT_MS_MAX,
    by_topic,
    outcomes_of,
    sentence,
)
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps, chunks, in_pieces


def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, _view: LocalView
) -> Steps[AlterPartitionReassignmentsResponse]:
    """One question for every ASKED_AT_ONCE partitions; what they cannot find, one named twice, is refused here."""
    wanted: list[Reassignment] = []
    for topic in request.topics:
        wanted += (Reassignment(topic.name, each.partition_index, each.replicas) for each in topic.partitions)
        yield None
    allowed = request.allow_replication_factor_change
    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MS_MAX))
    times = Counter((each.topic, each.partition) for each in wanted)
    found: dict[tuple[str, int], PartitionOutcome] = {}
    for part in chunks([each for each in wanted if times[each.topic, each.partition] == 1]):
        answer = yield Ask(AlterReassignments(tuple(part), allowed), timeout_ms)
        for outcome in outcomes_of(answer, ((each.topic, each.partition) for each in part)):
            found[outcome.topic, outcome.partition] = outcome
    outcomes = [
        found.get((each.topic, each.partition)) or _named_twice(each.topic, each.partition) for each in wanted
    ]
    responses = yield from in_pieces(_response, by_topic(outcomes).items())
    return AlterPartitionReassignmentsResponse(responses, allow_replication_factor_change=allowed)


def _named_twice(topic: str, partition: int) -> PartitionOutcome:
    return PartitionOutcome(
        topic, partition, int(ErrorCode.INVALID_REQUEST), "The partition is named more than once."
    )


def _response(of_topic: tuple[str, list[PartitionOutcome]]) -> ReassignableTopicResponse:
    topic, outcomes = of_topic
    return ReassignableTopicResponse(
        topic,
        tuple(ReassignablePartitionResponse(each.partition, each.error, sentence(each)) for each in outcomes),
    )
