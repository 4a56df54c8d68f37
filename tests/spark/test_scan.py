"""Reading a log off the disk: every record once, or an error that says why not."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.log.config import LogSettings
from appliance.log.file_names import DELETED, LOG, segment_file_name
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_state import Mode
from appliance.protocol.records.compression import Codec
from spark_connector import directory, planning, scan
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation
from spark_connector.errors import (
    CorruptSegment,
    DataLost,
    NotALogDirectory,
    NotReadable,
    ShortRead,
    UnknownTopic,
    UnsupportedFormat,
)
from spark_connector.planning import OffsetRange, clip, plan
from spark_connector.scan import headers
from tests.log.batches import NOW_MS, batch_of, marker, read_all
from tests.log.compaction import compact
from tests.spark.logs import filled, make_log, publish, read, tasks_of


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PAUSES_S", (0.001, 0.001, 0.001))


def begin_at(log: PartitionLog, offset: int) -> None:
    """As DeleteRecords, and retention after it."""
    log.advance_start(offset)
    bases = [segment.base_offset for segment in log.segments_since(0)]
    log.retire_oldest(sum(following <= offset for following in bases[1:]))


def test_every_range_of_offsets_gives_its_records_and_no_others(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, batches=25)
    expected = read_all(log)
    end = log.log_end_offset
    for start in range(0, end, 4):
        for stop in range(start + 1, end + 1, 5):
            assert read(tasks_of(tmp_path, start, stop)) == expected[start:stop]


@pytest.mark.parametrize("buffer_bytes", [4096, 70_000])
@pytest.mark.parametrize("batch_bytes", [100, 5000, 50_000])
def test_a_batch_may_be_smaller_or_larger_than_the_buffer(
    tmp_path: Path, buffer_bytes: int, batch_bytes: int
) -> None:
    log, state_file = make_log(tmp_path, settings=LogSettings(segment_bytes=200_000))
    for number in range(12):
        log.append(batch_of([b"%d" % number * batch_bytes]), leader_epoch=0)
    publish(log, state_file)
    assert read(tasks_of(tmp_path), buffer_bytes=buffer_bytes) == read_all(log)


@pytest.mark.parametrize("max_records", [None, 1, 7, 50])
@pytest.mark.parametrize("piece_bytes", [200, 1000, 1 << 20])
def test_however_the_work_is_cut_every_record_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, max_records: int | None
) -> None:
    monkeypatch.setattr(planning, "SPLIT_BYTES_MIN", 100)
    log, _ = filled(tmp_path)
    tasks = tasks_of(tmp_path, 5, split_bytes=piece_bytes, max_records=max_records)
    assert read(tasks) == read_all(log)[5:]
    assert [task.start for task in tasks[1:]] == [task.end for task in tasks[:-1]]
    if piece_bytes == 200:
        assert len(tasks) > len(list((tmp_path / "orders-0").glob("*.log"))), "cut inside of segments"
    if max_records is not None:
        assert max(task.end - task.start for task in tasks) <= max_records


def test_what_is_above_the_high_watermark_is_not_read(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path, batches=5)
    publish(log, state_file, high_watermark=7)
    assert [each.offset for each in read(tasks_of(tmp_path))] == list(range(7))


def test_a_wrong_byte_anywhere_in_a_batch_is_seen(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, batches=3)
    expected = read_all(log)
    tasks = tasks_of(tmp_path)
    path = Path(tasks[0].stretches[0].path)
    length = tasks[0].size_bytes // 3
    whole = path.read_bytes()
    for at in range(length, 2 * length):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        field = at - length
        if 12 <= field < 16:
            assert read(tasks) == expected  # the leader epoch, which no record depends on
            continue
        with pytest.raises((CorruptSegment, ShortRead)) as caught:
            read(tasks)
        if isinstance(caught.value, CorruptSegment):
            assert caught.value.path == str(path)
            assert caught.value.position in (length, 2 * length)


def test_a_corrupt_batch_is_left_out_on_request_and_counted(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    path = sorted((tmp_path / "orders-0").glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[80] ^= 1
    path.write_bytes(content)
    base = int(path.name[:20])
    tasks = tasks_of(tmp_path)
    corrupt: list[Any] = []
    offsets = [
        int(batch["base_offset"])
        for task in tasks
        for chunk in scan.scan(task, on_corrupt="skip", corrupt=corrupt)
        for batch in chunk.batches
    ]
    assert offsets == [each for each in range(0, log.log_end_offset, 3) if each != base]
    assert [(path_, position) for path_, position, _ in corrupt] == [(str(path), 0)]


def test_after_bytes_that_are_no_batch_reading_goes_on_where_the_index_points(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    path = sorted((tmp_path / "orders-0").glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[8:12] = b"\x7f\xff\xff\xff"
    path.write_bytes(content)
    with pytest.raises(CorruptSegment, match="claims"):
        read(tasks_of(tmp_path))
    found = read(tasks_of(tmp_path), skip=True)
    missing = set(range(log.log_end_offset)) - {each.offset for each in found}
    base = int(path.name[:20])
    assert missing
    assert missing <= set(range(base, base + 15))


@pytest.mark.parametrize("lost", ["cut", "zeros", "gone"])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_segment_that_is_not_whole_never_gives_fewer_rows(tmp_path: Path, lost: str, which: int) -> None:
    filled(tmp_path)
    path = sorted((tmp_path / "orders-0").glob("*.log"))[which]
    tasks = tasks_of(tmp_path)
    size_bytes = tasks[-1].stretches[which].byte_end
    if lost == "gone":
        path.unlink()
    else:
        os.truncate(path, size_bytes // 2)
        if lost == "zeros":
            os.truncate(path, size_bytes)
    with pytest.raises((ShortRead, DataLost, CorruptSegment)):
        read(tasks)


def test_a_wrong_offset_index_costs_time_and_no_records(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    expected = read_all(log)
    for path in (tmp_path / "orders-0").glob("*.index"):
        content = bytearray(path.read_bytes())
        for at in range(7, len(content), 8):
            content[at] = (content[at] + 3) & 0xFF
        path.write_bytes(content)
    for start in range(0, log.log_end_offset, 7):
        assert read(tasks_of(tmp_path, start, start + 5)) == expected[start : start + 5]
    for path in (tmp_path / "orders-0").glob("*.index"):
        path.unlink()
    assert read(tasks_of(tmp_path, 100)) == expected[100:]


def test_a_log_that_is_written_and_rolled_meanwhile_is_read_as_it_was_planned(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path)
    expected = read_all(log)
    tasks = tasks_of(tmp_path)
    for number in range(40):
        log.append(batch_of([b"later-%d" % number]), leader_epoch=0)
    publish(log, state_file)
    assert read(tasks) == expected
    assert read(tasks_of(tmp_path)) == read_all(log)


def test_segments_that_are_deleted_after_planning_are_read_as_long_as_they_lie_there(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path)
    expected = read_all(log)
    tasks = tasks_of(tmp_path)
    begin_at(log, 100)
    publish(log, state_file)
    assert read(tasks) == expected
    for path in (tmp_path / "orders-0").glob("*" + DELETED):
        path.unlink()
    with pytest.raises(DataLost):
        read(tasks)


def test_what_is_below_the_log_start_is_said_to_be_lost_and_can_be_clipped(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path)
    begin_at(log, 100)
    publish(log, state_file)
    with pytest.raises(DataLost, match="begins at 100"):
        tasks_of(tmp_path, 40)
    view = Directories([tmp_path]).partition("orders", 0)
    there, lost = clip(view, OffsetRange("orders", 0, 40, 500))
    assert (there.start, there.end, lost) == (100, 180, 60 + 320)
    assert [each.offset for each in read(plan([view], [there]))] == list(range(100, 180))


def test_a_compacted_log_is_read_with_its_gaps(tmp_path: Path) -> None:
    settings = LogSettings(
        segment_bytes=1500,
        index_interval_bytes=100,
        cleanup_policy=frozenset({"compact"}),
        delete_retention_ms=0,
    )
    log, state_file = make_log(tmp_path, settings=settings)
    for number in range(60):
        log.append(batch_of([b"value-%d" % number * 10], key=b"key-%d" % (number % 7)), leader_epoch=0)
    log.roll()
    log.append(batch_of([b"end"], key=b"end"), leader_epoch=0)
    publish(log, state_file)
    planned = tasks_of(tmp_path)
    whole = read_all(log)
    assert read(planned) == whole
    compact(log, checkpoint=0, now_ms=NOW_MS)
    state_file.files_changed()
    publish(log, state_file)
    kept = read_all(log)
    assert len(kept) < len(whole)
    for start in range(0, log.log_end_offset, 3):
        for end in range(start + 1, log.log_end_offset + 1, 4):
            inside = [each for each in kept if start <= each.offset < end]
            assert read(tasks_of(tmp_path, start, end)) == inside
    # What was planned on files that are gone is found again by offset.
    assert read(planned) == kept


def test_records_of_aborted_transactions_are_left_out_and_open_ones_not_reached(tmp_path: Path) -> None:
    log, state_file = make_log(tmp_path)
    sequences = {1: 0, 2: 0, 3: 0}

    def write(producer: int, text: bytes) -> None:
        log.append(
            batch_of(
                [text],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequences[producer],
                attributes=0x10,
            ),
            leader_epoch=0,
            transaction_verified=True,
        )
        sequences[producer] += 1

    def end(producer: int, *, committed: bool) -> None:
        from appliance.log.producer_state import AppendOrigin

        log.append(
            marker(committed=committed, producer_id=producer), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        )

    kept = []
    for turn in range(30):
        text = b"%d" % turn * 40
        write(1, b"one" + text)
        write(2, b"two" + text)
        log.append(batch_of([b"plain" + text]), leader_epoch=0)
        write(1, b"uno" + text)
        end(1, committed=turn % 3 != 0)
        end(2, committed=turn % 2 == 0)
        kept += [b"one" + text] if turn % 3 else []
        kept += [b"two" + text] if turn % 2 == 0 else []
        kept += [b"plain" + text]
        kept += [b"uno" + text] if turn % 3 else []
    stable = log.log_end_offset
    write(3, b"undecided")
    log.append(batch_of([b"behind it"]), leader_epoch=0)
    publish(log, state_file)
    committed = Isolation.READ_COMMITTED
    assert [each.value for each in read(tasks_of(tmp_path, isolation=committed))] == kept
    assert end_offset(Directories([tmp_path]).partition("orders", 0), committed) == stable
    everything = [each.value for each in read(tasks_of(tmp_path))]
    assert len(everything) == 30 * 4 + 2
    for start in range(0, stable, 11):
        end_at = min(start + 9, stable)
        inside = read(tasks_of(tmp_path, start, end_at, isolation=committed))
        assert [each.value for each in inside] == [
            each.value
            for each in read(tasks_of(tmp_path, isolation=committed))
            if start <= each.offset < end_at
        ]
    marked = [
        int(each["aborted"]) for task in tasks_of(tmp_path) for found in headers(task) for each in found
    ]
    assert sum(marked) == 10 * 2 + 15


def test_where_nobody_says_the_last_stable_offset_it_is_found(tmp_path: Path) -> None:
    log, _ = make_log(tmp_path)
    log.append(batch_of([b"plain"]), leader_epoch=0)
    log.append(
        batch_of([b"open"], producer_id=1, producer_epoch=0, base_sequence=0, attributes=0x10),
        leader_epoch=0,
        transaction_verified=True,
    )
    log.append(batch_of([b"plain"]), leader_epoch=0)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    view = Directories([tmp_path]).partition("orders", 0)
    assert end_offset(view, Isolation.READ_COMMITTED) == 1
    assert end_offset(view, Isolation.READ_UNCOMMITTED) == 3
    with pytest.raises(NotReadable):
        end_offset(view, Isolation.READ_UNCOMMITTED, durable=True)


def test_a_log_that_was_cut_below_what_readers_saw_is_not_read_on(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path)
    tasks = tasks_of(tmp_path)
    log.truncate_to(90)
    for number in range(60):
        log.append(batch_of([b"other-%d" % number] * 3, timestamp_ms=NOW_MS + number), leader_epoch=1)
    log.append(batch_of([b"more"]), leader_epoch=1)
    state_file.publish(_cut_at(publish_numbers=tasks[0].end, state_file=state_file))
    publish(log, state_file)
    with pytest.raises((DataLost, CorruptSegment, ShortRead)):
        read(tasks)


def _cut_at(*, publish_numbers: int, state_file: Any) -> Any:
    assert state_file.last is not None
    return replace(state_file.last, log_end=90, high_watermark=90, last_stable=90)


def test_a_topic_made_anew_under_the_same_name_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    filled(tmp_path)
    tasks = tasks_of(tmp_path)
    shutil.rmtree(tmp_path / "orders-0")
    with pytest.raises(DataLost):
        read(tasks)


def test_of_several_copies_the_leaders_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_LEADER_PATIENCE_S", 0.1)
    for slot, (epoch, leads, count) in enumerate([(3, True, 4), (4, False, 9), (4, True, 6)]):
        log, state_file = make_log(tmp_path / f"slot-{slot}")
        for number in range(count):
            log.append(batch_of([b"%d of slot %d" % (number, slot)]), leader_epoch=0)
        publish(log, state_file, leads=leads, leader_epoch=epoch)
    view = Directories([tmp_path]).partition("orders", 0)
    assert Path(view.directory).parent.name == "slot-2"
    assert view.high_watermark == 6
    shutil.rmtree(tmp_path / "slot-2")
    assert Path(Directories([tmp_path]).partition("orders", 0).directory).parent.name == "slot-1"


def test_who_leads_next_is_waited_for(tmp_path: Path) -> None:
    logs = [make_log(tmp_path / f"slot-{slot}") for slot in range(2)]
    for log, state_file in logs:
        log.append(batch_of(), leader_epoch=4)
        publish(log, state_file, leads=False, high_watermark=0, leader_epoch=4)
    leader = threading.Timer(0.2, publish, logs[1], {"leader_epoch": 4})
    leader.start()
    view = Directories([tmp_path]).partition("orders", 0)
    leader.join()
    assert (Path(view.directory), view.high_watermark) == (logs[1][0].directory, 1)


@pytest.mark.parametrize("state", ["of the new epoch", "none yet", "none, nor a file"])
def test_a_copy_that_was_begun_just_now_is_not_taken_for_the_partition(tmp_path: Path, state: str) -> None:
    log, _ = filled(tmp_path / "slot-0")
    begun, state_file = make_log(tmp_path / "slot-1")
    begun.append(batch_of(), leader_epoch=0)
    if state == "of the new epoch":
        publish(begun, state_file, leads=False, leader_epoch=9)
    elif state == "none, nor a file":
        shutil.rmtree(begun.directory)
        begun.directory.mkdir()
    view = Directories([tmp_path]).partition("orders", 0)
    assert (Path(view.directory), view.high_watermark) == (log.directory, log.log_end_offset)


def test_a_directory_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirectory, match="nowhere"):
        Directories([tmp_path / "nowhere"])
    with pytest.raises(NotALogDirectory, match="no data directory"):
        Directories([tmp_path])
    log, _ = make_log(tmp_path)
    log.append(batch_of(), leader_epoch=0)
    with pytest.raises(UnknownTopic):
        Directories([tmp_path]).partition("payments", 0)
    with pytest.raises(NotReadable, match="unknown how far to read"):
        Directories([tmp_path]).partition("orders", 0)


def test_a_log_so_new_that_its_owner_has_not_spoken_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_OWNER_PATIENCE_S", 30.0)
    log, state_file = make_log(tmp_path)
    log.append(batch_of(), leader_epoch=0)
    owner = threading.Timer(0.2, publish, (log, state_file))
    owner.start()
    assert Directories([tmp_path]).partition("orders", 0).high_watermark == log.log_end_offset
    owner.join()


def test_messages_of_old_formats_are_named(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, batches=2)
    path = log.segment_path(0)
    content = bytearray(path.read_bytes())
    content[16] = 1
    path.write_bytes(content)
    with pytest.raises(UnsupportedFormat, match="format v1"):
        read(tasks_of(tmp_path))


@pytest.mark.parametrize("mode", [Mode.CLOSED, Mode.RUNNING])
def test_a_log_that_apache_kafka_has_gone_on_with_is_read_as_far_as_kafka_says(
    tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_OWNER_PATIENCE_S", 0.1)
    log, state_file = filled(tmp_path, batches=5)
    log.release()
    said = publish(log, state_file)
    state_file.publish(replace(said, mode=mode))
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 15\n")
    assert Directories([tmp_path]).partition("orders", 0).durable_offset >= 0
    for _ in range(5):
        log.append(batch_of([b"written by Kafka"] * 3), leader_epoch=0)
    log.release()
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 27\n")
    assert Directories([tmp_path]).partition("orders", 0).high_watermark == 27
    assert read(tasks_of(tmp_path)) == read_all(log)[:27]


def test_headers_count_without_a_look_at_records(tmp_path: Path) -> None:
    log, state_file = make_log(tmp_path)
    for number in range(50):
        log.append(batch_of([b"x" * 100] * (number % 4 + 1), codec=Codec.LZ4), leader_epoch=0)
    publish(log, state_file)
    counted = sum(int(found["records"].sum()) for task in tasks_of(tmp_path) for found in headers(task))
    assert counted == log.log_end_offset


def test_time_indexes_leave_out_what_is_too_old(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    view = Directories([tmp_path]).partition("orders", 0)
    wanted = OffsetRange("orders", 0, 0, log.log_end_offset)
    late = plan([view], [wanted], timestamps_ms=(NOW_MS + 50, None))
    assert (
        sum(task.size_bytes for task in late) < sum(task.size_bytes for task in plan([view], [wanted])) // 2
    )
    assert [each for each in read(late) if each.timestamp_ms >= NOW_MS + 50] == [
        each for each in read_all(log) if each.timestamp_ms >= NOW_MS + 50
    ]
    window = plan([view], [wanted], timestamps_ms=(NOW_MS + 20, NOW_MS + 25), disorder_ms=0)
    assert sum(task.size_bytes for task in window) < 3000
    assert {each.timestamp_ms for each in read(window)} >= set(range(NOW_MS + 20, NOW_MS + 25))
    assert segment_file_name(0, LOG) not in {Path(s.path).name for task in late for s in task.stretches}
