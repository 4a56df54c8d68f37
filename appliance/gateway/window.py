"""How much a client may be sent that it has not acknowledged. Pure: no socket, no clock.

The client says how much it wants to have under way (its window), and acknowledges by marks. A mark is a random number
in the header of a message, so a client can acknowledge only what it has read. A client that grants without reading
therefore gets no more than one that is silent, and what waits for it in ZeroMQ is bounded by the broker's own limit.

    sent   ├────────────┬───────────┬──────┤
                     mark 1      mark 2
    acknowledged ────────┘ ←── CREDIT(mark 1, window)       the window begins here

A message may begin while less than the window is outstanding, so the last one may exceed it. At least every quarter of
the window has a mark. Where the window became smaller meanwhile, what is outstanding may have none: then `wants_mark`
says so, and a message that consists of a mark is sent.

All sessions of a process share one `Outstanding`. Beyond its bound, a session is sent a message only when it has
acknowledged all before. So clients that do not read take a bounded memory together, and those that do go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

MESSAGE_BYTES_MIN: Final = 1024
"""What a message costs at least: it is an object in ZeroMQ, however short it is."""
_MARKS_IN_WINDOW: Final = 4


class Outstanding:
    """What all sessions of a process together have been sent and have not acknowledged, in bytes."""

    __slots__ = ("bound_bytes", "bytes")

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.bytes = 0


class Window:
    """That of one session.

    Args:
        outstanding: shared with the other sessions.
        window: the client's.
        window_max: the broker's own limit.
        new_mark: returns a number of 64 bits, not 0, that nobody can guess.
    """

    __slots__ = (
        "_acknowledged_bytes",
        "_marked_bytes",
        "_marks",
        "_new_mark",
        "_outstanding",
        "_sent_bytes",
        "_window",
        "_window_max",
    )

    def __init__(
        self, window: int, *, window_max: int, new_mark: Callable[[], int], outstanding: Outstanding
    ) -> None:
        self._outstanding = outstanding
        self._window_max = window_max
        self._window = min(window, window_max)
        self._new_mark = new_mark
        self._sent_bytes = 0
        self._marked_bytes = 0
        self._acknowledged_bytes = 0
        self._marks: deque[tuple[int, int]] = deque()

    @property
    def outstanding_bytes(self) -> int:
        """What is sent and not acknowledged."""
        return self._sent_bytes - self._acknowledged_bytes

    @property
    def is_open(self) -> bool:
        """Whether another message may be sent."""
        own_bytes, outstanding = self._sent_bytes - self._acknowledged_bytes, self._outstanding
        return own_bytes < self._window and (not own_bytes or outstanding.bytes < outstanding.bound_bytes)

    @property
    def wants_mark(self) -> bool:
        """Whether the client cannot acknowledge what is outstanding, because none of it had a mark."""
        return not self._marks and self._sent_bytes > self._acknowledged_bytes

    def sent(self, size_bytes: int) -> int:
        """Count a message that is sent now; return its mark, 0 for none."""
        counted_bytes = max(size_bytes, MESSAGE_BYTES_MIN)
        self._sent_bytes += counted_bytes
        self._outstanding.bytes += counted_bytes
        if self._sent_bytes - self._marked_bytes < self._window // _MARKS_IN_WINDOW:
            return 0
        return self.mark()

    def mark(self) -> int:
        """Return a mark for all that was sent so far."""
        mark = self._new_mark()
        self._marks.append((mark, self._sent_bytes))
        self._marked_bytes = self._sent_bytes
        return mark

    def credit(self, mark: int, window: int) -> None:
        """Take what a client acknowledges, and the window that it wants from now on.

        A mark that is not outstanding is an older one, or invented; it acknowledges nothing.
        """
        self._window = min(window, self._window_max)
        if any(each == mark for each, _ in self._marks):
            while self._acknowledge_next() != mark:
                pass

    def _acknowledge_next(self) -> int:
        mark, position = self._marks.popleft()
        self._outstanding.bytes -= position - self._acknowledged_bytes
        self._acknowledged_bytes = position
        return mark

    def forget(self) -> None:
        """Count nothing of this session any more, because it has ended."""
        self._outstanding.bytes -= self._sent_bytes - self._acknowledged_bytes
        self._acknowledged_bytes = self._sent_bytes
        self._marks.clear()

    def check(self) -> None:
        """Raise AssertionError unless the marks lie in order between what is acknowledged and what is sent."""
        positions = [position for _, position in self._marks]
        assert positions == sorted(positions), self._marks
        assert all(self._acknowledged_bytes < each <= self._sent_bytes for each in positions), self._marks
        assert self._marked_bytes <= self._sent_bytes, (self._marked_bytes, self._sent_bytes)
