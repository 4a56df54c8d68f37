"""The last lines that a process has logged, in the page of its row (`process_table.py`).

    byte    2048       2056       2064                                      4096
            ┌──────────┬──────────┬─────────────────────────────────────────┐
            │ begun    │ written  │ ring of 2,032 bytes: lines in UTF-8, each with a line feed
            └──────────┴──────────┴─────────────────────────────────────────┘

Positions count all bytes ever written; the byte at position p is at p modulo the size of the ring. The process moves
`begun` to where a line will end, copies the line, and then moves `written` there. Words are signed 64-bit, and each is
whole at any instant. x86-64 shows stores to others in their order, and a reader that looks at `written` first, then at
the bytes, and at `begun` last, knows which bytes nobody has begun to overwrite.

The lines stay when the process dies, and the next life goes on behind them. If a process was killed while it wrote, the
end of its last line is what was there before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LINES_AT: Final = 2048
_WORD_BYTES: Final = 8
_BEGUN: Final = 0
_WRITTEN: Final = 1
_RING_AT: Final = LINES_AT + 2 * _WORD_BYTES
_PAGE_BYTES: Final = 4096
RING_BYTES: Final = _PAGE_BYTES - _RING_AT
LINE_BYTES_MAX: Final = 512
"""Longer lines are cut, so that one does not push out all others."""


class PlacedLine(NamedTuple):
    """A line, and the position behind it. Positions of one process grow for ever."""

    position: int
    text: str


class LineRing:
    """The writer's end.

    Args:
        page: the writable page of the process's own row, as bytes.
    """

    def __init__(self, page: memoryview) -> None:
        self._words = page[LINES_AT:_RING_AT].cast("q")
        self._ring = page[_RING_AT:_PAGE_BYTES]
        if self._words[_BEGUN] != self._words[_WRITTEN]:
            self._words[_WRITTEN] = self._words[_BEGUN]
            self._append(b"\n")

    def write(self, line: str) -> None:
        """Keep a line, instead of the oldest ones."""
        self._append(line.encode("utf-8", "replace")[:LINE_BYTES_MAX].replace(b"\n", b" ") + b"\n")

    def _append(self, data: bytes) -> None:
        at = self._words[_WRITTEN]
        self._words[_BEGUN] = at + len(data)
        start = at % RING_BYTES
        first = data[: RING_BYTES - start]
        self._ring[start : start + len(first)] = first
        rest = data[len(first) :]
        self._ring[: len(rest)] = rest
        self._words[_WRITTEN] = at + len(data)


def lines_of(page: memoryview) -> list[PlacedLine]:
    """Return the lines of a process, the oldest first. It may write meanwhile.

    Args:
        page: of the process's row, as bytes.
    """
    words = page[LINES_AT:_RING_AT].cast("q")
    written = words[_WRITTEN]
    ring = bytes(page[_RING_AT:_PAGE_BYTES])
    begun = words[_BEGUN]
    first = max(0, begun - RING_BYTES)
    if not 0 < written <= begun or first >= written:
        return []
    start = first % RING_BYTES
    text = (ring[start:] + ring[:start])[: written - first]
    found: list[PlacedLine] = []
    at = first
    for number, line in enumerate(text.split(b"\n")[:-1]):
        at += len(line) + 1
        # What is left of a line whose beginning was overwritten is no line.
        if line and (number or not first):
            found.append(PlacedLine(at, line.decode("utf-8", "replace")))
    return found
