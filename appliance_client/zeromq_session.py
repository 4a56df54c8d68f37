"""A session of the appliance's ZeroMQ protocol, without a socket: messages in, messages out. docs/zeromq.md says how.

    hello ──▶ WELCOME ──▶ open ──▶ OPENED ──▶ requests, answers, credit, heartbeats ──▶ SessionEndedError

A message is a list of frames. What must be sent beside requests waits in `controls`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.protocol.records.batch import Buffer
from appliance_client.spare_memory import SpareMemory

HELLO: Final = 1
WELCOME: Final = 2
OPEN: Final = 3
OPENED: Final = 4
REQUEST: Final = 5
RESPONSE: Final = 6
CREDIT: Final = 7
HEARTBEAT: Final = 8
CLOSE: Final = 9
ERROR: Final = 10

WINDOW_BYTES: Final = 8 << 20
"""How much the broker sends beyond what was acknowledged. A part of an answer is acknowledged when it has come."""

_MAGIC: Final = 0x4B5A
_VERSION: Final = 1
_MORE: Final = 1
_NO_TOKEN: Final = bytes(16)
_HEAD: Final = struct.Struct(">HBBI16s")
_THEIR_HEAD: Final = struct.Struct(">HBBIQQ")
_HELLO: Final = struct.Struct(">Bi")
_OPEN: Final = struct.Struct(">iQ")
_OPENED: Final = struct.Struct(">16sIQQQIII")
_TWO: Final = struct.Struct(">QQ")
_ONE: Final = struct.Struct(">Q")
_SHORT: Final = struct.Struct(">H")
_SIZE: Final = struct.Struct(">i")
_SIZE_BYTES: Final = 4

_CODES: Final = (
    "?",
    "MALFORMED",
    "UNKNOWN_SESSION",
    "NOT_READY",
    "LIMIT_EXCEEDED",
    "VERSION",
    "REFUSED",
    "STOPPING",
    "OVERLOADED",
    "UNKNOWN_BROKER",
    "INTERNAL",
)


class SessionEndedError(Exception):
    """There is no session any more, or none came about."""


class Welcome(NamedTuple):
    """Which broker, and where its network process is."""

    version: int
    broker_id: int
    endpoint: str
    curve_server_key: str


class Limits(NamedTuple):
    """What OPENED allows."""

    token: bytes
    requests_max: int
    request_bytes_max: int
    bytes_in_flight_max: int
    window_max: int
    frames_max: int
    heartbeat_interval_ms: int
    session_timeout_ms: int


class ZeroMqSession:
    """What is said to one broker.

    Args:
        broker_id: as in Metadata; -1 is any.
        client_id: for the broker's log.
        answer_bytes_max: a longer answer ends the session.
    """

    def __init__(self, broker_id: int, client_id: str, answer_bytes_max: int) -> None:
        self.broker_id = broker_id
        self.limits: Limits | None = None
        self.controls: deque[list[Buffer]] = deque()
        self._name = _string(client_id)
        self._answer_bytes_max = answer_bytes_max
        self._head = b""
        self._heartbeat_mark = 0
        self._memory = SpareMemory()
        self._parts: list[Buffer] = []
        self._parts_bytes = 0
        self._sizes: deque[tuple[int, bool]] = deque()
        self._bytes_in_flight = 0
        self._held: tuple[list[Buffer], int, bool] | None = None

    def hello(self) -> list[Buffer]:
        """What the acceptor is asked."""
        return [_head(HELLO), _HELLO.pack(_VERSION, self.broker_id) + self._name]

    def welcomed(self, frames: Sequence[Buffer]) -> Welcome:
        """Read the answer to HELLO.

        Raises:
            SessionEndedError: it is no WELCOME.
        """
        _, body = self._expect(frames, WELCOME)
        try:
            version, broker_id = _HELLO.unpack_from(body)
            endpoint, at = _read_string(body, _HELLO.size)
            key, _ = _read_string(body, at)
        except (struct.error, ValueError) as error:
            raise SessionEndedError(f"a WELCOME that does not parse: {error}") from error
        if version != _VERSION:
            raise SessionEndedError(
                f"the broker speaks version {version} of the ZeroMQ protocol, not {_VERSION}"
            )
        self.broker_id = broker_id
        return Welcome(version, broker_id, endpoint, key)

    def open(self) -> list[Buffer]:
        """What the network process is asked."""
        return [_head(OPEN), _OPEN.pack(self.broker_id, WINDOW_BYTES) + self._name]

    def opened(self, frames: Sequence[Buffer]) -> Limits:
        """Read the answer to OPEN.

        Raises:
            SessionEndedError: it is no OPENED.
        """
        _, body = self._expect(frames, OPENED)
        try:
            limits = Limits(*_OPENED.unpack_from(body))
        except struct.error as error:
            raise SessionEndedError(f"an OPENED that does not parse: {error}") from error
        if limits.requests_max < 1 or limits.frames_max < 2 or not limits.heartbeat_interval_ms:
            raise SessionEndedError(f"the broker allows nothing: {limits[1:]}")
        self.limits = limits
        self._head = _head(REQUEST, limits.token)
        return limits

    def request(self, request: tuple[list[Buffer], bool] | None) -> list[Buffer] | None:
        """The message of a request; None where it must wait for answers, or where there is none.

        A request that must wait is kept, and is the next one: call with None until it has gone.

        Raises:
            SessionEndedError: the broker takes no request of this size.
        """
        if request is not None:
            assert self._held is None
            pieces, is_answered = request
            (size,) = _SIZE.unpack_from(pieces[0])
            pieces[0] = memoryview(pieces[0])[_SIZE_BYTES:]
            self._held = (pieces, size, is_answered)
        if self._held is None:
            return None
        pieces, size, is_answered = self._held
        limits = self.limits
        assert limits is not None
        if size > limits.request_bytes_max:
            raise SessionEndedError(f"a request of {size} bytes; the broker takes {limits.request_bytes_max}")
        if self._sizes and (
            len(self._sizes) >= limits.requests_max
            or self._bytes_in_flight + size > limits.bytes_in_flight_max
        ):
            return None
        self._held = None
        self._sizes.append((size, is_answered))
        self._bytes_in_flight += size
        if len(pieces) >= limits.frames_max:
            kept = limits.frames_max - 2
            pieces[kept:] = [b"".join(pieces[kept:])]
        return [self._head, *pieces]

    @property
    def holds(self) -> bool:
        """A request waits until answers have come."""
        return self._held is not None

    def received(self, frames: Sequence[Buffer]) -> memoryview | None:
        """Take a message; returns an answer, 4 bytes of size in front, when it is whole.

        Raises:
            SessionEndedError: the broker says so, or what it says makes no sense.
        """
        kind, flags, mark = self._read_head(frames)
        if kind == RESPONSE:
            body = frames[1:]
            self._parts += body
            self._parts_bytes += sum(map(len, body))
            if mark:
                self.credit(mark)
            if self._parts_bytes > self._answer_bytes_max:
                raise SessionEndedError("an answer longer than receive.message.max.bytes")
            if flags & _MORE:
                return None
            return self._whole()
        if kind == CREDIT:
            self.credit(mark)
        elif kind == HEARTBEAT:
            self._heartbeat_mark = mark
        elif kind == ERROR:
            raise _error(b"".join(frames[1:]))
        return None

    def _whole(self) -> memoryview:
        answer = self._memory.joined([_SIZE.pack(self._parts_bytes), *self._parts])
        self._parts = []
        self._parts_bytes = 0
        while self._sizes:
            size, is_answered = self._sizes.popleft()
            self._bytes_in_flight -= size
            if is_answered:
                return answer
        raise SessionEndedError("an answer that nothing asked for")

    def credit(self, mark: int) -> None:
        """Have the broker told that this much has been taken."""
        self._control(CREDIT, _TWO.pack(mark, WINDOW_BYTES))

    def heartbeat(self) -> None:
        """Have the broker told that we are here, and that its last heartbeat came."""
        self._control(HEARTBEAT, _ONE.pack(self._heartbeat_mark))

    def close(self) -> list[Buffer]:
        """The last message."""
        assert self.limits is not None
        return [_head(CLOSE, self.limits.token)]

    def _control(self, kind: int, body: bytes) -> None:
        assert self.limits is not None
        self.controls.append([_head(kind, self.limits.token), body])

    def _expect(self, frames: Sequence[Buffer], wanted: int) -> tuple[int, bytes]:
        kind, flags, _ = self._read_head(frames)
        body = b"".join(frames[1:])
        if kind == ERROR:
            raise _error(body)
        if kind != wanted:
            raise SessionEndedError(f"a message of kind {kind} where {wanted} was due")
        return flags, body

    @staticmethod
    def _read_head(frames: Sequence[Buffer]) -> tuple[int, int, int]:
        if len(frames[0]) != _THEIR_HEAD.size:
            raise SessionEndedError("a message without a header; this is no appliance")
        magic, _, kind, flags, mark, _ = _THEIR_HEAD.unpack(frames[0])
        if magic != _MAGIC:
            raise SessionEndedError("a message without a header; this is no appliance")
        return kind, flags, mark


def _head(kind: int, token: bytes = _NO_TOKEN) -> bytes:
    return _HEAD.pack(_MAGIC, _VERSION, kind, 0, token)


def _string(text: str) -> bytes:
    raw = text.encode()[:0xFFFF]
    return _SHORT.pack(len(raw)) + raw


def _read_string(body: bytes, at: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(body, at)
    at += _SHORT.size
    if at + length > len(body):
        raise ValueError("it ends too early")
    return body[at : at + length].decode(), at + length


def _error(body: bytes) -> SessionEndedError:
    try:
        (code,) = _SHORT.unpack_from(body)
        text, _ = _read_string(body, _SHORT.size)
    except (struct.error, ValueError):
        return SessionEndedError("an ERROR that does not parse")
    name = _CODES[code] if code < len(_CODES) else str(code)
    return SessionEndedError(f"{name}: {text}")
