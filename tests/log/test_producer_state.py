from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import CorruptFile, RejectedRequest
from appliance.log.producer_state import BATCHES_REMEMBERED, AppendOrigin, Producers, write_snapshot
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import SEQUENCE_MAX
from appliance.protocol.records.control import EndTransactionMarker

PID = 7


def add(
    producers: Producers, first: int, count: int = 5, *, epoch: int = 0, offset: int | None = None
) -> None:
    last = (first + count - 1) & SEQUENCE_MAX
    producers.add_batch(
        PID,
        epoch,
        last_sequence=last,
        last_offset=(first if offset is None else offset) + count - 1,
        offset_delta=count - 1,
        timestamp_ms=1000,
        transactional=False,
    )


def check(
    producers: Producers,
    first: int,
    *,
    epoch: int = 0,
    transactional: bool = False,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> None:
    producers.check_batch(PID, epoch, first_sequence=first, transactional=transactional, origin=origin)


def refused(
    producers: Producers, first: int, *, epoch: int = 0, origin: AppendOrigin = AppendOrigin.CLIENT
) -> int:
    with pytest.raises(RejectedRequest) as caught:
        check(producers, first, epoch=epoch, origin=origin)
    return caught.value.code


def test_an_unknown_producer_may_begin_anywhere() -> None:
    check(Producers(), 4711)


def test_the_next_sequence_is_taken_and_a_gap_is_not() -> None:
    producers = Producers()
    add(producers, 0)
    check(producers, 5)
    for first in (0, 3, 4, 6, 100):
        assert refused(producers, first) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_sequence_wraps_to_zero() -> None:
    producers = Producers()
    add(producers, SEQUENCE_MAX - 4, offset=0)
    check(producers, 0)
    assert refused(producers, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_across_the_wrap_is_known_again() -> None:
    producers = Producers()
    add(producers, SEQUENCE_MAX - 1, 4, offset=100)
    found = producers.duplicate_of(PID, 0, first_sequence=SEQUENCE_MAX - 1, last_sequence=1)
    assert found is not None
    assert found.first_offset == 100
    check(producers, 2)


def test_five_batches_are_remembered_and_the_sixth_is_forgotten() -> None:
    producers = Producers()
    for number in range(BATCHES_REMEMBERED + 1):
        add(producers, number * 5)
    for number in range(1, BATCHES_REMEMBERED + 1):
        found = producers.duplicate_of(PID, 0, first_sequence=number * 5, last_sequence=number * 5 + 4)
        assert found is not None
        assert (found.first_offset, found.last_offset) == (number * 5, number * 5 + 4)
    assert producers.duplicate_of(PID, 0, first_sequence=0, last_sequence=4) is None
    assert refused(producers, 0) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_only_the_same_range_is_a_duplicate() -> None:
    producers = Producers()
    add(producers, 0)
    assert producers.duplicate_of(PID, 0, first_sequence=0, last_sequence=3) is None
    assert producers.duplicate_of(PID, 1, first_sequence=0, last_sequence=4) is None


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    producers = Producers()
    add(producers, 0, epoch=3)
    assert refused(producers, 5, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(producers, 5, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    check(producers, 0, epoch=4)
    add(producers, 0, epoch=4, offset=10)
    assert producers.duplicate_of(PID, 3, first_sequence=0, last_sequence=4) is None
    check(producers, 5, epoch=4)


def test_a_coordinator_is_checked_for_its_epoch_only() -> None:
    producers = Producers()
    add(producers, 0, epoch=1)
    check(producers, -1, epoch=1, origin=AppendOrigin.COORDINATOR)
    assert (
        refused(producers, -1, epoch=0, origin=AppendOrigin.COORDINATOR) == ErrorCode.INVALID_PRODUCER_EPOCH
    )


def begin(producers: Producers, offset: int, *, producer_id: int = PID) -> None:
    producers.add_batch(
        producer_id,
        0,
        last_sequence=0,
        last_offset=offset,
        offset_delta=0,
        timestamp_ms=1000,
        transactional=True,
    )


def end(producers: Producers, offset: int, *, committed: bool, producer_id: int = PID) -> None:
    completed = producers.add_marker(
        producer_id, 0, marker=EndTransactionMarker(committed, 0), offset=offset, timestamp_ms=1000
    )
    assert completed is not None
    assert completed.marker_offset == offset


def test_an_open_transaction_holds_the_stable_offset_back() -> None:
    producers = Producers()
    assert producers.first_unstable_offset(0) is None
    begin(producers, 10)
    begin(producers, 20, producer_id=8)
    assert producers.first_unstable_offset(1000) == 10
    end(producers, 30, committed=True)
    assert producers.first_unstable_offset(30) == 10, "the marker is not below the high watermark yet"
    assert producers.first_unstable_offset(31) == 20
    end(producers, 40, committed=False, producer_id=8)
    assert producers.first_unstable_offset(41) is None
    assert producers.first_open_offset is None
    producers.check()


def test_an_aborted_transactions_entry_says_how_far_is_stable() -> None:
    producers = Producers()
    begin(producers, 10)
    begin(producers, 20, producer_id=8)
    completed = producers.add_marker(8, 0, marker=EndTransactionMarker(False, 0), offset=30, timestamp_ms=0)
    assert completed is not None
    assert tuple(producers.aborted(completed)) == (8, 20, 30, 10)


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    producers = Producers()
    begin(producers, 10)
    with pytest.raises(RejectedRequest) as caught:
        check(producers, 1)
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE
    check(producers, 1, transactional=True)


def test_a_marker_of_an_older_coordinator_is_fenced() -> None:
    producers = Producers()
    producers.add_marker(PID, 0, marker=EndTransactionMarker(True, 5), offset=0, timestamp_ms=0)
    producers.check_marker(PID, 0, marker=EndTransactionMarker(True, 5))
    with pytest.raises(RejectedRequest) as caught:
        producers.check_marker(PID, 0, marker=EndTransactionMarker(True, 4))
    assert caught.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_marker_raises_the_epoch() -> None:
    producers = Producers()
    add(producers, 0, epoch=1)
    producers.add_marker(PID, 2, marker=EndTransactionMarker(True, 0), offset=9, timestamp_ms=0)
    assert refused(producers, 5, epoch=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    check(producers, 0, epoch=3)


def test_silent_producers_expire_unless_a_transaction_is_open() -> None:
    producers = Producers()
    add(producers, 0)
    begin(producers, 10, producer_id=8)
    producers.expire(1999, expiration_ms=1000)
    assert len(producers) == 2
    producers.expire(2000, expiration_ms=1000)
    assert [entry.producer_id for entry in producers.entries()] == [8]


def test_a_snapshot_has_kafkas_bytes(tmp_path: Path) -> None:
    producers = Producers()
    add(producers, 0, epoch=1, offset=100)
    content = producers.encode_snapshot()
    assert len(content) == 10 + 46
    assert content[:2] == b"\0\1"
    assert content[6:10] == b"\0\0\0\1"
    expected = (
        "0000000000000007 0001 00000004 0000000000000068 00000004 00000000000003e8 ffffffff ffffffffffffffff"
    )
    assert content[10:].hex() == expected.replace(" ", "")


def test_a_snapshot_brings_back_sequence_epoch_and_transaction(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.snapshot"
    producers = Producers()
    add(producers, 0, epoch=2)
    begin(producers, 10, producer_id=8)
    write_snapshot(path, producers)
    again = Producers.decode_snapshot(path.read_bytes(), path)
    again.check()
    assert again.duplicate_of(PID, 2, first_sequence=0, last_sequence=4) is not None
    check(again, 5, epoch=2)
    assert again.in_transaction(8, 0)
    assert again.first_unstable_offset(1000) == 10
    assert again.encode_snapshot() == path.read_bytes()


def test_a_damaged_snapshot_is_refused_wherever_it_is_damaged() -> None:
    producers = Producers()
    add(producers, 0)
    content = producers.encode_snapshot()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(CorruptFile):
            Producers.decode_snapshot(bytes(damaged), "snapshot")
    for length in range(len(content)):
        with pytest.raises(CorruptFile):
            Producers.decode_snapshot(content[:length], "snapshot")


def test_producers_are_told_by_ascending_id_whoever_comes_and_goes_meanwhile() -> None:
    producers = Producers()
    assert producers.at_or_after(0) is None

    def add(producer_id: int, timestamp_ms: int) -> None:
        producers.add_batch(
            producer_id,
            0,
            last_sequence=0,
            last_offset=producer_id,
            offset_delta=0,
            timestamp_ms=timestamp_ms,
            transactional=False,
        )

    def told() -> list[int]:
        found, at = list[int](), 0
        while (entry := producers.at_or_after(at)) is not None:
            found.append(entry.producer_id)
            at = entry.producer_id + 1
        return found

    for producer_id in (7, 3, 5):
        add(producer_id, timestamp_ms=producer_id)
    assert told() == [3, 5, 7]
    producers.check()
    add(6, timestamp_ms=20)
    producers.check()
    assert told() == [3, 5, 6, 7]
    producers.expire(now_ms=13, expiration_ms=10)
    producers.check()
    add(4, timestamp_ms=20)
    assert told() == [4, 5, 6, 7]
    producers.check()
