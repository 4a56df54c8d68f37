"""The closed segments of a log as their files tell of them: for the cleaner, which owns none of them.

Between the listing and a look a file may be renamed or removed by the log's owner. Then nothing is wrong; what was
being done is given up (`SegmentGone`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from appliance.errors import CorruptFile
from appliance.log.chunks import SegmentGone, open_to_read, read_chunks
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    parse_segment_file_name,
    segment_file_name,
)
from appliance.log.producer_state import Producers
from appliance.log.transaction_index import AbortedTransaction, decode_transactions
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    H_RECORDS_COUNT,
    HEADER,
    HEADER_BYTES,
    MAGIC_V2,
    NO_TIMESTAMP,
)

_TIME_ENTRY: Final = Struct(">qi")


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """One segment, by what its directory entry says. `end_offset` is where the next one begins."""

    base_offset: int
    end_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    modified_ns: int


class LastBatch(NamedTuple):
    """The last thing a log has of a producer. `data_offset` -1: nothing but a marker of that epoch."""

    epoch: int
    data_offset: int


def sealed_segments(directory: Path, end_offset: int) -> list[SealedSegment]:
    """The segments that end below or at `end_offset`, in order. The last segment of the log is never among them.

    Raises:
        StorageFault: the directory cannot be read.
    """
    found: dict[tuple[int, str], os.stat_result] = {}
    with storage_faults(directory), os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_segment_file_name(entry.name)
            if parsed is not None and parsed[1] in (LOG, OFFSET_INDEX, TIME_INDEX):
                try:
                    found[parsed] = entry.stat()
                except FileNotFoundError:
                    continue
    bases = sorted(base for base, suffix in found if suffix == LOG)
    segments = []
    for base, end in itertools.pairwise(bases):
        if end > end_offset:
            break
        log, index, times = (found.get((base, suffix)) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX))
        assert log is not None
        segments.append(
            SealedSegment(
                base,
                end,
                log.st_size,
                index.st_size if index is not None else 0,
                times.st_size if times is not None else 0,
                log.st_mtime_ns,
            )
        )
    return segments


def segment_path(directory: Path, segment: SealedSegment) -> Path:
    """The segment's `.log` file."""
    return directory / segment_file_name(segment.base_offset, LOG)


def largest_timestamp_ms(directory: Path, segment: SealedSegment) -> int:
    """The largest timestamp of its records, else when the file was written.

    Raises:
        SegmentGone, StorageFault: it cannot be read.
    """
    content = _read(
        directory / segment_file_name(segment.base_offset, TIME_INDEX),
        max(0, segment.time_index_bytes - _TIME_ENTRY.size),
        _TIME_ENTRY.size,
    )
    timestamp_ms: int = _TIME_ENTRY.unpack(content)[0] if len(content) == _TIME_ENTRY.size else NO_TIMESTAMP
    return timestamp_ms if timestamp_ms >= 0 else segment.modified_ns // 1_000_000


def first_timestamp_ms(directory: Path, segment: SealedSegment) -> int:
    """The largest timestamp of its first batch; -1 without one.

    Raises:
        SegmentGone, StorageFault: it cannot be read.
    """
    content = _read(segment_path(directory, segment), 0, HEADER_BYTES)
    if len(content) < HEADER_BYTES:
        return NO_TIMESTAMP
    header = HEADER.unpack(content)
    return int(header[H_MAX_TIMESTAMP]) if header[H_MAGIC] == MAGIC_V2 else NO_TIMESTAMP


def _read(path: Path, position: int, length_bytes: int) -> bytes:
    descriptor = open_to_read(path)
    try:
        with storage_faults(path):
            return os.pread(descriptor, length_bytes, position)
    finally:
        os.close(descriptor)


def aborted_transactions(directory: Path, from_offset: int) -> list[AbortedTransaction]:
    """Every aborted transaction whose marker is not below `from_offset`, those of the active segment too.

    Raises:
        StorageFault: an index cannot be read.
    """
    found: list[AbortedTransaction] = []
    with storage_faults(directory):
        names = os.listdir(directory)
    for name in sorted(names):
        parsed = parse_segment_file_name(name)
        if parsed is None or parsed[1] != TRANSACTION_INDEX:
            continue
        with storage_faults(directory / name):
            try:
                content = (directory / name).read_bytes()
            except FileNotFoundError:
                raise SegmentGone(f"{directory / name} is gone") from None
        found += [entry for entry in decode_transactions(content) if entry.last_offset >= from_offset]
    return found


def last_batches(
    directory: Path,
    segments: Sequence[SealedSegment],
    end_offset: int,
    *,
    now_ms: int,
    producer_expiration_ms: int,
) -> dict[int, LastBatch]:
    """The last batch, below `end_offset`, of every producer that was not silent for too long.

    From the newest snapshot below `end_offset` and the batches after it; of a log that rolled there it is all.

    Raises:
        CorruptFile, StorageFault: a segment cannot be read.
    """
    producers, start = newest_snapshot(directory, end_offset)
    state: dict[int, tuple[LastBatch, int]] = {
        entry.producer_id: (
            LastBatch(entry.epoch, entry.batches[-1].last_offset if entry.batches else -1),
            entry.last_timestamp_ms,
        )
        for entry in producers.entries()
    }
    for segment in segments:
        if segment.end_offset <= start or segment.base_offset >= end_offset:
            continue
        for chunk in read_chunks(segment_path(directory, segment), 0, segment.size_bytes):
            for batch in chunk.batches:
                header = batch.header
                if (
                    header[H_PRODUCER_ID] < 0
                    or header[H_BASE_OFFSET] < start
                    or header[H_BASE_OFFSET] >= end_offset
                ):
                    continue
                if not batch.is_control:
                    state[header[H_PRODUCER_ID]] = (
                        LastBatch(header[H_PRODUCER_EPOCH], batch.last_offset),
                        header[H_MAX_TIMESTAMP],
                    )
                elif header[H_RECORDS_COUNT]:
                    known = state.get(header[H_PRODUCER_ID])
                    last = (
                        known[0] if known is not None and known[0].epoch == header[H_PRODUCER_EPOCH] else None
                    )
                    state[header[H_PRODUCER_ID]] = (
                        last or LastBatch(header[H_PRODUCER_EPOCH], -1),
                        header[H_MAX_TIMESTAMP],
                    )
    return {
        producer_id: last
        for producer_id, (last, timestamp_ms) in state.items()
        if now_ms - timestamp_ms < producer_expiration_ms
    }


def newest_snapshot(directory: Path, end_offset: int) -> tuple[Producers, int]:
    """The producers of a log's newest sound snapshot that is not above `end_offset`, and its offset; none: 0.

    Raises:
        StorageFault: the directory cannot be read.
    """
    with storage_faults(directory):
        parsed = [parse_segment_file_name(name) for name in os.listdir(directory)]
    offsets = [found[0] for found in parsed if found is not None and found[1] == PRODUCER_SNAPSHOT]
    for offset in sorted(offsets, reverse=True):
        if offset > end_offset:
            continue
        path = directory / segment_file_name(offset, PRODUCER_SNAPSHOT)
        try:
            return Producers.decode_snapshot(path.read_bytes(), path), offset
        except (CorruptFile, OSError):
            # Its owner deals with it; an older one and more batches say the same.
            continue
    return Producers(), 0
