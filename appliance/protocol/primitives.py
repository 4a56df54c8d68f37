"""Kafka's primitive types: a cursor that reads them from hostile bytes, and functions that write them.

    type             bytes
    int8 … int64     big endian, two's complement                       bool: int8, 0 or 1
    uuid             16 bytes, all zero for none
    uvarint          7 bits a byte, lowest first, high bit: one more follows; at most 5 bytes
    string           int16 length, UTF-8; length -1 is null
    compact string   uvarint length + 1, UTF-8; 0 is null               (flexible versions, KIP-482)
    bytes            int32 length, that many bytes; length -1 is null
    compact bytes    uvarint length + 1, that many bytes; 0 is null
    array            int32 count, elements; count -1 is null
    compact array    uvarint count + 1, elements; 0 is null
    tagged fields    uvarint count, then (uvarint tag, uvarint size, bytes), read in any order

Nothing is allocated from a declared length: a length is held against the bytes that are left, a count
against the bytes that its smallest elements would take, and all elements and tagged fields of one request
come out of one budget (`ELEMENTS_MAX`). Lessons behind this: CVE-2022-34917, CVE-2026-111108 (arrays),
CVE-2026-111115 (tags). Source of the format: KIP-482 and Kafka's `Readable.java`, `ByteUtils.java`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from uuid import UUID

from appliance.errors import ApplianceDefect, MalformedFrame

INT8: Final = Struct(">b")
INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
FLOAT64: Final = Struct(">d")

UVARINT_BYTES_MAX: Final = 5
UVARINT_MAX: Final = 0xFFFF_FFFF
_VARINT_SHIFTS: Final = range(7, 7 * UVARINT_BYTES_MAX, 7)

STRING_BYTES_MAX: Final = 32_767

ELEMENTS_MAX: Final = 100_000
"""Array elements and tagged fields in one request. A hundred bytes of Python a piece: 10 MB at the worst. The
largest honest request known is a fetch of every partition of a consumer, tens of thousands."""

TAGGED_FIELDS_MAX: Final = 16
"""Tagged fields of one structure. Kafka's own structures have up to four."""

TAGGED_BYTES_MAX: Final = 64 * 1024
"""Bytes of one tagged field that we do not know and skip."""

NO_UUID: Final = UUID(int=0)
_NO_UUID_BYTES: Final = bytes(16)


def uvarint_at(buffer: memoryview, position: int, end: int) -> tuple[int, int]:
    """(value, position after it) of the unsigned varint at `position`, which must end before `end`."""
    if position >= end:
        raise MalformedFrame("the frame ends before a varint")
    value = buffer[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in _VARINT_SHIFTS:
        if position >= end:
            raise MalformedFrame("the frame ends inside a varint")
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UVARINT_MAX:
                raise MalformedFrame("a varint does not fit into 32 bits")
            return value, position
    raise MalformedFrame(f"a varint is longer than {UVARINT_BYTES_MAX} bytes")


def skip_tagged_fields(buffer: memoryview, position: int, end: int) -> int:
    """The position after the tagged fields at `position`, none of which we know."""
    count, position = uvarint_at(buffer, position, end)
    if count > TAGGED_FIELDS_MAX:
        raise MalformedFrame(f"{count} tagged fields in one structure")
    for _ in range(count):
        _, position = uvarint_at(buffer, position, end)
        size, position = uvarint_at(buffer, position, end)
        if size > min(TAGGED_BYTES_MAX, end - position):
            raise MalformedFrame(f"a tagged field of {size} bytes")
        position += size
    return position


def text_at(buffer: memoryview, start: int, end: int) -> tuple[str, int]:
    """(text, `end`) of the UTF-8 bytes `buffer[start:end]`, which must lie within the buffer."""
    raw = buffer[start:end]
    if len(raw) != end - start or len(raw) > STRING_BYTES_MAX:
        raise MalformedFrame(f"a string of {end - start} bytes is longer than its frame or than allowed")
    try:
        return str(raw, "utf-8"), end
    except UnicodeDecodeError as error:
        raise MalformedFrame("a string is not UTF-8") from error


_UUIDS: dict[bytes, UUID] = {}
_UUIDS_MAX: Final = 1024


def uuid_at(buffer: memoryview, position: int) -> UUID:
    """The uuid at `position`, all zero included. Topic ids come back all the time, so the last ones are
    kept."""
    raw = bytes(buffer[position : position + 16])
    known = _UUIDS.get(raw)
    if known is not None:
        return known
    if len(raw) != 16:
        raise MalformedFrame("the frame ends inside a uuid")
    if len(_UUIDS) >= _UUIDS_MAX:
        _UUIDS.clear()
    made = _UUIDS[raw] = UUID(bytes=raw)
    return made


class Cursor:
    """Reads primitives one after the other from `buffer[position:end]`; every method moves `position`.

    Raises:
        MalformedFrame: whenever the bytes cannot be what was asked for.
    """

    __slots__ = ("buffer", "elements_left", "end", "position")

    def __init__(self, buffer: memoryview, position: int, end: int) -> None:
        self.buffer = buffer
        self.position = position
        self.end = end
        self.elements_left = ELEMENTS_MAX

    def skip(self, length_bytes: int) -> int:
        """Step over `length_bytes` and return where they begin."""
        start = self.position
        if length_bytes > self.end - start:
            raise MalformedFrame(
                f"a field of {length_bytes} bytes where the frame has {self.end - start} left"
            )
        self.position = start + length_bytes
        return start

    def int8(self) -> int:
        value: int = INT8.unpack_from(self.buffer, self.skip(1))[0]
        return value

    def int16(self) -> int:
        value: int = INT16.unpack_from(self.buffer, self.skip(2))[0]
        return value

    def int32(self) -> int:
        value: int = INT32.unpack_from(self.buffer, self.skip(4))[0]
        return value

    def int64(self) -> int:
        value: int = INT64.unpack_from(self.buffer, self.skip(8))[0]
        return value

    def float64(self) -> float:
        value: float = FLOAT64.unpack_from(self.buffer, self.skip(8))[0]
        return value

    def uint16(self) -> int:
        return self.int16() & 0xFFFF

    def boolean(self) -> bool:
        # Kafka takes every value but 0 for true, and some clients send other ones.
        return self.int8() != 0

    def uuid(self) -> UUID | None:
        start = self.skip(16)
        raw = bytes(self.buffer[start : start + 16])
        return None if raw == _NO_UUID_BYTES else UUID(bytes=raw)

    def uvarint(self) -> int:
        value, self.position = uvarint_at(self.buffer, self.position, self.end)
        return value

    def string(self) -> str:
        return _present(self.nullable_string(), "string")

    def nullable_string(self) -> str | None:
        return self._text(self.int16())

    def compact_string(self) -> str:
        return _present(self.compact_nullable_string(), "string")

    def compact_nullable_string(self) -> str | None:
        return self._text(self.uvarint() - 1)

    def octets(self) -> bytes:
        """Kafka's `bytes`, copied out of the frame, which bounds them."""
        return _present_octets(self.nullable_octets())

    def nullable_octets(self) -> bytes | None:
        return self._octets(self.int32())

    def compact_octets(self) -> bytes:
        return _present_octets(self.compact_nullable_octets())

    def compact_nullable_octets(self) -> bytes | None:
        return self._octets(self.uvarint() - 1)

    def array_count(self, element_bytes_min: int) -> int:
        """The count of an array whose elements take at least `element_bytes_min` each; -1 for null."""
        return self._count(self.int32(), element_bytes_min)

    def compact_array_count(self, element_bytes_min: int) -> int:
        return self._count(self.uvarint() - 1, element_bytes_min)

    def tagged_field_count(self) -> int:
        count = self.uvarint()
        if count > TAGGED_FIELDS_MAX:
            raise MalformedFrame(f"{count} tagged fields in one structure")
        self._spend(count)
        return count

    def tagged_field_size(self) -> int:
        size = self.uvarint()
        if size > min(TAGGED_BYTES_MAX, self.end - self.position):
            raise MalformedFrame(f"a tagged field of {size} bytes")
        return size

    def _text(self, length_bytes: int) -> str | None:
        if length_bytes == -1:
            return None
        if not 0 <= length_bytes <= STRING_BYTES_MAX:
            raise MalformedFrame(f"a string of {length_bytes} bytes")
        start = self.skip(length_bytes)
        try:
            return str(self.buffer[start : start + length_bytes], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedFrame("a string is not UTF-8") from error

    def _octets(self, length_bytes: int) -> bytes | None:
        if length_bytes == -1:
            return None
        if length_bytes < -1:
            raise MalformedFrame(f"a field of {length_bytes} bytes")
        start = self.skip(length_bytes)
        end = start + length_bytes
        return bytes(self.buffer[start:end])

    def _count(self, count: int, element_bytes_min: int) -> int:
        if count < -1 or count * element_bytes_min > self.end - self.position:
            raise MalformedFrame(
                f"an array of {count} elements where the frame has {self.end - self.position} bytes left"
            )
        self._spend(count)
        return count

    def _spend(self, elements: int) -> None:
        self.elements_left -= max(elements, 0)
        if self.elements_left < 0:
            raise MalformedFrame("more elements than one message may have")


def _present(value: str | None, what: str) -> str:
    if value is None:
        raise MalformedFrame(f"null where a {what} must stand")
    return value


def _present_octets(value: bytes | None) -> bytes:
    if value is None:
        raise MalformedFrame("null where bytes must stand")
    return value


def uvarint_bytes(value: int) -> bytes:
    """`value`, not negative, as an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_bytes(text: str | None) -> bytes:
    """A nullable string with its int16 length."""
    if text is None:
        return b"\xff\xff"
    raw = _encoded(text)
    return INT16.pack(len(raw)) + raw


def compact_string_bytes(text: str | None) -> bytes:
    """A nullable string with its uvarint length + 1."""
    if text is None:
        return b"\x00"
    raw = _encoded(text)
    return uvarint_bytes(len(raw) + 1) + raw


def octets_bytes(octets: bytes | None) -> bytes:
    """Nullable bytes with their int32 length."""
    return b"\xff\xff\xff\xff" if octets is None else INT32.pack(len(octets)) + octets


def compact_octets_bytes(octets: bytes | None) -> bytes:
    """Nullable bytes with their uvarint length + 1."""
    return b"\x00" if octets is None else uvarint_bytes(len(octets) + 1) + octets


def uuid_bytes(value: UUID | None) -> bytes:
    """16 bytes; None is all zero."""
    return _NO_UUID_BYTES if value is None else value.bytes


def _encoded(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise ApplianceDefect(f"a string of {len(raw)} bytes does not fit a Kafka message")
    return raw


_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
