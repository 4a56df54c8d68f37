"""Whether a log is worth a round of compaction, and how a round may go: all the cleaner knows while none is due.

The rounds themselves (`cleaning`) take numpy, which it loads with its first one (decision 0053).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ApplianceError, OperatorFault
from appliance.log.cleaning_bounds import LogBounds
from appliance.log.config import LogSettings
from appliance.log.sealed_segments import first_timestamp_ms, largest_timestamp_ms, sealed_segments


@dataclass(frozen=True, slots=True)
class Dirtiness:
    """How much there is to compact in a log, and when there may be more without anything being written."""

    first_dirty: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    next_look_ms: int | None

    @property
    def ratio(self) -> float:
        """The share of dirty bytes, 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_cleanable(self, settings: LogSettings) -> bool:
        """Whether it is worth a round: dirty enough, or dirty for too long."""
        return bool(self.dirty_bytes) and (self.is_overdue or self.ratio > settings.min_cleanable_dirty_ratio)


def dirtiness(
    directory: Path, bounds: LogBounds, settings: LogSettings, *, checkpoint: int, now_ms: int
) -> Dirtiness:
    """Looks at a log's files. `checkpoint` is where the last round ended, 0 if there was none.

    Raises:
        SegmentGone, StorageFault: the files cannot be read.
    """
    segments = sealed_segments(directory, bounds.uncleanable)
    first_dirty = checkpoint
    if not bounds.log_start <= checkpoint <= max(bounds.uncleanable, bounds.log_start):
        # Begun anew, or cut behind our back: what was clean is not known.
        first_dirty = bounds.log_start
    end, dirty, overdue = first_dirty, 0, False
    looks: list[int] = []
    lag_ms, most_ms = settings.min_compaction_lag_ms, settings.max_compaction_lag_ms
    for segment in segments:
        if segment.end_offset <= first_dirty:
            continue
        if lag_ms:
            free_ms = largest_timestamp_ms(directory, segment) + lag_ms
            if free_ms >= now_ms:
                looks.append(free_ms + 1)
                break
        first_ms = first_timestamp_ms(directory, segment)
        if first_ms > 0:
            overdue = overdue or now_ms - first_ms > most_ms
            looks.append(first_ms + most_ms + 1)
        end = segment.end_offset
        dirty += segment.size_bytes
    # Nobody tells of the first record of an empty segment: by then it has waited for the whole lag at most.
    looks.append((bounds.active_first_ms if bounds.active_first_ms > 0 else now_ms) + most_ms + 1)
    ahead = [look for look in looks if now_ms < look < 2**63 - 1]
    clean = sum(segment.size_bytes for segment in segments if segment.end_offset <= first_dirty)
    return Dirtiness(first_dirty, end, clean, dirty, overdue, min(ahead, default=None))


@dataclass(frozen=True, slots=True)
class Swap:
    """A wish: put `<base>.*.cleaned` into the place of the segments in [base_offset, end_offset)."""

    base_offset: int
    end_offset: int
    source_bytes: int


class CleaningAbandoned(ApplianceError):
    """The owner did not swap: the log changed, or is somebody else's now. Another round will look anew."""


class MapTooSmall(OperatorFault):
    """One batch has more records than the offset map has room for."""
