"""The walk over batch headers as a compiled kernel; `batch_headers` says what it means.

Integers are put together from bytes by hand: numba reads no big-endian numbers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from appliance.protocol.columns.compiled import compiled, step
from appliance.protocol.records import batch as b

_WHOLE: Final = -1
_END: Final = 0
_CUT: Final = 1
_ZEROS: Final = 2
_BAD_MAGIC: Final = 3
_BAD_LENGTH: Final = 4
_BASE_OFFSET: Final = b.BASE_OFFSET
_LENGTH: Final = b.BATCH_LENGTH
_EPOCH: Final = b.PARTITION_LEADER_EPOCH
_MAGIC: Final = b.MAGIC
_CRC: Final = b.CRC
_ATTRIBUTES: Final = b.ATTRIBUTES
_LAST_DELTA: Final = b.LAST_OFFSET_DELTA
_FIRST_MS: Final = b.BASE_TIMESTAMP
_MAX_MS: Final = b.MAX_TIMESTAMP
_PRODUCER: Final = b.PRODUCER_ID
_PRODUCER_EPOCH: Final = b.PRODUCER_EPOCH
_SEQUENCE: Final = b.BASE_SEQUENCE
_COUNT: Final = b.RECORDS_COUNT
_HEADER: Final = b.HEADER_BYTES
_OVERHEAD: Final = b.LOG_OVERHEAD
_V2: Final = b.MAGIC_V2


@step
def _int16(data: Any, at: int) -> Any:
    value = np.int64(data[at]) << 8 | np.int64(data[at + 1])
    return value - 0x1_0000 if value >= 0x8000 else value


@step
def _int32(data: Any, at: int) -> Any:
    value = (
        np.int64(data[at]) << 24
        | np.int64(data[at + 1]) << 16
        | np.int64(data[at + 2]) << 8
        | np.int64(data[at + 3])
    )
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


@step
def _int64(data: Any, at: int) -> Any:
    # The upper half is a signed number first: nothing passes 63 bits on the way.
    return (_int32(data, at) << 32) + (_int32(data, at + 4) & 0xFFFF_FFFF)


@step
def _verdict(data: Any, at: int, end: int) -> Any:
    """Of the batch at `at`: `_WHOLE` or why the walk stops here, and the bytes it takes."""
    if at == end:
        return _END, 0
    zeros = True
    for index in range(at, min(at + _OVERHEAD, end)):
        zeros = zeros and data[index] == 0
    if zeros:
        return _ZEROS, 0
    if end - at < _HEADER:
        return _CUT, _HEADER
    if data[at + _MAGIC] != _V2:
        return _BAD_MAGIC, 0
    length = _int32(data, at + _LENGTH)
    if length < _HEADER - _OVERHEAD:
        return _BAD_LENGTH, 0
    if length + _OVERHEAD > end - at:
        return _CUT, length + _OVERHEAD
    return _WHOLE, length + _OVERHEAD


@compiled
def count_headers(data: Any, at: int, end: int) -> int:
    """How many batches lie wholly in `data[at:end]`."""
    count = 0
    while True:
        stop, length_bytes = _verdict(data, at, end)
        if stop != _WHOLE:
            return count
        count += 1
        at += length_bytes


@compiled
def fill_headers(data: Any, at: int, end: int, file_position: int, rows: Any) -> tuple[int, int, int]:
    """Fills `rows`, one for each of `count_headers`; (position, stop, needed bytes) of where it stops."""
    shift = file_position - at
    index = 0
    while True:
        stop, length_bytes = _verdict(data, at, end)
        if stop != _WHOLE:
            return at, stop, length_bytes
        row = rows[index]
        row.position = at
        row.file_position = at + shift
        row.segment_base_offset = 0
        row.length_bytes = length_bytes
        row.base_offset = _int64(data, at + _BASE_OFFSET)
        row.leader_epoch = _int32(data, at + _EPOCH)
        row.crc = _int32(data, at + _CRC) & 0xFFFF_FFFF
        row.attributes = _int16(data, at + _ATTRIBUTES)
        row.last_offset = row.base_offset + _int32(data, at + _LAST_DELTA)
        row.base_timestamp_ms = _int64(data, at + _FIRST_MS)
        row.max_timestamp_ms = _int64(data, at + _MAX_MS)
        row.producer_id = _int64(data, at + _PRODUCER)
        row.producer_epoch = _int16(data, at + _PRODUCER_EPOCH)
        row.base_sequence = _int32(data, at + _SEQUENCE)
        row.records = _int32(data, at + _COUNT)
        row.aborted = 0
        index += 1
        at += length_bytes
