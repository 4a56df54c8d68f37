"""CreatePartitions 0-3: the controller decides, topic by topic."""

from __future__ import annotations

from collections import Counter

from appliance.channels.control_channel import Body, CreatePartitions, TopicOutcomes
from appliance.netproc.local_handlers.create_topics import TIMEOUT_MS_MAX
from appliance.netproc.local_handlers.view import AskController, LocalView
from appliance.protocol.apis.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    PartitionsTopicResult,
)
from appliance.protocol.errors import ErrorCode


def create_partitions(
    request: CreatePartitionsRequest, _view: LocalView
) -> CreatePartitionsResponse | AskController:
    """A topic that is named twice is refused, as Kafka does; the others are asked for one by one."""
    counts = Counter(topic.name for topic in request.topics)
    asked = [topic for topic in request.topics if counts[topic.name] == 1]
    twice = tuple(
        PartitionsTopicResult(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in counts.items()
        if count > 1
    )
    if not asked:
        return CreatePartitionsResponse(twice)

    def then(answers: tuple[Body | None, ...]) -> CreatePartitionsResponse:
        results = [_result(topic.name, answer) for topic, answer in zip(asked, answers, strict=True)]
        return CreatePartitionsResponse((*results, *twice))

    bodies = tuple(
        CreatePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else tuple(a.broker_ids for a in topic.assignments),
            request.validate_only,
        )
        for topic in asked
    )
    return AskController(bodies, then, max(1, min(request.timeout_ms, TIMEOUT_MS_MAX)))


def _result(name: str, answer: Body | None) -> PartitionsTopicResult:
    if not isinstance(answer, TopicOutcomes):
        late = ErrorCode.REQUEST_TIMED_OUT
        return PartitionsTopicResult(name, late, late.message)
    outcome = answer.outcomes[0]
    if not outcome.error:
        return PartitionsTopicResult(name)
    return PartitionsTopicResult(name, outcome.error, outcome.message or ErrorCode(outcome.error).message)
