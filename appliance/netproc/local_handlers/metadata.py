"""Metadata 0-13: brokers, topics by name or id, auto-creation.

A topic that does not exist is created first when client and broker allow it, so the answer already names its
leader (Kafka answers an error and lets the client ask again). A partition whose worker is being restarted keeps its
leader: it will be back before the client has asked again. One whose storage failed has no leader, and its slot is
among the offline replicas.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.channels.control_channel import Body, CreateTopics, NewTopic, TopicOutcomes
from appliance.cluster import NO_LEADER, PartitionImage, TopicImage, topic_name_fault
from appliance.netproc.local_handlers.new_topics import new_topic
from appliance.netproc.local_handlers.view import (
    CLUSTER_OPERATIONS,
    TOPIC_OPERATIONS,
    AskController,
    LocalView,
)
from appliance.protocol.apis.metadata import (
    UNKNOWN_OPERATIONS,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from appliance.protocol.errors import ErrorCode

CREATE_TIMEOUT_MS = 10_000

WITH_MEANINGLESS_IDS = (10, 11)
"""Versions whose questions have a topic id that must not be used; their answers could not say "no such id"."""


def asked_by_id(request: MetadataRequest, version: int) -> MetadataResponse | None:
    """Return INVALID_REQUEST for each topic, and no brokers, where a version asks in a way that it must not.

    As Apache Kafka 4.3. None: the question is a good one.
    """
    topics = request.topics or ()
    if version not in WITH_MEANINGLESS_IDS or all(
        topic.topic_id is None and topic.name is not None for topic in topics
    ):
        return None
    refused = tuple(
        MetadataTopic(ErrorCode.INVALID_REQUEST, topic.name or "", topic.topic_id) for topic in topics
    )
    return MetadataResponse((), refused, cluster_id=None, controller_id=NO_LEADER)


def metadata(request: MetadataRequest, view: LocalView) -> MetadataResponse | AskController:
    """The answer, or first the creation of what is missing and may be created."""
    missing = _to_create(request, view)
    if not missing:
        return _respond(request, view, {})
    topics = tuple(missing.values())

    def then(answers: tuple[Body | None, ...]) -> MetadataResponse:
        errors = dict.fromkeys(missing, int(ErrorCode.LEADER_NOT_AVAILABLE))
        answer = answers[0]
        if isinstance(answer, TopicOutcomes):
            errors.update({outcome.name: outcome.error for outcome in answer.outcomes})
        return _respond(request, view, errors)

    return AskController((CreateTopics(topics, automatic=True),), then, CREATE_TIMEOUT_MS)


def _to_create(request: MetadataRequest, view: LocalView) -> dict[str, NewTopic]:
    if not (request.allow_auto_topic_creation and view.settings.broker.auto_create_topics_enable):
        return {}
    topics = view.image.topics
    return {
        topic.name: topic
        for selector in request.topics or ()
        if selector.topic_id is None
        and selector.name is not None
        and selector.name not in topics
        and topic_name_fault(selector.name) is None
        and (topic := new_topic(selector.name, view.settings)) is not None
    }


def _respond(request: MetadataRequest, view: LocalView, errors: dict[str, int]) -> MetadataResponse:
    image = view.image
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else UNKNOWN_OPERATIONS
    return MetadataResponse(
        brokers=tuple(MetadataBroker(s.node_id, s.host, s.port, s.rack) for s in view.brokers()),
        topics=tuple(_topics(request, view, errors, operations)),
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else UNKNOWN_OPERATIONS
        ),
    )


def _topics(
    request: MetadataRequest, view: LocalView, errors: dict[str, int], operations: int
) -> Iterable[MetadataTopic]:
    image = view.image
    if request.topics is None:
        for topic in image.topics.values():
            yield _topic(topic, view, operations)
        return
    # Each once: a topic of many partitions, named over and over, would make a small request worth gigabytes.
    for selector in {selector.topic_id or selector.name: selector for selector in request.topics}.values():
        if selector.topic_id is not None:
            route = view.routes.by_id(selector.topic_id)
            if route is None:
                yield MetadataTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, selector.topic_id)
            else:
                yield _topic(route.image, view, operations)
            continue
        name = selector.name or ""
        known = image.topics.get(name)
        if known is not None:
            yield _topic(known, view, operations)
            continue
        error = errors.get(name, 0) or int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic_name_fault(name) is not None:
            error = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
        elif error == ErrorCode.TOPIC_ALREADY_EXISTS:
            error = int(ErrorCode.LEADER_NOT_AVAILABLE)  # somebody else's creation is not published yet
        yield MetadataTopic(error, name)


def _topic(topic: TopicImage, view: LocalView, operations: int) -> MetadataTopic:
    return MetadataTopic(
        0,
        topic.name,
        topic.topic_id,
        topic.internal,
        tuple(_partition(each, view) for each in topic.partitions),
        operations,
    )


def _partition(image: PartitionImage, view: LocalView) -> MetadataPartition:
    offline = view.offline_replicas(image)
    leader = NO_LEADER if offline else image.leader
    return MetadataPartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else 0,
        partition_index=image.partition,
        leader_id=leader,
        leader_epoch=image.leader_epoch,
        replica_nodes=image.replicas,
        isr_nodes=image.isr,
        offline_replicas=offline,
    )
