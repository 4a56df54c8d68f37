"""A client of a lane that has the memory in its own hands, so that it can lie in each word."""

from __future__ import annotations

import select
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.records.record import Record, encode_batch
from appliance_client import shared_memory as shm
from tests.support.wire import nullable_string

PATIENCE_S = 20.0


class LaneClient:
    """One lane. Every wait ends after 20 seconds with TimeoutError."""

    def __init__(self, data_dir: Path, *, hello: bytes | None = None) -> None:
        self.sock = shm.say_hello(data_dir)
        self.sock.settimeout(PATIENCE_S)
        self.sock.send(hello if hello is not None else shm.HELLO.pack(shm.MAGIC, shm.VERSION, 0, -1))
        try:
            self.lane = shm.receive_lane(self.sock)
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lane back."""
        self.sock.close()
        self.lane.close()

    def send(self, request: bytes) -> None:
        """Put a request into the ring."""
        assert self.lane.put([request])
        self.lane.publish()

    def send_without_ringing(self, request: bytes) -> None:
        """Put a request into the ring, and leave the bell alone."""
        assert self.lane.put([request])
        self.lane.words[shm.REQUEST_TAIL] += 1

    def answer(self) -> bytes:
        """Wait for an answer; it has no size in front."""
        lane = self.lane
        while True:
            lane.words[shm.CLIENT_SLEEPS] = 1
            shm.full_fence()
            if lane.is_empty() and not self.sock.recv(16):
                raise ConnectionError("the broker has ended the lane")
            lane.words[shm.CLIENT_SLEEPS] = 0
            answer = lane.take()
            if answer is not None:
                assert struct.unpack_from(">i", answer)[0] == len(answer) - 4
                return answer[4:]

    def ask(self, request: bytes) -> bytes:
        """Send a request and wait for its answer."""
        self.send(request)
        return self.answer()

    def is_ended(self, within_s: float = PATIENCE_S) -> bool:
        """Wait until the broker has closed the socket."""
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        return bool(poll.poll(within_s * 1000))

    def raw_slot(self, offset: int, length: int, flags: int = 0, *, tail: int = 1) -> None:
        """Write a slot of the request ring as no client should, and publish it."""
        words = self.lane.words
        place = shm.RINGS_OFFSET + words[shm.REQUEST_HEAD] % self.lane.request_slots * shm.SLOT.size
        shm.SLOT.pack_into(self.memory, place, offset, length, flags)
        words[shm.REQUEST_TAIL] = (words[shm.REQUEST_HEAD] + tail) % (1 << 64)
        self.lane.ring()

    @property
    def memory(self) -> memoryview:
        """The whole of it."""
        return self.lane.view


def api_versions(correlation_id: int = 1) -> bytes:
    """Return an ApiVersions request."""
    return struct.pack(">hhi", ApiKey.API_VERSIONS, 0, correlation_id) + nullable_string("lane")


def produce(topic: str, *values: bytes, correlation_id: int = 1, acks: int = 1) -> bytes:
    """Return a Produce request with one batch."""
    batch = encode_batch([Record(value) for value in values])
    head = struct.pack(">hhi", ApiKey.PRODUCE, 8, correlation_id) + nullable_string("lane")
    head += nullable_string(None) + struct.pack(">hii", acks, 30_000, 1) + nullable_string(topic)
    return head + struct.pack(">iii", 1, 0, len(batch)) + batch


def fetch(topic: str, offset: int, *, correlation_id: int = 1, max_bytes: int = 8 << 20) -> bytes:
    """Return a Fetch request of version 4."""
    head = struct.pack(">hhi", ApiKey.FETCH, 4, correlation_id) + nullable_string("lane")
    head += struct.pack(">iiiibi", -1, 500, 1, max_bytes, 0, 1) + nullable_string(topic)
    return head + struct.pack(">iiqi", 1, 0, offset, max_bytes)
