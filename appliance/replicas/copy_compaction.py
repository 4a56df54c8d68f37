"""A follower's half of compaction: each replica is compacted for itself, as in Kafka, led or not.

As in the worker (`ioproc/compaction.py`), but that nobody reads a follower's files by their names, and that a follower
closes no segment by its age: its segments begin where the leader's do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.channels.cleaner_channel import BASE_OFFSET, CUTS, END_OFFSET, SOURCE_BYTES
from appliance.channels.wiring import Attachment
from appliance.errors import ApplianceError, StorageFault
from appliance.ipc.agent import DutyCycle
from appliance.log.segment_swap import SwapInterrupted
from appliance.partition_host.compaction import CleanerLine, Survey
from appliance.replicas.follower import Follower


class CopyCompaction(CleanerLine[Follower]):
    """One replica process's line to the cleaner.

    Args:
        retired: called when a swap has put files into the log directories' queues of removals.
        refused: hears what the host refused a copy whose log is as it was.
        interrupted: hears of one whose log is neither as it was nor as it should be.
    """

    __slots__ = ("_interrupted", "_refused", "_retired")

    def __init__(
        self,
        attachment: Attachment,
        cycle: DutyCycle,
        *,
        retired: Callable[[], None],
        refused: Callable[[Follower, ApplianceError], object],
        interrupted: Callable[[Follower, StorageFault], None],
        warn: Callable[[str], object],
    ) -> None:
        super().__init__(attachment, cycle, warn=warn)
        self._retired = retired
        self._refused = refused
        self._interrupted = interrupted

    def _watch(self, copy: Follower, note: Callable[[], None]) -> bool:
        log = copy.log
        log.on_roll = note if log.settings.is_compacted else None
        return log.settings.is_compacted

    def _survey(self, copy: Follower) -> Survey | None:
        stable_offset = copy.stable_offset
        if stable_offset is None:
            return None  # what it has may yet be cut; it is looked at again when it follows
        found = copy.log.bounds(stable_offset)
        return Survey(found.log_start, found.uncleanable, found.active_first_ms, found.cuts, copy.directory)

    def _swap(self, copy: Follower, message: tuple[Any, ...]) -> bool:
        try:
            done = copy.log.replace_segments(
                message[BASE_OFFSET],
                message[END_OFFSET],
                source_bytes=message[SOURCE_BYTES],
                cuts=message[CUTS],
            )
        except SwapInterrupted as fault:
            self._interrupted(copy, fault)
            return False
        except StorageFault as fault:
            self._refused(copy, fault)
            return False
        if done:
            copy.resized()
            self._retired()
        return done
