"""The segments of one log and what becomes of their files.

    roll       the new segment's files are made, then the old one gives its unused room back
    retire     files are renamed to `.deleted` and queued for their removal, with the snapshot that begins the segment
    drop       files are removed at once: what they hold was never agreed on
    replace    a cleaner's segment takes the place of those it has read (`segment_swap`)

Each leaves, if the process dies in the middle, what an opening takes for a log (`loader`). Which segments that happens
to, and what it means for offsets, epochs and producers, is for `PartitionLog`. Closed segments keep their descriptors
for readers, a few of them at a time. Source: `LocalLog.java`.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Final

from appliance.clock import Clock
from appliance.errors import ApplianceDefect, StorageFault
from appliance.log.config import LogSettings
from appliance.log.file_names import DELETED, SEGMENT_SUFFIXES
from appliance.log.removal import Removal
from appliance.log.segment import Segment
from appliance.log.segment_swap import is_prepared, swap
from appliance.log.segments import Segments
from appliance.log.snapshots import Snapshots

_SEALED_OPEN_MAX: Final = 4


class LocalLog:
    """`segments` and `snapshots` may be looked at; only methods of this class add segments or take them out.

    `settings` go for new ones.
    """

    __slots__ = ("_clock", "_directory", "_removals", "_sealed_open", "_settings", "segments", "snapshots")

    def __init__(
        self,
        directory: Path,
        segments: Segments,
        snapshots: Snapshots,
        *,
        settings: LogSettings,
        clock: Clock,
        removals: deque[Removal],
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self.snapshots = snapshots
        self._removals = removals
        self._sealed_open: tuple[Segment, ...] = ()
        self.segments = segments
        segments.active.jitter_ms = self._jitter_ms()

    def _jitter_ms(self) -> int:
        most = min(self._settings.segment_jitter_ms, self._settings.segment_ms)
        return random.randrange(most) if most else 0

    # Reading

    def opened(self, offset: int) -> Segment:
        """The segment that `offset` lies in; a closed one keeps its descriptors until others have come."""
        segment = self.segments.floor(offset)
        if segment is None:
            raise ApplianceDefect(f"{self._directory}: no segment holds offset {offset}")
        sealed_open = self._sealed_open
        if segment is not self.segments.active and not (sealed_open and sealed_open[-1] is segment):
            others = tuple(each for each in sealed_open if each is not segment)
            if len(others) == _SEALED_OPEN_MAX:
                others[0].release()
                others = others[1:]
            self._sealed_open = (*others, segment)
        return segment

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches. O(segments)."""
        return sum(segment.size_bytes for segment in self.segments)

    # Segments that come

    def new_segment(self, base_offset: int) -> Segment:
        """One that has no files yet and is none of ours before `begin_with`."""
        return Segment(
            self._directory,
            base_offset,
            settings=self._settings,
            created_ms=self._clock.now_ms(),
            jitter_ms=self._jitter_ms(),
        )

    def begin_with(self, first: Segment) -> None:
        """The first segment of a log that has none any more."""
        self.segments.add(first)

    def roll(self, base_offset: int) -> Segment:
        """Closes the active segment and begins one at `base_offset`; the one that was closed.

        Raises:
            DiskFull, StorageFault: it failed; the log goes on with the segment it had.
        """
        old = self.segments.active
        if not old.has_files:
            old.create()
        new = self.new_segment(base_offset)
        new.create()
        try:
            old.seal()
        except StorageFault:
            new.delete()
            raise
        self.segments.add(new)
        return old

    def is_active_old(self, now_ms: int) -> bool:
        """Whether the active segment holds something and has been written to for `segment.ms`."""
        active = self.segments.active
        if active.file.size_bytes == 0:
            return False
        first_ms = active.first_timestamp_ms
        waited_ms = now_ms - (first_ms if first_ms >= 0 else active.created_ms)
        return waited_ms > self._settings.segment_ms - active.jitter_ms

    # Segments that go

    def retire(self, segment: Segment, end_offset: int) -> None:
        """Takes a closed segment, whose records end at `end_offset`, out; its files go later.

        Raises:
            DiskFull, StorageFault: it failed; it may be retired again.
        """
        self._keep_open_no_more(segment)
        size_bytes = segment.size_bytes
        paths = _mark_deleted(segment) + self.snapshots.mark_deleted(segment.base_offset)
        self.segments.remove(segment)
        self._removals.append(Removal(paths, self._settings.file_delete_delay_ms, end_offset, size_bytes))

    def drop(self, segment: Segment) -> None:
        """Takes any segment out, and its files with it.

        Raises:
            StorageFault: it failed, and the segment is still there.
        """
        self._keep_open_no_more(segment)
        # First: one whose files are still there, and is not known, would come back with the next opening.
        segment.delete()
        self.segments.remove(segment)

    def replace(self, base_offset: int, end_offset: int, *, source_bytes: int) -> bool:
        """Swaps a cleaner's segment in for those in [base_offset, end_offset), which are queued for their removal.

        False, and no change, if these are not the closed segments of `source_bytes` that the cleaner has read.

        Raises:
            StorageFault: it failed; nothing has changed.
            SwapInterrupted: it failed in the middle; the log must be closed and opened anew.
        """
        sources = [
            segment
            for segment in self.segments.since(base_offset)
            if base_offset <= segment.base_offset < end_offset
        ]
        if (
            not sources
            or sources[0].base_offset != base_offset
            or self.segments.active in sources
            or sum(segment.file.size_bytes for segment in sources) != source_bytes
            or not is_prepared(self._directory, base_offset)
        ):
            return False
        segment, removed = swap(
            self._directory,
            base_offset,
            sources,
            snapshots=self.snapshots,
            settings=self._settings,
            now_ms=self._clock.now_ms(),
        )
        for source in sources:
            self._keep_open_no_more(source)
            self.segments.remove(source)
        self.segments.add(segment)
        delay_ms = self._settings.file_delete_delay_ms
        self._removals.append(Removal(removed, delay_ms, end_offset, source_bytes))
        return True

    def _keep_open_no_more(self, segment: Segment) -> None:
        self._sealed_open = tuple(each for each in self._sealed_open if each is not segment)

    # Keeping

    def update_settings(self, settings: LogSettings) -> None:
        """Takes new settings for all that follows; the jitter of the active segment stays what it was."""
        self._settings = settings
        self.segments.active.update_settings(settings)

    def relocate(self, directory: Path, removals: deque[Removal]) -> None:
        """Goes on with the files of `directory`, which hold the same bytes. No file is touched."""
        for segment in self.segments:
            segment.relocate(directory)
        self._sealed_open = ()
        self.snapshots.relocate(directory)
        self._directory = directory
        self._removals = removals

    def release_sealed(self) -> None:
        """Lets go of the descriptors and mappings of closed segments.

        Raises:
            StorageFault: it failed.
        """
        for segment in self._sealed_open:
            segment.release()
        self._sealed_open = ()

    def abandon(self) -> None:
        """Lets go of all files as they are, as a crash would."""
        for segment in self.segments:
            segment.abandon()

    def check(self) -> int:
        """Reads every segment; where the batches end.

        Raises:
            ApplianceDefect: naming what does not hold.
        """
        self.segments.check()
        next_offset = self.segments.first.base_offset
        for segment in self.segments:
            if segment.base_offset < next_offset:
                raise ApplianceDefect(
                    f"{self._directory}: segment {segment.base_offset} overlaps {next_offset}"
                )
            next_offset = max(segment.check(), segment.base_offset)
            if segment is not self.segments.active and segment not in self._sealed_open:
                segment.release()
        return next_offset


def _mark_deleted(segment: Segment) -> tuple[Path, ...]:
    """Renames a segment's files to `.deleted`, the records first; where they lie now, to be removed later.

    Whoever reads one goes on reading it. Killed in between, what is left are indexes without records, which an
    opening removes together with what is `.deleted`.

    Raises:
        StorageFault: it failed; it may be tried again.
    """
    segment.abandon()
    segment.rename("", DELETED)
    return tuple(segment.path(suffix + DELETED) for suffix in SEGMENT_SUFFIXES)
