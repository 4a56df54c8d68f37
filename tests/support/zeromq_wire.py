"""A ZeroMQ client without a Kafka client: written from docs/zeromq.md, and knowing nothing of the broker's code.

For tests that must send what no library would.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import zmq

HELLO, WELCOME, OPEN, OPENED, REQUEST, RESPONSE, CREDIT, HEARTBEAT, CLOSE, ERROR = range(1, 11)
MALFORMED, UNKNOWN_SESSION, NOT_READY, LIMIT_EXCEEDED, VERSION, REFUSED, STOPPING, OVERLOADED = range(1, 9)
UNKNOWN_BROKER: Final = 9
SUBSCRIBE, SUBSCRIBED, PUSH, UNSUBSCRIBE, UNSUBSCRIBED = range(16, 21)
MORE: Final = 1
MAGIC: Final = 0x4B5A
NO_TOKEN: Final = bytes(16)
WINDOW: Final = 4 << 20
PATIENCE_MS: Final = 30_000


class SessionEnded(Exception):
    """The broker sent ERROR."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class NothingCame(Exception):
    """No message within the time."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the broker."""

    kind: int
    flags: int
    mark: int
    subject: int
    body: bytes
    frames: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What OPENED says."""

    token: bytes
    requests_max: int
    request_bytes_max: int
    bytes_in_flight_max: int
    window_max: int
    frames_max: int
    heartbeat_interval_ms: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """A client's keys, and the server's public one; all in Z85."""

    public: bytes
    secret: bytes
    server: bytes


def string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded


def header(kind: int, token: bytes = NO_TOKEN, *, version: int = 1) -> bytes:
    return struct.pack(">HBBI16s", MAGIC, version, kind, 0, token)


class Dealer:
    """A DEALER socket. Every wait ends with NothingCame."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        keys: CurveKeys | None = None,
        routing_id: bytes | None = None,
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.IMMEDIATE, 1)
        if routing_id is not None:
            self.socket.set(zmq.IDENTITY, routing_id)
        if keys is not None:
            self.socket.set(zmq.CURVE_SERVERKEY, keys.server)
            self.socket.set(zmq.CURVE_PUBLICKEY, keys.public)
            self.socket.set(zmq.CURVE_SECRETKEY, keys.secret)
        self.socket.connect(endpoint)

    def send(self, *frames: bytes, timeout_ms: int = PATIENCE_MS) -> None:
        if not self.socket.poll(timeout_ms, zmq.POLLOUT):
            raise NothingCame("not connected")
        self.socket.send_multipart(frames)

    def receive(self, timeout_ms: int = PATIENCE_MS) -> Message:
        if not self.socket.poll(timeout_ms):
            raise NothingCame
        head, *rest = self.socket.recv_multipart()
        magic, _, kind, flags, mark, subject = struct.unpack(">HBBIQQ", head)
        assert magic == MAGIC
        return Message(kind, flags, mark, subject, b"".join(rest), len(rest) + 1)

    def close(self) -> None:
        # Without a linger libzmq 4.3 ends the process (session_base.cpp: EAGAIN) where it has sent a part of a message.
        self.socket.close(linger=200)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def raise_error(message: Message) -> None:
    if message.kind == ERROR:
        (code, length) = struct.unpack_from(">HH", message.body)
        raise SessionEnded(code, message.body[4 : 4 + length].decode())


def say_hello(
    context: zmq.Context[zmq.Socket[bytes]],
    listener: str,
    *,
    broker_id: int = -1,
    keys: CurveKeys | None = None,
    timeout_ms: int = PATIENCE_MS,
) -> tuple[int, str]:
    """Return the broker's id and the endpoint of a network process."""
    with Dealer(context, listener, keys=keys) as dealer:
        dealer.send(header(HELLO), struct.pack(">Bi", 1, broker_id) + string("test"), timeout_ms=timeout_ms)
        welcome = dealer.receive(timeout_ms)
        raise_error(welcome)
        assert welcome.kind == WELCOME
        version, broker_id, length = struct.unpack_from(">BiH", welcome.body)
        assert version == 1
        return broker_id, welcome.body[7 : 7 + length].decode()


class ZeroMqSession:
    """A session, from HELLO on. It acknowledges what it reads, unless it is told not to."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        listener: str,
        *,
        broker_id: int = -1,
        window: int = WINDOW,
        keys: CurveKeys | None = None,
        endpoint: str | None = None,
        acknowledges: bool = True,
    ) -> None:
        if endpoint is None:
            broker_id, endpoint = say_hello(context, listener, broker_id=broker_id, keys=keys)
        self.endpoint = endpoint
        self.window = window
        self.acknowledges = acknowledges
        self.dealer = Dealer(context, endpoint, keys=keys)
        self.dealer.send(header(OPEN), struct.pack(">iQ", max(broker_id, 0), window) + string("test"))
        opened = self.dealer.receive()
        raise_error(opened)
        assert opened.kind == OPENED
        self.limits = Limits(*struct.unpack_from(">16sIQQQIII", opened.body))
        self.token = self.limits.token
        self._earlier: list[Message] = []  # what came before a confirmation
        self.marks: list[int] = []

    def send(self, kind: int, *frames: bytes) -> None:
        self.dealer.send(header(kind, self.token), *frames)

    def credit(self, mark: int, window: int) -> None:
        self.send(CREDIT, struct.pack(">QQ", mark, window))

    def heartbeat(self, mark: int = 0) -> None:
        self.send(HEARTBEAT, struct.pack(">Q", mark))

    def receive(self, timeout_ms: int = PATIENCE_MS) -> Message:
        """Return the next message; ERROR is raised."""
        if self._earlier:
            return self._earlier.pop(0)
        message = self.dealer.receive(timeout_ms)
        raise_error(message)
        if message.mark and message.kind != HEARTBEAT:
            self.marks.append(message.mark)
            if self.acknowledges:
                self.credit(message.mark, self.window)
        return message

    def response(self, timeout_ms: int = PATIENCE_MS) -> bytes:
        """Return the next response, joined of its parts."""
        parts = []
        while True:
            message = self.receive(timeout_ms)
            if message.kind != RESPONSE:
                continue
            parts.append(message.body)
            if not message.flags & MORE:
                return b"".join(parts)

    def ask(self, *frames: bytes) -> bytes:
        """Send a request (Kafka's, without a size) and return its response."""
        self.send(REQUEST, *frames)
        return self.response()

    def subscribe(
        self,
        number: int,
        topic: str,
        *,
        partition: int = 0,
        offset: int = 0,
        isolation: int = 0,
        max_bytes: int = 1 << 20,
    ) -> None:
        body = struct.pack(">QiqBI", number, partition, offset, isolation, max_bytes) + string(topic)
        self.send(SUBSCRIBE, body)
        earlier = []
        while (message := self.receive()).kind != SUBSCRIBED:
            earlier.append(message)
        assert message.subject == number
        self._earlier += earlier

    def push(self, timeout_ms: int = PATIENCE_MS) -> tuple[int, bytes]:
        """Return the next push, joined of its parts: the subscription's number, and a Fetch response."""
        parts: dict[int, bytes] = {}
        while True:
            message = self.receive(timeout_ms)
            if message.kind == PUSH:
                parts[message.subject] = parts.get(message.subject, b"") + message.body
                if not message.flags & MORE:
                    return message.subject, parts[message.subject]

    def close(self) -> None:
        self.send(CLOSE)
        self.dealer.socket.close(linger=200)

    def drop(self) -> None:
        """Close the socket without a word."""
        self.dealer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.dealer.socket.closed:
            self.drop()
