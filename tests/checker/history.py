"""What happened, in as few bytes as an hour of it needs.

A record is a *token*: producer << 40 | sequence. A producer sends sequence s to partition s % partitions, so its
own order within a partition is the order of its sequences.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

NOT_KNOWN: Final = -1
"""The offset of a record that was sent, and of which nobody knows what became."""

_SEQUENCE_BITS: Final = 40


def token_of(producer: int, sequence: int) -> int:
    return producer << _SEQUENCE_BITS | sequence


def producer_of(token: int) -> int:
    return token >> _SEQUENCE_BITS


def sequence_of(token: int) -> int:
    return token & (1 << _SEQUENCE_BITS) - 1


def shown(token: int) -> str:
    """`producer 1's record 42`."""
    return f"producer {producer_of(token)}'s record {sequence_of(token)}"


@dataclass(slots=True)
class Reading:
    """What one reader was given of one partition, in that order."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("q"))

    def add(self, offset: int, token: int) -> None:
        self.offsets.append(offset)
        self.tokens.append(token)


@dataclass(slots=True)
class History:
    """`acknowledged[producer][sequence]` is the offset, or NOT_KNOWN; `readings[reader][partition]`.

    `log[partition]` is what a reader found at the end that read everything from the beginning.
    """

    partitions: int
    acknowledged: list[array[int]]
    readings: list[list[Reading]]
    log: list[Reading]

    @classmethod
    def empty(cls, *, partitions: int, producers: int, readers: int) -> History:
        return cls(
            partitions,
            [array("q") for _ in range(producers)],
            [[Reading() for _ in range(partitions)] for _ in range(readers)],
            [Reading() for _ in range(partitions)],
        )

    def acknowledged_count(self) -> int:
        """Records that were acknowledged."""
        return sum(len(offsets) - offsets.count(NOT_KNOWN) for offsets in self.acknowledged)
