"""Which segments of a log have had their time: a pure decision, from what is known of each segment.

The oldest segments go, one after the other, each for the first reason that holds; the first that none holds for ends
it. A segment is not looked at before its whole content is below the high watermark.

    log start   the next segment begins at or below the log start: nothing in it may be read. Whatever the policy
    size        without it the log still holds `retention.bytes`
    time        its largest timestamp is more than `retention.ms` ago

Worked example, `retention.bytes` 250, log start 130, sizes 100 each:

    base offset    0       100       200       300     400 (active)
                   ├─────────┼─────────┼─────────┼─────────┤
                   log start (100 ≤ 130)
                             size: 500 - 100 kept, 150 too many ≥ 100
                                       size: 50 too many < 100, stays

The active segment goes too when a reason holds for it; its log is rolled first and goes on empty.

Times are the records' own, by which Kafka goes as well; where a segment has none, the file's last change counts. A
timestamp ahead of our clock keeps its segment, and so all that follow, until the clock has passed it: the decision
names such a segment, so that somebody can be told.

Sources: `UnifiedLog.deleteOldSegments`, `LogSegment.largestTimestamp`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

UNLIMITED = -1


class SegmentFacts(Protocol):
    """What the decision wants to know of a segment. The timestamp may be dear, and is asked for only when it counts."""

    base_offset: int

    @property
    def size_bytes(self) -> int: ...

    def largest_timestamp_ms(self) -> int: ...


class DeletionReason(Enum):
    """Why a segment goes."""

    LOG_START = "it ends below the log start"
    SIZE = "retention.bytes is exceeded"
    TIME = "retention.ms has passed"


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Limits of one log; -1 is none. `retention_ms` counts only while the clock is to be trusted."""

    retention_bytes: int = UNLIMITED
    retention_ms: int = UNLIMITED


NO_LIMITS = RetentionRules()
"""What ends below the log start goes all the same."""


@dataclass(frozen=True, slots=True)
class Expired:
    """`reasons` of the oldest segments, one each, to be deleted; where the log begins then.

    `ahead_of_clock_ms` is the timestamp that keeps the next segment although it lies in the future; -1 without one.
    """

    reasons: tuple[DeletionReason, ...]
    log_start_offset: int
    ahead_of_clock_ms: int = -1

    def __bool__(self) -> bool:
        return bool(self.reasons)


def expired(
    segments: Iterable[SegmentFacts],
    rules: RetentionRules,
    *,
    size_bytes: int,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> Expired:
    """Decides over the segments of a log, oldest first, which together have `size_bytes`.

    Asks no more of them than the first that stays. An empty active segment always stays.
    """
    reasons: list[DeletionReason] = []
    surplus_bytes = size_bytes - rules.retention_bytes if rules.retention_bytes >= 0 else UNLIMITED
    start = log_start_offset
    ahead_ms = -1
    remaining = iter(segments)
    segment = next(remaining, None)
    while segment is not None:
        following = next(remaining, None)
        end = log_end_offset if following is None else following.base_offset
        if end > high_watermark or (following is None and segment.size_bytes == 0):
            break
        if following is not None and end <= log_start_offset:
            reasons.append(DeletionReason.LOG_START)
        elif surplus_bytes >= segment.size_bytes:
            reasons.append(DeletionReason.SIZE)
        elif rules.retention_ms >= 0:
            largest_ms = segment.largest_timestamp_ms()
            if now_ms - largest_ms <= rules.retention_ms:
                ahead_ms = largest_ms if largest_ms > now_ms else -1
                break
            reasons.append(DeletionReason.TIME)
        else:
            break
        surplus_bytes -= segment.size_bytes
        start = max(start, end)
        segment = following
    return Expired(tuple(reasons), start, ahead_ms)
