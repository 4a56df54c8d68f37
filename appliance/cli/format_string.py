"""`--format`: a record as a text with directives, as kcat and rpk have them.

| directive | stands for | | |
|---|---|---|---|
| `%t` | topic | `%k` | key |
| `%p` | partition | `%v`, `%s` | value |
| `%o` | offset | `%h` | headers, `name=value` with commas |
| `%e` | leader epoch, -1 where it is unknown | `%H` | number of headers |
| `%T` | timestamp, ms since 1970 | `%K` | length of the key; -1 for null |
| `%d` | timestamp, as a date | `%V`, `%S` | length of the value; -1 for null |
| `%i` | number of the record in this output, from 1 | `%R` | length of the value, 4 bytes big-endian, as in kcat |
| `%%`, `%{`, `%}` | the character | | |

A modifier in braces may follow:

| after | modifier | writes |
|---|---|---|
| `%k`, `%v`, `%s` | `{raw}`, `{hex}`, `{base64}`, `{json}` | the bytes so; `json`: a JSON string, or null |
| numbers | `{big8}` … `{big64}`, `{little8}` … `{little64}` | bytes |
| numbers | `{ascii}`, `{hex8}` … `{hex64}` | digits, hex digits |
| `%d` | `{strftime[FORMAT]}` | the time in UTC by Python's `strftime` |
| `%h` | `{FORMAT}` | each header: `%k` its name, `%v` its value, `%K` and `%V` their lengths |

`\\n`, `\\t`, `\\r`, `\\0`, `\\\\` and `\\xHH` stand for bytes. Nothing is added after a record.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from appliance.cli.record_format import (
    NO_TIMESTAMP,
    Formatter,
    header_list,
    key_of,
    shown_time,
    text_or_base64,
    value_of,
)

if TYPE_CHECKING:
    from confluent_kafka import Message

Encoding = Callable[[bytes], bytes]
Part = Callable[[Any], bytes]


class Header(NamedTuple):
    """A header of a record."""

    name: str
    value: bytes | None


ENCODINGS: Final[dict[str, Encoding]] = {
    "raw": lambda data: data,
    "base64": base64.b64encode,
    "hex": lambda data: data.hex().encode(),
}
"""How keys, values and header values are printed."""

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PART: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)", re.DOTALL)
_BRACED: Final = re.compile(r"\{(strftime\[.*?\]|(?:%.|\\.|[^}%\\])*)\}", re.DOTALL)
_STRFTIME: Final = re.compile(r"strftime\[(.*)\]", re.DOTALL)
_NUMBER: Final = re.compile(r"(big|little|hex)(8|16|32|64)")
_MODIFIED: Final = frozenset("kvspoeTdhHKVSi")
"""Directives that take a modifier."""


def format_string(text: str, *, encoding: str, null_marker: str) -> Formatter:
    """What turns a record into bytes as `text` says.

    Raises:
        click.UsageError: an unknown directive, modifier or escape, or a `%` or backslash at the end.
    """
    count = 0
    null = null_marker.encode()

    numbers: dict[str, Callable[[Any], int]] = {
        "p": lambda message: _number(message.partition()),
        "o": lambda message: _number(message.offset()),
        "e": lambda message: _epoch(message.leader_epoch()),
        "T": _timestamp_ms,
        "H": lambda message: len(header_list(message)),
        "K": lambda message: _length(key_of(message)),
        "V": lambda message: _length(value_of(message)),
        "S": lambda message: _length(value_of(message)),
        "i": lambda _message: count,
    }
    contents: dict[str, Callable[[Any], bytes | None]] = {"k": key_of, "v": value_of, "s": value_of}

    def part(directive: str, modifier: str | None) -> Part | None:
        if directive in numbers:
            return _number_part(numbers[directive], modifier)
        if directive in contents:
            return _content_part(contents[directive], modifier or encoding, null)
        match directive:
            case "t":
                return lambda message: (message.topic() or "").encode()
            case "d":
                return _date_part(modifier)
            case "R":
                return lambda message: _length(value_of(message)).to_bytes(4, "big", signed=True)
            case "h" if modifier is None:
                return lambda message: b",".join(
                    name.encode() + b"=" + (null if value is None else ENCODINGS[encoding](value))
                    for name, value in header_list(message)
                )
            case "h":
                of_header = _header_formatter(modifier or "", encoding=encoding, null=null)
                return lambda message: b"".join(of_header(Header(*each)) for each in header_list(message))
        return None

    parts = _parsed(text, part, known=(*"tpoeTdkvshHKVSiR",))

    def formatted(message: Message) -> bytes:
        nonlocal count
        count += 1
        return b"".join(each if isinstance(each, bytes) else each(message) for each in parts)

    return formatted


def _header_formatter(text: str, *, encoding: str, null: bytes) -> Callable[[Header], bytes]:
    numbers: Mapping[str, Callable[[Header], int]] = {
        "K": lambda header: len(header.name.encode()),
        "V": lambda header: _length(header.value),
    }
    contents: Mapping[str, Callable[[Header], bytes | None]] = {
        "k": lambda header: header.name.encode(),
        "v": lambda header: header.value,
    }

    def part(directive: str, _modifier: str | None) -> Part | None:
        if directive in numbers:
            return _number_part(numbers[directive], None)
        if directive in contents:
            # A name is text; only values may be bytes.
            return _content_part(contents[directive], "raw" if directive == "k" else encoding, null)
        return None

    parts = _parsed(text, part, known=(*"kvKV",))
    return lambda header: b"".join(each if isinstance(each, bytes) else each(header) for each in parts)


def _parsed(
    text: str, part: Callable[[str, str | None], Part | None], *, known: Iterable[str]
) -> list[bytes | Part]:
    parts: list[bytes | Part] = []
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
        elif directive is not None and directive in "%{}":
            parts.append(directive.encode())
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            modifier = None
            if directive is not None and directive in _MODIFIED and text.startswith("{", position):
                braced = _BRACED.match(text, position)
                if braced is None:
                    raise click.UsageError(
                        f"--format {text!r}: a brace is not closed; %{{ stands for a brace"
                    )
                modifier, position = braced[1], braced.end()
            made = part(directive, modifier) if directive is not None else None
            if made is None:
                shown = " ".join(f"%{each}" for each in (*known, "%"))
                raise click.UsageError(
                    f"--format: unknown directive {found[0]!r}; the directives are {shown}, \\n \\t \\r \\0 \\xHH"
                )
            parts.append(made)
    return parts


def _number_part(number: Callable[[Any], int], modifier: str | None) -> Part:
    if modifier in {None, "ascii"}:
        return lambda record: b"%d" % number(record)
    found = _NUMBER.fullmatch(modifier or "")
    if found is None:
        raise _unknown(modifier, "ascii, big8 to big64, little8 to little64, hex8 to hex64")
    bits = int(found[2])
    mask = (1 << bits) - 1  # -1 becomes all ones, as a signed number has them
    if found[1] == "hex":
        return lambda record: b"%0*x" % (bits // 4, number(record) & mask)
    order: Any = found[1]
    return lambda record: (number(record) & mask).to_bytes(bits // 8, order)


def _content_part(content: Callable[[Any], bytes | None], encoding: str, null: bytes) -> Part:
    if encoding == "json":
        return lambda record: json.dumps(text_or_base64(content(record)), ensure_ascii=False).encode()
    encode = ENCODINGS.get(encoding)
    if encode is None:
        raise _unknown(encoding, "raw, hex, base64, json")
    return lambda record: null if (data := content(record)) is None else encode(data)


def _date_part(modifier: str | None) -> Part:
    if modifier is None:
        return lambda message: shown_time(_timestamp_ms(message)).encode()
    found = _STRFTIME.fullmatch(modifier)
    if found is None:
        raise _unknown(modifier, "strftime[FORMAT]")
    layout = found[1]

    def date(message: Message) -> bytes:
        timestamp_ms = _timestamp_ms(message)
        try:
            return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime(layout).encode()
        except (OverflowError, ValueError, OSError):
            return b"%d" % timestamp_ms  # far outside of the calendar, yet a legal timestamp

    return date


def _unknown(modifier: str | None, known: str) -> click.UsageError:
    return click.UsageError(
        f"--format: unknown modifier {{{modifier}}}; there are {known}, and %{{ stands for a brace"
    )


def _number(value: Any) -> int:
    return int(value)


def _epoch(value: int | None) -> int:
    return -1 if value is None else value


def _timestamp_ms(message: Message) -> int:
    kind, timestamp_ms = message.timestamp()
    return -1 if kind == NO_TIMESTAMP else timestamp_ms


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)
