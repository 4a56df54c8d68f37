"""Settings of single groups (KIP-848): what may be set, what members go by, what DescribeConfigs answers.

A setting of a group stands before the option of the same meaning. What was set once is held against the options' range
each time it is used, since a later start may have narrowed it. consumer.assignment.interval.ms is kept and shown, and
nothing acts on it: assignments here follow each change at once. The other settings that Kafka lists, of share and
streams groups, are shown read-only with its defaults, because there are no such groups.

Source: Kafka's `GroupConfig.java`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from appliance.config.declaration import ConfigSource, ConfigType, Declaration, Effect
from appliance.config.describe import ConfigEntry, ConfigSynonym, kafka_entry
from appliance.config.kafka_settings import KafkaSetting, kafka_group_settings
from appliance.config.sections.groups import GroupSettings
from appliance.config.settings import Settings, option_declarations
from appliance.errors import ConfigurationError

SESSION_TIMEOUT_MS: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL_MS: Final = "consumer.assignment.interval.ms"

_KEPT: Final[Mapping[str, Declaration]] = {
    ASSIGNMENT_INTERVAL_MS: Declaration(
        name=ASSIGNMENT_INTERVAL_MS,
        type=ConfigType.INT,
        default=1000,
        minimum=0,
        maximum=15_000,
        unit="ms",
        effect=Effect.NONE,
        doc="Pause between two assignments of a group. The appliance assigns after each change.",
    )
}
"""Kept and shown. The range is that of Kafka's group.consumer.min.assignment.interval.ms and …max…, by default."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """The option behind a setting, and the range that others allow it."""

    option: int
    low: int
    high: int

    def within(self, value: int) -> int:
        return min(max(value, self.low), self.high)


_LIMITS: Final[Mapping[str, Callable[[GroupSettings], _Limits]]] = {
    SESSION_TIMEOUT_MS: lambda group: _Limits(
        group.consumer_session_timeout_ms,
        group.consumer_min_session_timeout_ms,
        group.consumer_max_session_timeout_ms,
    ),
    HEARTBEAT_INTERVAL_MS: lambda group: _Limits(
        group.consumer_heartbeat_interval_ms,
        group.consumer_min_heartbeat_interval_ms,
        group.consumer_max_heartbeat_interval_ms,
    ),
}


_DECLARED: Final[Mapping[str, Declaration]] = {
    name: replace(option_declarations()[f"group.{name}"][2], name=name) for name in _LIMITS
}
"""A setting is declared as the option behind it, whose name begins with `group.`."""


@dataclass(frozen=True, slots=True)
class ConsumerTimes:
    """What the members of one consumer group go by."""

    session_timeout_ms: int
    heartbeat_interval_ms: int

    @classmethod
    def of(cls, group: GroupSettings, configs: Mapping[str, str]) -> ConsumerTimes:
        """`configs`: what was set on the group."""
        return cls(
            _value(group, configs, SESSION_TIMEOUT_MS),
            _value(group, configs, HEARTBEAT_INTERVAL_MS),
        )


def validate_group_configs(configs: Mapping[str, str], group: GroupSettings) -> None:
    """Refuses what may not be set on a group.

    Raises:
        ConfigurationError: naming the setting and what is wrong.
    """
    for name, text in configs.items():
        if name in _KEPT:
            _KEPT[name].parse(text, exact=True)
            continue
        if name not in _LIMITS and name in kafka_group_settings():
            raise ConfigurationError(f"{name}: cannot be set, because the appliance does not use it")
        if name not in _LIMITS:
            raise ConfigurationError(f"Unknown group config name: {name[:100]}")
        value = _parsed(name, text)
        limits = _LIMITS[name](group)
        kind = name.removeprefix("consumer.")
        if value < limits.low:
            raise ConfigurationError(f"{name} must be greater than or equal to group.consumer.min.{kind}")
        if value > limits.high:
            raise ConfigurationError(f"{name} must be less than or equal to group.consumer.max.{kind}")
    times = ConsumerTimes.of(group, configs)
    if times.session_timeout_ms <= times.heartbeat_interval_ms:
        raise ConfigurationError(f"{SESSION_TIMEOUT_MS} must be greater than {HEARTBEAT_INTERVAL_MS}")


def describe_group(settings: Settings, configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a group on which `configs` were set, sorted by name."""
    return [
        _entry(settings, configs, name)
        if name in _LIMITS
        else _kept_entry(setting, configs)
        if name in _KEPT
        else kafka_entry(setting)
        for name, setting in sorted(kafka_group_settings().items())
    ]


def _entry(settings: Settings, configs: Mapping[str, str], name: str) -> ConfigEntry:
    declaration = _DECLARED[name]
    option = f"group.{name}"
    synonyms = [ConfigSynonym(option, str(declaration.default), ConfigSource.DEFAULT_CONFIG)]
    value = str(_value(settings.group, configs, name))
    if option in settings.configured:
        own = str(_LIMITS[name](settings.group).option)
        synonyms.insert(0, ConfigSynonym(option, own, ConfigSource.STATIC_BROKER_CONFIG))
    if name in configs:
        synonyms.insert(0, ConfigSynonym(name, value, ConfigSource.DYNAMIC_GROUP_CONFIG))
    return ConfigEntry(
        name=name,
        value=value,
        read_only=False,
        source=synonyms[0].source,
        sensitive=False,
        synonyms=tuple(synonyms),
        type=ConfigType.INT,
        documentation=declaration.doc,
    )


def _kept_entry(setting: KafkaSetting, configs: Mapping[str, str]) -> ConfigEntry:
    default = replace(kafka_entry(setting), read_only=False, documentation=_KEPT[setting.name].doc)
    value = configs.get(setting.name)
    if value is None:
        return default
    own = ConfigSynonym(setting.name, value, ConfigSource.DYNAMIC_GROUP_CONFIG)
    return replace(default, value=value, source=own.source, synonyms=(own, *default.synonyms))


def _value(group: GroupSettings, configs: Mapping[str, str], name: str) -> int:
    limits = _LIMITS[name](group)
    text = configs.get(name)
    return limits.option if text is None else limits.within(_parsed(name, text))


def _parsed(name: str, text: str) -> int:
    value = _DECLARED[name].parse(text, exact=True)
    assert isinstance(value, int)
    return value
