"""DeleteTopics 1-6: by name or by id; answers when no worker serves the topic any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from appliance.channels.control_channel import DeleteTopics, TopicOutcome, TopicOutcomes
from appliance.protocol.apis.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.create_topics import TIMEOUT_MS_MAX
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps, chunks

STRICT_FROM_VERSION = 5
"""As in `create_topics`."""


def delete_topics(request: DeleteTopicsRequest, view: LocalView) -> Steps[DeleteTopicsResponse]:
    """One question for every ASKED_AT_ONCE topics; a topic named twice is refused here.

    Ids are the controller's to resolve: by the image here, an id could be taken for the name of its successor.
    """
    if not view.settings.broker.delete_topic_enable:
        disabled = ErrorCode.TOPIC_DELETION_DISABLED
        return DeleteTopicsResponse(
            tuple(
                DeletableTopicResult(t.name, t.topic_id, disabled, disabled.message) for t in request.topics
            )
        )
    results = [
        DeletableTopicResult(
            None, None, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."
        )
        for topic in request.topics
        if topic.topic_id is None and topic.name is None
    ][:1]
    topics = view.image.topics
    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MS_MAX))
    names = Counter(t.name for t in request.topics if t.topic_id is None and t.name is not None)
    yield None
    topic_ids = Counter(topic.topic_id for topic in request.topics if topic.topic_id is not None)
    yield None
    results += [_named_twice(name, None) for name, times in names.items() if times > 1]
    results += [_named_twice(None, topic_id) for topic_id, times in topic_ids.items() if times > 1]
    client = view.mutating(is_strict=view.version >= STRICT_FROM_VERSION)
    late = TopicOutcome("", int(ErrorCode.REQUEST_TIMED_OUT))
    for part in chunks([name for name, times in names.items() if times == 1]):
        known = {name: topic.topic_id for name in part if (topic := topics.get(name)) is not None}
        outcomes = _outcomes((yield Ask(DeleteTopics(tuple(part), client=client), timeout_ms)), view)
        of_name = {outcome.name: outcome for outcome in outcomes}
        results += [_result(name, known.get(name), of_name.get(name, late)) for name in part]
    for ids in chunks([topic_id for topic_id, times in topic_ids.items() if times == 1]):
        question = DeleteTopics(topic_ids=tuple(ids), client=client)
        outcomes = _outcomes((yield Ask(question, timeout_ms)), view)
        of_id = {outcome.topic_id: outcome for outcome in outcomes}
        for topic_id in ids:
            outcome = of_id.get(topic_id, late)
            results.append(_result(outcome.name or None, topic_id, outcome))
    return DeleteTopicsResponse(tuple(results))


def _outcomes(answer: object, view: LocalView) -> Sequence[TopicOutcome]:
    if not isinstance(answer, TopicOutcomes):
        return ()
    view.mutated(answer)
    return answer.outcomes


def _named_twice(name: str | None, topic_id: UUID | None) -> DeletableTopicResult:
    return DeletableTopicResult(name, topic_id, ErrorCode.INVALID_REQUEST, "Duplicate topic in the request.")


def _result(name: str | None, topic_id: UUID | None, outcome: TopicOutcome) -> DeletableTopicResult:
    error = ErrorCode(outcome.error)
    return DeletableTopicResult(name, topic_id, error, (outcome.message or error.message) if error else None)
