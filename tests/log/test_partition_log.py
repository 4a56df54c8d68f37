from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from appliance.clock import ManualClock
from appliance.errors import RejectedRequest
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import SEQUENCE_MAX, TRANSACTIONAL, batches, read_header
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.errors import CorruptBatch, InvalidRecords
from appliance.protocol.records.record import Record, encode_batch
from tests.log.batches import NOW_MS, batch_of, crash, marker, open_log, read_all, values

SMALL_SEGMENTS = LogSettings(segment_bytes=4000, index_interval_bytes=300)


def code_of(call: object) -> ErrorCode:
    assert isinstance(call, pytest.ExceptionInfo)
    return ErrorCode(call.value.code)


def filled(directory: Path, count: int = 40, *, settings: LogSettings = SMALL_SEGMENTS) -> PartitionLog:
    """Batches of 1, 2, 3, 1, 2, 3 … records with rising timestamps."""
    log = open_log(directory, settings=settings)
    for number in range(count):
        log.append(
            batch_of(
                [b"%d-%d" % (number, i) + bytes(100) for i in range(number % 3 + 1)],
                timestamp_ms=NOW_MS + number,
            ),
            leader_epoch=1,
        )
    return log


# Appending and reading


def test_offsets_are_given_in_order_and_read_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = log.append(batch_of([b"a", b"b"]), leader_epoch=5)
    second = log.append(batch_of([b"c"]), leader_epoch=5)
    assert (first.base_offset, first.last_offset, second.base_offset) == (0, 1, 2)
    assert first.log_append_time_ms == -1
    assert first.bytes == len(batch_of([b"a", b"b"]))
    assert log.log_end_offset == 3
    records = read_all(log)
    assert [(r.offset, r.value) for r in records] == [(0, b"a"), (1, b"b"), (2, b"c")]
    log.check()


def test_the_stored_batch_is_the_sent_one_but_for_offset_and_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch_of([b"before"]), leader_epoch=5)
    sent = batch_of([b"a", b"b"], codec=Codec.LZ4)
    result = log.append(sent, leader_epoch=5)
    piece = log.read(result.base_offset, max_bytes=1 << 20, upper_bound=log.log_end_offset)
    stored = log.segment_path(0).read_bytes()[piece.position : piece.position + piece.length_bytes]
    assert stored[17:] == sent[17:]
    header = read_header(stored)
    assert (header.base_offset, header.partition_leader_epoch) == (1, 5)


@pytest.mark.parametrize("offset", range(0, 78, 7))
def test_a_read_begins_with_the_batch_that_holds_the_offset(tmp_path: Path, offset: int) -> None:
    log = filled(tmp_path)
    piece = log.read(offset, max_bytes=1, upper_bound=log.log_end_offset)
    data = log.segment_path(piece.segment_base_offset).read_bytes()[piece.position :]
    header = read_header(data)
    assert header.base_offset <= offset <= header.last_offset
    assert piece.length_bytes == piece.first_batch_bytes == header.size_bytes


def test_max_bytes_cuts_the_tail_but_never_the_first_batch(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    whole = log.read(0, max_bytes=1 << 20, upper_bound=log.log_end_offset)
    assert log.read(0, max_bytes=500, upper_bound=log.log_end_offset).length_bytes == 500
    assert log.read(0, max_bytes=1, upper_bound=log.log_end_offset).length_bytes == whole.first_batch_bytes
    small = log.read(0, max_bytes=1, upper_bound=log.log_end_offset, min_one_batch=False)
    assert (small.length_bytes, small.first_batch_bytes) == (0, whole.first_batch_bytes)


def test_a_read_ends_on_the_byte_that_the_bound_allows(tmp_path: Path) -> None:
    log = filled(tmp_path)
    for bound in range(log.log_end_offset + 1):
        for offset in range(0, log.log_end_offset, 5):
            piece = log.read(offset, max_bytes=1 << 20, upper_bound=bound)
            data = log.segment_path(piece.segment_base_offset).read_bytes()
            found = list(batches(data[piece.position : piece.position + piece.length_bytes]))
            assert sum(header.size_bytes for _, header in found) == piece.length_bytes
            assert all(header.next_offset <= bound for _, header in found)
            if found:
                following = piece.position + piece.length_bytes
                if following < len(data) and data[following + 16] == 2:
                    assert read_header(data, following).next_offset > bound


def test_a_read_says_whether_what_is_readable_goes_on_in_a_later_segment(tmp_path: Path) -> None:
    log = filled(tmp_path, 100)
    begins = sorted(int(path.stem) for path in tmp_path.glob("*.log"))
    assert len(begins) > 3
    for bound in range(0, log.log_end_offset + 1, 3):
        for offset in range(0, bound, 7):
            piece = log.read(offset, max_bytes=1 << 20, upper_bound=bound)
            later = [base for base in begins if piece.segment_base_offset < base < bound]
            assert piece.on_older_segment == bool(later and piece.length_bytes)
    log.check()


def test_at_the_end_there_is_nothing_and_beyond_it_an_error(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    end = log.log_end_offset
    assert log.read(end, max_bytes=100, upper_bound=end).length_bytes == 0
    assert log.read(end - 1, max_bytes=100, upper_bound=end - 1).length_bytes == 0
    for offset in (-1, end + 1):
        with pytest.raises(RejectedRequest) as refused:
            log.read(offset, max_bytes=100, upper_bound=end)
        assert code_of(refused) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_an_empty_log_reads_as_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_start=0)
    assert log.read(0, max_bytes=100, upper_bound=0).length_bytes == 0
    assert log.offset_for_timestamp(0, upper_bound=0) is None
    assert log.offset_of_max_timestamp() is None
    log.check()


def test_every_record_is_read_through_many_segments(tmp_path: Path) -> None:
    log = filled(tmp_path, 100)
    assert log.statistics().segments > 3
    for max_bytes in (1, 700, 1 << 20):
        records = read_all(log, max_bytes=max_bytes)
        assert [record.offset for record in records] == list(range(log.log_end_offset))
    log.check()


def test_lookups_do_not_depend_on_what_is_remembered_of_the_tail(tmp_path: Path) -> None:
    settings = LogSettings(index_interval_bytes=100)
    log = filled(tmp_path, 700, settings=settings)
    end = log.log_end_offset
    warm = [log.read(offset, max_bytes=1, upper_bound=end) for offset in range(end)]
    log.close(clean=True)
    cold_log = open_log(tmp_path, settings=settings, clean=True, recovery_point=end)
    assert [cold_log.read(offset, max_bytes=1, upper_bound=end) for offset in range(end)] == warm
    cold_log.check()


def test_sealed_segments_keep_few_files_open(tmp_path: Path) -> None:
    log = filled(tmp_path, 400)
    assert log.statistics().segments > 12
    read_all(log)
    assert log.statistics().open_segments <= 5
    log.release()
    assert log.statistics().open_segments == 0
    before = len(os.listdir("/proc/self/fd"))
    log.append(batch_of(), leader_epoch=1)
    log.release()
    assert len(os.listdir("/proc/self/fd")) == before
    log.check()


def test_a_refused_batch_leaves_no_trace(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    before = log.statistics()
    damaged = bytearray(batch_of())
    damaged[-1] ^= 1
    with pytest.raises(RejectedRequest):
        log.append(memoryview(damaged), leader_epoch=1)
    assert log.statistics() == before
    log.check()


# Rolling


def test_a_segment_never_grows_beyond_its_size(tmp_path: Path) -> None:
    log = filled(tmp_path, 100)
    log.close(clean=True)
    sizes = [path.stat().st_size for path in tmp_path.glob("*.log")]
    assert max(sizes) <= 4000
    assert len(sizes) > 3


def test_time_rolls_a_segment_by_the_records_clock(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_ms=1000))
    log.append(batch_of(timestamp_ms=NOW_MS), leader_epoch=0)
    log.append(batch_of(timestamp_ms=NOW_MS + 1000), leader_epoch=0)
    assert log.statistics().segments == 1
    log.append(batch_of(timestamp_ms=NOW_MS + 1001), leader_epoch=0)
    assert log.statistics().segments == 2
    log.check()


def test_an_idle_segment_is_rolled_by_time(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path, settings=LogSettings(segment_ms=1000), clock=clock)
    assert not log.maybe_roll_by_time(NOW_MS + 9999), "an empty segment stays"
    log.append(batch_of(timestamp_ms=NOW_MS), leader_epoch=0)
    assert not log.maybe_roll_by_time(NOW_MS + 1000)
    assert log.maybe_roll_by_time(NOW_MS + 1001)
    assert log.statistics().segments == 2
    log.check()


def test_a_full_index_rolls_the_segment(tmp_path: Path) -> None:
    settings = LogSettings(index_interval_bytes=0, segment_index_bytes=8 * 10)
    log = filled(tmp_path, 60, settings=settings)
    assert log.statistics().segments > 4
    assert values(read_all(log))
    log.check()


def test_rolling_twice_makes_one_segment(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    log.roll()
    log.roll()
    assert log.statistics().segments == 2
    log.append(batch_of(), leader_epoch=1)
    log.check()


def test_a_rolled_segment_waits_for_its_flush_off_the_path(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    log.roll()
    end = log.log_end_offset
    assert log.recovery_point == 0
    (task,) = log._flushes
    task.run()
    assert log.recovery_point == end
    log.append(batch_of(), leader_epoch=1)
    log.flush()
    assert log.recovery_point == log.log_end_offset


# Time


@pytest.mark.parametrize("codec", list(Codec))
def test_a_timestamp_finds_the_first_record_that_late(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path, settings=SMALL_SEGMENTS)
    times = [NOW_MS + (number * 7919) % 500 for number in range(300)]
    for start in range(0, 300, 3):
        records = [Record(b"v" * 50, timestamp_ms=time) for time in times[start : start + 3]]
        log.append(memoryview(encode_batch(records, codec=codec)), leader_epoch=2)
    for asked in range(NOW_MS - 1, NOW_MS + 502, 9):
        expected = next(((time, offset, 2) for offset, time in enumerate(times) if time >= asked), None)
        assert log.offset_for_timestamp(asked, upper_bound=300) == expected, asked
    latest = max(times)
    assert log.offset_of_max_timestamp() == (latest, times.index(latest), 2)
    log.check()


def test_the_latest_record_is_found_although_a_later_one_lay_below_the_log_start(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for time in (NOW_MS + 9, NOW_MS + 3, NOW_MS + 5):
        log.append(batch_of(timestamp_ms=time), leader_epoch=0)
    log.advance_start(1)
    assert log.offset_of_max_timestamp() == (NOW_MS + 5, 2, 0)
    log.roll()
    log.append(batch_of(timestamp_ms=NOW_MS + 7), leader_epoch=0)
    assert log.offset_of_max_timestamp() == (NOW_MS + 7, 3, 0)


def test_a_timestamp_is_not_found_above_the_bound(tmp_path: Path) -> None:
    log = filled(tmp_path, 30)
    found = log.offset_for_timestamp(NOW_MS + 10, upper_bound=log.log_end_offset)
    assert found is not None
    assert log.offset_for_timestamp(NOW_MS + 10, upper_bound=found[1] + 1) == found
    assert log.offset_for_timestamp(NOW_MS + 10, upper_bound=found[1]) is None


def test_records_without_timestamps_are_not_found_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch_of(timestamp_ms=-1), leader_epoch=0)
    assert log.offset_for_timestamp(0, upper_bound=1) is None
    assert log.offset_of_max_timestamp() is None
    log.check()


def test_log_append_time_is_answered_and_kept(tmp_path: Path) -> None:
    settings = LogSettings(message_timestamp_type="LogAppendTime")
    log = open_log(tmp_path, settings=settings)
    result = log.append(batch_of([b"a", b"b"], timestamp_ms=5), leader_epoch=0)
    assert result.log_append_time_ms == NOW_MS
    assert {record.timestamp_ms for record in read_all(log)} == {NOW_MS}
    assert log.offset_for_timestamp(NOW_MS, upper_bound=2) == (NOW_MS, 0, 0)


def test_settings_take_effect_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch_of([bytes(1000)]), leader_epoch=0)
    log.update_settings(LogSettings(max_message_bytes=500))
    with pytest.raises(RejectedRequest) as refused:
        log.append(batch_of([bytes(1000)]), leader_epoch=0)
    assert code_of(refused) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_smaller_segment_size_rolls_at_the_next_append(tmp_path: Path) -> None:
    log = filled(tmp_path, settings=LogSettings())
    assert log.statistics().segments == 1
    log.update_settings(LogSettings(segment_bytes=2000))
    log.append(batch_of([b"next"]), leader_epoch=1)
    assert log.statistics().segments == 2
    log.check()


def test_a_larger_segment_size_gives_the_active_segment_room_in_stretches_again(tmp_path: Path) -> None:
    log = filled(tmp_path, settings=LogSettings(segment_bytes=16_384))
    log.update_settings(LogSettings())
    for _ in range(4):
        log.append(batch_of([bytes(10_000)]), leader_epoch=1)
    statistics = log.statistics()
    assert statistics.segments == 1
    assert statistics.allocated_bytes > statistics.size_bytes
    log.check()


def test_the_distance_of_index_entries_changes_inside_of_a_segment(tmp_path: Path) -> None:
    log = filled(tmp_path, settings=LogSettings())
    entries = (tmp_path / "00000000000000000000.index").read_bytes
    log.update_settings(LogSettings(index_interval_bytes=0))
    for _ in range(3):
        log.append(batch_of(), leader_epoch=1)
    log.flush()
    written = [entries()[at : at + 8] for at in range(0, len(entries()), 8)]
    assert len([each for each in written if each != bytes(8)]) >= 3
    log.check()


@pytest.mark.parametrize("kept", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", list(Codec))
@pytest.mark.parametrize("append_time", [False, True])
def test_the_topics_codec_replaces_the_producers_and_changes_no_record(
    tmp_path: Path, kept: str, sent: Codec, append_time: bool
) -> None:
    kind: Literal["CreateTime", "LogAppendTime"] = "LogAppendTime" if append_time else "CreateTime"
    log = open_log(
        tmp_path,
        settings=LogSettings(compression_type=kept, message_timestamp_type=kind, segment_bytes=20_000),
    )
    sent_values = [b"%d " % number * 50 for number in range(30)]
    for number in range(20):
        batch = batch_of(
            sent_values, codec=sent, timestamp_ms=NOW_MS - 50, producer_id=7, producer_epoch=0,
            base_sequence=30 * number,
        )  # fmt: skip
        result = log.append(batch, leader_epoch=3)
        assert (result.base_offset, result.last_offset) == (30 * number, 30 * number + 29)
    stored = b"".join((tmp_path / path.name).read_bytes() for path in sorted(tmp_path.glob("*.log")))
    codecs = {header.codec for _, header in batches(stored)}
    assert codecs == {Codec[kept.upper()] if kept != "uncompressed" else Codec.NONE}
    records = read_all(log)
    assert [record.value for record in records] == sent_values * 20
    assert {record.timestamp_ms for record in records} == {NOW_MS if append_time else NOW_MS - 50}
    log.check()
    crash(log)
    assert [record.value for record in read_all(open_log(tmp_path))] == sent_values * 20


def test_a_batch_that_grows_over_the_topics_size_when_it_is_unpacked_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(compression_type="uncompressed", max_message_bytes=10_000))
    with pytest.raises(RejectedRequest) as refused:
        log.append(batch_of([bytes(20_000)], codec=Codec.ZSTD), leader_epoch=0)
    assert code_of(refused) == ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0


def test_control_batches_keep_their_codec(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(compression_type="zstd"))
    log.append(produced(0, attributes=TRANSACTIONAL), leader_epoch=0, transaction_verified=True)
    log.append(marker(committed=True, producer_id=9), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    stored = (tmp_path / "00000000000000000000.log").read_bytes()
    assert [header.codec for _, header in batches(stored)] == [Codec.ZSTD, Codec.NONE]


@pytest.mark.parametrize(
    ("kept", "weak", "strong"),
    [("gzip", "1", "9"), ("zstd", "-50", "19"), ("lz4", "9", "12")],
)
def test_a_higher_level_packs_tighter(tmp_path: Path, kept: str, weak: str, strong: str) -> None:
    values = [b" ".join(b"%d" % (number * number % 977) for number in range(300)) for _ in range(20)]
    sizes = []
    for level in (weak, strong):
        configs = {"compression.type": kept, f"compression.{kept}.level": level}
        log = open_log(tmp_path / level, settings=LogSettings.from_configs(configs))
        sizes.append(log.append(batch_of(values), leader_epoch=0).bytes)
    assert sizes[1] < sizes[0]


# Idempotence


def produced(
    first: int, count: int = 2, *, producer_id: int = 9, epoch: int = 0, attributes: int = 0
) -> memoryview:
    return batch_of(
        [b"%d" % (first + i) for i in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=first,
        attributes=attributes,
    )


def test_a_batch_sent_twice_is_kept_once_and_answered_alike(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch_of([b"other"]), leader_epoch=0)
    first = log.append(produced(0), leader_epoch=0)
    log.append(produced(2), leader_epoch=0)
    again = log.append(produced(0), leader_epoch=0)
    assert again.duplicate
    assert (again.base_offset, again.last_offset, again.bytes) == (first.base_offset, first.last_offset, 0)
    assert log.log_end_offset == 5


def test_a_gap_in_the_sequence_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(produced(0), leader_epoch=0)
    with pytest.raises(RejectedRequest) as refused:
        log.append(produced(4), leader_epoch=0)
    assert code_of(refused) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append(produced(2), leader_epoch=0)


def test_an_older_epoch_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(produced(0, epoch=1), leader_epoch=0)
    with pytest.raises(RejectedRequest) as refused:
        log.append(produced(2, epoch=0), leader_epoch=0)
    assert code_of(refused) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_sequence_goes_on_with_zero_after_its_last_number(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(produced(SEQUENCE_MAX - 1), leader_epoch=0)
    assert log.append(produced(0), leader_epoch=0).base_offset == 2
    assert log.append(produced(SEQUENCE_MAX - 1), leader_epoch=0).duplicate


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rolled", [True, False])
def test_producers_are_known_after_a_restart(tmp_path: Path, clean: bool, rolled: bool) -> None:
    log = open_log(tmp_path)
    for first in range(0, 8, 2):
        log.append(produced(first), leader_epoch=0)
    if rolled:
        log.roll()
    last = log.append(produced(8), leader_epoch=0)
    log.close(clean)
    log = open_log(tmp_path, clean=clean, recovery_point=log.recovery_point)
    again = log.append(produced(8), leader_epoch=0)
    assert again.duplicate
    assert again.base_offset == last.base_offset
    with pytest.raises(RejectedRequest):
        log.append(produced(12), leader_epoch=0)
    assert log.append(produced(10), leader_epoch=0).base_offset == 10
    log.check()


def test_truncation_forgets_the_batches_it_drops(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for first in range(0, 8, 2):
        log.append(produced(first), leader_epoch=0)
    assert log.truncate_to(4)
    assert not log.append(produced(4), leader_epoch=0).duplicate
    log.check()


# Transactions


def test_a_transactional_batch_takes_a_known_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(RejectedRequest) as refused:
        log.append(produced(0, attributes=TRANSACTIONAL), leader_epoch=0)
    assert code_of(refused) == ErrorCode.INVALID_TXN_STATE
    log.append(produced(0, attributes=TRANSACTIONAL), leader_epoch=0, transaction_verified=True)
    log.append(produced(2, attributes=TRANSACTIONAL), leader_epoch=0)
    assert log.last_stable_offset == 0


def transactions(log: PartitionLog) -> None:
    """Producer 9 aborts offsets 0 to 1; 8 commits 2 to 3; 7 stays open at 6."""
    log.append(produced(0, attributes=TRANSACTIONAL), leader_epoch=0, transaction_verified=True)
    log.append(
        produced(0, producer_id=8, attributes=TRANSACTIONAL), leader_epoch=0, transaction_verified=True
    )
    log.append(marker(committed=False, producer_id=9), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    log.append(marker(committed=True, producer_id=8), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    log.append(
        produced(0, producer_id=7, attributes=TRANSACTIONAL), leader_epoch=0, transaction_verified=True
    )


def test_markers_end_transactions_and_aborted_ones_are_listed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    transactions(log)
    assert log.last_stable_offset == 6
    assert [log.stable_offset(mark) for mark in range(log.log_end_offset + 1)] == [0, 0, 0, 0, 0, 2, 6, 6, 6]
    aborted = log.aborted_transactions(0, upper_bound=6)
    assert [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in aborted] == [(9, 0, 4)]
    assert log.aborted_transactions(5, upper_bound=6) == []
    log.check()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment_bytes", [200, 1 << 20])
def test_transactions_are_known_after_a_restart(tmp_path: Path, clean: bool, segment_bytes: int) -> None:
    settings = LogSettings(segment_bytes=segment_bytes)
    log = open_log(tmp_path, settings=settings)
    transactions(log)
    aborted = log.aborted_transactions(0, upper_bound=99)
    log.close(clean)
    log = open_log(tmp_path, settings=settings, clean=clean, recovery_point=log.recovery_point)
    assert log.last_stable_offset == 6
    assert log.aborted_transactions(0, upper_bound=99) == aborted
    log.check()


# Epochs, truncation, following


def test_epochs_begin_where_the_leader_first_wrote(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch_of([b"a"] * 3), leader_epoch=1)
    log.append(batch_of([b"b"] * 3), leader_epoch=4)
    assert log.latest_epoch == 4
    assert log.epoch_end_offset(1) == (1, 3)
    assert log.epoch_end_offset(2) == (1, 3)
    assert log.epoch_end_offset(4) == (4, 6)
    assert (log.epoch_of(2), log.epoch_of(3)) == (1, 4)


def test_epochs_are_read_from_the_log_again_if_their_file_was_lost(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch_of([b"a"] * 3), leader_epoch=1)
    log.append(batch_of([b"b"] * 3), leader_epoch=4)
    crash(log)
    (tmp_path / "leader-epoch-checkpoint").unlink()
    log = open_log(tmp_path)
    assert log.epoch_end_offset(1) == (1, 3)
    assert log.latest_epoch == 4


def test_truncation_at_every_offset_leaves_what_is_before(tmp_path: Path) -> None:
    for offset in range(0, 62, 3):
        directory = tmp_path / str(offset)
        log = filled(directory, 30)
        before = read_all(log)
        log.truncate_to(offset)
        log.check()
        kept = read_all(log)
        assert kept == before[: len(kept)]
        assert len(kept) <= offset
        assert log.log_end_offset == len(kept) > offset - 3
        result = log.append(batch_of([b"new"]), leader_epoch=2)
        assert result.base_offset == len(kept)
        assert values(read_all(log))[-1] == b"new"
        log.check()
        crash(log)


def test_truncation_lowers_the_recovery_point_and_outlives_a_flush(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    running = log.flush_task()
    log.truncate_to(5)
    log.append(batch_of(), leader_epoch=1)
    running.run()
    assert log.recovery_point <= 5


def test_a_log_begun_anew_starts_where_it_is_told(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    log.start_anew_at(500)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    assert log.append(batch_of(), leader_epoch=1).base_offset == 500
    log.check()
    crash(log)
    assert open_log(tmp_path).log_end_offset == 501


def test_a_follower_takes_the_leaders_bytes_as_they_are(tmp_path: Path) -> None:
    leader = filled(tmp_path / "leader", 60)
    follower = open_log(tmp_path / "follower", settings=LogSettings(segment_bytes=9000))
    while follower.log_end_offset < leader.log_end_offset:
        piece = leader.read(follower.log_end_offset, max_bytes=1 << 20, upper_bound=leader.log_end_offset)
        data = leader.segment_path(piece.segment_base_offset).read_bytes()
        follower.append_as_follower(memoryview(data)[piece.position : piece.position + piece.length_bytes])
    assert read_all(follower) == read_all(leader)
    assert follower.epoch_end_offset(1) == leader.epoch_end_offset(1)
    follower.check()


def test_a_follower_takes_offsets_with_gaps_but_never_backwards(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_follower(batch_of([b"a"] * 2, base_offset=10, leader_epoch=3))
    log.append_as_follower(batch_of([b"b"], base_offset=20, leader_epoch=3))
    assert log.log_end_offset == 21
    with pytest.raises(InvalidRecords):
        log.append_as_follower(batch_of([b"c"], base_offset=20, leader_epoch=3))
    damaged = bytearray(batch_of([b"d"], base_offset=30))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch):
        log.append_as_follower(memoryview(damaged))
    with pytest.raises(CorruptBatch):
        log.append_as_follower(batch_of([b"d"], base_offset=30)[:-1])
    assert [record.offset for record in read_all(log)] == [10, 11, 20]
    log.check()
