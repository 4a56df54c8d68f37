"""Message traces: the way of one record, by its trace id or its place, as a timeline.

The steps are those of `appliance trace` (`views/traces.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from appliance.console.charts import span
from appliance.console.pages.times import asked_ms
from appliance.console.reading import Budget
from appliance.console.server import Response
from appliance.console.topic_link import LinkReader
from appliance.console.visit import BadInput, Visit
from appliance.message_trace.event import Event, Step
from appliance.views.traces import traces_of, wanted_of, who

TRACES_SHOWN: Final = 10
STEPS_SHOWN: Final = 500


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as the page shows it. `x`, `width`: its span in the picture, from when it began to when it was done."""

    event: Event
    after_ms: int | None
    who: str
    x: float
    width: float


def trace(visit: Visit) -> Response:
    """The form, and the traces of a record."""
    text = visit.asked("record").strip()
    fields = {"record": text, "from": visit.asked("from")}
    if not text:
        return visit.page("trace.html", fields=fields, traces=[], is_asked=False)
    try:
        wanted = wanted_of(text)
    except ValueError as fault:
        raise BadInput(f"record: {fault}") from None
    found = traces_of(LinkReader(visit, Budget()), wanted, from_ms=asked_ms(visit, "from"))
    return visit.page(
        "trace.html",
        fields=fields,
        is_asked=True,
        traces=[_shown(each) for each in found[:TRACES_SHOWN]],
    )


def _shown(events: list[Event]) -> dict[str, Any]:
    times = [each.at_ms for each in events if each.at_ms >= 0]
    began = times[0] if times else -1
    first = min((each.since_ms for each in events if each.since_ms >= 0), default=began)
    first = min(first, *times) if times else first
    last = max(times, default=first)
    rows = []
    for each in events[:STEPS_SHOWN]:
        at = each.at_ms if each.at_ms >= 0 else max(each.since_ms, first)
        # As the spans in docs/trace.md: from the append, or from when the record was produced where nobody knows it.
        since = at if each.step == Step.PRODUCED else each.since_ms if 0 <= each.since_ms <= at else first
        x, width = span(since, at, first=first, last=last)
        after_ms = each.at_ms - began if each.at_ms >= 0 else None
        rows.append(StepRow(each, after_ms, who(each), x, width))
    return {
        "trace": events[0].trace,
        "rows": rows,
        "count": len(events),
        "duration_ms": max(0, last - first) if times else None,
        "is_consumed": any(each.step in ("consumed", "processed") for each in events),
    }
