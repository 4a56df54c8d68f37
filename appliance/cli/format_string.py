"""`--format`: a record as a text with directives, as kcat and rpk have them.

| directive | stands for | | |
|---|---|---|---|
| `%t` | topic | `%k` | key |
| `%p` | partition | `%v`, `%s` | value |
| `%o` | offset | `%h` | headers, `name=value` with commas |
| `%T` | timestamp, ms since 1970 | `%K`, `%S` | length of key, of value; -1 for null |
| `%d` | timestamp, as a date | `%%` | a percent sign |

`\\n`, `\\t`, `\\r`, `\\0`, `\\\\` and `\\xHH` stand for bytes. Nothing is added after a record.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.record_format import NO_TIMESTAMP, Formatter, header_list, key_of, shown_time, value_of

if TYPE_CHECKING:
    from confluent_kafka import Message

Encoding = Callable[[bytes], bytes]

ENCODINGS: Final[dict[str, Encoding]] = {
    "raw": lambda data: data,
    "base64": base64.b64encode,
    "hex": lambda data: data.hex().encode(),
}
"""How keys, values and header values are printed."""

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PART: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)", re.DOTALL)


def format_string(text: str, *, encoding: str, null_marker: str) -> Formatter:
    """What turns a record into bytes as `text` says.

    Raises:
        click.UsageError: an unknown directive or escape, or a `%` or backslash at the end.
    """
    encode, null = ENCODINGS[encoding], null_marker.encode()

    def shown(data: bytes | None) -> bytes:
        return null if data is None else encode(data)

    directives: dict[str, Callable[[Message], bytes]] = {
        "t": lambda message: (message.topic() or "").encode(),
        "p": lambda message: b"%d" % _number(message.partition()),
        "o": lambda message: b"%d" % _number(message.offset()),
        "T": lambda message: b"%d" % _timestamp_ms(message),
        "d": lambda message: shown_time(_timestamp_ms(message)).encode(),
        "k": lambda message: shown(key_of(message)),
        "v": lambda message: shown(value_of(message)),
        "s": lambda message: shown(value_of(message)),
        "h": lambda message: b",".join(
            name.encode() + b"=" + shown(value) for name, value in header_list(message)
        ),
        "K": lambda message: _length(key_of(message)),
        "S": lambda message: _length(value_of(message)),
    }
    parts: list[bytes | Callable[[Message], bytes]] = []
    position = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None:
            raise click.UsageError(f"--format {text!r}: ends with a single {text[position]!r}")
        position = found.end()
        directive, digits, escape, plain = found.groups()
        if plain is not None:
            parts.append(plain.encode())
        elif digits is not None:
            parts.append(bytes.fromhex(digits))
        elif directive == "%":
            parts.append(b"%")
        elif directive is not None and directive in directives:
            parts.append(directives[directive])
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            known = " ".join(f"%{each}" for each in (*directives, "%"))
            raise click.UsageError(
                f"--format: unknown directive {found[0]!r}; the directives are {known}, \\n \\t \\r \\0 \\xHH"
            )

    def formatted(message: Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return formatted


def _number(value: Any) -> int:
    return int(value)


def _timestamp_ms(message: Message) -> int:
    kind, timestamp_ms = message.timestamp()
    return -1 if kind == NO_TIMESTAMP else timestamp_ms


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)
