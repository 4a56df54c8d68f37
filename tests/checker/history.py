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
class Backlog:
    """What readers who begin again and again have been given of one partition: one token for each offset.

    `wrong` are (kind, sentence) about what is seen at once. `passed` are the stretches of offsets (first, last) that a
    reader went over without a record, with the first one who did: at the end it is known whether they may be missing.
    """

    tokens: array[int] = field(default_factory=lambda: array("q"))
    wrong: list[tuple[str, str]] = field(default_factory=list)
    passed: dict[tuple[int, int], str] = field(default_factory=dict)

    def add(
        self, reader: str, offset: int, token: int | None, *, before: int, may_have_passed: bool = False
    ) -> None:
        """One record. `token` is None for one that nobody sent; `before` is the last offset, -1 from the start on.

        `may_have_passed`: the reader went to where the log began then, which may be forgotten when all are killed.
        """
        if offset <= before:
            self.wrong.append(("went back", f"{reader} was given offset {offset} after {before}"))
        elif offset > before + 1 and not may_have_passed:
            self.passed.setdefault((before + 1, offset - 1), reader)
        if token is None:
            self.wrong.append(("torn", f"what {reader} read at offset {offset} is not what anybody sent"))
            return
        tokens = self.tokens
        if offset >= len(tokens):
            tokens.extend([NOT_KNOWN] * (offset + 1 - len(tokens)))
        there = tokens[offset]
        if there == NOT_KNOWN:
            tokens[offset] = token
        elif there != token:
            self.wrong.append(
                (
                    "inconsistent",
                    f"{reader} read {shown(token)} at offset {offset}, where {shown(there)} was read before",
                )
            )


@dataclass(slots=True)
class History:
    """`acknowledged[producer][sequence]` is the offset, or NOT_KNOWN; `readings[reader][partition]`.

    `log[partition]` is what a reader found at the end that read everything from the beginning, which was at
    `starts[partition]` after it had. `backlogs[partition]` is what was read of what lies behind, while faults went on.

    Args:
        keys: of each partition of a compacted topic, which `values.key_of` spreads records over; 0 for no compaction.
    """

    partitions: int
    acknowledged: list[array[int]]
    readings: list[list[Reading]]
    log: list[Reading]
    starts: list[int]
    backlogs: list[Backlog]
    keys: int = 0

    @classmethod
    def empty(cls, *, partitions: int, producers: int, readers: int, keys: int = 0) -> History:
        return cls(
            partitions,
            [array("q") for _ in range(producers)],
            [[Reading() for _ in range(partitions)] for _ in range(readers)],
            [Reading() for _ in range(partitions)],
            [0] * partitions,
            [Backlog() for _ in range(partitions)],
            keys,
        )

    def acknowledged_count(self) -> int:
        """Records that were acknowledged."""
        return sum(len(offsets) - offsets.count(NOT_KNOWN) for offsets in self.acknowledged)
