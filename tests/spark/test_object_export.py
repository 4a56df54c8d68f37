"""Closed segments straight to an address: whole, completed by the next run, and never named before they are there."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from appliance.errors import CorruptFile, StorageFault
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_state import StateFile
from appliance.protocol.records.record import Record
from spark_connector import storage
from spark_connector.batch_query import plan_batch
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation
from spark_connector.errors import DataLost, NotALogDirectory
from spark_connector.object_export import export_objects
from spark_connector.options import read_options
from spark_connector.planning import OffsetRange, ScanRange, plan
from spark_connector.segment_export import export_segments
from tests.log.batches import NOW_MS, batch_of, read_all
from tests.log.compaction import compact
from tests.spark.logs import filled, make_log, publish, read

COMPACTED = LogSettings(
    segment_bytes=1500,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=0,
)


@pytest.fixture(autouse=True)
def _looks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest is kept for some seconds; here it is asked for right after it was replaced."""
    monkeypatch.setattr(storage, "_KEPT_S", 1e-6)


def exported(home: Path) -> list[str]:
    """The names of the segments that a run has sent from `<home>/data` to `<home>/out`."""
    sent: list[str] = []
    export_objects("orders", paths=[home / "data"], to=address(home), tell=sent.append)
    return sent


def address(home: Path) -> str:
    return f"file://{home}/out"


def planned(home: Path) -> list[ScanRange]:
    view = Directories([address(home)]).partition("orders", 0)
    end = end_offset(view, Isolation.READ_COMMITTED)
    return plan([view], [OffsetRange("orders", 0, view.log_start_offset, end)])


def records(home: Path) -> list[Record]:
    return read(planned(home))


def append(log: PartitionLog, state_file: StateFile, count: int = 30) -> None:
    for number in range(count):
        log.append(batch_of([b"later-%d" % number] * 3), leader_epoch=0)
    publish(log, state_file)


def manifest(home: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((home / "out" / "orders.manifest.json").read_text())
    return found


def retire(log: PartitionLog, state_file: StateFile, count: int) -> None:
    """Retention has taken the oldest segments, their files too."""
    log.advance_start([segment.base_offset for segment in log.segments_since(0)][count])
    log.retire_oldest(count)
    for path in log.directory.glob("*.deleted"):
        path.unlink()
    publish(log, state_file)


def test_the_export_reads_like_the_log_and_grows_by_what_is_new(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path / "data")
    assert len(exported(tmp_path)) > 3
    assert records(tmp_path) == read_all(log)[: log.active_segment[0]]
    append(log, state_file)
    retire(log, state_file, 2)
    before = log.segments_since(0)[0].base_offset
    sent = exported(tmp_path)
    assert sent
    assert all(int(each.split()[1]) > before for each in sent)
    found = records(tmp_path)
    assert [each.offset for each in found] == list(range(log.active_segment[0]))
    assert found[before:] == read_all(log)[: log.active_segment[0] - before]
    assert exported(tmp_path) == []


def test_no_lease_is_missed_on_an_export(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path / "data")
    exported(tmp_path)
    options = read_options({"path": address(tmp_path), "subscribe": "orders"}, streaming=False)
    assert plan_batch(options).tasks
    assert caplog.text == ""


def test_who_is_stopped_in_the_middle_has_named_nothing_and_goes_on(tmp_path: Path) -> None:
    log, _ = filled(tmp_path / "data")
    sent: list[str] = []

    class Stopped(Exception):
        pass

    def tell(name: str) -> None:
        sent.append(name)
        if len(sent) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        export_objects("orders", paths=[tmp_path / "data"], to=address(tmp_path), tell=tell)
    with pytest.raises(NotALogDirectory):
        Directories([address(tmp_path)])
    held, changed = sorted((tmp_path / "out" / "orders-0").glob("*.log"))[:2]
    changed.write_bytes(bytes(changed.stat().st_size))  # as long as it should be
    again = exported(tmp_path)
    assert f"orders-0 {int(held.stem)}" not in again
    assert f"orders-0 {int(changed.stem)}" in again
    assert records(tmp_path) == read_all(log)[: log.active_segment[0]]


def test_an_object_that_went_missing_is_sent_again_while_the_log_has_it(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path / "data")
    exported(tmp_path)
    missing = sorted((tmp_path / "out" / "orders-0").glob("*.log"))[3]
    missing.unlink()
    assert exported(tmp_path) == [f"orders-0 {int(missing.stem)}"]
    assert records(tmp_path) == read_all(log)[: log.active_segment[0]]
    append(log, state_file)
    retire(log, state_file, 5)
    told = manifest(tmp_path)
    (tmp_path / "out" / "orders-0" / missing.name).unlink(missing_ok=True)
    for each in (tmp_path / "out" / "orders-0").glob(f"*/{missing.name}"):
        each.unlink()
    with pytest.raises(DataLost, match="export it to another place"):
        exported(tmp_path)
    assert manifest(tmp_path) == told


def test_what_compaction_put_together_goes_to_a_place_of_its_own(tmp_path: Path) -> None:
    log, state_file = make_log(tmp_path / "data", settings=COMPACTED)
    for number in range(60):
        log.append(batch_of([b"value-%d" % number * 10], key=b"key-%d" % (number % 7)), leader_epoch=0)
    log.roll()
    log.append(batch_of([b"end"], key=b"end"), leader_epoch=0)
    publish(log, state_file)
    exported(tmp_path)
    before, tasks = records(tmp_path), planned(tmp_path)
    compact(log, checkpoint=0, now_ms=NOW_MS)
    state_file.files_changed()
    publish(log, state_file)
    assert exported(tmp_path)
    after = [each for each in read_all(log) if each.value != b"end"]
    assert records(tmp_path) == after != before
    assert read(tasks) == before  # whoever has planned by the older manifest
    assert exported(tmp_path) == []
    assert records(tmp_path) == after
    named = {segment.path for task in planned(tmp_path) for segment in task.stretches}
    assert {f"file://{path}" for path in (tmp_path / "out").rglob("*.log")} == named


def test_an_export_that_was_copied_there_by_hand_is_gone_on_with(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path / "data")
    export_segments("orders", paths=[tmp_path / "data"], to=tmp_path / "out", copy=True)
    border = log.active_segment[0]
    append(log, state_file)
    sent = exported(tmp_path)
    assert sent[0] == f"orders-0 {border}"
    assert records(tmp_path) == read_all(log)[: log.active_segment[0]]


def test_an_export_gets_no_hole_and_no_other_topics_records(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path / "data")
    exported(tmp_path)
    told = manifest(tmp_path)
    path = tmp_path / "out" / "orders.manifest.json"
    path.write_text(json.dumps({**told, "topic_id": str(UUID(int=8))}))
    with pytest.raises(DataLost, match="created again"):
        exported(tmp_path)
    path.write_text(json.dumps({**told, "version": 2}))
    with pytest.raises(CorruptFile, match="version 2"):
        exported(tmp_path)
    path.write_text("{")
    with pytest.raises(CorruptFile, match="no manifest"):
        exported(tmp_path)
    path.write_text(json.dumps(told))
    append(log, state_file, 60)
    retire(log, state_file, len(log.segments_since(0)) - 2)
    with pytest.raises(DataLost, match="export it to another place"):
        exported(tmp_path)
    assert manifest(tmp_path) == told


def test_an_export_is_not_continued_from_a_log_that_is_shorter(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    exported(tmp_path)
    filled(tmp_path / "shorter", batches=20)
    with pytest.raises(DataLost, match="was truncated"):
        export_objects("orders", paths=[tmp_path / "shorter"], to=address(tmp_path))


def test_a_store_that_cannot_be_written_is_told_without_what_gives_access(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    (tmp_path / "out").write_bytes(b"where a directory is wanted")
    with pytest.raises(StorageFault) as raised:
        exported(tmp_path)
    assert str(tmp_path) in str(raised.value)
    with pytest.raises(StorageFault) as raised:
        export_objects("orders", paths=[tmp_path / "data"], to="s3://key:secret@bucket/logs?no=such")
    assert "secret" not in str(raised.value)
