"""The topic settings of retries and dead letters, and which of them fit together (docs/retries.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.config.declaration import Value
from appliance.config.sections.services import level_delays_ms
from appliance.errors import ConfigurationError

RETRY_DEAD_LETTERS: Final = "retry.dead.letter.topic"
RETRY_ENABLE: Final = "retry.enable"
RETRY_GROUP: Final = "retry.group"
RETRY_LEVELS: Final = "retry.levels"
RETRY_MAX: Final = "retry.max"
RETRY_ORDERED: Final = "retry.ordered"
RETRY_ORDERED_BY_KEY: Final = "retry.ordered.by.key"
RETRY_TOPIC: Final = "retry.topic"
DEAD_LETTER_OF: Final = "dead.letter.retry.topic"
_DELAY: Final = "delivery.delay.enable"
_TOGETHER: Final = (RETRY_TOPIC, RETRY_DEAD_LETTERS)


def check_retry_configs(configs: Mapping[str, Value]) -> None:
    """Check the settings of one topic.

    Args:
        configs: what was set for the topic, parsed.

    Raises:
        ConfigurationError: a level is no duration, or a setting is missing that another one needs.
    """
    levels = configs.get(RETRY_LEVELS)
    if isinstance(levels, tuple):
        if not levels:
            raise ConfigurationError(f"{RETRY_LEVELS}: there must be a level, such as 5s")
        level_delays_ms(RETRY_LEVELS, levels)
    if configs.get(RETRY_ORDERED_BY_KEY) and not configs.get(RETRY_ORDERED):
        raise ConfigurationError(f"{RETRY_ORDERED_BY_KEY}: the topic also needs {RETRY_ORDERED} = true")
    if not configs.get(RETRY_GROUP):
        return
    if not configs.get(_DELAY):
        raise ConfigurationError(
            f"{RETRY_GROUP}: the topic also needs {_DELAY} = true, because the broker delays what it delivers again"
        )
    for name in _TOGETHER:
        if not configs.get(name):
            raise ConfigurationError(f"{RETRY_GROUP}: the topic also needs {name}")
