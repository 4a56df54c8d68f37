"""Metadata 0-13: brokers, topics by name or id, auto-creation.

A topic that does not exist is created first when client and broker allow it, so the answer already names its
leader (Kafka answers an error and lets the client ask again). A partition whose worker is being restarted keeps its
leader: it will be back before the client has asked again. One whose storage failed has no leader, and its slot is
among the offline replicas.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from uuid import UUID

from appliance.audit.changes import TOPIC
from appliance.audit.entry import resource
from appliance.channels.control_channel import CreateTopics, NewTopic, TopicOutcomes
from appliance.cluster import NO_LEADER, PartitionImage, TopicImage, topic_name_fault
from appliance.config.retry_configs import DEAD_LETTER_OF
from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.apis.metadata import (
    UNKNOWN_OPERATIONS,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.retry_names import RETRY_SUFFIX
from appliance.requests.local_handlers.new_topics import new_topic
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps, in_pieces

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


def metadata(request: MetadataRequest, view: LocalView) -> Steps[MetadataResponse]:
    """The answer, after the creation of what is missing and may be created."""
    missing = yield from _missing(request, view)
    errors = dict.fromkeys(missing, int(ErrorCode.LEADER_NOT_AVAILABLE))
    # A client asks again for what has no leader yet, and the next ones are created then.
    topics = tuple(islice(missing.values(), view.settings.broker.auto_create_topics_per_request))
    if topics:
        client = view.mutating(is_strict=False)
        answer = yield Ask(CreateTopics(topics, automatic=True, client=client), CREATE_TIMEOUT_MS)
        if isinstance(answer, TopicOutcomes):
            view.mutated(answer)
            errors.update({outcome.name: outcome.error for outcome in answer.outcomes})
            if view.audited is not None:
                created = [
                    resource(TOPIC, outcome.name, outcome.error, {"automatic": "true"})
                    for outcome in answer.outcomes
                ]
                yield from view.audited.changed(created)
    response = yield from _respond(request, view, errors)
    return response


def _missing(request: MetadataRequest, view: LocalView) -> Steps[dict[str, NewTopic]]:
    """What does not exist and may be created, by name."""
    missing: dict[str, NewTopic] = {}
    if not (request.allow_auto_topic_creation and _creates(view)):
        return missing
    topics = view.image.topics
    for number, selector in enumerate(request.topics or (), 1):
        name = selector.name
        if (
            selector.topic_id is None
            and name is not None
            and name not in topics
            and topic_name_fault(name) is None
            and view.sees(name)
            and view.creates(name)
            and (topic := new_topic(name, view.settings)) is not None
            and not _is_of_retries(name, view)
        ):
            missing[name] = topic
        if not number % 64:
            yield None
    return missing


def _respond(request: MetadataRequest, view: LocalView, errors: dict[str, int]) -> Steps[MetadataResponse]:
    image = view.image
    return MetadataResponse(
        brokers=tuple(MetadataBroker(s.node_id, s.host, s.port, s.rack) for s in view.brokers()),
        topics=(yield from _topics(request, view, errors)),
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        cluster_authorized_operations=(
            view.cluster_operations() if request.include_cluster_authorized_operations else UNKNOWN_OPERATIONS
        ),
    )


def _topics(
    request: MetadataRequest, view: LocalView, errors: dict[str, int]
) -> Steps[tuple[MetadataTopic, ...]]:
    with_operations = request.include_topic_authorized_operations
    listed: list[MetadataTopic] = []
    for number, each in enumerate(_wanted(request, view, errors), 1):
        listed.append(
            each
            if isinstance(each, MetadataTopic)
            else (yield from _topic(each, view, with_operations=with_operations))
        )
        if not number % 16:
            yield None
    return tuple(listed)


def _wanted(
    request: MetadataRequest, view: LocalView, errors: dict[str, int]
) -> Iterable[TopicImage | MetadataTopic]:
    """The topics to be described, and what is said of others instead."""
    image = view.image
    if request.topics is None:
        yield from (topic for topic in image.topics.values() if view.sees(topic.name))
        return
    # Each once: a topic of many partitions, named over and over, would make a small request worth gigabytes.
    seen: set[UUID | str | None] = set()
    for selector in request.topics:
        key = selector.topic_id or selector.name
        if key in seen:
            continue
        seen.add(key)
        if selector.topic_id is not None:
            route = view.routes.by_id(selector.topic_id)
            if route is None or not view.sees(route.image.name):
                # Who may not know of a topic learns nothing from its id.
                yield MetadataTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, selector.topic_id)
            else:
                yield route.image
            continue
        name = selector.name or ""
        if not view.sees_named(name):
            yield MetadataTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
            continue
        known = image.topics.get(name)
        if known is not None:
            yield known
            continue
        error = errors.get(name, 0) or int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic_name_fault(name) is not None:
            error = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
        elif error == ErrorCode.TOPIC_ALREADY_EXISTS:
            error = int(ErrorCode.LEADER_NOT_AVAILABLE)  # somebody else's creation is not published yet
        elif request.allow_auto_topic_creation and _creates(view) and not view.creates(name):
            error = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if view.audited is not None:
                view.audited.denied(AclOperation.CREATE, ResourceType.TOPIC, name)
        # Kafka tells the rights to a topic that does not exist, too.
        operations = (
            view.topic_operations(name)
            if request.include_topic_authorized_operations and error != ErrorCode.INVALID_TOPIC_EXCEPTION
            else UNKNOWN_OPERATIONS
        )
        yield MetadataTopic(error, name, topic_authorized_operations=operations)


def _is_of_retries(name: str, view: LocalView) -> bool:
    """Whether a dead-letter topic names the missing topic: as an ordinary topic it would give records back at once."""
    return name.endswith(RETRY_SUFFIX) and any(
        topic.configs.get(DEAD_LETTER_OF) == name for topic in view.image.topics.values()
    )


def _creates(view: LocalView) -> bool:
    return view.settings.broker.auto_create_topics_enable


def _topic(topic: TopicImage, view: LocalView, *, with_operations: bool) -> Steps[MetadataTopic]:
    operations = view.topic_operations(topic.name) if with_operations else UNKNOWN_OPERATIONS
    partitions = yield from in_pieces(lambda each: _partition(each, view), topic.partitions)
    return MetadataTopic(0, topic.name, topic.topic_id, topic.internal, partitions, operations)


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
