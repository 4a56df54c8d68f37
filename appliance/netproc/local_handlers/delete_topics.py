"""DeleteTopics 1-6: by name or by id; answers when no worker serves the topic any more."""

from __future__ import annotations

from uuid import UUID

from appliance.channels.control_channel import Body, DeleteTopics, TopicOutcomes
from appliance.netproc.local_handlers.create_topics import TIMEOUT_MS_MAX
from appliance.netproc.local_handlers.view import AskController, LocalView
from appliance.protocol.apis.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from appliance.protocol.errors import ErrorCode


def delete_topics(request: DeleteTopicsRequest, view: LocalView) -> DeleteTopicsResponse | AskController:
    """Ids are resolved here, by the image; one question for the whole request."""
    if not view.settings.broker.delete_topic_enable:
        disabled = ErrorCode.TOPIC_DELETION_DISABLED
        return DeleteTopicsResponse(
            tuple(
                DeletableTopicResult(t.name, t.topic_id, disabled, disabled.message) for t in request.topics
            )
        )
    named: list[tuple[str | None, UUID | None]] = []
    for selector in request.topics:
        if selector.topic_id is None:
            known = view.image.topics.get(selector.name or "")
            named.append((selector.name, known.topic_id if known is not None else None))
        else:
            route = view.routes.by_id(selector.topic_id)
            named.append((route.image.name if route is not None else None, selector.topic_id))
    names = tuple(name for name, _ in named if name is not None)
    if not names:
        return DeleteTopicsResponse(tuple(_result(name, topic_id, {}) for name, topic_id in named))

    def then(answers: tuple[Body | None, ...]) -> DeleteTopicsResponse:
        answer = answers[0]
        late = int(ErrorCode.REQUEST_TIMED_OUT)
        errors: dict[str, tuple[int, str | None]] = dict.fromkeys(names, (late, None))
        if isinstance(answer, TopicOutcomes):
            errors = {outcome.name: (outcome.error, outcome.message) for outcome in answer.outcomes}
        return DeleteTopicsResponse(tuple(_result(name, topic_id, errors) for name, topic_id in named))

    return AskController((DeleteTopics(names),), then, max(1, min(request.timeout_ms, TIMEOUT_MS_MAX)))


def _result(
    name: str | None, topic_id: UUID | None, errors: dict[str, tuple[int, str | None]]
) -> DeletableTopicResult:
    if name is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_ID, None
    else:
        code, message = errors.get(name, (int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None))
        error = ErrorCode(code)
    return DeletableTopicResult(name, topic_id, error, (message or error.message) if error else None)
