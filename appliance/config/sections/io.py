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
        doc="Number of I/O worker processes of each slot. Each partition belongs to one worker, and the "
        "partitions of a topic are spread evenly. You can set another number at each start. You can also "
        "use Kafka's name num.io.threads.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
