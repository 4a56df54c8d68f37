"""The services process, and delayed delivery (docs/delayed-delivery.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from appliance.config.collector_url import check_collector_url
from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

INDEX_DIRECTORY: Final = "delayed-index"
"""In the data directory: which delayed records wait, made from the logs (`services.due_index`)."""
LEVELS_MAX: Final = 32
_DAY_MS: Final = 24 * 3_600_000
LEVEL_MS_MAX: Final = 366 * _DAY_MS
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": _DAY_MS}


@dataclass(frozen=True, slots=True)
class ServicesSettings:
    """How many services processes there are, and what they deliver late."""

    processes: int = option(
        0,
        "services.processes",
        unit="processes",
        minimum=0,
        maximum=64,
        doc="Number of services processes. Services processes deliver delayed records. The first services "
        "process also does the message audit and traces. With 0, no topic can have delivery.delay.enable, "
        "audit.enable or trace.enable. See docs/delayed-delivery.md, docs/message-audit.md and "
        "docs/trace.md.",
    )
    delay_levels: tuple[str, ...] = option(
        ("5s", "10s", "30s", "1m", "2m", "5m", "10m", "20m", "30m", "45m", "1h", "2h"),
        "delivery.delay.levels",
        doc="Levels of delayed delivery, in ascending order: whole numbers with ms, s, m, h or d. The "
        "broker raises each delay to the next level. Each level has an internal topic. After you remove a "
        "level, the broker no longer reads the topic of this level. Therefore remove a level only if no "
        "record waits in its topic.",
    )
    delay_exact_levels: tuple[str, ...] = option(
        ("1m", "1h", "1d", "30d"),
        "delivery.delay.exact.levels",
        doc="Levels of topics with delivery.delay.mode = exact, in ascending order. A record waits in the "
        "internal topic of the first level that is not shorter than its delay, until the record is due. "
        "The internal topic of a level keeps the records that it received within the time of the level. A "
        "delay above the largest level takes several steps.",
    )
    delay_partitions: int = option(
        4,
        "delivery.delay.partitions",
        unit="partitions",
        minimum=1,
        maximum=1_000,
        doc="Number of partitions of each internal topic of delayed delivery when the broker creates it.",
    )
    delay_max_ms: int = option(
        366 * _DAY_MS,
        "delivery.delay.max.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        maximum=36_600 * _DAY_MS,
        doc="Largest delay of a delayed record. The broker rejects a record that is due later.",
    )
    overdue_rate_max: int = option(
        0,
        "delivery.delay.overdue.rate.max",
        unit="records per second",
        minimum=0,
        maximum=1_000_000_000,
        doc="Maximum number of overdue records that each services process delivers in a second, for example "
        "after a long stop. Overdue records are more than 1 s late. Records that become due meanwhile wait, "
        "because the broker delivers in the order of due times. With 0, the broker delivers as fast as it can.",
    )

    trace_otlp_endpoint: str = option(
        "",
        "trace.otlp.endpoint",
        doc="URL of a collector that takes OpenTelemetry spans over HTTP, such as http://127.0.0.1:4318. "
        "The services process sends the steps of traced records to URL/v1/traces. If the collector does "
        "not answer, the services process drops spans. If the option is empty, the process sends nothing.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_collector_url("trace.otlp.endpoint", self.trace_otlp_endpoint)
        if not self.delay_levels:
            raise ConfigurationError("delivery.delay.levels must not be empty")
        level_delays_ms("delivery.delay.levels", self.delay_levels)
        if not self.delay_exact_levels:
            raise ConfigurationError("delivery.delay.exact.levels must not be empty")
        level_delays_ms("delivery.delay.exact.levels", self.delay_exact_levels)


def level_delays_ms(option_name: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the milliseconds of each level.

    Raises:
        ConfigurationError: a name is no duration, or they do not ascend.
    """
    if len(names) > LEVELS_MAX:
        raise ConfigurationError(f"{option_name}: {len(names)} levels; the maximum is {LEVELS_MAX}")
    delays_ms = tuple(_duration_ms(option_name, name) for name in names)
    if any(later <= earlier for earlier, later in pairwise(delays_ms)):
        raise ConfigurationError(f"{option_name} = {','.join(names)!r}: each must be above the one before")
    return delays_ms


def _duration_ms(option_name: str, name: str) -> int:
    digits = name.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit_ms = _UNITS_MS.get(name[len(digits) :])
    if unit_ms is None or not (digits.isascii() and digits.isdigit()) or digits[0] == "0" or len(digits) > 9:
        raise ConfigurationError(f"{option_name}: {name!r} is no duration such as 500ms, 5s, 10m, 2h")
    duration_ms = int(digits) * unit_ms
    if duration_ms > LEVEL_MS_MAX:
        raise ConfigurationError(f"{option_name}: {name!r} is longer than 366 days")
    return duration_ms
