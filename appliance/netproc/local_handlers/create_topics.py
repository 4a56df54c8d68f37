"""CreateTopics 2-7: the controller decides; answers when the workers serve the partitions."""

from __future__ import annotations

from appliance.channels.control_channel import Body, CreateTopics, NewTopic, TopicOutcome, TopicOutcomes
from appliance.config import describe_topic
from appliance.netproc.local_handlers.view import AskController, LocalView
from appliance.protocol.apis.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatedTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from appliance.protocol.errors import ErrorCode

TIMEOUT_MS_MAX = 60_000


def create_topics(request: CreateTopicsRequest, view: LocalView) -> AskController | CreateTopicsResponse:
    """One question for the whole request. What a map cannot hold is refused here: a partition assigned twice."""
    refused = tuple(
        _assigned_twice(topic, twice) for topic in request.topics if (twice := _twice(topic)) is not None
    )
    asked = tuple(topic for topic in request.topics if _twice(topic) is None)
    if not asked:
        return CreateTopicsResponse(refused)

    def then(answers: tuple[Body | None, ...]) -> CreateTopicsResponse:
        answer = answers[0]
        if not isinstance(answer, TopicOutcomes):
            late = ErrorCode.REQUEST_TIMED_OUT
            return CreateTopicsResponse(
                tuple(
                    CreatableTopicResult(t.name, error_code=late, error_message=late.message)
                    for t in request.topics
                )
            )
        return CreateTopicsResponse((*refused, *(_result(outcome, view) for outcome in answer.outcomes)))

    topics = tuple(map(_new_topic, asked))
    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MS_MAX))
    return AskController((CreateTopics(topics, request.validate_only),), then, timeout_ms)


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
