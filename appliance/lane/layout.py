"""The memory of a lane, and the two messages that hand it over (docs/shared-memory.md). No descriptor, no client.

    0                     the header: what WELCOME says, for people who look
    1024, 1088            request tail (client), request head (broker)
    1152, 1216            answer tail (broker), answer head (client)
    1280, 1344            client sleeps (client), broker wants room (broker)
    4096                  the request ring, then the answer ring, then the area of requests, then that of answers

Each word has a cache line of its own and one writer. The client may write anywhere all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

MAGIC: Final = b"APPLLANE"
VERSION: Final = 1
HELLO: Final = Struct("<8sHHi")
"""Magic, newest version, zeros, the broker's node id or -1."""
WELCOME: Final = Struct("<8sHHIIQQQQQ")
"""Magic, version, code, slots of the request ring and of the answer ring, offset and size of the area of requests,
the same of answers, the largest request."""

OK: Final = 0
MALFORMED: Final = 1
REFUSED: Final = 2
UNKNOWN_BROKER: Final = 3
STOPPING: Final = 4

REQUEST_TAIL: Final = 1024 // 8
REQUEST_HEAD: Final = 1088 // 8
ANSWER_TAIL: Final = 1152 // 8
ANSWER_HEAD: Final = 1216 // 8
CLIENT_SLEEPS: Final = 1280 // 8
WANTS_ROOM: Final = 1344 // 8

SLOT: Final = Struct("<QII")
"""Offset in the area, length, flags."""
MORE: Final = 1
"""Flag of an answer's part: others follow."""
REQUEST_SLOTS: Final = 256
ANSWER_SLOTS: Final = 256
RINGS_OFFSET: Final = 4096
PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie in a memory with a pool of so many bytes, half of it for requests."""

    pool_bytes: int

    @property
    def answer_ring(self) -> int:
        """Where the answer ring begins."""
        return RINGS_OFFSET + REQUEST_SLOTS * SLOT.size

    @property
    def requests(self) -> int:
        """Where the area of requests begins."""
        return self.answer_ring + ANSWER_SLOTS * SLOT.size

    @property
    def area_bytes(self) -> int:
        """The size of the area of requests, and of that of answers."""
        return self.pool_bytes // 2 // PAGE * PAGE

    @property
    def answers(self) -> int:
        """Where the area of answers begins."""
        return self.requests + self.area_bytes

    @property
    def size_bytes(self) -> int:
        """The size of the memory."""
        return self.answers + self.area_bytes

    def welcome(self, request_bytes_max: int) -> bytes:
        """Return the message that goes with the memory."""
        area = self.area_bytes
        return WELCOME.pack(
            MAGIC,
            VERSION,
            OK,
            REQUEST_SLOTS,
            ANSWER_SLOTS,
            self.requests,
            area,
            self.answers,
            area,
            min(area, request_bytes_max),
        )


def refusal(code: int) -> bytes:
    """Return the message that tells a client that it gets no memory."""
    return WELCOME.pack(MAGIC, VERSION, code, 0, 0, 0, 0, 0, 0, 0)
