"""Repair damaged replicas off the disk, for `appliance log verify --repair`; nothing may run on them.

    every segment of every replica is read, every checksum checked
      damaged batch, another replica has it at the same place     written over it, in place
      others have it elsewhere (compacted), and one is whole      that one's segments take the place of all of ours
      another replica has other leader epochs there               it is no source: it has followed another leader
      nobody has it                                               said; nothing is changed
      damage at or above the recovery point, after a crash        left to the next start, which looks there and cuts it
      a torn tail of the newest segment, and nobody has more      the same

A replica that ends before others is not damaged: the next start lets the longest one lead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.cli.compaction_holes import were_compacted
from appliance.cli.replica_comparison import Replica
from appliance.cluster import TopicPartition
from appliance.errors import CorruptFile
from appliance.log.checkpoint import read_offsets, replace_file, sync_directory, write_offsets
from appliance.log.copy_end import SEARCH_BYTES_MAX, segment_bases, sound_end_behind
from appliance.log.file_names import (
    CLEAN_SHUTDOWN,
    CLEANED,
    LEADER_EPOCHS,
    LOG,
    RECOVERY_POINTS,
    parse_segment_file_name,
    segment_file_name,
)
from appliance.log.leader_epochs import read_epochs
from appliance.log.recovered import FOLDER, keep_segment
from appliance.log.repair import Batch, Damage, History, find_damage, first_source, read_batch, replace_batch
from appliance.protocol.records.batch import HEADER_BYTES

_NO_END: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Repair:
    """What became of a damaged batch. `is_done`: the next start serves the records, whatever it has to do for it."""

    partition: TopicPartition
    slot: int
    offset: int
    outcome: str
    is_done: bool


def repair(partition: TopicPartition, replicas: Sequence[Replica]) -> list[Repair]:
    """Repair the replicas of one partition. Running time: one pass over each, and two over its headers.

    Raises:
        OSError: a file cannot be read or written.
        StorageFault: a checkpoint cannot be written.
    """
    # A log that was compacted has holes, and its segments lie elsewhere in other replicas.
    is_gapless = not any(replica.compacted_below for replica in replicas) and not were_compacted(
        [replica.directory for replica in replicas]
    )
    return [
        each
        for replica in replicas
        for each in _repaired(partition, replica, replicas, is_gapless=is_gapless)
    ]


def _repaired(
    partition: TopicPartition, replica: Replica, replicas: Sequence[Replica], *, is_gapless: bool
) -> list[Repair]:
    others = [each for each in replicas if each is not replica]
    sources = [(each.slot, each.directory) for each in others]
    repairs: list[Repair] = []
    epochs = _epochs_of(replica.directory)
    history = History(epochs, is_complete=False)
    bases = segment_bases(replica.directory)
    for number, base in enumerate(bases):
        end = bases[number + 1] if number + 1 < len(bases) else _NO_END
        start = base
        while (damage := _damage(replica, base, start, end, is_gapless=is_gapless)) is not None:
            found = first_source(
                replica.directory,
                damage,
                _agreeing(sources, epochs, start),
                history,
                None if end == _NO_END else end,
            )
            if found is None:
                left = _left(
                    partition, replica, damage, others, is_last=end == _NO_END, is_gapless=is_gapless
                )
                return repairs if left is None else [*repairs, left]
            slot, batch = found
            kept = replace_batch(replica.directory, damage, batch, durable=True)
            where = "not kept" if kept is None else f"kept as {kept}"
            outcome = (
                f"offsets {batch.base_offset} to {batch.next_offset - 1} repaired from slot {slot};"
                f" the damaged bytes are {where}"
            )
            repairs.append(Repair(partition, replica.slot, damage.offset, outcome, True))
            start = batch.next_offset
    return repairs


def _damage(replica: Replica, base: int, start: int, end: int, *, is_gapless: bool) -> Damage | None:
    """The next damaged batch of a segment; None where only its end follows."""
    damage = find_damage(replica.directory, base, start=start, end=end, is_gapless=is_gapless)
    if damage is None:
        return None
    is_end = not _bytes_at(replica.directory, damage, HEADER_BYTES).strip(b"\0")
    return None if is_end and end == _NO_END and not _has_batches_behind(replica, damage) else damage


def _left(
    partition: TopicPartition,
    replica: Replica,
    damage: Damage,
    others: Sequence[Replica],
    *,
    is_last: bool,
    is_gapless: bool,
) -> Repair | None:
    """What becomes of damage that cannot be repaired in place; None where it is a torn tail."""
    offset = damage.offset
    if is_last and not _has_batches_behind(replica, damage):
        return None
    end = _end_of(replica, segment_bases(replica.directory)[-1])
    whole = next(
        (
            each
            for each in others
            if _is_whole(each, end, is_gapless=is_gapless)
            and _is_of_history(each, _epochs_of(replica.directory), end)
        ),
        None,
    )
    if whole is None:
        longer = next(
            (
                each
                for each in others
                if _is_whole(each, offset + 1, is_gapless=is_gapless)
                and _is_of_history(each, _epochs_of(replica.directory), offset + 1)
            ),
            None,
        )
        if longer is not None and _next_start_looks_at(partition, replica, offset):
            outcome = (
                "damaged above the recovery point: the next start cuts the log there and copies the rest"
                f" from slot {longer.slot}"
            )
            return Repair(partition, replica.slot, offset, outcome, True)
        outcome = "damaged, and no other replica is whole at this offset: not repaired"
        return Repair(partition, replica.slot, offset, outcome, False)
    _copy_anew(partition, replica, whole)
    outcome = (
        f"damaged, and replaced by a copy of the replica of slot {whole.slot}; "
        f"the damaged segments are kept in {FOLDER}"
    )
    return Repair(partition, replica.slot, offset, outcome, True)


def _next_start_looks_at(partition: TopicPartition, replica: Replica, offset: int) -> bool:
    """Whether the next start reads the log from there on: after a crash it does so from the recovery point."""
    log_directory = replica.directory.parent
    point = read_offsets(log_directory / RECOVERY_POINTS).get(partition)
    return point is not None and offset >= point and not (log_directory / CLEAN_SHUTDOWN).exists()


def _epochs_of(directory: Path) -> list[tuple[int, int]]:
    """Return the leader epochs of a replica, (epoch, start offset); none where nothing readable says them."""
    try:
        return read_epochs(directory)
    except CorruptFile:
        return []


def _agreeing(
    sources: Sequence[tuple[int, Path]], epochs: Sequence[tuple[int, int]], offset: int
) -> list[tuple[int, Path]]:
    """Return the sources whose leader epochs up to `offset` contradict ours nowhere. Either may lack the latest."""
    agreeing = []
    for slot, path in sources:
        theirs = _epochs_of(path)
        begin = max([each[0][1] for each in (epochs, theirs) if each], default=0)
        both = zip(_between(epochs, begin, offset), _between(theirs, begin, offset), strict=False)
        if all(ours == other for ours, other in both):
            agreeing.append((slot, path))
    return agreeing


def _between(epochs: Sequence[tuple[int, int]], begin: int, offset: int) -> list[tuple[int, int]]:
    """Return the epochs in which offsets from `begin` to `offset` were written, as a log that begins there has them."""
    ends = [start for _, start in epochs[1:]] + [_NO_END]
    return [
        (epoch, max(start, begin))
        for (epoch, start), end in zip(epochs, ends, strict=False)
        if end > begin and start <= offset
    ]


def _is_of_history(replica: Replica, epochs: Sequence[tuple[int, int]], end: int) -> bool:
    """Whether each batch of a whole replica below `end` is of the leader epoch that another replica's history has."""
    history = History(epochs, is_complete=False)
    before: Batch | None = None
    for base in segment_bases(replica.directory):
        position = 0
        descriptor = os.open(replica.directory / segment_file_name(base, LOG), os.O_RDONLY | os.O_CLOEXEC)
        try:
            while (batch := read_batch(descriptor, position)) is not None and batch.base_offset < end:
                if not history.has(batch, [batch] if before is None else [before, batch]):
                    return False
                before, position = batch, position + len(batch.data)
        finally:
            os.close(descriptor)
    return True


def _is_whole(replica: Replica, end: int, *, is_gapless: bool) -> bool:
    """Whether every segment of a replica is sound, and it has everything below `end`."""
    bases = segment_bases(replica.directory)
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else _NO_END
        if _damage(replica, base, base, following, is_gapless=is_gapless) is not None:
            return False
    return bool(bases) and _end_of(replica, bases[-1]) >= end


def _end_of(replica: Replica, base: int) -> int:
    """The offset behind the last batch of a segment, by its headers and what is sound behind a damaged one."""
    end, position = base, 0
    descriptor = os.open(replica.directory / segment_file_name(base, LOG), os.O_RDONLY | os.O_CLOEXEC)
    try:
        while (batch := read_batch(descriptor, position)) is not None:
            end, position = batch.next_offset, position + len(batch.data)
        while piece := os.pread(descriptor, SEARCH_BYTES_MAX, position):
            end = sound_end_behind(piece, end) or end
            position += max(len(piece) // 2, 1)  # a batch may lie across two pieces
    finally:
        os.close(descriptor)
    return end


def _copy_anew(partition: TopicPartition, replica: Replica, whole: Replica) -> None:
    """Puts the segments of a whole replica in the place of a damaged one's, which are kept aside.

    A death in the middle leaves what the next start removes (`.cleaned`), or a log that ends early: it follows then.
    """
    directory = replica.directory
    bases = segment_bases(whole.directory)
    for base in bases:
        name = segment_file_name(base, LOG)
        copied = directory / (name + CLEANED)
        shutil.copyfile(whole.directory / name, copied)
        _sync(copied)
    _forget_recovery_point(partition, directory.parent)
    for name in os.listdir(directory):
        parsed = parse_segment_file_name(name)
        if parsed is not None and parsed[1] == LOG:
            keep_segment(directory / name)
        elif parsed is not None and not name.endswith(CLEANED):
            (directory / name).unlink(missing_ok=True)  # indexes and snapshots are made again
    for base in bases:
        name = segment_file_name(base, LOG)
        os.rename(directory / (name + CLEANED), directory / name)
    epochs = whole.directory / LEADER_EPOCHS
    if epochs.exists():
        replace_file(directory / LEADER_EPOCHS, epochs.read_bytes())
    sync_directory(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _forget_recovery_point(partition: TopicPartition, log_directory: Path) -> None:
    """Has the next start check the whole replica."""
    points = read_offsets(log_directory / RECOVERY_POINTS)
    write_offsets(log_directory / RECOVERY_POINTS, points | {partition: 0})
    with suppress(FileNotFoundError):
        (log_directory / CLEAN_SHUTDOWN).unlink()
    sync_directory(log_directory)


def _has_batches_behind(replica: Replica, damage: Damage) -> bool:
    return sound_end_behind(_bytes_at(replica.directory, damage, SEARCH_BYTES_MAX), damage.offset) is not None


def _bytes_at(partition: Path, damage: Damage, length_bytes: int) -> bytes:
    path = partition / segment_file_name(damage.base_offset, LOG)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, length_bytes, damage.position)
    finally:
        os.close(descriptor)
