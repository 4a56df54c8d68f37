"""Memory that is used again: a piece that nobody holds any more is given out anew.

The first touch of a page costs ten times what is done to its bytes here: memory fresh from the kernel is filled at 2 GB
a second, memory that was filled before at 20. A C library's `free` gives large pieces back to the kernel, and so does
Arrow's pool after a tenth of a second: each record batch would begin in fresh memory.

    take ──→ array ──→ slices, memoryviews, Arrow buffers over it
      ↑                                    │ the last of them is gone
      └──────────── kept ←─────────────────┘

A piece comes back by itself, for whoever looks at it holds the array that was handed out. So nobody's bytes change
while they can be seen, however long that is.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SMALL_BYTES: Final = 128 << 10
"""Below this a C library keeps what is given back to it."""
STEP_BYTES: Final = 1 << 20
LARGE_BYTES: Final = 8 << 20
PIECES_MAX: Final = 24


class Reserve:
    """Keeps at most PIECES_MAX pieces of at most LARGE_BYTES that nobody holds. For any number of threads."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        # Each step of ours is one step of the deque's: a piece may come back at any time, in any thread.
        self._pieces: deque[memoryview] = deque(maxlen=PIECES_MAX)

    def take(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """An array of so many bytes, whatever they are."""
        if not SMALL_BYTES < size_bytes <= LARGE_BYTES:
            return np.empty(size_bytes, np.uint8)
        piece = self._kept(size_bytes)
        if piece is None:
            piece = np.empty(-(-size_bytes // STEP_BYTES) * STEP_BYTES, np.uint8).data
        # Over a memoryview, not over an array: numpy would let slices hold on to that one instead.
        array = np.frombuffer(piece, np.uint8, size_bytes)
        weakref.finalize(array, self._pieces.append, piece).atexit = False
        return array

    def statistics(self) -> dict[str, int]:
        """Pieces that are kept, and their bytes."""
        kept = tuple(self._pieces)
        return {"pieces": len(kept), "bytes": sum(map(len, kept))}

    def _kept(self, size_bytes: int) -> memoryview | None:
        """A piece that is large enough, and not far too large."""
        for _ in range(len(self._pieces)):
            try:
                piece = self._pieces.pop()  # the one that came back last is the likeliest to be in a cache
            except IndexError:
                return None
            if size_bytes <= len(piece) < 2 * size_bytes + STEP_BYTES:
                return piece
            self._pieces.appendleft(piece)
        return None


_RESERVE: Final = Reserve()


def take(size_bytes: int) -> npt.NDArray[np.uint8]:
    """An array of so many bytes, whatever they are, out of the reserve of this process."""
    return _RESERVE.take(size_bytes)


def take_array(kind: type[np.generic], count: int) -> npt.NDArray[Any]:
    """The same of `count` numbers of a kind."""
    return take(count * np.dtype(kind).itemsize).view(kind)
