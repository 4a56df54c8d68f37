"""Where records lie, found by numpy for many batches in step: what `record_kernel` does, where there is no numba.

The n-th record of every batch is looked at together, then the one after it, so a step costs the same for one batch and
for hundreds: worth it from some dozens of batches on. What is out of the ordinary (a record that does not fit, or one
with headers) is left to the kernel, which tells what is wrong with it.

    batch 0   r0 r1 r2 r3 r4
    batch 1   r0 r1 r2
    batch 2   r0 r1 r2 r3
              ↑  ↑  ↑
              steps
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from appliance.protocol.columns import record_kernel as kernel

BATCHES_MIN: Final = 32
"""Below so many batches the kernel is quicker, also when Python runs it."""

_Longs = npt.NDArray[np.int64]
_DELTA_MAX: Final = 1 << 61
_LOG_APPEND_TIME: Final = 8


class Found(NamedTuple):
    """One entry for every record of all batches, batch after batch. Positions are those of the buffer."""

    offsets: _Longs
    timestamps_ms: _Longs
    appended: npt.NDArray[np.bool_]
    keys: _Longs
    key_ends: _Longs
    values: _Longs
    value_ends: _Longs
    nulls: npt.NDArray[np.uint8]


class _Odd(Exception):
    """Something that the kernel has to look at."""


def find_records(
    data: npt.NDArray[np.uint8],
    begins: _Longs,
    ends: _Longs,
    *,
    base_offsets: _Longs,
    base_timestamps_ms: _Longs,
    max_timestamps_ms: _Longs,
    attributes: _Longs,
    counts: _Longs,
) -> Found | None:
    """All records of the batches; None where the kernel has to look. No byte outside of a batch is read."""
    if (counts < 0).any() or (counts * kernel.RECORD_BYTES_MIN > ends - begins).any():
        return None
    firsts = np.cumsum(counts) - counts
    room = int(counts.sum())
    deltas, offset_deltas, keys, key_ends, values, value_ends = (np.empty(room, np.int64) for _ in range(6))
    nulls = np.empty(room, np.uint8)
    columns = (deltas, offset_deltas, keys, key_ends, values, value_ends, nulls)
    at = begins.astype(np.int64)
    # The longest batches first: those that still have a record are then always a leading part.
    order = np.argsort(-counts, kind="stable")
    at, stops, rows, left = at[order], ends[order], firsts[order], counts[order]
    try:
        for step in range(int(left[0]) if len(left) else 0):
            active = int(np.searchsorted(-left, -step, side="left"))
            after = _step(data, at[:active], stops[:active], rows[:active] + step, columns)
            at[:active] = after
    except _Odd:
        return None
    if (at != stops).any():
        return None
    batch = np.repeat(np.arange(len(counts)), counts)
    most = kernel.TIMESTAMP_MS_MAX
    created = base_timestamps_ms[batch].clip(-_DELTA_MAX, _DELTA_MAX) + deltas.clip(-_DELTA_MAX, _DELTA_MAX)
    appended = (attributes[batch] & _LOG_APPEND_TIME) != 0
    timestamps_ms = np.where(appended, max_timestamps_ms[batch], created).clip(-most, most)
    offsets = base_offsets[batch] + offset_deltas
    return Found(offsets, timestamps_ms, appended, keys, key_ends, values, value_ends, nulls)


def _step(data: npt.NDArray[np.uint8], at: _Longs, stops: _Longs, rows: _Longs, columns: Any) -> _Longs:
    """One record of each batch; the positions after them."""
    deltas, offset_deltas, keys, key_ends, values, value_ends, nulls = columns
    lengths, at = _numbers(data, at, stops, bits=32)
    if (lengths < 1).any() or (lengths > stops - at).any():
        raise _Odd
    ends = at + lengths
    deltas[rows], at = _numbers(data, at + 1, ends, bits=64)
    offset_deltas[rows], at = _numbers(data, at, ends, bits=32)
    null = np.zeros(len(rows), np.uint8)
    for begins, finishes, bit in ((keys, key_ends, kernel.NULL_KEY), (values, value_ends, kernel.NULL_VALUE)):
        lengths, at = _numbers(data, at, ends, bits=32)
        if (lengths < -1).any() or (lengths > ends - at).any():
            raise _Odd
        null |= np.where(lengths < 0, bit, 0).astype(np.uint8)
        begins[rows] = at
        at = at + lengths.clip(0)
        finishes[rows] = at
    nulls[rows] = null
    headers, at = _numbers(data, at, ends, bits=32)
    if headers.any() or (at != ends).any():
        raise _Odd
    return ends


def _numbers(data: npt.NDArray[np.uint8], at: _Longs, stops: _Longs, *, bits: int) -> tuple[_Longs, _Longs]:
    """The zig-zag number at each position, and the positions after them."""
    if (at >= stops).any():
        raise _Odd
    byte = data[at]
    found = (byte & 0x7F).astype(np.uint64)
    at = at + 1
    more = np.flatnonzero(byte >= 0x80)
    shift = 7
    while len(more):
        if shift >= bits or (at[more] >= stops[more]).any():
            raise _Odd
        byte = data[at[more]]
        found[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    if bits < 64:
        found &= np.uint64((1 << bits) - 1)
    signs = (found & np.uint64(1)).astype(np.int64)
    return (found >> np.uint64(1)).astype(np.int64) ^ -signs, at
