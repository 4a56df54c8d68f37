"""The look at a log for the time of its next record, at logs that the worker's own code writes and cuts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.metrics.next_batch import NextBatch, next_batch
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.compression import Codec
from tests.log.batches import NOW_MS, batch_of, marker, open_log

NAME: Final = "orders-0"
SMALL_SEGMENTS: Final = LogSettings(segment_bytes=4000, index_interval_bytes=300)


def look(directory: Path, offset: int, *, end: int = 1 << 40) -> NextBatch | None:
    # The first directory does not have the partition.
    return next_batch([directory / "other", directory], NAME, offset=offset, end=end)


def filled(directory: Path, settings: LogSettings) -> PartitionLog:
    """Forty batches of two records each; batch n has the time NOW_MS + n."""
    log = open_log(directory / NAME, settings=settings)
    for number in range(40):
        values = [b"%d-%d" % (number, each) + bytes(100) for each in range(2)]
        log.append(batch_of(values, timestamp_ms=NOW_MS + number, codec=Codec.LZ4), leader_epoch=1)
    return log


@pytest.mark.parametrize("settings", [SMALL_SEGMENTS, LogSettings()])
def test_every_offset_has_the_time_of_its_batch_in_each_segment(
    tmp_path: Path, settings: LogSettings
) -> None:
    filled(tmp_path, settings)
    for offset in range(80):
        assert look(tmp_path, offset) == NextBatch(offset // 2 * 2, NOW_MS + offset // 2)
    assert look(tmp_path, 80) is None
    assert look(tmp_path, 41, end=40) is None


def test_markers_of_transactions_are_passed_over(tmp_path: Path) -> None:
    log = open_log(tmp_path / NAME)
    batch = batch_of([b"a"], attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0)
    log.permit_transaction(1, 0)
    log.append(batch, leader_epoch=1)
    log.append(marker(committed=True, producer_id=1), leader_epoch=1, origin=AppendOrigin.COORDINATOR)
    assert look(tmp_path, 1) is None
    log.append(batch_of([b"b"], timestamp_ms=NOW_MS + 9), leader_epoch=1)
    assert look(tmp_path, 1) == NextBatch(2, NOW_MS + 9)


def test_with_log_append_time_the_time_of_the_append_counts(tmp_path: Path) -> None:
    log = open_log(tmp_path / NAME, settings=LogSettings(message_timestamp_type="LogAppendTime"))
    log.append(batch_of([b"a"], timestamp_ms=5), leader_epoch=1)
    assert look(tmp_path, 0) == NextBatch(0, NOW_MS)


def test_entries_of_an_index_that_were_cut_do_not_count(tmp_path: Path) -> None:
    log = filled(tmp_path, LogSettings(index_interval_bytes=300))
    log.truncate_to(40)
    for number in range(30):
        log.append(batch_of([b"%d" % number] * 3, timestamp_ms=NOW_MS + 1000 + number), leader_epoch=2)
    for offset in range(40, 130):
        assert look(tmp_path, offset) == NextBatch(
            40 + (offset - 40) // 3 * 3, NOW_MS + 1000 + (offset - 40) // 3
        )


def test_bytes_that_are_no_log_find_nothing(tmp_path: Path) -> None:
    place = tmp_path / NAME
    place.mkdir()
    assert look(tmp_path, 0) is None
    log, index = place / f"{0:020}.log", place / f"{0:020}.index"
    log.write_bytes(b"\xff" * 10_000)
    assert look(tmp_path, 5) is None  # no index
    index.write_bytes(b"\x00\x00\x00\x01\x7f\xff\xff\xff")
    assert look(tmp_path, 5) is None
    log.write_bytes(b"")
    assert look(tmp_path, 5) is None


def test_a_look_into_a_long_segment_costs_little(tmp_path: Path) -> None:
    log = open_log(tmp_path / NAME)
    for _ in range(3000):
        log.append(batch_of([b"v" * 200] * 5), leader_epoch=1)
    best = min(_timed(tmp_path, offset) for offset in range(0, 15_000, 300))
    print(f"{best * 1e6:.0f} µs for a look")
    assert best < 0.002


def _timed(directory: Path, offset: int) -> float:
    began = time.process_time()
    assert look(directory, offset) is not None
    return time.process_time() - began
