"""Fields of a Protobuf message without a schema: numbers and wire types, as readable as they can be.

A field with a length is shown as text if it is text, else as a message if all of its bytes are fields, else in hex.
What a field means, only the schema says. Source: protobuf.dev, Encoding.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from appliance.schemas.faults import ITEMS_MAX, Undecodable

DEPTH_MAX: Final = 16
_VARINT_BYTES_MAX: Final = 10
_NUMBER_MAX: Final = (1 << 29) - 1


def fields_as_json(data: bytes) -> str:
    """Return the fields as JSON, in the order in which they are: `[["1: varint", 150], ["2: text", "abc"]]`.

    Raises:
        Undecodable: the bytes are no message.
    """
    return json.dumps(_Fields(ITEMS_MAX // 10).message(data, 0), ensure_ascii=False)


class _Fields:
    def __init__(self, left: int) -> None:
        self._left = left

    def message(self, data: bytes, depth: int) -> list[list[Any]]:
        found: list[list[Any]] = []
        at = 0
        while at < len(data):
            self._left -= 1
            if self._left < 0:
                raise Undecodable("it has too many fields")
            tag, at = _varint(data, at)
            number, wire_type = tag >> 3, tag & 7
            if not 0 < number <= _NUMBER_MAX:
                raise Undecodable(f"there is no field number {number}")
            if wire_type == 0:
                value, at = _varint(data, at)
                found.append([f"{number}: varint", value])
            elif wire_type == 1:
                found.append([f"{number}: 64-bit", *struct.unpack("<q", _bytes(data, at, 8))])
                at += 8
            elif wire_type == 5:
                found.append([f"{number}: 32-bit", *struct.unpack("<i", _bytes(data, at, 4))])
                at += 4
            elif wire_type == 2:
                length, at = _varint(data, at)
                found.append(self._with_length(number, _bytes(data, at, length), depth))
                at += length
            else:
                raise Undecodable(f"field {number} has the wire type {wire_type}, which is a group or none")
        return found

    def _with_length(self, number: int, content: bytes, depth: int) -> list[Any]:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = ""
        if not content or (text and text.isprintable()):
            return [f"{number}: text", text]
        if depth < DEPTH_MAX:
            left = self._left
            try:
                return [f"{number}: message", self.message(content, depth + 1)]
            except Undecodable:
                # Bytes that were looked at in vain count, or nested ones would be looked at again and again.
                self._left = min(self._left, left - len(content) // 8)
                if self._left < 0:
                    raise
        return [f"{number}: bytes", content.hex()]


def _bytes(data: bytes, at: int, count: int) -> bytes:
    if count > len(data) - at:
        raise Undecodable("it ends too early")
    return data[at : at + count]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(data):
            raise Undecodable("it ends too early")
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + index + 1
    raise Undecodable("a number has more than 64 bits")
