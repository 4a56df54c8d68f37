"""Repair a led log where a follower, or a reader, has met damage in it, from another copy on this host.

    damage at offset N → verify the segment from the index entry before N on → first damaged batch
      → another in-sync copy has it at the same place        written over ours; the partition goes on
      → another in-sync copy has it whole somewhere else    (compacted) ours is cut there, that one leads
      → none has                                            said as an error

What was looked at once is looked at again after AGAIN_MS at the earliest.

The worker does not wait for the disk: a power cut leaves the batch as damaged as before, and it is found again. One
call repairs at most BATCHES_AT_ONCE batches; the follower's next message goes on.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.channels.worker_counters import REPAIRED_BATCHES
from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, DamagedLog
from appliance.ioproc.partition import Partition
from appliance.ioproc.peer_copies import copies_of
from appliance.ipc.process_table import ProcessRow
from appliance.log.copy_end import segment_bases
from appliance.log.others_directories import DirectoriesOf
from appliance.log.partition_log import PartitionLog
from appliance.log.repair import Damage, History, find_damage, first_source, replace_batch
from appliance.partition_host.listener import PartitionListener

BATCHES_AT_ONCE: Final = 16
VERIFIED_BYTES_MAX: Final = 4 << 20
"""Of one look: others wait for the worker meanwhile. Damage further on is met by the follower, or the reader, later."""
AGAIN_MS: Final = 60_000
LOOKS_KEPT_MAX: Final = 1_000

_logger = logging.getLogger(__name__)


class Repairs:
    """Those of one worker.

    Args:
        slot: whose copies are repaired.
        directories_of: of the other slots.
        listener: Learns of repaired logs, and of those of which another copy has to lead.
    """

    __slots__ = ("_again_ns", "_clock", "_directories_of", "_listener", "_row", "_slot")

    def __init__(
        self,
        row: ProcessRow,
        clock: Clock,
        *,
        slot: int,
        directories_of: DirectoriesOf,
        listener: PartitionListener[Partition],
    ) -> None:
        self._row = row
        self._clock = clock
        self._slot = slot
        self._directories_of = directories_of
        self._listener = listener
        self._again_ns: dict[tuple[TopicPartition, int], int] = {}

    def look(self, partition: Partition, offset: int) -> None:
        """Somebody has found the log damaged at `offset`, or behind it in the same segment."""
        log, name = partition.log, partition.topic_partition
        if not log.log_start_offset <= offset < log.log_end_offset:
            return
        if self._again_ns.get((name, offset), 0) > self._clock.monotonic_ns():
            return
        try:
            self._repair(partition, offset)
        except (OSError, ApplianceError) as fault:
            _logger.error(
                "partition %s: its log is damaged at offset %d; not repaired: %s", name, offset, fault
            )

    def _put_off(self, name: TopicPartition, offset: int) -> None:
        if len(self._again_ns) >= LOOKS_KEPT_MAX:
            self._again_ns.clear()
        self._again_ns[name, offset] = self._clock.monotonic_ns() + AGAIN_MS * NS_PER_MS

    def _repair(self, partition: Partition, offset: int) -> None:
        log, name = partition.log, partition.topic_partition
        sources = self._sources(partition)
        start = offset
        self._put_off(name, offset)
        for _ in range(BATCHES_AT_ONCE):
            damage = self._damage(partition, start)
            if damage is None:
                break
            bases = segment_bases(log.directory)
            end = _end_of_segment(log, bases, bisect_right(bases, damage.offset) - 1)
            history = History(log.leader_epochs.entries(), is_complete=True)
            found = first_source(log.directory, damage, sources, history, end)
            if found is None or found[1].next_offset > log.log_end_offset:
                self._give_up(partition, damage, sources)
                return
            slot, batch = found
            kept = replace_batch(log.directory, damage, batch, durable=False)
            self._row.cells[REPAIRED_BATCHES] += 1
            _logger.warning(
                "partition %s: the batch of offsets %d to %d was damaged in slot %d and is repaired from the copy of"
                " slot %d; the damaged bytes are %s",
                name,
                batch.base_offset,
                batch.next_offset - 1,
                self._slot,
                slot,
                "not kept" if kept is None else f"kept as {kept.parent.name}/{kept.name}",
            )
            start = batch.next_offset
            if start >= log.log_end_offset:
                break
        if start == offset:
            _logger.warning(
                "partition %s: damage was reported at offset %d of slot %d's log, and none is found there",
                name,
                offset,
                self._slot,
            )
            return
        self._listener.log_repaired(partition)

    def _damage(self, partition: Partition, offset: int) -> Damage | None:
        """The first damaged batch in the segment of `offset`, from a little before it on."""
        log = partition.log
        bases = segment_bases(log.directory)
        number = bisect_right(bases, offset) - 1
        if number < 0:
            return None
        return find_damage(
            log.directory,
            bases[number],
            start=offset,
            end=_end_of_segment(log, bases, number),
            is_gapless=not log.settings.is_compacted,
            bytes_max=VERIFIED_BYTES_MAX,
        )

    def _sources(self, partition: Partition) -> list[tuple[int, Path]]:
        """Slots and directories of the other in-sync copies: any other may have followed another leader."""
        replication = partition.replication
        if replication is None:
            return []
        others = [slot for slot in replication.followers if slot in replication.isr]
        found: list[tuple[int, Path]] = []
        topic_id = partition.log.topic_id
        for slot in others:
            with suppress(OSError, ApplianceError):
                for path in copies_of(partition.topic_partition, topic_id, slot, self._directories_of):
                    found.append((slot, path))
        return found

    def _give_up(self, partition: Partition, damage: Damage, sources: list[tuple[int, Path]]) -> None:
        """No copy has the batch at the same place."""
        name = partition.topic_partition
        for slot, path in sources:
            if _is_whole(path, damage.offset, partition):
                self._listener.better_copy_found(
                    partition,
                    damage.offset,
                    DamagedLog(
                        f"the log of slot {self._slot} is damaged at offset {damage.offset}, and the in-sync copy of"
                        f" slot {slot} is whole there: another slot leads, and slot {self._slot} copies its log anew"
                        " from there on"
                    ),
                )
                return
        _logger.error(
            "partition %s: the log of slot %d is damaged at offset %d and no other in-sync copy is whole there: readers"
            " and followers cannot pass it. Stop the appliance and run `appliance log verify --repair`, which searches"
            " all copies; or delete all records up to and including this offset",
            name,
            self._slot,
            damage.offset,
        )


def _end_of_segment(log: PartitionLog, bases: Sequence[int], number: int) -> int:
    return min(log.log_end_offset, bases[number + 1] if number + 1 < len(bases) else log.log_end_offset)


def _is_whole(copy: Path, offset: int, partition: Partition) -> bool:
    """Whether the segment of `offset` in another copy is sound from there on, and goes as far as it should."""
    bases = segment_bases(copy)
    number = bisect_right(bases, offset) - 1
    if number < 0:
        return False
    log = partition.log
    end = min(partition.high_watermark, bases[number + 1] if number + 1 < len(bases) else log.log_end_offset)
    damage = find_damage(
        copy,
        bases[number],
        start=offset,
        end=end,
        is_gapless=not log.settings.is_compacted,
        bytes_max=VERIFIED_BYTES_MAX,
    )
    return damage is None
