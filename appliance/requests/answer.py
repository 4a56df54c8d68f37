"""What an answer consists of: bytes, and stretches of segment files that are sent without being read here."""

from __future__ import annotations

from appliance.requests.segment_files import SegmentFile


class FilePiece:
    """Bytes of a segment to send, `position` and `remaining` moving as they leave.

    `following_bytes` are readable behind them, and likely to be asked for next.
    """

    __slots__ = ("file", "following_bytes", "position", "remaining")

    def __init__(self, file: SegmentFile, position: int, length_bytes: int, following_bytes: int = 0) -> None:
        self.file = file
        self.position = position
        self.remaining = length_bytes
        self.following_bytes = following_bytes


Piece = bytes | FilePiece
