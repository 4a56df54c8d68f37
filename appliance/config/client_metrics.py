"""Subscriptions to the metrics of clients (KIP-714): the config resource CLIENT_METRICS.

| setting | what it says |
|---|---|
| `metrics` | prefixes of the metrics' names that clients are to push, separated by commas; `*` for all |
| `interval.ms` | how often they push |
| `match` | which clients: patterns NAME=REGEX, all of which must match the whole text |

Every subscription that matches a client counts: it pushes the metrics of all of them, in the shortest interval.

The patterns run on RE2, whose time is linear in the text, because clients choose the texts.

Source: Kafka's `ClientMetricsConfigs.java` and `ClientMetricsManager.java`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from appliance.config.declaration import ConfigSource, ConfigType
from appliance.config.describe import ConfigEntry, ConfigSynonym
from appliance.errors import ConfigurationError

METRICS: Final = "metrics"
INTERVAL_MS: Final = "interval.ms"
MATCH: Final = "match"
ALL: Final = "*"

DEFAULT_INTERVAL_MS: Final = 300_000
INTERVAL_MIN_MS: Final = 100
INTERVAL_MAX_MS: Final = 3_600_000

CLIENT_FACTS: Final = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What a pattern may look at."""

PATTERNS_MAX: Final = 100
PATTERN_CHARACTERS_MAX: Final = 2048

_DOCUMENTATION: Final = {
    METRICS: "Prefixes of the metrics that matching clients push, separated by commas; * for all.",
    INTERVAL_MS: "Pause between two pushes of a client.",
    MATCH: "Patterns NAME=REGEX, separated by commas, that a client must match.",
}
_DEFAULTS: Final = {INTERVAL_MS: str(DEFAULT_INTERVAL_MS), MATCH: "", METRICS: ""}
_TYPES: Final = {INTERVAL_MS: ConfigType.INT, MATCH: ConfigType.LIST, METRICS: ConfigType.LIST}


class WrongRange(ConfigurationError):
    """A setting that there is not, or a number out of its range."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one client is to push, and how often; no metrics: nothing."""

    metrics: tuple[str, ...] = ()
    interval_ms: int = DEFAULT_INTERVAL_MS


def validate_client_metrics(configs: Mapping[str, str]) -> None:
    """Refuse what may not be set on a subscription.

    Raises:
        WrongRange: an unknown setting, or an interval out of its range: Kafka has another error for these two.
        ConfigurationError: naming the setting and what is wrong.
    """
    for name in configs:
        if name not in _DEFAULTS:
            raise WrongRange(f"Unknown client metrics configuration: {name[:100]}")
    if INTERVAL_MS in configs:
        _interval_ms(configs[INTERVAL_MS])
    _patterns(configs.get(MATCH, ""))


def describe_client_metrics(configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Return every setting of a subscription on which `configs` were set, sorted by name."""
    found: list[ConfigEntry] = []
    for name, default in _DEFAULTS.items():
        value, source = default, ConfigSource.DEFAULT_CONFIG
        synonyms: tuple[ConfigSynonym, ...] = ()
        if name in configs:
            source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
            value = configs[name] if name == INTERVAL_MS else ",".join(_members(configs[name]))
            synonyms = (ConfigSynonym(name, value, source),)
        found.append(
            ConfigEntry(
                name=name,
                value=value,
                read_only=False,
                source=source,
                sensitive=False,
                synonyms=synonyms,
                type=_TYPES[name],
                documentation=_DOCUMENTATION[name],
            )
        )
    return found


def wanted_of(subscriptions: Iterable[Mapping[str, str]], facts: Mapping[str, str]) -> Wanted:
    """Return what a client is to push.

    Args:
        facts: by the names in CLIENT_FACTS.
    """
    metrics: set[str] = set()
    interval_ms: int | None = None
    for configs in subscriptions:
        names = _members(configs.get(METRICS, ""))
        if not names or not _matches(configs.get(MATCH, ""), facts):
            continue
        metrics.update(names)
        every_ms = _interval_ms(configs.get(INTERVAL_MS, _DEFAULTS[INTERVAL_MS]))
        interval_ms = every_ms if interval_ms is None else min(interval_ms, every_ms)
    if interval_ms is None:
        return Wanted()
    return Wanted((ALL,) if ALL in metrics else tuple(sorted(metrics)), interval_ms)


def _interval_ms(text: str) -> int:
    sign_less = text.removeprefix("-")
    if not (sign_less.isascii() and sign_less.isdigit() and len(sign_less) <= 10):
        raise ConfigurationError(
            f"Invalid value {text[:100]} for configuration {INTERVAL_MS}: Not a number of type INT"
        )
    value = int(text)
    if not INTERVAL_MIN_MS <= value <= INTERVAL_MAX_MS:
        raise WrongRange(
            f"Invalid value {value} for {INTERVAL_MS}, interval must be between {INTERVAL_MIN_MS} and"
            f" {INTERVAL_MAX_MS} (1 hour)"
        )
    return value


def _members(text: str) -> Sequence[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _matches(text: str, facts: Mapping[str, str]) -> bool:
    return all(pattern.fullmatch(facts.get(name, "")) for name, pattern in _patterns(text))


@lru_cache(maxsize=256)
def _patterns(text: str) -> tuple[tuple[str, Any], ...]:
    """Return the names and compiled patterns of `match`.

    Raises:
        ConfigurationError: one of them is none.
    """
    members = _members(text)
    if not members:
        return ()
    if len(members) > PATTERNS_MAX or len(text) > PATTERN_CHARACTERS_MAX:
        raise ConfigurationError(
            f"{MATCH}: more than {PATTERNS_MAX} patterns or {PATTERN_CHARACTERS_MAX} characters"
        )
    # Loaded with the first pattern: most appliances have none.
    import re2

    options = re2.Options()
    options.log_errors = False
    found: list[tuple[str, Any]] = []
    for member in members:
        name, equals, regex = (part.strip() for part in member.partition("="))
        if not equals or "=" in regex or name not in CLIENT_FACTS:
            raise ConfigurationError(f"Illegal client matching pattern: {member[:100]}")
        try:
            found.append((name, re2.compile(regex, options)))
        except re2.error:
            raise ConfigurationError(f"Illegal client matching pattern: {member[:100]}") from None
    return tuple(found)
