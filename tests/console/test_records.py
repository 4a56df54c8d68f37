"""Fetch and Produce of the console beside the broker's own codecs of the other side, and the records of an answer."""

from __future__ import annotations

import tracemalloc

import pytest
from kafka.partitioner.default import murmur2 as kafka_pythons_murmur2

from appliance.console.conditions import Conditions
from appliance.console.pages.groups import _changes, assigned_partitions
from appliance.console.partitioning import murmur2, partition_of
from appliance.console.records import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    Fetched,
    ReadRecord,
    fetch_request,
    fetched,
    next_offset,
    produce_request,
    produced,
    read_records,
)
from appliance.console.visit import BadInput
from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.fetch_request import parse_fetch
from appliance.protocol.headers import parse_request_header
from appliance.protocol.produce import ProduceResult, encode_produce_response, parse_produce
from appliance.protocol.records.batch import TRANSACTIONAL, place
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.record import Record, encode_batch, encode_record, frame_batch


def test_the_broker_reads_the_fetch_that_was_meant() -> None:
    frame = memoryview(fetch_request("täst", 3, 42, bytes_max=1000, wait_ms=5))
    header = parse_request_header(frame, 4, len(frame))
    assert (header.api_key, header.version) == (ApiKey.FETCH, FETCH_VERSION)
    request = parse_fetch(frame, header.body_position, len(frame), FETCH_VERSION)
    (partition,) = request.partitions
    assert (partition.topic, partition.partition, partition.fetch_offset) == ("täst", 3, 42)
    assert partition.max_bytes == request.max_bytes == 1000
    assert (request.max_wait_ms, request.min_bytes, request.isolation_level) == (5, 1, 1)


def test_the_broker_reads_the_produce_that_was_meant() -> None:
    batch = encode_batch([Record(b"v", b"k")])
    frame = memoryview(produce_request("topic", 2, batch, timeout_ms=100))
    header = parse_request_header(frame, 4, len(frame))
    assert (header.api_key, header.version) == (ApiKey.PRODUCE, PRODUCE_VERSION)
    request = parse_produce(frame, header.body_position, len(frame), PRODUCE_VERSION)
    (partition,) = request.partitions
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, 100)
    assert (partition.topic, partition.partition) == ("topic", 2)
    at = partition.records_position
    assert bytes(frame[at : at + partition.records_length]) == batch


def test_the_answer_to_a_produce_is_read() -> None:
    answer = encode_produce_response(PRODUCE_VERSION, 1, [ProduceResult("topic", 2, 0, base_offset=77)])
    assert produced(bytes(answer)) == (0, 77)
    with pytest.raises(MalformedFrame):
        produced(bytes(answer)[:20])
    with pytest.raises(MalformedFrame):
        fetched(bytes(answer)[:20])


def batch(
    base: int, count: int, *, producer: int = -1, codec: Codec = Codec.NONE, attributes: int = 0
) -> bytes:
    return encode_batch(
        [Record(b"%d" % (base + each)) for each in range(count)],
        base_offset=base,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        codec=codec,
        attributes=attributes,
    )


def marker(base: int, *, producer: int) -> bytes:
    """The end of an aborted transaction."""
    ending = EndTransactionMarker(committed=False, coordinator_epoch=0)
    found = bytearray(encode_marker_batch(ending, producer_id=producer, producer_epoch=0, timestamp_ms=1))
    place(found, base, leader_epoch=0)
    return bytes(found)


def offsets_of(answer: Fetched, from_offset: int, unreadable: list[int] | None = None) -> list[int]:
    return [each.offset for each in read_records(answer, 0, from_offset=from_offset, unreadable=unreadable)]


def test_records_before_the_offset_and_of_aborted_transactions_are_left_out() -> None:
    records = (
        batch(0, 3)
        + batch(3, 2, producer=7, attributes=TRANSACTIONAL)
        + batch(5, 2, producer=8, attributes=TRANSACTIONAL, codec=Codec.ZSTD)
        + marker(7, producer=7)
        + batch(8, 1, producer=7, attributes=TRANSACTIONAL)
    )
    answer = Fetched(0, 9, 9, ((7, 3),), records)
    assert offsets_of(answer, 1) == [1, 2, 5, 6, 8]
    assert next_offset(answer, from_offset=1) == 9


def test_a_batch_that_cannot_be_decoded_is_named_and_the_rest_is_read() -> None:
    damaged = bytearray(batch(2, 4, codec=Codec.GZIP))
    damaged[-4:] = b"\xff\xff\xff\xff"
    damaged[70:80] = bytes(10)
    unreadable: list[int] = []
    answer = Fetched(0, 8, 8, (), batch(0, 2) + bytes(damaged) + batch(6, 2))
    assert offsets_of(answer, 0, unreadable) == [0, 1, 6, 7]
    assert unreadable == [2]


def test_a_bomb_is_not_unpacked() -> None:
    bomb = encode_batch([Record(bytes(64 << 20))], codec=Codec.ZSTD)
    assert len(bomb) < 100_000
    unreadable: list[int] = []
    assert offsets_of(Fetched(0, 1, 1, (), bomb), 0, unreadable) == []
    assert unreadable == [0]


@pytest.mark.parametrize("length", range(12))
def test_keys_go_where_kafkas_producers_send_them(length: int) -> None:
    key = bytes(range(200, 200 + length))
    assert murmur2(key) == kafka_pythons_murmur2(key) & 0xFFFFFFFF
    assert partition_of(key, 12) == (kafka_pythons_murmur2(key) & 0x7FFFFFFF) % 12


def test_records_without_a_key_go_anywhere() -> None:
    assert {partition_of(None, 3) for _ in range(200)} == {0, 1, 2}


def record(**fields: object) -> ReadRecord:
    return ReadRecord(0, 0, Record(**{"value": None, **fields}), 1, 0, False)  # type: ignore[arg-type]


def test_conditions_compare_and_run_nothing() -> None:
    assert Conditions().hold(record())
    assert not Conditions().is_set
    assert Conditions(key="k").hold(record(key=b"k"))
    assert not Conditions(key="k").hold(record(key=b"kk"))
    assert not Conditions(key="k").hold(record(key=None))
    assert Conditions(contains="ö").hold(record(value="schön".encode()))
    assert not Conditions(contains="x").hold(record(value=None))
    headed = record(headers=(("a", b"1"), ("b", None)))
    assert Conditions(header="a").hold(headed)
    assert Conditions(header="a=1").hold(headed)
    assert Conditions(header="b=").hold(headed)
    assert not Conditions(header="a=2").hold(headed)
    assert not Conditions(key="k", header="a").hold(headed)


def test_assignments_of_clients_are_read_and_rubbish_is_not() -> None:
    data = b"\0\1\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\5\0\0\0\0"
    assert assigned_partitions(data) == ["t-0", "t-5"]
    assert assigned_partitions(b"") == []
    assert assigned_partitions(data[:-9]) == []
    assert assigned_partitions(b"\0\1\x7f\xff\xff\xff\xff\xff") == []


@pytest.mark.parametrize("line", ["t 1", "t 1 ²", "t 1 99999999999999999999", "t 9999999999 1", "t -1 1", ""])
def test_a_plan_that_nobody_made_is_bad_input(line: str) -> None:
    assert _changes("t 1 2\n") == [("t", 1, 2)]
    with pytest.raises(BadInput):
        _changes(line)


def test_records_of_a_large_batch_are_decoded_one_by_one() -> None:
    count = 200_000
    answer = Fetched(0, count, count, (), batch(0, count, codec=Codec.ZSTD))
    tracemalloc.start()
    try:
        found = read_records(answer, 0, from_offset=count - 3)
        assert [each.offset for each in found] == [count - 3, count - 2, count - 1]
        assert next(read_records(answer, 0, from_offset=5)).offset == 5
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # All of them together take 40 MB; their bytes take 3 MB.
    assert peak_bytes < 16 << 20


def test_records_before_a_defect_are_shown_and_the_batch_is_named() -> None:
    payload = b"".join(encode_record(Record(b"v"), offset_delta=n, timestamp_delta_ms=0) for n in range(3))
    unreadable: list[int] = []
    answer = Fetched(0, 9, 9, (), frame_batch(payload, count=9, base_offset=0) + batch(9, 1))
    assert offsets_of(answer, 0, unreadable) == [0, 1, 2, 9]
    assert unreadable == [0]


def test_records_with_gaps_are_found_by_their_offsets() -> None:
    deltas = (0, 4, 7, 9)
    payload = b"".join(
        encode_record(Record(b"v" * 100), offset_delta=each, timestamp_delta_ms=0) for each in deltas
    )
    content = frame_batch(payload, count=4, base_offset=100, last_offset_delta=9)
    answer = Fetched(0, 110, 110, (), content)
    assert offsets_of(answer, 0) == [100, 104, 107, 109]
    assert offsets_of(answer, 105) == [107, 109]
    assert offsets_of(answer, 109) == [109]


def test_a_batch_that_ends_too_early_is_named_when_a_page_begins_in_its_middle() -> None:
    unreadable: list[int] = []
    short = frame_batch(encode_record(Record(b"v"), offset_delta=0, timestamp_delta_ms=0), count=50)
    assert offsets_of(Fetched(0, 50, 50, (), short), 40, unreadable) == []
    assert unreadable == [0]
