"""Variable-length integers: seven bits a byte, the lowest first, zig-zag so that small negatives stay small.

Source: Kafka's `ByteUtils.java` (the encoding is Protocol Buffers' `sint32`/`sint64`).

    value     zig-zag   bytes
        0         0     00
       -1         1     01
       63       126     7e
       64       128     80 01
     8191     16382     fe 7f
"""

from __future__ import annotations

from typing import Final

from appliance.protocol.records.errors import InvalidRecords

VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10

Buffer = bytes | bytearray | memoryview


def write_varint(out: bytearray, value: int) -> None:
    """Appends a signed value (varint and varlong have one encoding)."""
    bits = (value << 1) ^ (value >> 63)
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)


def varint_length(value: int) -> int:
    """Bytes that `write_varint` takes for a signed value."""
    bits = (value << 1) ^ (value >> 63)
    return max(1, -(-bits.bit_length() // 7))


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """A signed 32-bit value and the position after it.

    Raises:
        InvalidRecords: more than five bytes, or the buffer ends inside of the value.
    """
    try:
        byte = buffer[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        second = buffer[position + 1]
        if second < 0x80:
            byte = byte & 0x7F | second << 7
            return (byte >> 1) ^ -(byte & 1), position + 2
    except IndexError:
        raise InvalidRecords("a record ends inside of a variable-length integer") from None
    return _read(buffer, position, VARINT_BYTES_MAX)


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """A signed 64-bit value and the position after it.

    Raises:
        InvalidRecords: more than ten bytes, or the buffer ends inside of the value.
    """
    return _read(buffer, position, VARLONG_BYTES_MAX)


def _read(buffer: Buffer, position: int, bytes_max: int) -> tuple[int, int]:
    bits = 0
    shift = 0
    limit = position + bytes_max
    try:
        while True:
            byte = buffer[position]
            position += 1
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if position == limit:
                raise InvalidRecords(f"a variable-length integer runs over {bytes_max} bytes")
    except IndexError:
        raise InvalidRecords("a record ends inside of a variable-length integer") from None
    # Bits beyond the type's width are dropped, as Java's shifts drop them.
    bits &= 0xFFFFFFFF if bytes_max == VARINT_BYTES_MAX else 0xFFFFFFFFFFFFFFFF
    return (bits >> 1) ^ -(bits & 1), position
