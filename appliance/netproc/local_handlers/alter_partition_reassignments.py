"""AlterPartitionReassignments 0-1: the controller decides, partition by partition; answers when they have begun."""

from __future__ import annotations

from appliance.channels.control_channel import AlterReassignments, Body, Reassignment
from appliance.netproc.local_handlers.partition_answers import TIMEOUT_MS_MAX, by_topic, outcomes_of, sentence
from appliance.netproc.local_handlers.view import AskController, LocalView
from appliance.protocol.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, _view: LocalView
) -> AskController | AlterPartitionReassignmentsResponse:
    """One question for the whole request."""
    asked = tuple(
        Reassignment(topic.name, each.partition_index, each.replicas)
        for topic in request.topics
        for each in topic.partitions
    )
    allowed = request.allow_replication_factor_change
    if not asked:
        return AlterPartitionReassignmentsResponse((), allow_replication_factor_change=allowed)

    def then(answers: tuple[Body | None, ...]) -> AlterPartitionReassignmentsResponse:
        outcomes = outcomes_of(answers[0], ((each.topic, each.partition) for each in asked))
        return AlterPartitionReassignmentsResponse(
            tuple(
                ReassignableTopicResponse(
                    topic,
                    tuple(
                        ReassignablePartitionResponse(each.partition, each.error, sentence(each))
                        for each in of_topic
                    ),
                )
                for topic, of_topic in by_topic(outcomes).items()
            ),
            allow_replication_factor_change=allowed,
        )

    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MS_MAX))
    return AskController((AlterReassignments(asked, allowed),), then, timeout_ms)
