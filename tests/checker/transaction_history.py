"""What transactional producers did, and what readers saw of it.

A record is a *token*: transaction << 12 | index of the write. Times are nanoseconds of one monotonic clock, because all
clients are threads of one process.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

NOT_KNOWN: Final = -1
WRITES_MAX: Final = 1 << 12


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Outcome(Enum):
    """What the client knows. UNKNOWN: a commit was asked for, and no final answer came. All or nothing is visible."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


def token_of(transaction: int, index: int) -> int:
    return transaction * WRITES_MAX + index


def transaction_of(token: int) -> int:
    return token // WRITES_MAX


def index_of(token: int) -> int:
    return token % WRITES_MAX


@dataclass(slots=True)
class Write:
    """One record. `offset` is the acknowledged one. `origin` is the token that a copying transaction copies."""

    place: Place
    offset: int = NOT_KNOWN
    origin: int = NOT_KNOWN


@dataclass(slots=True)
class Transaction:
    """`number` is also its place in the history's list.

    `life` counts the producers of one transactional id: each InitProducerId begins one. `began_ns` is before the first
    request, `asked_ns` before the first request to commit, `ended_ns` after the answer to the end.
    """

    number: int
    writer: str
    life: int
    began_ns: int
    asked_ns: int | None = None
    ended_ns: int | None = None
    outcome: Outcome = Outcome.ABORTED
    writes: list[Write] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return f"transaction {self.number} ({self.outcome.value}, {self.writer} life {self.life})"


@dataclass(slots=True)
class Sight:
    """What one reader was given of one partition, in that order, and when."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("q"))
    times_ns: array[int] = field(default_factory=lambda: array("q"))

    def add(self, offset: int, token: int, time_ns: int) -> None:
        self.offsets.append(offset)
        self.tokens.append(token)
        self.times_ns.append(time_ns)


@dataclass(frozen=True, slots=True)
class Copy:
    """A group whose transactions copy each record of a topic to the same partition of another one."""

    group: str
    source: str
    target: str


Sights = dict[Place, Sight]


@dataclass(slots=True)
class TransactionHistory:
    """Filled by many threads.

    Args:
        places: all partitions that transactions write to.

    Attributes:
        fenced_ns: (transactional id, life) → when the next life's InitProducerId was answered.
        log: what a read_uncommitted reader found at the end.
        visible: what a read_committed reader found at the end.
        readings: reader → what a read_committed reader was given. Each began at the start, and passed what it had not.
        committed: (group, source) → the committed offset at the end.
        undecided: partition → (last stable offset, high watermark) where they differ after everything has settled.
    """

    places: tuple[Place, ...]
    copies: tuple[Copy, ...] = ()
    transactions: list[Transaction] = field(default_factory=list)
    fenced_ns: dict[tuple[str, int], int] = field(default_factory=dict)
    log: Sights = field(default_factory=dict)
    visible: Sights = field(default_factory=dict)
    readings: dict[str, Sights] = field(default_factory=dict)
    committed: dict[tuple[str, Place], int] = field(default_factory=dict)
    undecided: dict[Place, tuple[int, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, writer: str, life: int, reads: Iterable[int] = ()) -> Transaction:
        """A new transaction, which counts as aborted until a commit is asked for."""
        with self._lock:
            new = Transaction(len(self.transactions), writer, life, time.monotonic_ns(), reads=list(reads))
            self.transactions.append(new)
        return new

    def count(self, outcome: Outcome) -> int:
        with self._lock:
            return sum(each.outcome is outcome for each in self.transactions)
