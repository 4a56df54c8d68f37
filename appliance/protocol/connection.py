"""One connection as far as bytes go: bytes in, frames out. No socket, no clock.

    state     event of `next_event`        then
    OPEN      NeedMore(missing_bytes)      read at least that much behind what is there, ask again
    OPEN      Frame(start, end)            parse it; ask again, more may be there already
    OPEN      raises MalformedFrame        BROKEN
    BROKEN    raises the same again        close: where the next frame begins is not known any more

The owner keeps the buffer (a slab of a shared pool, usually) and says how far it is filled. The order of
responses is the owner's business too.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.errors import MalformedFrame
from appliance.protocol.framing import SIZE_BYTES, frame_size


class Frame(NamedTuple):
    """A whole frame: header and body are `buffer[start:end]`, the size prefix stands before `start`."""

    start: int
    end: int


class NeedMore(NamedTuple):
    """Nothing whole is there. `missing_bytes` until the next event at the earliest.

    `frame_bytes` is how much the unfinished frame takes with its prefix, 0 while its size is not known:
    what a buffer must hold from `Connection.position` on.
    """

    missing_bytes: int
    frame_bytes: int


class Connection:
    """Cuts the bytes of one connection into frames.

    Args:
        size_max: the largest frame accepted (`socket.request.max.bytes`, less before authentication). May
        be set
            anew at any time; it counts from the next frame on.
    """

    __slots__ = ("_fault", "position", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.position = 0
        self._fault: str | None = None

    def next_event(self, buffer: memoryview, filled: int) -> Frame | NeedMore:
        """What `buffer[position:filled]` holds next; a frame moves `position` behind itself.

        Raises:
            MalformedFrame: the next size is not acceptable; nothing more can be read from this connection.
        """
        position = self.position
        start = position + SIZE_BYTES
        if filled < start:
            return NeedMore(start - filled, 0)
        if self._fault is not None:
            raise MalformedFrame(self._fault)
        try:
            size = frame_size(buffer, position, size_max=self.size_max)
        except MalformedFrame as error:
            self._fault = str(error)
            raise
        end = start + size
        if filled < end:
            return NeedMore(end - filled, SIZE_BYTES + size)
        self.position = end
        return Frame(start, end)

    def moved(self, position: int) -> None:
        """The unread bytes were moved: the next frame now begins at `position`."""
        self.position = position
