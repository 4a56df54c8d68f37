"""Compare a copy that is about to lead with the other in-sync copies, whose files are on this host.

    peer has no directory         its disk is empty or away: it may have more
    peer cannot be read           an error line names it: it may have more
    peer claims no more           by its last batch headers, a few kilobytes: nearly always
    peer claims more              what lies beyond its recovery point is read; what is valid counts
    epochs say otherwise than     where one log has the last batch of the other, the longer one has all of it:
    offsets                       offsets count; no checksum covers an epoch, and a restored store may repeat epochs
    epoch above the assigned      it counts nowhere: offsets count, and an error line says it

Only files are read. Other processes may be recovering them at the same time (`log.copy_end`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from appliance.channels.control_channel import AssignedPartition
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, CorruptFile
from appliance.log.checkpoint import read_offsets
from appliance.log.copy_end import UNKNOWN_EPOCH, LogEnd, batch_mark, claimed_end, lacks_begin, valid_end
from appliance.log.file_names import LOG_STARTS, RECOVERY_POINTS, partition_directory_name
from appliance.log.others_directories import DirectoriesOf
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_metadata import read_topic_id

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerCopies:
    """What the comparison found.

    `longest`: the slot, and its end, of the in-sync copy that has most of what ours lacks; None where none has more.
    `unread`: slots whose copies could not be looked at.
    """

    own: LogEnd
    longest: tuple[int, LogEnd] | None
    unread: tuple[int, ...]


def compare_with_peers(
    assigned: AssignedPartition, log: PartitionLog, *, slot: int, directories_of: DirectoriesOf
) -> PeerCopies:
    """Compare the end of `slot`'s copy, which is open as `log`, with those of the other in-sync slots."""
    name = TopicPartition(assigned.topic, assigned.partition)
    own = end_of(log)
    longest: tuple[int, LogEnd] | None = None
    best = _Copy(log.directory, own)
    order = _Order(assigned.leader_epoch)
    unread = []
    for peer in assigned.isr:
        if peer == slot:
            continue
        try:
            found = list(copies_of(name, assigned.topic_id, peer, directories_of))
            if not found:
                unread.append(peer)
            for partition in found:
                end = _end_beyond(
                    best,
                    partition,
                    order,
                    own_start=log.log_start_offset,
                    is_compacted=log.settings.is_compacted,
                )
                if end is not None:
                    longest, best = (peer, end), _Copy(partition, end)
        except (OSError, ApplianceError) as fault:
            _logger.error(
                "partition %s: the in-sync copy of slot %d cannot be compared with that of slot %d, and may have more"
                " records: %s",
                name,
                peer,
                slot,
                fault,
            )
            unread.append(peer)
    if order.epoch_seen > assigned.leader_epoch:
        _logger.error(
            "partition %s: a copy ends in leader epoch %d, and slot %d is to lead in epoch %d: the metadata was"
            " restored from a backup, or the epoch in the file is damaged. The longest log leads",
            name,
            order.epoch_seen,
            slot,
            assigned.leader_epoch,
        )
    return PeerCopies(own, longest, tuple(unread))


class _Copy(NamedTuple):
    directory: Path
    end: LogEnd


class _Order:
    """Which of two copies goes further. `epoch_seen`: the highest one at the end of any."""

    __slots__ = ("_assigned_epoch", "epoch_seen")

    def __init__(self, assigned_epoch: int) -> None:
        self._assigned_epoch = assigned_epoch
        self.epoch_seen = UNKNOWN_EPOCH

    def is_beyond(self, copy: _Copy, other: _Copy) -> bool:
        """Return whether `copy` has what `other` lacks.

        Raises:
            OSError: a file cannot be read.
        """
        end, best = copy.end, other.end
        epoch = max(end.epoch, best.epoch)
        self.epoch_seen = max(self.epoch_seen, epoch)
        if end.epoch == best.epoch or (end.epoch > best.epoch) == (end.offset > best.offset):
            return end.is_beyond(best)
        if epoch > self._assigned_epoch or _share(
            copy.directory, other.directory, min(end.offset, best.offset)
        ):
            return end.offset > best.offset
        return end.is_beyond(best)


def _share(copy: Path, other: Path, offset: int) -> bool:
    """Whether both have the same batch before `offset`, of one epoch; or of two, and the one before it of one epoch."""
    mark, others = batch_mark(copy, offset), batch_mark(other, offset)
    if mark is None or others is None or mark == others:
        return mark is not None and mark == others
    is_alike = mark._replace(epoch=others.epoch) == others
    return is_alike and batch_mark(copy, mark.base_offset) == batch_mark(other, mark.base_offset)


def end_of(log: PartitionLog) -> LogEnd:
    """Return where an open log ends. The epoch is that of its last batch, which no other file has to bear out."""
    end = claimed_end(log.directory)
    if end is not None and end.offset == log.log_end_offset:
        return end
    return LogEnd(log.leader_epochs.epoch_of(log.log_end_offset - 1), log.log_end_offset)


def copies_of(
    name: TopicPartition, topic_id: UUID | None, slot: int, directories_of: DirectoriesOf
) -> Iterator[Path]:
    """Yield the directories in which a slot has a copy of this partition.

    Raises:
        StorageFault, CorruptFile: one of them cannot be read.
    """
    for directory in directories_of(slot):
        partition = directory / partition_directory_name(name)
        if partition.is_dir() and read_topic_id(partition) in (topic_id, None):
            yield partition


def _end_beyond(
    best: _Copy, partition: Path, order: _Order, *, own_start: int, is_compacted: bool
) -> LogEnd | None:
    """Return the valid end of a copy where it is beyond `best`. `own_start`: where the log that would lead begins."""
    claimed = claimed_end(partition)
    if claimed is None or not order.is_beyond(_Copy(partition, claimed), best):
        return None
    point, log_start = (_checkpointed(partition, name) for name in (RECOVERY_POINTS, LOG_STARTS))
    end = valid_end(partition, recovery_point=point, is_compacted=is_compacted)
    if end is None or not order.is_beyond(_Copy(partition, end), best):
        return None
    if lacks_begin(partition, log_start=max(log_start, own_start), is_compacted=is_compacted):
        _logger.warning(
            "%s: ends at offset %d, but is ignored, because its beginning is missing",
            partition,
            end.offset,
        )
        return None
    return end


def _checkpointed(partition: Path, name: str) -> int:
    """Return what a checkpoint file of a copy's log directory says of it; 0 where it is garbage, as for its owner."""
    try:
        offsets = read_offsets(partition.parent / name)
    except CorruptFile as fault:
        _logger.warning("%s; comparing the replica without this checkpoint", fault)
        return 0
    directory = partition.name
    return next(
        (offset for each, offset in offsets.items() if partition_directory_name(each) == directory), 0
    )
