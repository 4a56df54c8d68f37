"""Bytes of a record as a person reads them. Without I/O; bytes of strangers in, text out.

| form | shown as |
|---|---|
| `json` | indented, if the bytes are JSON in UTF-8 |
| `text` | UTF-8; control characters as U+FFFD |
| `hex` | offset, 16 bytes, their printable characters, a line each |
| `avro`, `protobuf` | JSON, by the record's schema (`appliance/schemas/`) |
| `auto` | the first of avro, protobuf, json, text and hex that fits |

What is longer than the limit is cut, and says so. A page never shows more than the limit, whatever a record holds.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from appliance.schemas.decoder import Decoded
from appliance.schemas.faults import NoSchema, Undecodable
from appliance.schemas.nesting import json_depth

FORMS: Final = ("auto", "json", "text", "hex", "avro", "protobuf")
_BY_SCHEMA: Final = frozenset({"auto", "avro", "protobuf"})
JSON_DEPTH_MAX: Final = 100
_HEX_LINE: Final = 16
_TOKENS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]+')
_KEPT_CONTROLS: Final = frozenset("\n\t")
_NOT_SHOWN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, and marks such as U+202E that turn the direction of what stands around them."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows of bytes. `form` is the form that fitted; "null" where there are no bytes.

    `note` says which schema it has, or why it has no text; it may be empty.
    """

    form: str
    text: str
    size_bytes: int
    is_cut: bool = False
    note: str = ""


Decode = Callable[[bytes, str], Decoded]
"""Bytes and one of the forms of `schemas.decoder` → text by a schema; raises Undecodable."""


def shown(data: bytes | None, *, form: str, bytes_max: int, decode: Decode | None = None) -> Shown:
    """Return what to show of a key, a value or a header.

    Args:
        data: None for null, which is not the same as empty.
        form: one of FORMS. Bytes that do not fit into it are shown as `auto` does.
        bytes_max: more bytes are cut.
        decode: decodes by a schema; None where there are none, as for headers.
    """
    if data is None:
        return Shown("null", "", 0)
    note = ""
    if decode is not None and data and form in _BY_SCHEMA:
        try:
            found = decode(data, form)
            # Indentation may make the text much longer than the bytes.
            text = _indented(found.json, bytes_max * 2)
            is_cut = len(text) > bytes_max * 2
            return Shown(
                found.form, printable(text[: bytes_max * 2]), len(data), is_cut, printable(found.note)
            )
        except NoSchema as fault:
            note = "" if form == "auto" else str(fault)
        except Undecodable as fault:
            note = str(fault)
    if note or form in {"avro", "protobuf"}:
        return replace(_without_schema(data, form="auto", bytes_max=bytes_max), note=printable(note))
    return _without_schema(data, form=form, bytes_max=bytes_max)


def _without_schema(data: bytes, *, form: str, bytes_max: int) -> Shown:
    head = data[:bytes_max]
    is_cut = len(head) < len(data)
    if form in {"auto", "json"} and not is_cut and (pretty := _json(head, bytes_max * 2)) is not None:
        is_cut = len(pretty) > bytes_max * 2
        return Shown("json", printable(pretty[: bytes_max * 2]), len(data), is_cut)
    text = None if form == "hex" else _text(head, is_cut=is_cut)
    if text is not None and (form == "text" or _is_readable(text)):
        return Shown("text", printable(text), len(data), is_cut)
    head = data[: bytes_max // 4]
    return Shown("hex", hex_dump(head), len(data), len(head) < len(data))


def _json(data: bytes, characters_max: int) -> str | None:
    if data.lstrip()[:1] not in {b"{", b"["}:
        return None
    try:
        text = data.decode()
        if json_depth(text) > JSON_DEPTH_MAX:
            return None
        json.loads(text, parse_float=str, parse_int=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return _indented(text, characters_max)


def _refuse(name: str) -> object:
    raise ValueError(name)


def _indented(text: str, characters_max: int) -> str:
    """Return a JSON text with its members on lines of their own. Strings and numbers stay as they are written.

    It ends soon behind `characters_max`: what a page cuts off is not made.
    """
    out: list[str] = []
    depth = length = counted = 0
    for found in _TOKENS.finditer(text):
        length += sum(map(len, out[counted:]))
        if length > characters_max:
            break
        counted = len(out)
        token = found[0]
        if token in "}]":
            depth -= 1
            if out[-1][0] in "{[":
                out.append(token)
                continue
            out.append("\n" + "  " * depth)
        elif out and out[-1][0] in "{[":
            out.append("\n" + "  " * depth)
        out.append(token)
        if token in "{[":
            depth += 1
        elif token == ",":
            out.append("\n" + "  " * depth)
        elif token == ":":
            out.append(" ")
    return "".join(out)


def _text(data: bytes, *, is_cut: bool) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # The cut may be in the middle of a character.
        if is_cut and error.start >= len(data) - 3:
            return data[: error.start].decode()
        return None


def _is_readable(text: str) -> bool:
    return all(character in "\n\t\r" or unicodedata.category(character) != "Cc" for character in text)


def printable(text: str) -> str:
    """Return the text with U+FFFD in place of control and direction characters."""
    return "\n".join(line if line.isprintable() else _printable(line) for line in text.split("\n"))


def _printable(text: str) -> str:
    return "".join(
        "�"
        if character not in _KEPT_CONTROLS and unicodedata.category(character) in _NOT_SHOWN
        else character
        for character in text
    )


def hex_dump(data: bytes) -> str:
    """Return lines of offset, bytes in hex and printable ASCII."""
    lines = []
    for at in range(0, len(data), _HEX_LINE):
        row = data[at : at + _HEX_LINE]
        characters = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  {characters}")
    return "\n".join(lines)


def typed(text: str, form: str) -> bytes | None:
    """Return the bytes that a person typed, for a record to produce.

    Args:
        form: `text`, `hex` or `null`.

    Raises:
        ValueError: the text is not in this form.
    """
    if form == "null":
        return None
    if form == "hex":
        return bytes.fromhex(text)
    # Browsers send every end of line in a form as CR LF.
    return text.replace("\r\n", "\n").encode()
