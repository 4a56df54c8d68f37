"""Where `consume` begins and ends: a text becomes a place, a place becomes an offset of each partition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import click

from appliance.cli.client import asked, refusal
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.views.moments import moment_ms

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition


class Anchor(Enum):
    """What a starting place is counted from."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Place:
    """`distance` is an offset, milliseconds since the epoch, records after the beginning, or records before the end."""

    anchor: Anchor
    distance: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a partition that is to be read: from `start` to before `end`, which is at most its end now."""

    partition: int
    start: int
    end: int


FORMS: Final = (
    "beginning, end, an offset, -N (the last N), +N (after the first N), @MILLISECONDS, a time such as 2026-01-31T12:00"
    " (UTC) or 2026-01-31T12:00+02:00, or a time ago such as 30m"
)
_NAMES: Final = {
    "beginning": Anchor.BEGINNING,
    "earliest": Anchor.BEGINNING,
    "start": Anchor.BEGINNING,
    "end": Anchor.END,
    "latest": Anchor.END,
}
"""The first name of each is ours; Kafka, kcat and rpk use the others."""

_OFFSET_MAX: Final = 2**63 - 1


def parse_place(text: str, flag: str = "--from") -> Place:
    """Reads the value of `flag`.

    Raises:
        click.UsageError: it is none of the forms.
    """
    if text in _NAMES:
        return Place(_NAMES[text])
    if re.fullmatch(r"[-+]?[0-9]{1,19}", text) and abs(int(text)) <= _OFFSET_MAX:
        anchor = {"-": Anchor.END, "+": Anchor.BEGINNING}.get(text[0], Anchor.OFFSET)
        return Place(anchor, abs(int(text)))
    if re.fullmatch(r"@[0-9]{1,16}", text):
        return Place(Anchor.TIMESTAMP, int(text[1:]))
    try:
        return Place(Anchor.TIMESTAMP, moment_ms(text))
    except ValueError:
        raise click.UsageError(f"{flag} {text!r}: must be {FORMS}") from None


def partitions_of(client: Consumer, topic: str, only: Sequence[int] = ()) -> list[int]:
    """Return the partitions of a topic, or those of them in `only`.

    Raises:
        BrokerError: there is no such topic or partition.
    """
    described = asked(lambda: client.list_topics(topic, timeout=REQUEST_TIMEOUT_S)).topics.get(topic)
    if described is None or described.error is not None:
        reason = "no such topic" if described is None else refusal(described.error)
        raise BrokerError(f"{topic}: {reason}")
    there = sorted(described.partitions)
    if missing := sorted(set(only) - set(there)):
        raise BrokerError(f"{topic}: no partition {missing[0]}; it has {len(there)}, counted from 0")
    return sorted(set(only)) or there


def spans(
    client: Consumer,
    topic: str,
    partitions: Iterable[int],
    *,
    place: Place,
    until: Place | None = None,
    warn: Callable[[str], None],
) -> list[Span]:
    """Start and end of each partition. `warn` hears where records asked for are gone.

    Raises:
        BrokerError: an offset past the end, or a partition that cannot tell.
    """
    from confluent_kafka import TopicPartition

    found = []
    for partition in partitions:
        where = TopicPartition(topic, partition)
        try:
            low, high = asked(lambda tp=where: client.get_watermark_offsets(tp, timeout=REQUEST_TIMEOUT_S))  # type: ignore[misc]
        except BrokerError as fault:
            raise BrokerError(f"{topic}-{partition}: {fault}") from fault
        start = _offset(client, where, place, low=low, high=high)
        if place.anchor is Anchor.OFFSET and start > high:
            raise BrokerError(f"{topic}-{partition}: offset {start} is past its end, {high}")
        if place.anchor is Anchor.OFFSET and start < low:
            warn(f"{topic}-{partition}: offset {start} was deleted; starting at {low}")
        start = max(start, low)
        end = high if until is None else min(high, _offset(client, where, until, low=low, high=high))
        found.append(Span(partition, start, max(start, end)))
    return found


def _offset(client: Consumer, where: TopicPartition, place: Place, *, low: int, high: int) -> int:
    """The offset that a place means in a partition, whose first offset is `low` and whose end is `high`."""
    match place.anchor:
        case Anchor.BEGINNING:
            return min(low + place.distance, high)
        case Anchor.END:
            return max(low, high - place.distance)
        case Anchor.OFFSET:
            return place.distance
    return _first_at(client, where.topic, where.partition, timestamp_ms=place.distance, end=high)


def _first_at(client: Consumer, topic: str, partition: int, *, timestamp_ms: int, end: int) -> int:
    """The offset of the first record not older than `timestamp_ms`; the end where there is none."""
    from confluent_kafka import TopicPartition

    wanted = [TopicPartition(topic, partition, timestamp_ms)]
    (found,) = asked(lambda: client.offsets_for_times(wanted, timeout=REQUEST_TIMEOUT_S))
    return found.offset if found.offset >= 0 else end
