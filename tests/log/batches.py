"""Batches and logs that the tests of this room are made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from appliance.clock import ManualClock
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.removal import Removal
from appliance.protocol.records.batch import batches
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.record import Record, decode_records, encode_batch

NOW_MS = 1_700_000_000_000


def batch_of(
    values: Sequence[bytes | None] = (b"value",),
    *,
    timestamp_ms: int = NOW_MS,
    key: bytes | None = None,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> memoryview:
    """One batch; records share `key` and `timestamp_ms`."""
    return memoryview(
        encode_batch(
            [Record(value, key, timestamp_ms=timestamp_ms) for value in values],
            codec=codec,
            attributes=attributes,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        )
    )


def marker(
    *, committed: bool, producer_id: int, producer_epoch: int = 0, coordinator_epoch: int = 0
) -> memoryview:
    return memoryview(
        encode_marker_batch(
            EndTransactionMarker(committed, coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=NOW_MS,
        )
    )


def open_log(
    directory: Path,
    *,
    settings: LogSettings | None = None,
    clock: ManualClock | None = None,
    recovery_point: int = 0,
    log_start: int = 0,
    clean: bool = False,
    removals: deque[Removal] | None = None,
) -> PartitionLog:
    return PartitionLog.open(
        directory,
        settings=settings or LogSettings(),
        clock=clock or ManualClock(NOW_MS),
        recovery_point=recovery_point,
        log_start=log_start,
        clean=clean,
        removals=removals,
    )


def crash(log: PartitionLog) -> None:
    """What the death of the process leaves: the files as they are, nothing trimmed, nothing written."""
    log.close(clean=False)


def read_all(log: PartitionLog, *, start: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Every record from `start` on, read as a consumer reads: slice after slice."""
    offset = log.log_start_offset if start is None else start
    found: list[Record] = []
    while offset < log.log_end_offset:
        piece = log.read(offset, max_bytes=max_bytes, upper_bound=log.log_end_offset)
        assert piece.length_bytes > 0, f"nothing to read at {offset} of {log.log_end_offset}"
        with log.segment_path(piece.segment_base_offset).open("rb") as file:
            file.seek(piece.position)
            data = file.read(piece.length_bytes)
        for position, header in batches(data):
            found += [record for record in decode_records(data, position) if record.offset >= offset]
            offset = header.next_offset
    return found


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]
