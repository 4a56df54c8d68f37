"""What the settings of a retry topic ask: which group, which levels, how often, and where dead letters go.

A retry topic has `retry.group`. Its dead-letter topic is named by `retry.dead.letter.topic`, and must name the retry
topic in turn, by `dead.letter.retry.topic`. So a user who may change the settings of one topic cannot make the broker
write to another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from appliance.config.retry_configs import (
    DEAD_LETTER_OF,
    RETRY_DEAD_LETTERS,
    RETRY_ENABLE,
    RETRY_GROUP,
    RETRY_LEVELS,
    RETRY_MAX,
    RETRY_ORDERED,
    RETRY_TOPIC,
)
from appliance.config.sections.services import level_delays_ms

RECORD_BYTES_MAX: Final = 3 << 20
"""The largest record that can be handed back, with its headers."""


class DeadLetters(NamedTuple):
    """Where dead letters go."""

    topic_id: UUID
    partitions: int


class RetryRules(NamedTuple):
    """`dead_letters` is None if the topic does not exist, or does not name the retry topic.

    `topic_id`, `name`, `partitions`: of the retry topic. `source`: the topic whose records it retries; `source_id`: the
    id that it has now, "" if it does not exist.
    """

    topic_id: UUID
    name: str
    partitions: int
    source: str
    group: str
    levels_ms: tuple[int, ...]
    retries_max: int
    is_enabled: bool
    dead_letters: DeadLetters | None
    is_ordered: bool = False
    source_id: str = ""


def is_retry_topic(configs: Mapping[str, str]) -> bool:
    """Return whether records that are produced to a topic with these settings are handed back by a group."""
    return bool(configs.get(RETRY_GROUP))


def rules_of(
    name: str,
    topic_id: UUID,
    partitions: int,
    configs: Mapping[str, str],
    dead_letters: DeadLetters | None,
    *,
    source_id: str = "",
) -> RetryRules:
    """Return the rules of a retry topic.

    Args:
        configs: the settings that count for the topic, all of them.
        dead_letters: see `takes_dead_letters_of`.
        source_id: see `RetryRules`.
    """
    levels = tuple(each.strip() for each in configs[RETRY_LEVELS].split(","))
    return RetryRules(
        topic_id,
        name,
        partitions,
        configs[RETRY_TOPIC],
        configs[RETRY_GROUP],
        level_delays_ms(RETRY_LEVELS, levels),
        int(configs[RETRY_MAX]),
        configs[RETRY_ENABLE].strip().lower() == "true",
        dead_letters,
        configs[RETRY_ORDERED].strip().lower() == "true",
        source_id,
    )


def dead_letters_name(configs: Mapping[str, str]) -> str:
    """Return the name of the dead-letter topic; empty if none is set."""
    return configs.get(RETRY_DEAD_LETTERS, "")


def source_name(configs: Mapping[str, str]) -> str:
    """Return the name of the topic whose records a retry topic retries; empty if none is set."""
    return configs.get(RETRY_TOPIC, "")


def takes_dead_letters_of(configs: Mapping[str, str], retry_topic: str) -> bool:
    """Return whether a topic with these settings is the dead-letter topic of `retry_topic`."""
    return configs.get(DEAD_LETTER_OF) == retry_topic
