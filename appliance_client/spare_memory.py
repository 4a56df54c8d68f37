"""Memory for what is received: a piece is used again as soon as no view of it is left.

    take ─▶ filled by recv or pread ─▶ views of it: chunks of batches ─▶ the last one has gone ─▶ take

Memory that is fresh from the kernel costs a page fault for each 4 KiB, and a new bytearray is filled with zeros first.
Together that takes longer than to receive the bytes.

A bytearray cannot change its length while a view of it exists. So it says itself whether it may be used again, and
nobody has to give it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.protocol.records.batch import Buffer

PIECES_MAX: Final = 4
"""Two chunks that wait, one that is decoded, one that arrives."""
PIECE_BYTES_MAX: Final = 4 << 20
"""A larger piece is not kept, so at most 16 MiB are."""
SMALL_BYTES: Final = 64 << 10
"""The C library keeps what is smaller."""


class SpareMemory:
    """Up to PIECES_MAX pieces of up to PIECE_BYTES_MAX. For one thread at a time."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytearray] = []

    def take(self, size_bytes: int) -> memoryview:
        """A view of so many bytes, whatever they are. Nobody else has one of the same piece."""
        pieces = self._pieces
        for index in range(len(pieces) - 1, -1, -1):
            # The one that was used last lies in the processor's cache.
            piece = pieces[index]
            if size_bytes <= len(piece) and _is_free(piece):
                pieces.append(pieces.pop(index))
                return memoryview(piece)[:size_bytes]
        if size_bytes > PIECE_BYTES_MAX:
            return memoryview(bytearray(size_bytes))
        piece = bytearray(-(-size_bytes // SMALL_BYTES) * SMALL_BYTES)
        pieces.append(piece)
        if len(pieces) > PIECES_MAX:
            # The one that was given out longest ago: small ones would stay for ever otherwise, and be of no use.
            del pieces[0]
        return memoryview(piece)[:size_bytes]

    def joined(self, parts: Sequence[Buffer]) -> memoryview:
        """The parts one behind another."""
        size_bytes = sum(map(len, parts))
        if size_bytes < SMALL_BYTES:
            return memoryview(b"".join(parts))
        whole = self.take(size_bytes)
        at = 0
        for part in parts:
            whole[at : at + len(part)] = part
            at += len(part)
        return whole


def detached(found: memoryview, taken_bytes: int) -> memoryview:
    """What was found in a piece of which so many bytes were taken: a copy if it is little.

    Otherwise a few records that wait to be handed out would hold a piece of a megabyte.
    """
    return memoryview(bytes(found)) if 2 * len(found) < taken_bytes else found


def _is_free(piece: bytearray) -> bool:
    """Whether there is no view of it."""
    try:
        piece.pop()
    except BufferError:
        return False
    piece.append(0)
    return True
