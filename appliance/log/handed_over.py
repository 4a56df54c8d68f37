"""What one process leaves of a log for the next one on the same host: in shared memory, or in `handed-over` beside the
segments where that has no room for it.

Kafka's snapshots keep the last batch of each producer. That is enough for who was not asked since; but a producer whose
leader changes sends up to five batches again, and who does not know them takes a retry for a gap
(OUT_OF_ORDER_SEQUENCE_NUMBER, fatal to an idempotent producer). A follower that has appended them knows, so what it
knows goes along, and where the last segment's files end, so that they need not be cut for the next one to see it; and
the leader epochs, where their file is due: who leads with them may leave it due, and its followers read them here.
msgpack: log end offset, the last segment, the producers, the epochs. It is written when a log is handed over, and read
by who opens it next. To make a file for each log is what a takeover of many waits for longest: ext4 passes over every
inode that was given back in the last minutes, one by one (decision 0062).

Of a log of one segment, as most of many are, all else that an opening would look for goes along too (`OnlySegment`),
and is believed where the segment's files are as large as they were left (decision 0066).
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from appliance.errors import CorruptFile
from appliance.log.faults import storage_faults
from appliance.log.file_names import LOG, OFFSET_INDEX, TIME_INDEX, segment_file_name
from appliance.log.producer_state import ProducerEntry, Producers, RememberedBatch

HANDED_OVER: Final = "handed-over"


class _Producer(msgspec.Struct, array_like=True, frozen=True):
    producer_id: int
    epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    transaction_first_offset: int
    batches: list[tuple[int, int, int, int]]


class ActiveSegment(msgspec.Struct, array_like=True, frozen=True):
    """Where the files of the last segment end, as `Segment.lay_down` says it."""

    base_offset: int
    size_bytes: int
    offset_entries: int
    time_entries: int


class OnlySegment(msgspec.Struct, array_like=True, frozen=True):
    """The active segment is the only one of a log of this topic, and beside its files the directory has none that an
    opening would look for: no mark of a move, nothing half done, no producer snapshot but at the offset `snapshot`. The
    rest is as `Segment` says it."""

    topic_id: bytes
    file_bytes: tuple[int, int, int]
    tail: tuple[int, int, int, int]
    snapshot: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What was left. It counts if the log ends at `log_end_offset`."""

    log_end_offset: int
    active: ActiveSegment
    producers: Producers
    epochs: list[tuple[int, int]]
    """All of them, where their file did not have them or where `only` is there; else none."""
    epochs_are_due: bool
    only: OnlySegment | None

    def is_only_of(self, topic_id: UUID) -> bool:
        """Whether an opening of the log of that topic need not look for anything but the segment's files."""
        return self.only is not None and self.only.topic_id == topic_id.bytes

    def sizes(self) -> dict[str, int]:
        """The files of the only segment with their bytes, as they were left."""
        if self.only is None:
            return {}
        base_offset = self.active.base_offset
        return {
            segment_file_name(base_offset, suffix): size_bytes
            for suffix, size_bytes in zip(_SIZED, self.only.file_bytes, strict=True)
        }

    def as_found(self, directory: str) -> HandedOver:
        """The same, without `only` where the files of a partition directory are not as they were left.

        Raises:
            StorageFault: they cannot be looked at.
        """
        with storage_faults(directory):
            try:
                if all(os.stat(f"{directory}/{name}").st_size == size for name, size in self.sizes().items()):
                    return self
            except FileNotFoundError:
                pass
        return replace(self, only=None)


class _State(msgspec.Struct, array_like=True, frozen=True):
    log_end_offset: int
    active: ActiveSegment
    producers: list[_Producer]
    undecided: list[tuple[int, int]]
    epochs: list[tuple[int, int]]
    epochs_are_due: bool
    only: OnlySegment | None


_SIZED: Final = (LOG, OFFSET_INDEX, TIME_INDEX)
_logger: Final = logging.getLogger(__name__)
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_State).decode


def encode_handed_over(
    producers: Producers,
    *,
    log_end_offset: int,
    active: ActiveSegment,
    epochs: list[tuple[int, int]],
    epochs_are_due: bool = False,
    only: OnlySegment | None = None,
) -> bytes:
    """The state for the next process."""
    told = [
        _Producer(
            each.producer_id,
            each.epoch,
            each.coordinator_epoch,
            each.last_timestamp_ms,
            each.transaction_first_offset,
            [(b.last_sequence, b.last_offset, b.offset_delta, b.timestamp_ms) for b in each.batches],
        )
        for each in producers.entries()
    ]
    return _encode(_State(log_end_offset, active, told, producers.undecided(), epochs, epochs_are_due, only))


def write_handed_over(directory: Path, state: bytes) -> None:
    """Leaves the state in a file.

    Raises:
        StorageFault: it failed.
    """
    path = directory / HANDED_OVER
    with storage_faults(path):
        path.write_bytes(state)


def read_handed_over(directory: Path) -> HandedOver | None:
    """What was left in a file, None where there is none.

    Raises:
        StorageFault: it cannot be read.
        CorruptFile: it cannot be decoded; then nobody knows how the log was closed.
    """
    path = directory / HANDED_OVER
    with storage_faults(path):
        try:
            state = path.read_bytes()
        except FileNotFoundError:
            return None
    left = decode_handed_over(state)
    if left is None:
        raise CorruptFile(f"{path}: cannot be decoded")
    return left


def decode_epochs(left: bytes | None) -> list[tuple[int, int]]:
    """The leader epochs alone."""
    with suppress(msgspec.MsgspecError):
        return _decode(left).epochs if left else []
    return []


def decode_handed_over(left: bytes) -> HandedOver | None:
    """What was left, None where it cannot be read: then nobody knows how the log was closed."""
    try:
        state = _decode(left)
    except msgspec.MsgspecError as fault:
        _logger.warning("handed-over state of a log cannot be read, so the log is recovered: %s", fault)
        return None
    entries = []
    for told in state.producers:
        entry = ProducerEntry(told.producer_id)
        entry.epoch = told.epoch
        entry.coordinator_epoch = told.coordinator_epoch
        entry.last_timestamp_ms = told.last_timestamp_ms
        entry.transaction_first_offset = told.transaction_first_offset
        entry.batches.extend(RememberedBatch(*batch) for batch in told.batches)
        entries.append(entry)
    producers = Producers.of(entries, undecided=state.undecided)
    return HandedOver(
        state.log_end_offset, state.active, producers, state.epochs, state.epochs_are_due, state.only
    )
