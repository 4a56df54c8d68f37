"""The services process, and delayed delivery (docs/delayed-delivery.md)."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option

_DAY_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class ServicesSettings:
    """How many services processes there are, and what they deliver late."""

    processes: int = option(
        0,
        "services.processes",
        unit="processes",
        minimum=0,
        maximum=64,
        doc="Number of services processes. They deliver delayed records. With 0, no topic can have "
        "delivery.delay.enable. See docs/delayed-delivery.md.",
    )
    delay_levels: tuple[str, ...] = option(
        ("5s", "10s", "30s", "1m", "2m", "5m", "10m", "20m", "30m", "45m", "1h", "2h"),
        "delivery.delay.levels",
        doc="Levels of delayed delivery, in ascending order: whole numbers with ms, s, m, h or d. The broker raises "
        "each delay to the next level. Each level has an internal topic, which is not read any more when you remove "
        "the level. Therefore remove a level only if no record waits there.",
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
        doc="How far in the future a delayed record can be due. The broker refuses a record that is due later.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
