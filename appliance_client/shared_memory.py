"""Shared memory to the appliance on this host: `shm:///data-dir`. The layout is in docs/shared-memory.md.

    next_request ─▶ area of requests ─▶ request ring ─▶ bell (eventfd)
    answered ◀── answer ring ◀── area of answers           ◀── a byte on the Unix socket, when this client sleeps

The client does not spin before it sleeps: on two cores that takes the broker's processor (decision 0103).
"""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
import threading
from collections import deque
from pathlib import Path
from typing import Final

from appliance.protocol.records.batch import Buffer
from appliance_client.connection import Connection
from appliance_client.data_directory import data_directory_of
from appliance_client.options import ConnectionOptions
from appliance_client.transport import READABLE, Io

MAGIC: Final = b"APPLLANE"
VERSION: Final = 1
HELLO: Final = struct.Struct("<8sHHi")
WELCOME: Final = struct.Struct("<8sHHIIQQQQQ")
SLOT: Final = struct.Struct("<QII")
MORE: Final = 1
WORDS_BYTES: Final = 4096
REQUEST_TAIL: Final = 1024 // 8
REQUEST_HEAD: Final = 1088 // 8
ANSWER_TAIL: Final = 1152 // 8
ANSWER_HEAD: Final = 1216 // 8
CLIENT_SLEEPS: Final = 1280 // 8
WANTS_ROOM: Final = 1344 // 8
RINGS_OFFSET: Final = 4096

_SIZE_BYTES: Final = 4
_LIMITED_BY: Final = "half of shared.memory.pool.bytes, and socket.request.max.bytes"
_CODES: Final = {
    1: "the broker does not speak this version",
    2: "the broker has no memory or descriptor left for another lane",
    3: "the broker does not know this node id",
    4: "the broker stops",
}
_lock: Final = threading.local()


def full_fence() -> None:
    """Every store before this call is visible before any load after it: what a lock does on x86-64."""
    lock = getattr(_lock, "lock", None)
    if lock is None:
        lock = _lock.lock = threading.Lock()
    lock.acquire()
    lock.release()


class LaneEndedError(Exception):
    """The lane cannot be used, and why."""


class Lane:
    """The memory of one lane, as its client uses it."""

    def __init__(self, welcome: bytes, memory: int, bell: int) -> None:
        _, _, _, self.request_slots, self.answer_slots, *rest = WELCOME.unpack(welcome)
        self.requests, self._requests_bytes, self._answers, self._answers_bytes, self.request_max = rest
        self._memory = mmap.mmap(memory, 0)
        self.view = memoryview(self._memory)
        self.words = self.view[:WORDS_BYTES].cast("Q")
        self._answer_ring = RINGS_OFFSET + self.request_slots * SLOT.size
        self.bell = bell
        self._tail = 0
        self._head = 0
        self._freed = 0
        self._begin = 0
        self._end = 0
        # What each request that the broker has not taken holds of the area, with what was left over before it.
        self._held: deque[int] = deque()
        self._parts: list[bytes] = []

    def put(self, pieces: list[Buffer]) -> bool:
        """Write a request of at most `request_max` bytes, unseen until `publish`; False where there is no room."""
        length = sum(map(len, pieces))
        taken = self.words[REQUEST_HEAD]
        while self._freed < taken and self._held:
            self._begin += self._held.popleft()
            self._freed += 1
        offset = self._end % self._requests_bytes
        skipped = self._requests_bytes - offset if offset + length > self._requests_bytes else 0
        if not self._held:
            self._begin = self._end = skipped = offset = 0
        if (
            len(self._held) == self.request_slots
            or self._end + skipped + length - self._begin > self._requests_bytes
        ):
            return False
        if skipped:
            offset = 0
        place = self.requests + offset
        for piece in pieces:
            end = place + len(piece)
            self.view[place:end] = piece
            place = end
        ring = RINGS_OFFSET + self._tail % self.request_slots * SLOT.size
        SLOT.pack_into(self.view, ring, offset, length, 0)
        self._tail += 1
        self._end += skipped + length
        self._held.append(skipped + length)
        return True

    def publish(self) -> None:
        """Let the broker see what was put."""
        self.words[REQUEST_TAIL] = self._tail
        self.ring()

    def ring(self) -> None:
        """Wake the broker."""
        try:
            os.eventfd_write(self.bell, 1)
        except BlockingIOError:
            return

    def is_empty(self) -> bool:
        """Whether no answer waits."""
        return bool(self.words[ANSWER_TAIL] == self._head)

    def take(self) -> bytes | None:
        """The next whole answer, its size in front; None where there is none."""
        answer = None
        while answer is None and not self.is_empty():
            ring = self._answer_ring + self._head % self.answer_slots * SLOT.size
            offset, length, flags = SLOT.unpack_from(self.view, ring)
            start = self._answers + offset
            part = bytes(self.view[start : start + length])
            self._head += 1
            self.words[ANSWER_HEAD] = self._head
            if flags & MORE:
                self._parts.append(part)
            elif self._parts:
                self._parts.append(part)
                answer = b"".join(self._parts)
                self._parts = []
            else:
                answer = part
        full_fence()
        if self.words[WANTS_ROOM]:
            self.ring()
        return answer

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.bell)
        self.words.release()
        self.view.release()
        self._memory.close()


def say_hello(path: Path) -> socket.socket:
    """Connect to a data directory's broker. Raises OSError."""
    directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        sock.connect(f"/proc/self/fd/{directory}/shared-memory/hello")
    except OSError:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock


def receive_lane(sock: socket.socket) -> Lane:
    """Take the answer to a hello.

    Raises:
        LaneEndedError: it is a refusal.
        OSError: nothing is there yet (BlockingIOError), or the socket is broken.
    """
    room = socket.CMSG_SPACE(4 * array.array("i").itemsize)
    message, ancillary, _, _ = sock.recvmsg(WELCOME.size, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if len(message) == WELCOME.size and len(descriptors) == 2:
        memory, bell = descriptors
        try:
            return Lane(message, memory, bell)
        finally:
            os.close(memory)
    for descriptor in descriptors:
        os.close(descriptor)
    if len(message) != WELCOME.size:
        raise LaneEndedError("the broker gave no lane: its log says why")
    raise LaneEndedError(_CODES.get(WELCOME.unpack(message)[2], "the broker refused"))


class Transport:
    """Opens lanes."""

    def __init__(self, io: Io, options: ConnectionOptions) -> None:
        self.io = io
        self.options = options
        self.links: dict[LaneLink, None] = {}

    def open(self, connection: Connection) -> None:
        """Say hello."""
        link = LaneLink(self, connection)
        connection.link = link
        link.start()

    def may_sleep(self) -> bool:
        """Not while an answer is there."""
        lanes = [link for link in self.links if link.lane is not None]
        for link in lanes:
            link.announce_sleep()
        full_fence()
        return all(link.is_empty() for link in lanes)

    def woken(self) -> None:
        """Take answers."""
        for link in list(self.links):
            link.turn()

    def close(self) -> None:
        """Nothing is common to all links."""


class LaneLink:
    """The lane of one connection."""

    def __init__(self, transport: Transport, connection: Connection) -> None:
        self._transport = transport
        self._io = transport.io
        self._connection = connection
        self._sock: socket.socket | None = None
        self._unsent: list[Buffer] | None = None
        self.lane: Lane | None = None

    def start(self) -> None:
        """Ask the acceptor."""
        scheduler = self._io.scheduler
        try:
            self._sock = say_hello(data_directory_of(self._connection.address[0]))
            self._sock.send(HELLO.pack(MAGIC, VERSION, 0, self._connection.broker_id))
        except OSError as error:
            self._lose(f"no lane: {error.strerror}")
            return
        scheduler.call_at(scheduler.now_s + self._connection.setup_timeout_s, self._late)
        self._io.watch(self._sock.fileno(), self._on_socket, READABLE)

    def flush(self) -> None:
        """Put requests into the memory."""
        lane = self.lane
        if lane is None:
            return
        has_put = False
        while True:
            pieces = self._unsent
            if pieces is None:
                request = self._connection.next_request()
                if request is None:
                    break
                pieces = _without_size(request[0])
            if not lane.put(pieces):
                self._unsent = pieces
                break
            self._unsent = None
            has_put = True
        if has_put:
            lane.publish()

    def turn(self) -> None:
        """Take what is answered, and go on with what had no room."""
        lane = self.lane
        if lane is None:
            return
        lane.words[CLIENT_SLEEPS] = 0
        for _ in range(lane.answer_slots):
            answer = lane.take()
            if answer is None:
                break
            self._connection.answered(memoryview(answer))
            if self.lane is not lane:
                return
        if self._unsent is not None:
            self.flush()

    def is_empty(self) -> bool:
        """Whether no answer waits."""
        return self.lane is None or self.lane.is_empty()

    def announce_sleep(self) -> None:
        """From here on the broker wakes this client."""
        if self.lane is not None:
            self.lane.words[CLIENT_SLEEPS] = 1

    def close(self) -> None:
        """Give the lane back."""
        self._let_go()

    def _on_socket(self, _events: int) -> None:
        sock = self._sock
        if sock is None:
            return
        if self.lane is None:
            self._receive(sock)
            return
        try:
            woken = sock.recv(16)
        except BlockingIOError:
            return
        except OSError:
            woken = b""
        if self.lane is not None:
            self.turn()
        if not woken and self._sock is sock:
            self._lose("closed by the broker")

    def _receive(self, sock: socket.socket) -> None:
        try:
            self.lane = receive_lane(sock)
        except BlockingIOError:
            return
        except (OSError, LaneEndedError) as error:
            self._lose(f"no lane: {error}")
            return
        self._transport.links[self] = None
        self._connection.opened(
            messages=True, request_bytes_max=self.lane.request_max, limited_by=_LIMITED_BY
        )
        self.flush()

    def _late(self) -> None:
        if self._connection.link is self and self.lane is None:
            self._lose("no lane within socket.connection.setup.timeout.ms")

    def _lose(self, reason: str) -> None:
        self._let_go()
        if self._connection.link is self:
            self._connection.link = None
            self._connection.lost(reason)

    def _let_go(self) -> None:
        self._transport.links.pop(self, None)
        sock, self._sock = self._sock, None
        if sock is not None:
            self._io.unwatch(sock.fileno())
            sock.close()
        lane, self.lane = self.lane, None
        if lane is not None:
            lane.close()


def _without_size(pieces: list[Buffer]) -> list[Buffer]:
    """The first piece begins with the size of the request, which the ring says."""
    first = memoryview(pieces[0])[_SIZE_BYTES:]
    return [first, *pieces[1:]]
