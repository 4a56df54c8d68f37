"""CreatePartitions 0-3: the controller decides, topic by topic."""

from __future__ import annotations

from collections import Counter

from appliance.channels.control_channel import Body, CreatePartitions, TopicOutcomes
from appliance.protocol.apis.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    PartitionsTopicResult,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.create_topics import TIMEOUT_MS_MAX
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps

STRICT_FROM_VERSION = 3
"""As in `create_topics`."""


def create_partitions(request: CreatePartitionsRequest, view: LocalView) -> Steps[CreatePartitionsResponse]:
    """A topic that is named twice is refused, as Kafka does; the others are asked for one by one."""
    counts = Counter(topic.name for topic in request.topics)
    yield None
    twice = tuple(
        PartitionsTopicResult(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in counts.items()
        if count > 1
    )
    client = view.mutating(is_strict=view.version >= STRICT_FROM_VERSION)
    timeout_ms = max(1, min(request.timeout_ms, TIMEOUT_MS_MAX))
    results: list[PartitionsTopicResult] = []
    for topic in request.topics:
        if counts[topic.name] == 1:
            assignments = topic.assignments
            question = CreatePartitions(
                topic.name,
                topic.count,
                None if assignments is None else tuple(each.broker_ids for each in assignments),
                request.validate_only,
                client,
            )
            answer = yield Ask(question, timeout_ms)
            if isinstance(answer, TopicOutcomes):
                view.mutated(answer)
            results.append(_result(topic.name, answer))
    return CreatePartitionsResponse((*results, *twice))


def _result(name: str, answer: Body | None) -> PartitionsTopicResult:
    if not isinstance(answer, TopicOutcomes):
        late = ErrorCode.REQUEST_TIMED_OUT
        return PartitionsTopicResult(name, late, late.message)
    outcome = answer.outcomes[0]
    if not outcome.error:
        return PartitionsTopicResult(name)
    return PartitionsTopicResult(name, outcome.error, outcome.message or ErrorCode(outcome.error).message)
