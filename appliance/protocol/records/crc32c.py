"""CRC-32C (Castagnoli) over any buffer, without a copy, by hardware where the processor can."""

from __future__ import annotations

from typing import Protocol

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


class Checksum(Protocol):
    """`value` is the checksum of what came before, where a buffer comes in pieces."""

    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


# A plain name, not a function around it: the call stands on the append path.
checksum: Checksum = _crc32c
"""The CRC-32C of a buffer, as an unsigned 32-bit integer."""
