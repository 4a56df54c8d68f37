"""The last lines of the appliance's own log: by level, process and text; live."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from appliance.console.decoding import printable
from appliance.console.kafka_link import BrokerFault, LoginRefused
from appliance.console.own_log import LEVELS, LogLine, positions
from appliance.console.pages.overview import NEEDS_DESCRIBE, event
from appliance.console.server import Response
from appliance.console.visit import BadInput, Visit

ROUND_S: Final = 1.0
SILENCE_S: Final = 15.0
LINES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which lines a person wants. An empty text is any."""

    level: str
    process: str
    text: str

    def holds(self, line: LogLine) -> bool:
        return (
            LEVELS.index(line.level) >= LEVELS.index(self.level)
            and (
                not self.process or line.process == self.process or line.process.split(" ")[0] == self.process
            )
            and self.text.lower() in line.text.lower()
        )


def _wanted(visit: Visit) -> _Wanted:
    level = visit.asked("level", "DEBUG")
    if level not in LEVELS:
        raise BadInput(f"level: must be one of {', '.join(LEVELS)}")
    return _Wanted(level, visit.asked("process").strip(), visit.asked("q").strip())


def logs(visit: Visit) -> Response:
    """The lines, the newest first, and the stream that goes on with them."""
    if not visit.may_describe_cluster:
        return visit.page("error.html", status=403, text=NEEDS_DESCRIBE)
    wanted = _wanted(visit)
    every = visit.site.own_log.lines()
    found = [each for each in every if wanted.holds(each)]
    return visit.page(
        "logs.html",
        rows=found[: -LINES_MAX - 1 : -1],
        wanted=wanted,
        levels=LEVELS,
        processes=sorted({each.process for each in every}),
    )


def events(visit: Visit) -> Response:
    """The stream of lines from now on."""
    if not visit.may_describe_cluster:
        return visit.page("error.html", status=403, text=NEEDS_DESCRIBE)
    return Response(content_type="text/event-stream", stream=_events(visit, _wanted(visit)))


def _events(visit: Visit, wanted: _Wanted) -> Iterator[bytes]:
    site = visit.site
    with site.streams.one(visit.session):
        seen = positions(site.own_log.lines())
        silent_s = time.monotonic()
        yield b": listening\n\n"
        while not site.history.is_closed and site.sessions.is_open(
            visit.session, now_ns=site.clock.monotonic_ns()
        ):
            time.sleep(ROUND_S)
            # The right may have been taken away since the stream began.
            try:
                is_allowed = visit.as_of_now().may_describe_cluster
            except BrokerFault as fault:
                if fault.code is None and not isinstance(fault, LoginRefused):
                    continue  # a slot restarts
                is_allowed = False
            if not is_allowed:
                yield event("ended", NEEDS_DESCRIBE)
                return
            found = site.own_log.lines(behind=seen)
            seen |= positions(found)
            for each in found:
                if wanted.holds(each):
                    silent_s = time.monotonic()
                    yield event(
                        "line",
                        {
                            "time": each.time,
                            "level": each.level,
                            "process": printable(each.process),
                            "text": printable(each.text),
                        },
                    )
            if time.monotonic() - silent_s >= SILENCE_S:
                silent_s = time.monotonic()
                yield b": still here\n\n"
