"""Finds missing and repeated ids: numbers that a producer counts up by one for each record of a partition.

    id = `audit.id` header = [source ":"] number          orders-7:1041, or 1041 for a producer without a name

Each source counts by itself, in each partition. The first id that is seen of a source says nothing. After that:

    number = expected            the next one
    number > expected            `expected … number - 1` are missing
    number inside a gap          this one came late: it is not missing any more
    any other number < expected  a duplicate

Everything is bounded: sources and gaps of a partition. A source that was silent for longest is forgotten, and begins
again with its next id. A gap that is forgotten stays missing.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

SOURCES_MAX: Final = 200
GAPS_MAX: Final = 50
"""Gaps of one source that a late record can still close."""
SOURCE_LENGTH_MAX: Final = 100
NUMBER_MAX: Final = (1 << 63) - 1


class IdKind(StrEnum):
    MISSING = "missing"
    LATE = "late"
    DUPLICATE = "duplicate"


class IdFinding(NamedTuple):
    """Ids `first` to `last`, both included, of a source."""

    kind: IdKind
    source: str
    first: int
    last: int


@dataclass(slots=True)
class Source:
    """`expected`: the next number. `gaps`: first and last of what is missing, in ascending order."""

    expected: int
    gaps: list[tuple[int, int]] = field(default_factory=list)


Sources = dict[str, Source]
"""The source that was heard of last is the last one."""


def parse_id(value: bytes | None) -> tuple[str, int] | None:
    """Return (source, number) of an `audit.id` header; None if it is none."""
    if value is None or len(value) > SOURCE_LENGTH_MAX + 21:
        return None
    try:
        source, _, digits = value.decode().rpartition(":")
    except UnicodeDecodeError:
        return None
    if not digits.isascii() or not digits.isdigit():
        return None
    number = int(digits)
    return (source, number) if number <= NUMBER_MAX else None


def follow(sources: Sources, source: str, number: int) -> IdFinding | None:
    """Take the next id of a partition; return what is wrong with it."""
    known = sources.pop(source, None)
    if known is None:
        sources[source] = Source(number + 1)
        if len(sources) > SOURCES_MAX:
            del sources[next(iter(sources))]
        return None
    sources[source] = known
    expected = known.expected
    if number == expected:
        known.expected = number + 1
        return None
    if number > expected:
        known.expected = number + 1
        known.gaps.append((expected, number - 1))
        del known.gaps[:-GAPS_MAX]
        return IdFinding(IdKind.MISSING, source, expected, number - 1)
    return _below(known, source, number)


def _below(known: Source, source: str, number: int) -> IdFinding:
    at = bisect_right(known.gaps, (number, NUMBER_MAX)) - 1
    if at < 0 or number > known.gaps[at][1]:
        return IdFinding(IdKind.DUPLICATE, source, number, number)
    first, last = known.gaps[at]
    known.gaps[at : at + 1] = [
        part for part in ((first, number - 1), (number + 1, last)) if part[0] <= part[1]
    ]
    del known.gaps[:-GAPS_MAX]
    return IdFinding(IdKind.LATE, source, number, number)
