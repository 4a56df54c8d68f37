"""What the appliance logs of itself (docs/logs.md)."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config.declaration import Effect
from appliance.config.option import check_fields, option

LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class LoggingSettings:
    """The appliance's own log: from which level, and how a line looks."""

    level: str = option(
        "INFO",
        "log.level",
        choices=LEVELS,
        effect=Effect.AT_ONCE,
        doc="Lowest level of the lines that the processes log. The level can be different for one kind of "
        "process: see docs/logs.md. TRACE is the same as DEBUG.",
    )
    format: str = option(
        "text",
        "log.format",
        choices=FORMATS,
        doc="Format of the lines that the processes log: text for people, or one JSON object per line for "
        "programs. See docs/logs.md.",
    )
    slow_request_ms: int = option(
        0,
        "log.slow.request.ms",
        unit="ms",
        minimum=0,
        maximum=86_400_000,
        effect=Effect.AT_ONCE,
        doc="Time above which the broker logs a request, with the time of its stages. The time for which a "
        "fetch waits for records does not count. With 0, the broker measures and logs no requests.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
