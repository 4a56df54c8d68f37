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
    """One question for the whole request."""
    if not request.topics:
        return CreateTopicsResponse(())

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
        return CreateTopicsResponse(tuple(_result(outcome, view) for outcome in answer.outcomes))

    topics = tuple(map(_new_topic, request.topics))
    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MS_MAX))
    return AskController((CreateTopics(topics, request.validate_only),), then, timeout_ms)


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
