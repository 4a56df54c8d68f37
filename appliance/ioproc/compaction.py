"""The owner's half of compaction: tells the cleaner where to look, and swaps what it has prepared.

Between requests only, and in O(segments) renames. Readers survive a swap: network processes hold the old files open,
and whoever asked before it and opens after it sees by the row's files version that a name means another file by now.
Source of the order of renames: `log.segment_swap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.channels.cleaner_channel import BASE_OFFSET, CUTS, END_OFFSET, SOURCE_BYTES
from appliance.channels.wiring import Attachment
from appliance.errors import ApplianceError, StorageFault
from appliance.ioproc.partition import Partition
from appliance.ipc.agent import DutyCycle
from appliance.log.segment_swap import SwapInterrupted
from appliance.partition_host.compaction import CleanerLine, Survey


class Compaction(CleanerLine[Partition]):
    """One worker's line to the cleaner.

    Args:
        retired: called when a swap has put files into the log directories' queues of removals.
        refused: hears what the host refused a partition whose log is as it was.
        interrupted: hears of one whose log is neither as it was nor as it should be, and takes it offline.
    """

    __slots__ = ("_interrupted", "_now_ms", "_refused", "_retired")

    def __init__(
        self,
        attachment: Attachment,
        cycle: DutyCycle,
        *,
        now_ms: Callable[[], int],
        retired: Callable[[], None],
        refused: Callable[[Partition, ApplianceError], None],
        interrupted: Callable[[Partition, StorageFault], None],
        warn: Callable[[str], object],
    ) -> None:
        super().__init__(attachment, cycle, warn=warn)
        self._now_ms = now_ms
        self._retired = retired
        self._refused = refused
        self._interrupted = interrupted

    def _watch(self, copy: Partition, note: Callable[[], None]) -> bool:
        log = copy.log
        log.on_roll = note if log.settings.is_compacted else None
        return log.settings.is_compacted

    def _survey(self, copy: Partition) -> Survey | None:
        log = copy.log
        try:
            # A log that nobody writes to is closed on the cleaner's question, when it must be compacted at last.
            log.maybe_roll_by_time(self._now_ms())
            found = log.bounds(min(log.stable_offset(copy.high_watermark), copy.last_stable_offset))
        except StorageFault as fault:
            self._refused(copy, fault)
            return None
        return Survey(found.log_start, found.uncleanable, found.active_first_ms, found.cuts, copy.directory)

    def _swap(self, copy: Partition, message: tuple[Any, ...]) -> bool:
        copy.files_change()
        try:
            done = copy.log.replace_segments(
                message[BASE_OFFSET],
                message[END_OFFSET],
                source_bytes=message[SOURCE_BYTES],
                cuts=message[CUTS],
            )
        except SwapInterrupted as fault:
            # Names stay in the change: nobody reads by them until another life has opened the log.
            self._interrupted(copy, fault)
            return False
        except StorageFault as fault:
            copy.files_changed()
            self._refused(copy, fault)
            return False
        copy.files_changed()
        if done:
            self._retired()
        return done
