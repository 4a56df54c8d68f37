"""Views: counts from headers are those of the records, and what is told of batches is what lies on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from appliance.log.config import LogSettings
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, encode_batch, encode_record, frame_batch
from spark_connector.batch_query import plan_batch
from spark_connector.constraints import Constraints
from spark_connector.options import Options, read_options
from spark_connector.record_batches import record_batches
from spark_connector.views import SCHEMAS, count_records, plan_view, read_view
from tests.log.batches import NOW_MS, batch_of, marker
from tests.spark.logs import filled, make_log, publish


def options(home: Path, **given: str) -> Options:
    return read_options({"path": str(home), "subscribe": "orders", **given}, streaming=False)


def view(
    home: Path, name: str, given: dict[str, str] | None = None, *, constraints: Constraints | None = None
) -> list[dict[str, Any]]:
    asked = options(home, view=name, **(given or {}))
    schema = SCHEMAS[asked.view]
    return [
        row
        for task in plan_view(asked, constraints)
        for batch in read_view(task, schema.names, schema)
        for row in batch.to_pylist()
    ]


def count_by_reading(asked: Options) -> int:
    return sum(
        batch.num_rows for task in plan_batch(asked).tasks for batch in record_batches(task, ("offset",))
    )


@pytest.mark.parametrize("start", [0, 1, 2, 90])
@pytest.mark.parametrize("end", [91, 92, 178, 180])
def test_a_count_by_headers_is_the_count_of_the_records(tmp_path: Path, start: int, end: int) -> None:
    filled(tmp_path)
    bounds = {
        "startingOffsets": f'{{"orders": {{"0": {start}}}}}',
        "endingOffsets": f'{{"orders": {{"0": {end}}}}}',
        "splitBytes": "300",
    }
    assert count_records(options(tmp_path, **bounds)) == end - start
    assert count_by_reading(options(tmp_path, **bounds)) == end - start
    assert sum(row["rows"] for row in view(tmp_path, "batches", bounds)) == end - start
    assert (
        sum(row["rows"] for row in view(tmp_path, "batches", {**bounds, "maxRecordsPerPartition": "1"}))
        == end - start
    )


def test_a_batch_with_holes_that_a_bound_cuts_is_counted_by_its_records(tmp_path: Path) -> None:
    log, state = make_log(tmp_path, settings=LogSettings())
    log.append(batch_of([b"a"] * 10, timestamp_ms=NOW_MS), leader_epoch=0)
    publish(log, state)
    # As compaction leaves it: offsets 1, 4 and 8 of 0 to 9.
    deltas = (1, 4, 8)
    payload = b"".join(
        encode_record(Record(b"x"), offset_delta=delta, timestamp_delta_ms=0) for delta in deltas
    )
    compacted = frame_batch(
        payload, count=len(deltas), last_offset_delta=9, base_timestamp_ms=NOW_MS, max_timestamp_ms=NOW_MS
    )
    (log.directory / "00000000000000000000.log").write_bytes(compacted)
    (log.directory / ".state").unlink()
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 10\n")
    for start, end, expected in ((0, 10, 3), (2, 10, 2), (0, 5, 2), (5, 8, 0)):
        bounds = {
            "startingOffsets": f'{{"orders": {{"0": {start}}}}}',
            "endingOffsets": f'{{"orders": {{"0": {end}}}}}',
        }
        assert count_records(options(tmp_path, **bounds)) == expected


def test_batches_are_told_as_they_lie(tmp_path: Path) -> None:
    log, state = make_log(tmp_path, settings=LogSettings())
    records = [Record(b"v%d" % each, timestamp_ms=NOW_MS + each) for each in range(5)]
    for codec in Codec:
        log.append(memoryview(bytearray(encode_batch(records, codec=codec))), leader_epoch=2)
    publish(log, state)
    rows = view(tmp_path, "batches")
    assert [row["compression"] for row in rows] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [row["baseOffset"] for row in rows] == [0, 5, 10, 15, 20]
    assert {row["records"] for row in rows} == {5}
    assert {(row["maxTimestamp"] - row["baseTimestamp"]).total_seconds() for row in rows} == {0.004}
    assert {(row["leaderEpoch"], row["isControl"], row["segment"]) for row in rows} == {(2, False, 0)}
    sizes = [row["sizeBytes"] for row in rows]
    assert [row["filePosition"] for row in rows] == [sum(sizes[:index]) for index in range(5)]


def test_segments_and_partitions_are_told(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    other, other_state = make_log(tmp_path, "orders-7")
    publish(other, other_state)
    found = view(tmp_path, "segments", constraints=Constraints(partitions=frozenset({0})))
    assert [row["baseOffset"] for row in found] == [segment.base_offset for segment in log.segments_since(0)]
    assert [row["isActive"] for row in found] == [False] * (len(found) - 1) + [True]
    both = view(tmp_path, "partitions")
    assert [(row["partition"], row["logStartOffset"], row["highWatermark"]) for row in both] == [
        (0, 0, log.log_end_offset),
        (7, 0, 0),
    ]
    assert both[0]["segments"] == len(found)


def test_aborted_transactions_are_told_and_not_counted_when_committed_is_asked_for(tmp_path: Path) -> None:
    log, state = make_log(tmp_path, settings=LogSettings())
    for producer_id, committed in ((1, True), (2, False)):
        batch = batch_of(
            [b"a", b"b"], attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        log.append(batch, leader_epoch=0, transaction_verified=True)
        end = marker(committed=committed, producer_id=producer_id)
        log.append(end, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    publish(log, state)
    (aborted,) = view(tmp_path, "transactions")
    assert (aborted["producerId"], aborted["firstOffset"], aborted["lastOffset"]) == (2, 3, 5)
    rows = view(tmp_path, "batches")
    assert [(row["isTransactional"], row["isControl"], row["isAborted"]) for row in rows] == [
        (True, False, False),
        (True, True, False),
        (True, False, True),
        (True, True, False),
    ]
    committed_only = {"isolationLevel": "read_committed"}
    assert [row["rows"] for row in view(tmp_path, "batches", committed_only)] == [2, 0, 0, 0]
    for asked, expected in ((options(tmp_path), 4), (options(tmp_path, **committed_only), 2)):
        assert count_records(asked) == count_by_reading(asked) == expected
