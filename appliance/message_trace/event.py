"""Steps of traced records: values of records in `__trace`, as JSON. docs/trace.md describes each field."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

VERSION: Final = 1


class Step(StrEnum):
    """What has happened to a record, in the order in which it happens."""

    PRODUCED = "produced"
    APPENDED = "appended"
    REPLICATED = "replicated"
    RETRIED = "retried"
    DEAD = "dead"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FETCHED = "fetched"
    CONSUMED = "consumed"
    PROCESSED = "processed"


ORDER: Final = {step.value: number for number, step in enumerate(Step)}


class Event(msgspec.Struct, kw_only=True):
    """`at_ms` -1: it is not known when. `since_ms`: when the record was produced, or appended; a span begins there."""

    v: int = VERSION
    trace: str = ""
    step: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1
    at_ms: int = -1
    since_ms: int = -1
    client: str = ""
    principal: str = ""
    group: str = ""
    parent: str = ""
    detail: str = ""


_decoder: Final = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(event)


def decode(value: bytes | None) -> Event | None:
    """Return an event; None if it is no such JSON, or of another version."""
    try:
        event = _decoder.decode(value or b"")
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return event if event.v == VERSION and event.trace and event.step in ORDER else None


def in_order(events: list[Event]) -> list[Event]:
    """Return events by time; those at one time, and those without a time, in the order of the steps."""
    place_ms: dict[tuple[str, int, int], int] = {}
    for event in events:
        if event.at_ms >= 0:
            key = event.topic, event.partition, event.offset
            place_ms[key] = min(place_ms.get(key, event.at_ms), event.at_ms)
    return sorted(
        events,
        key=lambda each: (
            each.at_ms
            if each.at_ms >= 0
            else place_ms.get((each.topic, each.partition, each.offset), each.since_ms),
            ORDER[each.step],
        ),
    )
