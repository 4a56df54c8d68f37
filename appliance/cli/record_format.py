"""How `consume` writes a record: chosen columns between tabs, or a JSON object a line."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from confluent_kafka import Message

NO_TIMESTAMP: Final = 0  # TIMESTAMP_NOT_AVAILABLE
UNREADABLE: Final = "\ufffd"
"""The only header that is shown of a record with a header whose name is no UTF-8: librdkafka's Python gives none."""
TIMESTAMP_TYPES: Final = (None, "CreateTime", "LogAppendTime")

Formatter = Callable[["Message"], bytes]


def text_formatter(
    columns: Sequence[str], *, null_marker: str, encode: Callable[[bytes], bytes] | None = None
) -> Formatter:
    """Bytes of a record as they are, or as `encode` writes keys and values, column by column, and a line feed."""
    null = null_marker.encode()
    parts = [
        _encoded(_COLUMNS[column], encode) if encode is not None and column in _BINARY else _COLUMNS[column]
        for column in columns
    ]
    if columns == ("value",) and encode is None:
        return lambda message: (null if (value := value_of(message)) is None else value) + b"\n"

    def line(message: Message) -> bytes:
        found = (part(message) for part in parts)
        return b"\t".join(null if each is None else each for each in found) + b"\n"

    return line


def _encoded(
    part: Callable[[Any], bytes | None], encode: Callable[[bytes], bytes]
) -> Callable[[Any], bytes | None]:
    return lambda message: None if (data := part(message)) is None else encode(data)


def json_line(message: Message) -> bytes:
    """One JSON object: topic, partition, offset, timestamp_ms, timestamp_type, key, value, headers.

    Keys, values and header values are texts where they are UTF-8, else `{"base64": …}`; null stays null. A record
    that has a header whose name is no UTF-8 has the single header `["\ufffd", null]`.
    """
    return _as_line(json_object(message))


def _as_line(told: dict[str, Any]) -> bytes:
    return json.dumps(told, ensure_ascii=False).encode() + b"\n"


def json_object(message: Message) -> dict[str, Any]:
    """What `json_line` writes."""
    kind, timestamp_ms = message.timestamp()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": None if kind == NO_TIMESTAMP else timestamp_ms,
        "timestamp_type": TIMESTAMP_TYPES[kind],
        "key": text_or_base64(key_of(message)),
        "value": text_or_base64(value_of(message)),
        "headers": [[name, text_or_base64(value)] for name, value in header_list(message)],
    }


def json_line_with(values: Callable[[Message], dict[str, Any]]) -> Formatter:
    """Return `json_line` with some values by others: those that `values` returns for a record."""
    return lambda message: _as_line(json_object(message) | values(message))


def text_or_base64(data: bytes | None) -> str | dict[str, str] | None:
    """A JSON value that gives the bytes back whatever they are."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def shown_time(timestamp_ms: int) -> str:
    """`2026-01-31T12:00:00.123Z`."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)  # far outside of the calendar, yet a legal timestamp
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _timestamp(message: Message) -> bytes | None:
    kind, timestamp_ms = message.timestamp()
    return None if kind == NO_TIMESTAMP else shown_time(timestamp_ms).encode()


def header_list(message: Message) -> list[tuple[str, bytes | None]]:
    """Name and value of each header."""
    try:
        headers: Any = message.headers()
    except (SystemError, UnicodeDecodeError):  # a SystemError, because its C code returns a list all the same
        return [(UNREADABLE, None)]
    return list(headers or ())


def _headers_text(message: Message) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in header_list(message))


def value_of(message: Message) -> bytes | None:
    """The value's bytes."""
    value: Any = message.value()
    return None if value is None else bytes(value)


def key_of(message: Message) -> bytes | None:
    """The key's bytes."""
    key: Any = message.key()
    return None if key is None else bytes(key)


_COLUMNS: Final[dict[str, Callable[[Any], bytes | None]]] = {
    "topic": lambda message: message.topic().encode(),
    "partition": lambda message: b"%d" % message.partition(),
    "offset": lambda message: b"%d" % message.offset(),
    "timestamp": _timestamp,
    "key": key_of,
    "value": value_of,
    "headers": _headers_text,
}

_BINARY: Final = frozenset({"key", "value"})

COLUMNS: Final = tuple(_COLUMNS)
