"""Answers about partitions, by topic: how questions for the controller are cut, and its answers laid together."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.channels.control_channel import Body, PartitionOutcome, PartitionOutcomes
from appliance.protocol.errors import ErrorCode

TIMEOUT_MS_MAX = 60_000


def outcomes_of(answer: Body | None, asked: Iterable[tuple[str, int]]) -> tuple[PartitionOutcome, ...]:
    """What the controller says; where it does not, REQUEST_TIMED_OUT for each that was asked."""
    if isinstance(answer, PartitionOutcomes):
        return answer.outcomes
    late = ErrorCode.REQUEST_TIMED_OUT
    return tuple(PartitionOutcome(topic, number, int(late), late.message) for topic, number in asked)


def by_topic(outcomes: Iterable[PartitionOutcome]) -> dict[str, list[PartitionOutcome]]:
    """In the order in which topics are named first; every error has a sentence."""
    topics: dict[str, list[PartitionOutcome]] = {}
    for each in outcomes:
        topics.setdefault(each.topic, []).append(each)
    return topics


def sentence(outcome: PartitionOutcome) -> str | None:
    """What is said beside the error code."""
    if not outcome.error:
        return None
    return outcome.message or ErrorCode(outcome.error).message
