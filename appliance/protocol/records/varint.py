"""Variable-length integers: seven bits a byte, the lowest first, zig-zag so that small negatives stay small.

Source: Kafka's `ByteUtils.java` (the encoding is Protocol Buffers' `sint32`/`sint64`).

Readers take bytes and native integers: compiled, a value costs 3 ns, out of any other buffer a byte would cost 40.

    value     zig-zag   bytes
        0         0     00
       -1         1     01
       63       126     7e
       64       128     80 01
     8191     16382     fe 7f
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.protocol.records.errors import InvalidRecords

if TYPE_CHECKING:
    from mypy_extensions import i64

VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10

Buffer = bytes | bytearray | memoryview

_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1


def write_varint(out: bytearray, value: int) -> None:
    """Appends a signed value (varint and varlong have one encoding)."""
    bits = (value << 1) ^ (value >> 63)
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)


def _made(value: int) -> bytes:
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


_MADE: Final = [_made(value) for value in range(1_024)]


def varint_bytes(value: i64) -> bytes:
    """Return the varint of a value from 0. Small ones are not made again: a list of parts is joined quicker than
    numbers are written one byte after the other.
    """
    return _MADE[value] if value < len(_MADE) else _made(value)


def read_varint(data: bytes, position: i64) -> tuple[i64, i64]:
    """A signed 32-bit value and the position after it.

    Raises:
        InvalidRecords: more than five bytes, or the data ends inside of the value.
    """
    try:
        byte: i64 = data[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        second: i64 = data[position + 1]
        if second < 0x80:
            byte = byte & 0x7F | second << 7
            return (byte >> 1) ^ -(byte & 1), position + 2
    except IndexError:
        raise InvalidRecords("a record ends inside of a variable-length integer") from None
    return _read(data, position, VARINT_BYTES_MAX)


def varint_at(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """A signed 32-bit value of any buffer, of which nothing from `end` on is looked at, and the position after it.

    Raises:
        InvalidRecords: as `read_varint`.
    """
    value, used = read_varint(bytes(buffer[position : min(position + VARINT_BYTES_MAX, end)]), 0)
    return value, position + used


def read_varlong(data: bytes, position: i64) -> tuple[i64, i64]:
    """A signed 64-bit value and the position after it.

    Raises:
        InvalidRecords: more than ten bytes, or the data ends inside of the value.
    """
    return _read(data, position, VARLONG_BYTES_MAX)


def _read(data: bytes, position: i64, bytes_max: i64) -> tuple[i64, i64]:
    bits: i64 = 0
    shift: i64 = 0
    limit = position + bytes_max
    try:
        while True:
            byte: i64 = data[position]
            position += 1
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if position == limit:
                raise InvalidRecords(f"a variable-length integer runs over {bytes_max} bytes")
    except IndexError:
        raise InvalidRecords("a record ends inside of a variable-length integer") from None
    # Bits beyond the type's width are dropped, as Java's shifts drop them; in 64 bits the highest is no sign yet.
    magnitude = bits >> 1 & (_INT32_MAX if bytes_max == VARINT_BYTES_MAX else _INT64_MAX)
    return magnitude ^ -(bits & 1), position
