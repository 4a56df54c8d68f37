"""An answer in parts of about a megabyte, each the frames of one message."""

from __future__ import annotations

import os
from typing import Final

from appliance.errors import StorageFault
from appliance.gateway.frames import PART_BYTES
from appliance.gateway.session import Sent
from appliance.requests.answer import FilePiece

JOIN_BYTES: Final = 16 * 1024
"""Pieces below this are joined: a copy is cheaper than a frame."""
_FRAMES_MAX: Final = 32

Buffer = bytes | memoryview


def take_part(pieces: list[Sent]) -> tuple[list[Buffer], int]:
    """Take the next part of an answer, whose pieces leave from the end of the list; return its frames and their bytes.

    Raises:
        StorageFault: a segment ended before the bytes that were promised.
        OSError: it cannot be read.
    """
    frames: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    while pieces and size < PART_BYTES and len(frames) < _FRAMES_MAX:
        data = _take(pieces, PART_BYTES - size)
        size += len(data)
        if len(data) < JOIN_BYTES:
            small.append(data)
            continue
        _join(small, frames)
        frames.append(data)
    _join(small, frames)
    return frames, size


def _take(pieces: list[Sent], limit: int) -> Buffer:
    """Take up to `limit` bytes of the next piece."""
    piece = pieces[-1]
    if isinstance(piece, FilePiece):
        wanted = min(piece.remaining, limit)
        data = os.pread(piece.file.fd, wanted, piece.position)
        if len(data) < wanted:
            raise StorageFault(f"a segment ended {piece.remaining - len(data)} bytes before its promised end")
        piece.position += wanted
        piece.remaining -= wanted
        if not piece.remaining:
            piece.file.release()
            pieces.pop()
        return data
    pieces.pop()
    if len(piece) <= limit + JOIN_BYTES:
        return piece
    rest = memoryview(piece)
    pieces.append(rest[limit:])
    return rest[:limit]


def _join(small: list[Buffer], frames: list[Buffer]) -> None:
    """Add the small pieces as one frame."""
    if small:
        frames.append(small[0] if len(small) == 1 else b"".join(small))
        small.clear()
