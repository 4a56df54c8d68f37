"""What a log answers: values, most of them of the hot path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# The two results of the hot path are named tuples: a frozen dataclass takes three times as long to make.


class AppendResult(NamedTuple):
    """Where a batch came to lie. `log_append_time_ms` is -1 under CreateTime; `bytes` is what the log grew by."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    bytes: int
    duplicate: bool = False


class FetchSlice(NamedTuple):
    """A stretch of one segment file. It begins with a batch; its end may cut the last one, never the first.

    `on_older_segment`: what may be read goes on in a later segment.
    """

    segment_base_offset: int
    position: int
    length_bytes: int
    first_batch_bytes: int
    on_older_segment: bool = False


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """A log at a glance."""

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    segments: int
    size_bytes: int
    allocated_bytes: int
    producers: int
    open_segments: int
