"""How far delayed records were delivered: the value of a record in `__delayed_state`, as JSON.

    {"v": 1,
     "positions": {"5s": 120, "1m": 7},            below them, all is delivered or in "open"
     "exact": {"exact_1h": {…}},                   what else is delivered of an exact level, see `Frontier`
     "open": [{"topic": "…", "partition": 3,       deliveries that may be in the topic's log or not
               "producer_id": 9, "sequence": 40,
               "records": [["5s", 118], ["5s", 119]]}]}

The record is written before the deliveries in "open" begin. A process that starts reads the last one, and repeats these
deliveries with the same producer id, sequence number and records: their logs recognize what they have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from appliance.errors import ApplianceError

_VERSION: Final = 1


class UnreadableProgress(ApplianceError):
    """A record of `__delayed_state` that this version cannot read."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records for one partition, from internal topics.

    `records`: (name of the level, offset there) of each, in order.
    """

    topic_id: UUID
    partition: int
    producer_id: int
    sequence: int
    records: tuple[tuple[str, int], ...]


class Frontier(NamedTuple):
    """What is delivered of an exact level, or in an open delivery.

    These are the records with an offset below `read_to` that are due before `due_ms`, or at this time with an offset up
    to `offset`. The correction of a record's offset is added to its due time: the last of `corrections`, which are
    (offset from which on it counts, ms).
    """

    read_to: int = 0
    due_ms: int = -(1 << 62)
    offset: int = -1
    corrections: tuple[tuple[int, int], ...] = ()

    def has_delivered(self, offset: int, due_ms: int) -> bool:
        """Return whether a record is delivered, or in an open delivery.

        Args:
            due_ms: when it is due on this level, without correction.
        """
        correction_ms = 0
        for first, by_ms in self.corrections:
            if first <= offset:
                correction_ms = by_ms
        return offset < self.read_to and (due_ms + correction_ms, offset) <= (self.due_ms, self.offset)


@dataclass(frozen=True, slots=True)
class Progress:
    """`positions`: name of the level → offset. A level that is not there begins at its log start."""

    positions: dict[str, int] = field(default_factory=dict)
    open: tuple[Delivery, ...] = ()
    exact: dict[str, Frontier] = field(default_factory=dict)


class _Delivery(msgspec.Struct):
    topic: UUID
    partition: int
    producer_id: int
    sequence: int
    records: list[tuple[str, int]]


class _Frontier(msgspec.Struct):
    read_to: int
    due_ms: int
    offset: int
    corrections: list[tuple[int, int]]


class _Progress(msgspec.Struct):
    v: int
    positions: dict[str, int]
    open: list[_Delivery]
    exact: dict[str, _Frontier] = {}


_decoder: Final = msgspec.json.Decoder(_Progress)


def encode(progress: Progress) -> bytes:
    """Return the value of the record."""
    return msgspec.json.encode(
        _Progress(
            _VERSION,
            progress.positions,
            [
                _Delivery(each.topic_id, each.partition, each.producer_id, each.sequence, list(each.records))
                for each in progress.open
            ],
            {
                level: _Frontier(each.read_to, each.due_ms, each.offset, list(each.corrections))
                for level, each in progress.exact.items()
            },
        )
    )


def decode(value: bytes) -> Progress:
    """Return what a record says.

    Raises:
        UnreadableProgress: it is no such JSON, or of another version.
    """
    try:
        read = _decoder.decode(value)
    except (msgspec.DecodeError, msgspec.ValidationError) as fault:
        raise UnreadableProgress(f"not understood: {fault}") from None
    if read.v != _VERSION:
        raise UnreadableProgress(f"version {read.v} is not understood")
    return Progress(
        read.positions,
        tuple(
            Delivery(each.topic, each.partition, each.producer_id, each.sequence, tuple(each.records))
            for each in read.open
        ),
        {
            level: Frontier(each.read_to, each.due_ms, each.offset, tuple(each.corrections))
            for level, each in read.exact.items()
        },
    )
