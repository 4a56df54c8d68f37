"""CRC-32C (Castagnoli) over any buffer, without a copy, by hardware where the processor can."""

from __future__ import annotations

from collections.abc import Callable

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview

# A plain name, not a function around it: the call stands on the append path.
checksum: Callable[[Buffer], int] = _crc32c
"""The CRC-32C of a buffer as an unsigned 32-bit integer."""
