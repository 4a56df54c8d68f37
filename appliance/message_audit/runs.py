"""Counts batches that follow each other by their headers: a run is in one bucket, and has one answer to who and when.

    headers   │ 12:00:58 │ 12:00:59 │ 12:01:00 … 12:01:02 │ 12:01:59 │ 12:01:59 … 12:02:01 │
    runs      └────── 12:00 ───────┘└──────── 12:01 ───────────────┘   only its records say it

So the audit asks who appended, and looks up its counts, once for a run and not for each batch. A batch costs 1 µs. To
compile this would save a quarter of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from appliance.message_audit.attribution import Appended
from appliance.protocol.records.batch import CONTROL, LOG_APPEND_TIME, LOG_OVERHEAD

OTHER_BUCKET: Final = -1
Header: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The header of a batch, unpacked (`protocol.records.batch.HEADER`)."""


class Run(NamedTuple):
    """Batches up to `stop`, an index. `delays`: delay in ms → records, as far as it is known."""

    stop: int
    bucket: int
    records: int
    size_bytes: int
    delays: dict[int, int]


def count_run(
    headers: Sequence[Header],
    start: int,
    stop: int,
    *,
    end: int | None,
    bucket_ms: int,
    appended: Appended | None,
) -> Run:
    """Count the batches `headers[start:stop]` as long as they are in one bucket; none if the header does not say that.

    Args:
        end: batches from this offset on are not of the run; None: all may be.
        appended: when records came in or went out; None: that is not known. Of a range with two times, an offset has
            its share of the time in between.
    """
    index = start
    low, high = 0, -1
    bucket = OTHER_BUCKET
    records = size_bytes = 0
    delays: dict[int, int] = {}
    first, at_ms, span_ms, width = 0, 0, 0, 1
    is_timed = appended is not None
    if appended is not None:
        first, at_ms = appended.first, appended.first_ms
        span_ms, width = appended.last_ms - appended.first_ms, max(appended.end - appended.first, 1)
    while index < stop:
        offset, length, _, _, _, attributes, _, first_ms, max_ms, _, _, _, number = headers[index]
        if end is not None and offset >= end:
            break
        if attributes & CONTROL:
            index += 1
            continue
        if attributes & LOG_APPEND_TIME:
            first_ms = max_ms
        if high < low:
            if first_ms >= 0:
                bucket = low = first_ms - first_ms % bucket_ms
                high = low + bucket_ms - 1
            else:
                low, high = -(1 << 63), -1
        if not (low <= first_ms <= high and low <= max_ms <= high):
            break
        records += number
        size_bytes += length + LOG_OVERHEAD
        if is_timed and first_ms >= 0:
            delay_ms = at_ms - first_ms
            if span_ms:
                delay_ms += span_ms * (offset - first) // width
            delays[delay_ms] = delays.get(delay_ms, 0) + number
        index += 1
    return Run(index, bucket, records, size_bytes, delays)
