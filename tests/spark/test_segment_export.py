"""Closed segments as a set of files: whole, readable like the log itself, and completed by the next run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from appliance.log.config import LogSettings
from appliance.log.producer_state import AppendOrigin
from spark_connector import planning
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation
from spark_connector.errors import CorruptSegment, DataLost, NotALogDirectory, ShortRead
from spark_connector.planning import OffsetRange, plan
from spark_connector.segment_export import export_segments
from tests.cli.command import appliance
from tests.log.batches import NOW_MS, batch_of, marker, read_all
from tests.log.compaction import compact
from tests.spark.logs import filled, make_log, publish, read, tasks_of


@pytest.mark.parametrize("copy", [False, True])
def test_the_export_reads_like_the_log_up_to_its_last_closed_segment(tmp_path: Path, copy: bool) -> None:
    log, state_file = filled(tmp_path / "data")
    result = export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out", copy=copy)
    end = log.active_segment[0]
    assert result.partitions[0].end_offset == end
    if copy:
        shutil.rmtree(tmp_path / "data" / "orders-0")
    assert [each.offset for each in read(tasks_of(tmp_path / "out"))] == list(range(end))
    if copy:
        return
    for number in range(30):
        log.append(batch_of([b"later-%d" % number] * 3), leader_epoch=0)
    publish(log, state_file)
    again = export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out")
    assert 0 < again.new_segments < len(again.partitions[0].segments)
    end = log.active_segment[0]
    assert read(tasks_of(tmp_path / "out")) == read_all(log)[:end]
    assert export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out").new_segments == 0


def test_the_manifest_says_what_is_there(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    done = appliance(
        "export",
        "segments",
        "orders",
        "--to",
        str(tmp_path / "out"),
        "--data-dir",
        str(tmp_path / "data"),
        "--json",
    )
    manifest = json.loads((tmp_path / "out" / "orders.manifest.json").read_text())
    (partition,) = manifest["partitions"]
    assert json.loads(done.succeeded().text)["partitions"] == {"0": partition["end_offset"]}
    ends = [each["next_base"] for each in partition["segments"]]
    assert [each["base_offset"] for each in partition["segments"]] == [0, *ends[:-1]]
    assert ends[-1] == partition["end_offset"]
    for each in partition["segments"]:
        assert (tmp_path / "out" / each["file"]).stat().st_size == each["size_bytes"]


def test_an_export_is_read_through_pyarrow_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SPLIT_BYTES_MIN", 100)
    log, _ = filled(tmp_path / "data")
    export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out")
    address = f"file://{tmp_path}/out"
    directories = Directories([address])
    assert directories.topics() == {"orders": [0]}
    view = directories.partition("orders", 0)
    end = end_offset(view, Isolation.READ_COMMITTED)
    assert end == log.active_segment[0]
    tasks = plan([view], [OffsetRange("orders", 0, 5, end)], split_bytes=300)
    assert len(tasks) > 10
    assert read(tasks) == read_all(log)[5:end]
    (tmp_path / "out" / "orders-0" / "00000000000000000000.log").write_bytes(b"short")
    with pytest.raises((ShortRead, DataLost, CorruptSegment)):
        read(tasks)
    with pytest.raises(NotALogDirectory, match="holds no"):
        Directories([f"file://{tmp_path}/data"])


def test_an_abort_whose_marker_is_not_in_the_export_is_known_there(tmp_path: Path) -> None:
    log, state_file = make_log(tmp_path / "data", settings=LogSettings(segment_bytes=4000))
    log.append(
        batch_of([b"aborted"], producer_id=1, producer_epoch=0, base_sequence=0, attributes=0x10),
        leader_epoch=0,
        transaction_verified=True,
    )
    log.append(batch_of([b"kept"]), leader_epoch=0)
    log.roll()
    log.append(marker(committed=False, producer_id=1), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    publish(log, state_file)
    export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out")
    found = read(tasks_of(tmp_path / "out", isolation=Isolation.READ_COMMITTED))
    assert [each.value for each in found] == [b"kept"]
    assert len(read(tasks_of(tmp_path / "out"))) == 2


def test_segments_of_an_open_transaction_wait(tmp_path: Path) -> None:
    log, state_file = make_log(tmp_path / "data")
    log.append(
        batch_of([b"open"], producer_id=1, producer_epoch=0, base_sequence=0, attributes=0x10),
        leader_epoch=0,
        transaction_verified=True,
    )
    log.roll()
    log.append(batch_of(), leader_epoch=0)
    publish(log, state_file)
    result = export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out")
    assert result.partitions[0].segments == ()


def test_what_compaction_has_merged_since_takes_the_place_of_what_was_exported(tmp_path: Path) -> None:
    settings = LogSettings(
        segment_bytes=1500,
        index_interval_bytes=100,
        cleanup_policy=frozenset({"compact"}),
        delete_retention_ms=0,
    )
    log, state_file = make_log(tmp_path / "data", settings=settings)
    for number in range(60):
        log.append(batch_of([b"value-%d" % number * 10], key=b"key-%d" % (number % 7)), leader_epoch=0)
    log.roll()
    log.append(batch_of([b"end"], key=b"end"), leader_epoch=0)
    publish(log, state_file)
    export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out")
    compact(log, checkpoint=0, now_ms=NOW_MS)
    state_file.files_changed()
    publish(log, state_file)
    export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out")
    assert read(tasks_of(tmp_path / "out")) == [each for each in read_all(log) if each.value != b"end"]


def test_an_export_never_gets_a_hole_nor_another_topics_records(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path / "data")
    export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out")
    for _ in range(60):
        log.append(batch_of([b"later"] * 3), leader_epoch=0)
    bases = [segment.base_offset for segment in log.segments_since(0)]
    log.advance_start(bases[-2])
    log.retire_oldest(len(bases) - 2)
    for path in log.directory.glob("*.deleted"):
        path.unlink()
    publish(log, state_file)
    with pytest.raises(DataLost, match="what followed is deleted"):
        export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out")
    (tmp_path / "out" / "orders-0" / "partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
    )
    with pytest.raises(DataLost, match="created again"):
        export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out")
    assert Directories([tmp_path / "out"]).topics() == {"orders": [0]}
