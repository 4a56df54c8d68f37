"""DescribeTopicPartitions 0: topics in the order of their names, in pages (KIP-966).

Left out: eligible leader replicas (KIP-966), which the broker does not keep. Each response
has empty lists for them, because Kafka's own Java client fails if a list is null.
"""

from __future__ import annotations

from appliance.cluster import NO_LEADER, PartitionImage, TopicImage, topic_name_fault
from appliance.protocol.apis.describe_topic_partitions import (
    DescribedPartition,
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    PartitionCursor,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps


def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, view: LocalView
) -> Steps[DescribeTopicPartitionsResponse]:
    """At most `response_partition_limit` partitions (never more than max.request.partition.size.limit)."""
    topics = view.image.topics
    names = sorted({topic.name for topic in request.topics}) if request.topics else sorted(topics)
    first = 0
    if request.cursor is not None:
        if _leads_nowhere(request.cursor, request):
            refused = ErrorCode.INVALID_REQUEST
            return DescribeTopicPartitionsResponse(
                tuple(DescribedTopic(refused, topic.name) for topic in request.topics)
            )
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first = request.cursor.partition_index
    room = max(1, min(request.response_partition_limit, view.settings.broker.max_partitions_per_request))
    described: list[DescribedTopic] = []
    for number, name in enumerate(names):
        if not number % 32:
            yield None
        topic = topics.get(name)
        if number:
            first = 0
        if not (view.sees_named(name) if request.topics else view.sees(name)):
            if request.topics:
                described.append(DescribedTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name))
            continue
        if topic is None:
            if not request.topics:
                continue
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            illegal = ErrorCode.INVALID_TOPIC_EXCEPTION
            error = illegal if topic_name_fault(name) else unknown
            operations = view.topic_operations(name)
            described.append(DescribedTopic(error, name, topic_authorized_operations=operations))
            continue
        if room == 0:
            return DescribeTopicPartitionsResponse(tuple(described), PartitionCursor(name, first))
        until = min(len(topic.partitions), first + room)
        described.append(_described(topic, view, first=first, until=until))
        room -= max(0, until - first)
        if until < len(topic.partitions):
            return DescribeTopicPartitionsResponse(tuple(described), PartitionCursor(name, until))
    return DescribeTopicPartitionsResponse(tuple(described))


def _leads_nowhere(cursor: PartitionCursor, request: DescribeTopicPartitionsRequest) -> bool:
    """As Kafka's DescribeTopicPartitionsRequestHandler: who asks for all may go on behind a topic that has gone since,
    and nobody else."""
    is_asked_for = not request.topics or any(topic.name == cursor.topic_name for topic in request.topics)
    return cursor.partition_index < 0 or not is_asked_for


def _described(topic: TopicImage, view: LocalView, *, first: int, until: int) -> DescribedTopic:
    return DescribedTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=tuple(_partition(each, view) for each in topic.partitions[first:until]),
        topic_authorized_operations=view.topic_operations(topic.name),
    )


def _partition(image: PartitionImage, view: LocalView) -> DescribedPartition:
    offline = view.offline_replicas(image)
    leader = NO_LEADER if offline else image.leader
    return DescribedPartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else 0,
        partition_index=image.partition,
        leader_id=leader,
        leader_epoch=image.leader_epoch,
        replica_nodes=image.replicas,
        isr_nodes=image.isr,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=offline,
    )
