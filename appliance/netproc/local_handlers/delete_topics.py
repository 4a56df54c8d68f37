"""DeleteTopics 1-6: by name or by id; answers when no worker serves the topic any more."""

from __future__ import annotations

from uuid import UUID

from appliance.channels.control_channel import Body, DeleteTopics, TopicOutcome, TopicOutcomes
from appliance.netproc.local_handlers.create_topics import TIMEOUT_MS_MAX
from appliance.netproc.local_handlers.view import AskController, LocalView
from appliance.protocol.apis.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from appliance.protocol.errors import ErrorCode


def delete_topics(request: DeleteTopicsRequest, view: LocalView) -> DeleteTopicsResponse | AskController:
    """One question for the whole request. Ids are the controller's to resolve: by the image here, an id could be
    taken for the name of its successor."""
    if not view.settings.broker.delete_topic_enable:
        disabled = ErrorCode.TOPIC_DELETION_DISABLED
        return DeleteTopicsResponse(
            tuple(
                DeletableTopicResult(t.name, t.topic_id, disabled, disabled.message) for t in request.topics
            )
        )
    topic_ids = tuple(topic.topic_id for topic in request.topics if topic.topic_id is not None)
    names = tuple(topic.name for topic in request.topics if topic.topic_id is None and topic.name is not None)
    refused = tuple(
        DeletableTopicResult(
            None, None, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."
        )
        for topic in request.topics
        if topic.topic_id is None and topic.name is None
    )[:1]
    if not topic_ids and not names:
        return DeleteTopicsResponse(refused)
    known = {name: topic.topic_id for name in names if (topic := view.image.topics.get(name)) is not None}

    def then(answers: tuple[Body | None, ...]) -> DeleteTopicsResponse:
        answer = answers[0]
        outcomes = answer.outcomes if isinstance(answer, TopicOutcomes) else ()
        late = TopicOutcome("", int(ErrorCode.REQUEST_TIMED_OUT))
        of_name = {outcome.name: outcome for outcome in outcomes}
        of_id = {outcome.topic_id: outcome for outcome in outcomes}
        by_name = [_result(name, known.get(name), of_name.get(name, late)) for name in dict.fromkeys(names)]
        by_id = [
            _result(outcome.name or None, topic_id, outcome)
            for topic_id in dict.fromkeys(topic_ids)
            for outcome in [of_id.get(topic_id, late)]
        ]
        return DeleteTopicsResponse((*refused, *by_name, *by_id))

    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MS_MAX))
    return AskController((DeleteTopics(names, topic_ids),), then, timeout_ms)


def _result(name: str | None, topic_id: UUID | None, outcome: TopicOutcome) -> DeletableTopicResult:
    error = ErrorCode(outcome.error)
    return DeletableTopicResult(name, topic_id, error, (outcome.message or error.message) if error else None)
