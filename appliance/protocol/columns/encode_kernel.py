"""Rows to record batches, and keys to partitions: the kernels behind `encode`, compiled by numba or run by Python.

    out   ·61 bytes·record record record ·61 bytes·record record …
          └────── one batch ────────────┘└── the next one ── …

A record is drawn in `record_kernel`. In front of each batch there is room for its header, which is written when it is
sent: only then are the producer's id and sequence known.

A field of row n is `data[starts[n] : starts[n] + lengths[n]]`, null where its length is -1.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from appliance.protocol.columns.compiled import compiled, has_compiler, step
from appliance.protocol.records import batch as b

if has_compiler():
    from appliance.protocol.columns.gather_kernel import copy
else:

    def copy(into: Any, into_at: int, data: Any, data_at: int, length: int) -> None:
        """The same by slices."""
        into[into_at : into_at + length] = data[data_at : data_at + length]


RECORD_OVERHEAD_MAX: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""The most that a record takes beside its fields."""
HEADER_OVERHEAD_MAX: Final = 10
"""The most that a header takes beside name and value."""

BEGIN: Final = 0
END: Final = 1
ROWS: Final = 2
FIRST_MS: Final = 3
MAX_MS: Final = 4
BATCH_FIELDS: Final = 5

_ROOM: Final = b.HEADER_BYTES
_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_UINT32: Final = 0xFFFF_FFFF


@step
def _varint_bytes(value: int) -> Any:
    rest = value if value >= 0 else -1 - value
    size = 1
    rest >>= 6
    while rest > 0:
        size += 1
        rest >>= 7
    return size


@step
def _put_varint(out: Any, at: int, value: int) -> Any:
    # Magnitude and sign apart: no number passes 63 bits.
    negative = 0
    rest = value
    if value < 0:
        negative = 1
        rest = -1 - value
    byte = ((rest & 0x3F) << 1) | negative
    rest >>= 6
    while rest > 0:
        out[at] = byte | 0x80
        at += 1
        byte = rest & 0x7F
        rest >>= 7
    out[at] = byte
    return at + 1


@step
def _put_field(out: Any, at: int, data: Any, start: int, length: int) -> Any:
    at = _put_varint(out, at, length)
    if length > 0:
        copy(out, at, data, start, length)
        return at + length
    return at


@step
def _headers_bytes(first: int, last: int, name_lengths: Any, content_lengths: Any) -> Any:
    size = _varint_bytes(last - first)
    for index in range(first, last):
        size += _varint_bytes(name_lengths[index]) + name_lengths[index]
        size += _varint_bytes(content_lengths[index]) + max(content_lengths[index], 0)
    return size


@compiled
def encode_rows(  # noqa: PLR0915, PLR0917 - one pass; machine code takes arguments by position
    out: Any,
    at: int,
    batch_bytes: int,
    order: Any,
    row: int,
    end: int,
    times_ms: Any,
    key_data: Any,
    key_starts: Any,
    key_lengths: Any,
    value_data: Any,
    value_starts: Any,
    value_lengths: Any,
    header_firsts: Any,
    name_data: Any,
    name_starts: Any,
    name_lengths: Any,
    content_data: Any,
    content_starts: Any,
    content_lengths: Any,
    batches: Any,
) -> Any:
    """Encodes the rows `order[row:end]` to `out[at:]`, batch after batch, until `out` or `batches` is full.

    A batch takes no record that would make it longer than `batch_bytes`, header included, but its first.
    `key_lengths`, `value_lengths` and `header_firsts` may be empty: there is none of these.

    Returns (batches, the first row that is not encoded). `batches` has BATCH_FIELDS numbers for each. Where not even
    one record fits into `out`, none is written.
    """
    has_keys = len(key_lengths) > 0
    has_values = len(value_lengths) > 0
    has_headers = len(header_firsts) > 0
    room = len(out)
    most = len(batches) // BATCH_FIELDS
    count = 0
    while row < end and count < most:
        begin = at
        at += _ROOM
        first_row = row
        base_ms = times_ms[order[row]]
        max_ms = base_ms
        full = False
        while row < end:
            index = order[row]
            delta_ms = times_ms[index] - base_ms
            key_length = key_lengths[index] if has_keys else -1
            value_length = value_lengths[index] if has_values else -1
            length = 1 + _varint_bytes(delta_ms) + _varint_bytes(row - first_row)
            length += _varint_bytes(key_length) + max(key_length, 0)
            length += _varint_bytes(value_length) + max(value_length, 0)
            first = 0
            last = 0
            if has_headers:
                first = header_firsts[index]
                last = header_firsts[index + 1]
                length += _headers_bytes(first, last, name_lengths, content_lengths)
            else:
                length += 1
            after = at + _varint_bytes(length) + length
            if after > room:
                full = True
                break
            if after - begin > batch_bytes and row > first_row:
                break
            at = _put_varint(out, at, length)
            out[at] = 0
            at = _put_varint(out, at + 1, delta_ms)
            at = _put_varint(out, at, row - first_row)
            at = _put_field(out, at, key_data, key_starts[index] if has_keys else 0, key_length)
            at = _put_field(out, at, value_data, value_starts[index] if has_values else 0, value_length)
            at = _put_varint(out, at, last - first)
            for header in range(first, last):
                at = _put_field(out, at, name_data, name_starts[header], name_lengths[header])
                at = _put_field(out, at, content_data, content_starts[header], content_lengths[header])
            max_ms = max(max_ms, times_ms[index])
            row += 1
        if full and begin > 0:
            # The batch goes on in the next buffer, so that it becomes a full one.
            return count, first_row
        if row == first_row:
            return count, row
        batches[count * BATCH_FIELDS + BEGIN] = begin
        batches[count * BATCH_FIELDS + END] = at
        batches[count * BATCH_FIELDS + ROWS] = row - first_row
        batches[count * BATCH_FIELDS + FIRST_MS] = base_ms
        batches[count * BATCH_FIELDS + MAX_MS] = max_ms
        count += 1
        if full:
            break
    return count, row


@compiled
def partitions_of_keys(data: Any, starts: Any, lengths: Any, partitions: int, chosen: Any) -> None:
    """Kafka's murmur2 of each key, positive, modulo `partitions`; -1 for a null key. See `murmur2` in the client."""
    for index in range(len(lengths)):
        length = lengths[index]
        if length < 0:
            chosen[index] = -1
            continue
        at = starts[index]
        end = at + length
        h = np.int64(_SEED) ^ length
        while at + 4 <= end:
            k = np.int64(data[at]) | np.int64(data[at + 1]) << 8
            k |= np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24
            k = _times_m(k)
            k ^= k >> 24
            k = _times_m(k)
            h = _times_m(h) ^ k
            at += 4
        left = end - at
        if left > 2:
            h ^= np.int64(data[at + 2]) << 16
        if left > 1:
            h ^= np.int64(data[at + 1]) << 8
        if left > 0:
            h = _times_m(h ^ np.int64(data[at]))
        h ^= h >> 13
        h = _times_m(h)
        h ^= h >> 15
        chosen[index] = (h & 0x7FFF_FFFF) % partitions


@step
def _times_m(value: int) -> Any:
    # By halves: a product of two 32-bit numbers does not fit into 63 bits.
    high = (value >> 16) * _M & 0xFFFF
    return ((high << 16) + (value & 0xFFFF) * _M) & _UINT32


@compiled
def rows_by_partition(chosen: Any, firsts: Any, order: Any) -> None:
    """Lists the rows of each partition in their order: those of partition p are `order[firsts[p] : firsts[p + 1]]`.

    `firsts` has one more than there are partitions.
    """
    for partition in range(len(firsts)):
        firsts[partition] = 0
    for index in range(len(chosen)):
        firsts[chosen[index] + 1] += 1
    for partition in range(1, len(firsts)):
        firsts[partition] += firsts[partition - 1]
    for index in range(len(chosen)):
        partition = chosen[index]
        order[firsts[partition]] = index
        firsts[partition] += 1
    for partition in range(len(firsts) - 1, 0, -1):
        firsts[partition] = firsts[partition - 1]
    firsts[0] = 0
