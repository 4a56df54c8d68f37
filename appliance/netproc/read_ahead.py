"""What a reader of a backlog will most likely ask for next, read while it still reads what it was sent.

    records sent → the stretch behind them is read → the client asks for it → header and stretch leave at once

There is one buffer for the process. If no client asked for a stretch before the next one was read, it was wasted work,
and makes the next ones rarer (`while_it_pays`): several readers at a time leave no time for it, and share what is in
the cache.

This module waits for no disk: what is not in the page cache is only ordered from the disk (decision 0060).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from appliance.ipc.while_it_pays import WhileItPays
from appliance.requests.segment_files import SegmentFile

_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)  # a C library may lack it: then nothing is read ahead


class ReadAhead:
    """One stretch at a time of at most `limit_bytes`; only what was readable before may be named."""

    __slots__ = ("_buffer", "_file", "_length_bytes", "_limit_bytes", "_pays", "_position")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer: memoryview | None = None  # of a process that has had a reader
        self._file: SegmentFile | None = None
        self._position = 0
        self._length_bytes = 0
        self._pays = WhileItPays()

    def expect(self, file: SegmentFile, position: int, length_bytes: int) -> None:
        """These bytes of an open segment are likely to be sent next. Read them, unless that was wasted too often."""
        if not _NOWAIT or not 0 < length_bytes <= self._limit_bytes:
            return
        if self._pays.skips():
            return
        if self._file is not None:
            self._pays.was_in_vain()
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = memoryview(bytearray(self._limit_bytes))
        self._file, self._position = file, position
        try:
            self._length_bytes = os.preadv(file.fd, [buffer[:length_bytes]], position, _NOWAIT)
        except OSError:  # not in the page cache; or a fault, which the send of these bytes meets, too
            self._length_bytes = 0
        if self._length_bytes < length_bytes:
            with suppress(OSError):
                os.posix_fadvise(file.fd, position, length_bytes, os.POSIX_FADV_WILLNEED)

    def take(self, file: SegmentFile, position: int, length_bytes: int) -> memoryview | None:
        """The bytes, if they were expected and are all there; once, and valid until the next `expect`."""
        # The same object: its descriptor has been open since, and means the same file.
        if self._file is not file or self._position != position:
            return None
        if self._length_bytes < length_bytes or self._buffer is None:
            return None  # wasted; the next `expect` counts it
        self._file = None
        self._pays.paid()
        return self._buffer[:length_bytes]
