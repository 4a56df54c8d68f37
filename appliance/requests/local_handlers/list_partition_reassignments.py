"""ListPartitionReassignments 0: answered from the image. What is not being reassigned, or not there, is left out."""

from __future__ import annotations

from appliance.cluster import TopicImage
from appliance.protocol.apis.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps, in_pieces


def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, view: LocalView
) -> Steps[ListPartitionReassignmentsResponse]:
    topics = view.image.topics
    if request.topics is None:
        listed = yield from in_pieces(lambda topic: _ongoing(topic, None), topics.values())
    else:
        listed = yield from in_pieces(
            lambda each: _ongoing(topics[each.name], frozenset(each.partition_indexes)),
            (each for each in request.topics if each.name in topics),
        )
    return ListPartitionReassignmentsResponse(tuple(each for each in listed if each.partitions))


def _ongoing(topic: TopicImage, wanted: frozenset[int] | None) -> OngoingTopicReassignment:
    return OngoingTopicReassignment(
        topic.name,
        tuple(
            OngoingPartitionReassignment(each.partition, each.replicas, each.adding, each.removing)
            for each in topic.partitions
            if (each.adding or each.removing) and (wanted is None or each.partition in wanted)
        ),
    )
