"""The workers' section."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config.option import check_fields, option


@dataclass(frozen=True, slots=True)
class IoSettings:
    """Workers that own the leader partitions."""

    workers: int = option(
        1,
        "io.workers",
        unit="processes",
        minimum=1,
        maximum=64,
        doc="I/O worker processes of each slot. A partition belongs to one of them, and the partitions of a "
        "topic are spread evenly. The number may change at each start. Kafka's num.io.threads is "
        "accepted as this option.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
