"""The producer snapshots of one log: which there are, which one still helps, and taking a new one."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from appliance.errors import CorruptFile, StorageFault
from appliance.log.checkpoint import read_small
from appliance.log.faults import storage_faults
from appliance.log.file_names import DELETED, PRODUCER_SNAPSHOT, parse_segment_file_name, segment_file_name
from appliance.log.producer_state import Producers, write_snapshot

_logger = logging.getLogger(__name__)


class Snapshots:
    """`newest` is the offset of the newest snapshot that was read or written."""

    __slots__ = ("_directory", "newest")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.newest = 0

    def relocate(self, directory: Path) -> None:
        """Goes on in another directory. Which of the files are there is looked up when it counts."""
        self._directory = directory

    def offsets(self) -> list[int]:
        """Offsets of the snapshot files there are, rising.

        Raises:
            StorageFault: the directory cannot be read.
        """
        with storage_faults(self._directory):
            parsed = [parse_segment_file_name(name) for name in os.listdir(self._directory)]
        return sorted(found[0] for found in parsed if found is not None and found[1] == PRODUCER_SNAPSHOT)

    def path(self, offset: int) -> Path:
        return self._directory / segment_file_name(offset, PRODUCER_SNAPSHOT)

    def drop_outside(self, start: int, end: int) -> None:
        """Removes the snapshots that are not in (start, end]: they speak of offsets that are not in the log.

        Raises:
            StorageFault: it failed.
        """
        self._remove(offset for offset in self.offsets() if not start < offset <= end)

    def drop_needless(
        self, offsets: Sequence[int], *, start: int, end: int, bases: Collection[int]
    ) -> list[int]:
        """Of the snapshots there are at an opening, by rising `offsets`, those that are left.

        Removed is what `drop_outside` removes, and what belongs to no segment, but for the newest
        (`ProducerStateManager.removeStraySnapshots`).

        Raises:
            StorageFault: it failed.
        """
        inside = [offset for offset in offsets if start < offset <= end]
        left = [offset for offset in inside[:-1] if offset in bases] + inside[-1:]
        if len(left) < len(offsets):
            self._remove(offset for offset in offsets if offset not in left)
        return left

    def mark_deleted(self, offset: int) -> tuple[Path, ...]:
        """Renames the snapshot of a segment that goes to `.deleted`; where it lies now, nothing if there is none.

        Raises:
            StorageFault: it failed.
        """
        path = self.path(offset)
        marked = path.with_name(path.name + DELETED)
        with storage_faults(self._directory):
            try:
                os.rename(path, marked)
            except FileNotFoundError:
                return ()
        return (marked,)

    def load_newest(self, start: int, offsets: Sequence[int] | None = None) -> tuple[Producers, int]:
        """(state, offset) of the newest snapshot that can be read; none, and `start`, without one.

        `offsets` are those there are, where they are known already.

        Raises:
            StorageFault: a file cannot be read or, being corrupt, removed.
        """
        for offset in reversed(self.offsets() if offsets is None else offsets):
            path = self.path(offset)
            try:
                with storage_faults(path):
                    content = read_small(path)
                producers = Producers.decode_snapshot(content or b"", path)
            except CorruptFile as fault:
                _logger.warning("%s; ignoring this snapshot", fault)
                self._remove([offset])
                continue
            self.newest = offset
            return producers, offset
        self.newest = start
        return Producers(), start

    def take(self, producers: Producers, offset: int) -> Path | None:
        """Writes the state as of `offset`; None if there is a newer one, or if it failed.

        A failure is told in the log and costs nothing else: the next opening reads more batches instead.
        """
        if offset <= self.newest:
            return None
        path = self.path(offset)
        try:
            write_snapshot(path, producers)
        except StorageFault as fault:
            _logger.warning("cannot write a producer snapshot: %s", fault)
            path.unlink(missing_ok=True)
            return None
        self.newest = offset
        return path

    def _remove(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            with storage_faults(self._directory):
                self.path(offset).unlink(missing_ok=True)
