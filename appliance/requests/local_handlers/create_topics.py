"""CreateTopics 2-7: the controller decides; answers when the workers serve the partitions."""

from __future__ import annotations

from collections import Counter

from appliance.channels.control_channel import CreateTopics, NewTopic, TopicOutcome, TopicOutcomes
from appliance.config import describe_topic
from appliance.protocol.apis.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatedTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps, chunks, in_pieces

TIMEOUT_MS_MAX = 60_000
STRICT_FROM_VERSION = 6
"""What is over the quota of the client is refused; older versions are throttled (KIP-599)."""


def create_topics(request: CreateTopicsRequest, view: LocalView) -> Steps[CreateTopicsResponse]:
    """One question for every ASKED_AT_ONCE topics. What they and a map cannot hold is refused here: a topic named
    twice, a partition assigned twice."""
    names = Counter(topic.name for topic in request.topics)
    asked: list[NewTopic] = []
    refused = [_named_twice(name) for name, times in names.items() if times > 1]
    for number, topic in enumerate(request.topics, 1):
        if names[topic.name] == 1:
            twice = _twice(topic)
            if twice is None:
                asked.append(_new_topic(topic))
            else:
                refused.append(_assigned_twice(topic, twice))
        if not number % 64:
            yield None
    results = refused
    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MS_MAX))
    client = view.mutating(is_strict=view.version >= STRICT_FROM_VERSION)
    left = view.settings.broker.max_partitions_per_request
    for topics in chunks(asked):
        question = CreateTopics(tuple(topics), request.validate_only, partitions_left=left, client=client)
        answer = yield Ask(question, timeout_ms)
        if not isinstance(answer, TopicOutcomes):
            results += map(_late, topics)
            continue
        view.mutated(answer)
        left -= sum(outcome.partitions for outcome in answer.outcomes if not outcome.error)
        results += yield from in_pieces(lambda outcome: _result(outcome, view), answer.outcomes, piece=4)
    return CreateTopicsResponse(tuple(results))


def _late(topic: NewTopic) -> CreatableTopicResult:
    late = ErrorCode.REQUEST_TIMED_OUT
    return CreatableTopicResult(topic.name, error_code=late, error_message=late.message)


def _named_twice(name: str) -> CreatableTopicResult:
    """As the controller says of what stands twice in one question."""
    return CreatableTopicResult(
        name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name."
    )


def _twice(topic: CreatableTopic) -> int | None:
    """A partition that has two assignments."""
    seen: set[int] = set()
    for assignment in topic.assignments:
        if assignment.partition_index in seen:
            return assignment.partition_index
        seen.add(assignment.partition_index)
    return None


def _assigned_twice(topic: CreatableTopic, partition: int) -> CreatableTopicResult:
    return CreatableTopicResult(
        topic.name,
        error_code=ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        error_message=f"Found multiple manual partition assignments for partition {partition}",
    )


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {a.partition_index: a.broker_ids for a in topic.assignments},
        {c.name: c.value for c in topic.configs},
    )


def _result(outcome: TopicOutcome, view: LocalView) -> CreatableTopicResult:
    if outcome.error:
        return CreatableTopicResult(
            outcome.name,
            error_code=outcome.error,
            error_message=outcome.message or ErrorCode(outcome.error).message,
        )
    entries = describe_topic(view.settings, outcome.configs, view.broker_configs(view.slot))
    return CreatableTopicResult(
        outcome.name,
        outcome.topic_id,
        num_partitions=outcome.partitions,
        replication_factor=outcome.replication_factor,
        configs=tuple(
            CreatedTopicConfig(e.name, e.value, e.read_only, int(e.source), e.sensitive) for e in entries
        ),
    )
