"""Refuse settings of a topic that Kafka refuses, when a topic is created or altered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from appliance.config.declaration import Value, unknown_name
from appliance.config.retry_configs import check_retry_configs
from appliance.config.topic_configs import TOPIC_CONFIGS
from appliance.errors import ConfigurationError

COMPACTION_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")
VALUE_LENGTH_MAX: Final = 1 << 18
"""Characters of one value. Kafka has no bound of its own; here every process reads the image that holds them."""

_THROTTLED = re.compile(r"(?:[0-9]+:[0-9]+)(?:,[0-9]+:[0-9]+)*")


def validate_topic_configs(
    configs: Mapping[str, str | None], defaults: Mapping[str, str] | None = None, *, can_delay: bool = True
) -> None:
    """Refuses what Kafka refuses when a topic is created or altered.

    Values are taken as they come over the wire: plain numbers, no units. None (Kafka: null) is refused.
    `defaults` are what counts where `configs` say nothing: see `topic_defaults`. `can_delay`: there are services
    processes, which delayed delivery, audit and trace need.

    Raises:
        ConfigurationError: naming the setting and what is allowed; for an unknown name, the nearest one.
    """
    parsed: dict[str, Value] = {}
    for name, text in configs.items():
        declaration = TOPIC_CONFIGS.get(name)
        if declaration is None:
            raise unknown_name(name, TOPIC_CONFIGS, kind="topic setting")
        if text is None:
            raise ConfigurationError(f"{name}: the value must not be null")
        if len(text) > VALUE_LENGTH_MAX:
            raise ConfigurationError(
                f"{name}: the value has {len(text)} characters, the maximum is {VALUE_LENGTH_MAX}"
            )
        parsed[name] = declaration.parse(text, exact=True)
        if name.endswith("throttled.replicas") and text not in {"", "*"} and not _THROTTLED.fullmatch(text):
            raise ConfigurationError(f"{name} = {text[:100]!r}: must be partition:broker pairs, or *")
    if parsed.get("remote.storage.enable"):
        raise ConfigurationError("remote.storage.enable = 'true': the appliance has no remote storage")
    check_retry_configs(parsed)
    if parsed.get("delivery.delay.enable") and not can_delay:
        raise ConfigurationError(
            "delivery.delay.enable = 'true': start the appliance with services.processes = 1"
        )
    for name in ("audit.enable", "trace.enable"):
        if parsed.get(name) and not can_delay:
            raise ConfigurationError(f"{name} = 'true': start the appliance with services.processes = 1")
    for name in COMPACTION_LAGS:
        parsed.setdefault(
            name, TOPIC_CONFIGS[name].parse((defaults or {}).get(name, TOPIC_CONFIGS[name].default))
        )
    soonest, latest = (parsed[name] for name in COMPACTION_LAGS)
    if isinstance(soonest, int) and isinstance(latest, int) and soonest > latest:
        raise ConfigurationError(
            f"min.compaction.lag.ms = {soonest}: must not be above max.compaction.lag.ms = {latest}"
        )
