"""The frames of the ZeroMQ protocol, encoded and parsed. Pure: no socket, no clock. docs/zeromq.md is the contract.

client → broker   u16 magic │ u8 version │ u8 kind │ u32 flags │ 16 bytes token
broker → client   u16 magic │ u8 version │ u8 kind │ u32 flags │ u64 mark │ u64 subject
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, Final

from appliance.errors import MalformedFrame

MAGIC: Final = 0x4B5A
VERSION: Final = 1
TOKEN_BYTES: Final = 16
HEADER_BYTES: Final = 24
FRAMES_MAX: Final = 64
"""The most frames in a message of a client, the header included."""
PART_BYTES: Final = 1 << 20
"""About the longest part of a response."""
WINDOW_LIMIT: Final = 1 << 62
MORE: Final = 1
"""Flag: another part of this response follows."""

FROM_CLIENT: Final = Struct(f">HBBI{TOKEN_BYTES}s")
FROM_BROKER: Final = Struct(">HBBIQQ")
assert FROM_CLIENT.size == FROM_BROKER.size == HEADER_BYTES

_HELLO: Final = Struct(">Bi")
_WELCOME: Final = Struct(">Bi")
_OPEN: Final = Struct(">iQ")
_OPENED: Final = Struct(f">{TOKEN_BYTES}sIQQQIII")
_CREDIT: Final = Struct(">QQ")
_HEARTBEAT: Final = Struct(">Q")
_ERROR: Final = Struct(">H")
_SUBSCRIBE: Final = Struct(">QiqBI")
_UNSUBSCRIBE: Final = Struct(">Q")
_LENGTH: Final = Struct(">H")
_NAME_BYTES_MAX: Final = 0xFFFF
_INT32_MAX: Final = 2**31 - 1


class Kind(IntEnum):
    """What a message is."""

    HELLO = 1
    WELCOME = 2
    OPEN = 3
    OPENED = 4
    REQUEST = 5
    RESPONSE = 6
    CREDIT = 7
    HEARTBEAT = 8
    CLOSE = 9
    ERROR = 10
    SUBSCRIBE = 16
    SUBSCRIBED = 17
    PUSH = 18
    UNSUBSCRIBE = 19
    UNSUBSCRIBED = 20


class Code(IntEnum):
    """Why there is no session, or no session any more."""

    MALFORMED = 1
    UNKNOWN_SESSION = 2
    NOT_READY = 3
    LIMIT_EXCEEDED = 4
    VERSION = 5
    REFUSED = 6
    STOPPING = 7
    OVERLOADED = 8
    UNKNOWN_BROKER = 9
    INTERNAL = 10


@dataclass(frozen=True, slots=True)
class Hello:
    """Which network process shall I talk to?"""

    newest_version: int
    broker_id: int
    client_id: str

    def encode(self) -> bytes:
        """Return the body."""
        return _HELLO.pack(self.newest_version, self.broker_id) + _string(self.client_id)

    @classmethod
    def parse(cls, body: bytes) -> Hello:
        """Raises MalformedFrame."""
        newest_version, broker_id = _unpack(_HELLO, body, "a HELLO")
        client_id, _ = _parse_string(body, _HELLO.size)
        return cls(newest_version, broker_id, client_id)


@dataclass(frozen=True, slots=True)
class Welcome:
    """This one."""

    version: int
    broker_id: int
    endpoint: str
    curve_server_key: str = ""

    def encode(self) -> bytes:
        """Return the body."""
        head = _WELCOME.pack(self.version, self.broker_id)
        return head + _string(self.endpoint) + _string(self.curve_server_key)

    @classmethod
    def parse(cls, body: bytes) -> Welcome:
        """Raises MalformedFrame."""
        version, broker_id = _unpack(_WELCOME, body, "a WELCOME")
        endpoint, position = _parse_string(body, _WELCOME.size)
        key, _ = _parse_string(body, position)
        return cls(version, broker_id, endpoint, key)


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a session with a broker."""

    broker_id: int
    window: int
    client_id: str

    def encode(self) -> bytes:
        """Return the body."""
        return _OPEN.pack(self.broker_id, self.window) + _string(self.client_id)

    @classmethod
    def parse(cls, body: bytes) -> Open:
        """Raises MalformedFrame."""
        broker_id, window = _unpack(_OPEN, body, "an OPEN")
        if not 1 <= window <= WINDOW_LIMIT:
            raise MalformedFrame(f"an OPEN with a window of {window} bytes")
        client_id, _ = _parse_string(body, _OPEN.size)
        return cls(broker_id, window, client_id)


@dataclass(frozen=True, slots=True)
class Opened:
    """The session has begun, and this is what it may do."""

    token: bytes
    requests_max: int
    request_bytes_max: int
    bytes_in_flight_max: int
    window_max: int
    frames_max: int
    heartbeat_interval_ms: int
    session_timeout_ms: int

    def encode(self) -> bytes:
        """Return the body."""
        return _OPENED.pack(
            self.token,
            self.requests_max,
            self.request_bytes_max,
            self.bytes_in_flight_max,
            self.window_max,
            self.frames_max,
            self.heartbeat_interval_ms,
            self.session_timeout_ms,
        )

    @classmethod
    def parse(cls, body: bytes) -> Opened:
        """Raises MalformedFrame."""
        return cls(*_unpack(_OPENED, body, "an OPENED"))


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Push what is committed to a partition, from an offset on."""

    number: int
    partition: int
    offset: int
    isolation: int
    max_bytes: int
    topic: str

    def encode(self) -> bytes:
        """Return the body."""
        head = _SUBSCRIBE.pack(self.number, self.partition, self.offset, self.isolation, self.max_bytes)
        return head + _string(self.topic)

    @classmethod
    def parse(cls, body: bytes) -> Subscribe:
        """Raises MalformedFrame."""
        number, partition, offset, isolation, max_bytes = _unpack(_SUBSCRIBE, body, "a SUBSCRIBE")
        topic, _ = _parse_string(body, _SUBSCRIBE.size)
        if not number or partition < 0 or offset < 0 or isolation > 1 or max_bytes > _INT32_MAX:
            raise MalformedFrame("a SUBSCRIBE with a value that cannot be")
        return cls(number, partition, offset, isolation, max_bytes, topic)


def parse_unsubscribe(body: bytes) -> int:
    """Return the subscription's number.

    Raises:
        MalformedFrame: it does not parse.
    """
    number: int = _unpack(_UNSUBSCRIBE, body, "an UNSUBSCRIBE")[0]
    return number


def client_header(kind: int, token: bytes = bytes(TOKEN_BYTES), *, version: int = VERSION) -> bytes:
    """Return the header frame of a client's message."""
    return FROM_CLIENT.pack(MAGIC, version, kind, 0, token)


def broker_header(kind: int, *, flags: int = 0, mark: int = 0, subject: int = 0) -> bytes:
    """Return the header frame of a broker's message."""
    return FROM_BROKER.pack(MAGIC, VERSION, kind, flags, mark, subject)


def parse_client_header(frame: bytes | memoryview) -> tuple[int, int, bytes]:
    """Return version, kind and token of a client's message.

    Raises:
        MalformedFrame: it is no header of this protocol.
    """
    if len(frame) != HEADER_BYTES:
        raise MalformedFrame(f"a header frame of {len(frame)} bytes, not {HEADER_BYTES}")
    magic, version, kind, _, token = FROM_CLIENT.unpack(frame)
    if magic != MAGIC:
        raise MalformedFrame(f"a header frame with magic 0x{magic:04x}")
    return version, kind, token


def encode_credit(mark: int, window: int) -> bytes:
    """Return the body of CREDIT."""
    return _CREDIT.pack(mark, window)


def parse_credit(body: bytes) -> tuple[int, int]:
    """Return mark and window.

    Raises:
        MalformedFrame: it does not parse.
    """
    mark, window = _unpack(_CREDIT, body, "a CREDIT")
    if window > WINDOW_LIMIT:
        raise MalformedFrame(f"a CREDIT with a window of {window} bytes")
    return mark, window


def encode_heartbeat(mark: int) -> bytes:
    """Return the body of a client's HEARTBEAT."""
    return _HEARTBEAT.pack(mark)


def parse_heartbeat(body: bytes) -> int:
    """Return the mark.

    Raises:
        MalformedFrame: it does not parse.
    """
    mark: int = _unpack(_HEARTBEAT, body, "a HEARTBEAT")[0]
    return mark


def encode_error(code: Code, text: str) -> bytes:
    """Return the body of ERROR."""
    return _ERROR.pack(code) + _string(text)


def parse_error(body: bytes) -> tuple[int, str]:
    """Return code and text.

    Raises:
        MalformedFrame: it does not parse.
    """
    (code,) = _unpack(_ERROR, body, "an ERROR")
    text, _ = _parse_string(body, _ERROR.size)
    return code, text


def _unpack(layout: Struct, body: bytes, what: str) -> tuple[Any, ...]:
    """Return the fields of fixed size at the front of a body."""
    if len(body) < layout.size:
        raise MalformedFrame(f"{what} of {len(body)} bytes")
    return layout.unpack_from(body)


def _string(text: str) -> bytes:
    encoded = text.encode()[:_NAME_BYTES_MAX]
    return _LENGTH.pack(len(encoded)) + encoded


def _parse_string(body: bytes, position: int) -> tuple[str, int]:
    start = position + _LENGTH.size
    if start > len(body):
        raise MalformedFrame("a string without a length")
    (length,) = _LENGTH.unpack_from(body, position)
    end = start + length
    if end > len(body):
        raise MalformedFrame(f"a string of {length} bytes where {len(body) - start} follow")
    try:
        return body[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise MalformedFrame("a string that is not UTF-8") from error
