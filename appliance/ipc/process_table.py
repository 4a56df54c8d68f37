"""The process table: a row of 256 bytes for each process, written by that process alone, readable by
everybody.

Each row begins a page of its own. A process maps the table read-only and the page of its own row writable, so it cannot
write the row of another one. Behind the row, the page keeps what earlier lives have counted:

    byte    512                1024          1280          1536      2048
            ┌────────┬─ ─ ─ ─ ─┬─────────────┬─────────────┬─ ─ ─ ─ ─┬───────────────────
            │ carried│ zeros   │ bank 0      │ bank 1      │ zeros   │ lines of the log: `line_ring.py`
            └────────┴─ ─ ─ ─ ─┴─────────────┴─────────────┴─ ─ ─ ─ ─┴───────────────────

A bank has the words of a row.

Before a new life clears the row, it adds the words of the life before to the sum of all lives before, in the bank that
is not in use, and then writes `carried`: the generation up to which the bank counts, and the bank. A process that is
killed in between leaves the sum as it was. So a total, which is the bank and the row of a later generation, never
falls.

    byte    0        8        16       24       32       40       48       56       64
            ┌────────┬────────┬────────┬────────┬────────┬────────┬────────┬────────┐
            │ pid    │ gener- │ state  │ started│ sleep- │ started│ zeros  │ zeros  │  who: written at start;
            │        │ ation  │        │ _ms    │ ing    │ _ns    │        │        │  only the flag changes
            ├────────┼────────┼────────┼────────┼────────┼────────┼────────┼────────┤
            │ loops  │ busy_ns│ idle_ns│requests│bytes_in│ bytes_ │ queue_ │ queue_ │  load
            │        │        │        │        │        │ out    │ depth  │depth_max
            ├────────┼────────┼────────┼────────┼────────┼────────┼────────┼────────┤
            │ errors │ connec-│ counter│        │        │        │        │        │
            │        │ tions  │ 0      │ …      │        │        │        │        │
            ├────────┼────────┼────────┼────────┼────────┼────────┼────────┼────────┤
            │ … counter 13: each role names its own                                 │
            └────────┴────────┴────────┴────────┴────────┴────────┴────────┴────────┘

Words are signed 64-bit. The sleeping flag shares its cache line only with words that do not change, so those
who look at it before ringing do not stumble over the counters. Each word is whole at any instant; a row is
not, and need not be: it is for display. `busy_ns` and `idle_ns` are brought up to date when the process
wakes; of a process that sleeps now, the time since then is idle. A row of zeros is a process that has not
started.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from appliance.ipc.line_ring import PlacedLine, lines_of

ROW_BYTES = 256
STRIDE_BYTES = 4096
"""From one row to the next: a page."""
WORD_BYTES = 8
COUNTERS = 14

PID = 0
GENERATION = 1
STATE = 2
STARTED_MS = 3
SLEEPING = 4
STARTED_NS = 5
LOOPS = 8
BUSY_NS = 9
IDLE_NS = 10
REQUESTS = 11
BYTES_IN = 12
BYTES_OUT = 13
QUEUE_DEPTH = 14
QUEUE_DEPTH_MAX = 15
ERRORS = 16
CONNECTIONS = 17
COUNTER_0 = 18

_CARRIED = 512 // WORD_BYTES
_BANKS = (1024 // WORD_BYTES, 1280 // WORD_BYTES)

_WORDS = ROW_BYTES // WORD_BYTES
_STRIDE_WORDS = STRIDE_BYTES // WORD_BYTES


class ProcessState(IntEnum):
    """ABSENT → STARTING → RUNNING → STOPPING; a killed process leaves its last state behind (see `pid`)."""

    ABSENT = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """A row, copied out. Field for field as drawn above."""

    index: int
    pid: int
    generation: int
    state: ProcessState
    sleeping: bool
    started_ms: int
    started_ns: int
    loops: int
    busy_ns: int
    idle_ns: int
    requests: int
    bytes_in: int
    bytes_out: int
    queue_depth: int
    queue_depth_max: int
    errors: int
    connections: int
    counters: tuple[int, ...]

    def idle_share(self, now_ns: int) -> float:
        """The part of its life that the process was idle, 0 to 1; `now_ns` is CLOCK_MONOTONIC."""
        lived_ns = now_ns - self.started_ns
        accounted_ns = self.busy_ns + self.idle_ns
        busy_ns = self.busy_ns + (0 if self.sleeping else max(0, lived_ns - accounted_ns))
        return 1.0 if lived_ns <= 0 else max(0.0, 1.0 - busy_ns / lived_ns)


class ProcessRow:
    """One process's row. `cells[REQUESTS] += 1` counts; only the owner may write."""

    __slots__ = ("_page", "cells", "index")

    def __init__(self, cells: memoryview, index: int, *, page: memoryview | None = None) -> None:
        self.cells = cells
        self.index = index
        self._page = page

    @property
    def sleeping_cell(self) -> memoryview:
        """The word a doorbell watches."""
        return self.cells[SLEEPING : SLEEPING + 1]

    def start(self, pid: int, generation: int, *, now_ms: int, now_ns: int) -> None:
        """Owner, first thing: clears what a former process left and says who is here (state STARTING)."""
        if self._page is not None:
            _carry(self._page)
        for word in range(_WORDS):
            self.cells[word] = 0
        self.cells[GENERATION] = generation
        self.cells[STARTED_MS] = now_ms
        self.cells[STARTED_NS] = now_ns
        self.cells[STATE] = ProcessState.STARTING
        self.cells[PID] = pid

    def set_state(self, state: ProcessState) -> None:
        self.cells[STATE] = state

    def set_queue_depth(self, depth: int) -> None:
        """Owner: the depth now; the greatest seen is kept beside it."""
        self.cells[QUEUE_DEPTH] = depth
        self.cells[QUEUE_DEPTH_MAX] = max(depth, self.cells[QUEUE_DEPTH_MAX])

    def snapshot(self) -> ProcessSnapshot:
        words = self.cells.tolist()
        try:
            state = ProcessState(words[STATE])
        except ValueError:
            state = ProcessState.ABSENT
        return ProcessSnapshot(
            index=self.index,
            pid=words[PID],
            generation=words[GENERATION],
            state=state,
            sleeping=bool(words[SLEEPING]),
            started_ms=words[STARTED_MS],
            started_ns=words[STARTED_NS],
            loops=words[LOOPS],
            busy_ns=words[BUSY_NS],
            idle_ns=words[IDLE_NS],
            requests=words[REQUESTS],
            bytes_in=words[BYTES_IN],
            bytes_out=words[BYTES_OUT],
            queue_depth=words[QUEUE_DEPTH],
            queue_depth_max=words[QUEUE_DEPTH_MAX],
            errors=words[ERRORS],
            connections=words[CONNECTIONS],
            counters=tuple(words[COUNTER_0 : COUNTER_0 + COUNTERS]),
        )


def process_table_size_bytes(processes: int) -> int:
    """The bytes a table of `processes` rows needs."""
    return processes * STRIDE_BYTES


def row_position(index: int) -> int:
    """Where the row of that index begins in the table, in bytes; a multiple of a page."""
    return index * STRIDE_BYTES


def own_row(page: memoryview, index: int) -> ProcessRow:
    """Return the row of that index over `page`, the writable page at `row_position(index)`."""
    words = page.cast("q")
    return ProcessRow(words[:_WORDS], index, page=words)


def _carry(page: memoryview) -> None:
    """Add what the life before has counted to the sum of those before it. Counts of one life are added once."""
    carried, bank = divmod(page[_CARRIED], 2)
    if page[GENERATION] <= carried:
        return  # the row is clear, or a life that was killed had added it
    old, new = _BANKS[bank], _BANKS[1 - bank]
    for word in range(LOOPS, _WORDS):
        page[new + word] = page[old + word] + page[word]
    page[_CARRIED] = page[GENERATION] * 2 + 1 - bank


class ProcessTable:
    """The whole table over a region named "…-processes"; rows are numbered as the supervisor numbers its
    processes.
    """

    __slots__ = ("_cells", "_view", "rows")

    def __init__(self, view: memoryview) -> None:
        rows, rest = divmod(len(view), STRIDE_BYTES)
        if rest or not rows:
            raise ValueError(f"{len(view)} bytes are no whole rows of {STRIDE_BYTES}")
        self.rows = rows
        self._view = view
        self._cells = view.cast("q")

    def row(self, index: int) -> ProcessRow:
        if not 0 <= index < self.rows:
            raise IndexError(f"process row {index} of {self.rows}")
        first = index * _STRIDE_WORDS
        return ProcessRow(self._cells[first : first + _WORDS], index)

    def totals(self, index: int) -> list[int]:
        """Return the words of a row with what all lives before have counted; only LOOPS and later words are sums.

        A word that says how much there is now, and not how often something happened, has no meaning here.
        """
        page = self._cells[index * _STRIDE_WORDS : (index + 1) * _STRIDE_WORDS]
        while True:
            before = page[_CARRIED]
            words = page[: _BANKS[1] + _WORDS].tolist()
            if page[_CARRIED] == before:
                break
        carried, bank = divmod(before, 2)
        sums = words[_BANKS[bank] : _BANKS[bank] + _WORDS]
        if words[GENERATION] > carried:
            sums = [earlier + now for earlier, now in zip(sums, words[:_WORDS], strict=True)]
        return sums

    def generation(self, index: int) -> int:
        """Return the latest generation of a process; 0 before its first life. It never falls."""
        page = self._cells[index * _STRIDE_WORDS : (index + 1) * _STRIDE_WORDS]
        return max(page[_CARRIED] // 2, page[GENERATION])

    def lines(self, index: int) -> list[PlacedLine]:
        """Return the last lines that a process has logged, the oldest first."""
        at = row_position(index)
        return lines_of(self._view[at : at + STRIDE_BYTES])

    def snapshot(self) -> list[ProcessSnapshot]:
        """Every row, also of processes that never started (state ABSENT)."""
        return [self.row(index).snapshot() for index in range(self.rows)]
