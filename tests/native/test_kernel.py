"""Records to bytes and back, and the hash that decides where keys go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.record import decode_records as decode_of_broker
from appliance.protocol.records.record import frame_batch
from appliance_client.kernel import Unsent, decode_records, encode_records, murmur2, partition_of_key
from appliance_client.wire import batch_header

CONTENT = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=10), CONTENT), max_size=3).map(tuple)
RECORDS = st.lists(st.tuples(CONTENT, CONTENT, HEADERS, st.integers(0, 2**62)), min_size=1, max_size=80)


@given(RECORDS)
def test_the_broker_reads_what_the_client_wrote_and_the_client_reads_it_back(
    records: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]],
) -> None:
    unsent = Unsent()
    for index, (key, value, headers, time_ms) in enumerate(records):
        unsent.keys.append(key)
        unsent.values.append(value)
        unsent.times_ms.append(time_ms)
        if headers:
            unsent.headers[index] = headers
    payload = encode_records(unsent)
    base_ms = records[0][3]
    batch = frame_batch(payload, count=len(records), base_timestamp_ms=base_ms, max_timestamp_ms=base_ms)
    by_broker = decode_of_broker(batch)
    assert [(r.key, r.value, r.headers, r.timestamp_ms) for r in by_broker] == records
    read = decode_records(payload, len(records), "t", 3, 0, base_ms, -1, 0, 5)
    assert [(r.key, r.value, r.headers, r.timestamp) for r in read] == records
    assert [r.offset for r in read] == list(range(len(records)))


@given(RECORDS, st.data())
def test_damaged_records_are_refused_and_never_read_past_their_end(
    records: list[object], data: st.DataObject
) -> None:
    unsent = Unsent()
    unsent.keys, unsent.values, unsent.times_ms = [b"k"] * 3, [b"value"] * 3, [1, 2, 3]
    payload = bytearray(encode_records(unsent))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        read = decode_records(bytes(payload), 3, "t", 0, 0, 0, -1, 0, 0)
    except (InvalidRecords, UnicodeDecodeError):
        return
    assert len(read) <= 3


@given(
    st.binary(max_size=3_000),
    st.integers(1, (1 << 31) - 1),
    st.integers(-1, 1 << 62),
    st.integers(-1, 1 << 30),
)
def test_a_header_beside_its_records_is_that_of_the_broker_s_batch(
    payload: bytes, count: int, time_ms: int, sequence: int
) -> None:
    header = batch_header(
        payload,
        count=count,
        attributes=0x13,
        first_ms=time_ms,
        max_ms=time_ms + 5,
        producer_id=time_ms,
        producer_epoch=7,
        sequence=sequence,
    )
    batch = frame_batch(
        payload,
        count=count,
        attributes=0x13,
        base_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms + 5,
        producer_id=time_ms,
        producer_epoch=7,
        base_sequence=sequence,
    )
    assert bytes(header) + payload == batch


def test_records_before_the_position_are_stepped_over() -> None:
    unsent = Unsent()
    unsent.keys, unsent.values, unsent.times_ms = [None] * 5, [b"%d" % n for n in range(5)], [9] * 5
    read = decode_records(encode_records(unsent), 5, "t", 0, 100, 9, -1, 103, 0)
    assert [(each.offset, each.value) for each in read] == [(103, b"3"), (104, b"4")]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafka(key: bytes, expected: int) -> None:
    """The examples are those of Kafka's `UtilsTest.testMurmur2`."""
    assert murmur2(key) == expected & 0xFFFF_FFFF


@given(st.binary(max_size=100), st.integers(1, 1000))
def test_a_key_goes_where_kafka_python_sends_it(key: bytes, partitions: int) -> None:
    theirs = (murmur2_of_kafka_python(key) & 0x7FFF_FFFF) % partitions
    assert partition_of_key(key, partitions) == theirs
