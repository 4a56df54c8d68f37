"""The way of records, from their producers to the groups that have consumed them, by `__trace`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from appliance.message_trace.event import Event, Step, decode, in_order
from appliance.views.audit import internal_values
from appliance.views.topic_access import NotShown, TopicReader

TRACE: Final = "__trace"
TRACE_ENABLE: Final = "trace.enable"
REPORTS: Final = "trace-reports"
"""Where the native client reports what it has processed. Any producer may write there: only these steps count."""
EVENTS_MAX: Final = 10_000
"""Steps that are shown of one trace."""
TRACES_MAX: Final = 1_000
"""Traces of one record. Any producer may report that it has processed a record, under any trace id."""
_TRACE: Final = re.compile(r"[0-9a-f]{32}")
_PLACE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})-(\d{1,19})")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which record: a trace id, or the place of a record. One of them is set."""

    trace: str | None
    place: tuple[str, int, int] | None = None

    def is_in(self, event: Event) -> bool:
        """Return whether a step names it."""
        if self.place is None:
            return event.trace == self.trace
        return (event.topic, event.partition, event.offset) == self.place


def wanted_of(text: str) -> Wanted:
    """Return what a person wants to see: a trace id, or TOPIC-PARTITION-OFFSET.

    Raises:
        ValueError: it is neither.
    """
    if _TRACE.fullmatch(text.lower()):
        return Wanted(text.lower())
    place = _PLACE.fullmatch(text) if text.isascii() else None
    if place is None:
        raise ValueError(
            f"{text!r} is neither a trace id of 32 hex digits nor TOPIC-PARTITION-OFFSET, such as orders-0-42"
        )
    return Wanted(None, (place[1], int(place[2]), int(place[3])))


def traces_of(reader: TopicReader, wanted: Wanted, *, from_ms: int | None) -> list[list[Event]]:
    """Return the steps of each trace of a record, in order, at most EVENTS_MAX of each and TRACES_MAX traces.

    Raises:
        NotShown: nothing is traced, or this record is not.
    """
    ids = {wanted.trace}
    if wanted.place is not None:
        # Steps of one trace may name other records too, so the topics are read twice instead of kept in memory.
        ids = set()
        for event in _events(reader, from_ms):
            if len(ids) < TRACES_MAX and wanted.is_in(event):
                ids.add(event.trace)
    by_trace: dict[str, list[Event]] = {}
    for event in _events(reader, from_ms) if ids else ():
        if event.trace in ids:
            some = by_trace.setdefault(event.trace, [])
            if len(some) < EVENTS_MAX:
                some.append(event)
    if not by_trace:
        raise NotShown("no trace of it was found; docs/trace.md says which records are traced")
    return [in_order(some) for _, some in sorted(by_trace.items())]


def _events(reader: TopicReader, from_ms: int | None) -> Iterator[Event]:
    for value in internal_values(reader, TRACE, None, setting=TRACE_ENABLE, from_ms=from_ms):
        if (event := decode(value)) is not None:
            yield event
    for value in internal_values(reader, REPORTS, None, setting="", from_ms=from_ms):
        if (event := decode(value)) is not None and event.step == Step.PROCESSED:
            yield event


def who(event: Event) -> str:
    """Return who took a step, for a person."""
    parts = []
    if event.group:
        parts.append(f"group {event.group}")
    if event.client or event.principal:
        parts.append(f"client {event.client} ({event.principal})")
    if event.detail:
        parts.append(event.detail)
    return ", ".join(parts)
