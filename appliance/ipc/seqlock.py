"""A sequence lock: values of several words, published by one writer to any number of readers that never block
it.

The sequence word is even at rest and odd while the writer is inside. A reader notes the sequence, reads, and
looks again: the same even number both times means that nothing was written in between. Only the writer writes
the word. x86-64 keeps loads in order and stores in order, so no fence is needed on either side.

A writer that dies inside leaves the word odd. Readers give up after their patience (WriterGone); the writer's
successor begins again, writes everything anew and ends: the word is even again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from appliance.ipc.errors import WriterGone

Value = TypeVar("Value")

PATIENCE_MS = 100

# A writer is inside for microseconds unless it lost its processor: yield first, then wait out a time slice.
_YIELDS = 64
_NAP_MS = 1


class SequenceLock:
    """The lock whose sequence word is `cells[index]`, an 8-byte integer cell."""

    __slots__ = ("_cells", "_index")

    def __init__(self, cells: memoryview, index: int) -> None:
        self._cells = cells
        self._index = index

    def begin(self) -> None:
        """Writer: readers retry from here on. Also takes over after a writer that died inside."""
        self._cells[self._index] |= 1

    def end(self) -> None:
        """Writer: what was written is published."""
        self._cells[self._index] = (self._cells[self._index] | 1) + 1

    def version(self) -> int:
        """How many times something was published: tells whether the value changed without reading it."""
        return int(self._cells[self._index]) >> 1

    def read(self, read_value: Callable[[], Value], *, patience_ms: int = PATIENCE_MS) -> Value:
        """What `read_value` returns when no write fell into it.

        `read_value` copies out; it may meet half-written values and may raise on them: only an error
        without a concurrent write is passed on.

        Raises:
            WriterGone: no quiet moment came within `patience_ms`.
        """
        cells, index = self._cells, self._index
        for attempt in range(_YIELDS + patience_ms // _NAP_MS):
            before = cells[index]
            if not before & 1:
                try:
                    value = read_value()
                except Exception:
                    if cells[index] == before:
                        raise
                else:
                    if cells[index] == before:
                        return value
            if attempt < _YIELDS:
                os.sched_yield()
            else:
                time.sleep(_NAP_MS / 1000)
        raise WriterGone(f"sequence word {index} stayed busy for {patience_ms} ms")
