"""A batch that cannot be decoded behind records that can: none of those is lost, and the error comes next."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.record import Record, encode_record, frame_batch
from appliance_client import Consumer
from appliance_client.core import Core
from appliance_client.errors import CorruptRecordsError, OffsetOutOfRangeError, RecordDeserializationError
from appliance_client.fetching import Fetching
from appliance_client.options import ConsumerOptions, options_of
from appliance_client.reading import Chunk, Reading
from appliance_client.values import TopicPartition
from appliance_client.wire import FetchAnswer
from tests.native.test_arrow_units import batch_of

PLACE = TopicPartition("t", 3)


def fetched(data: bytes, **options: Any) -> tuple[Fetching, Reading]:
    chosen = options_of(ConsumerOptions, None, {"bootstrap_servers": "localhost:1", **options})
    fetching = Fetching(chosen, Core(chosen, now_s=0.0, auto_create=False), None)
    fetching.assign([PLACE])
    reading = fetching.readings[PLACE]
    reading.seek(0)
    reading.chunks.append(Chunk(memoryview(data), len(data), ()))
    return fetching, reading


def keyed(*records: tuple[bytes | None, bytes | None]) -> bytes:
    """A batch of records with these values and keys."""
    encoded = [
        encode_record(Record(value, key), offset_delta=number, timestamp_delta_ms=0)
        for number, (value, key) in enumerate(records)
    ]
    return frame_batch(
        b"".join(encoded), count=len(records), base_offset=0, base_timestamp_ms=1000, max_timestamp_ms=1000
    )


def values(fetching: Fetching, most: int) -> list[Any]:
    return [record.value for record in fetching.take(most).get(PLACE, [])]


@pytest.mark.parametrize("most", [1, 2, 3, 500])
def test_records_before_a_corrupt_batch_are_handed_out_before_the_error(most: int) -> None:
    bad = bytearray(batch_of(3, b"d", b"e"))
    bad[b.RECORDS + 3] ^= 0x40
    fetching, reading = fetched(batch_of(0, b"a", b"b") + batch_of(2, b"c") + bytes(bad) + batch_of(5, b"f"))
    found: list[Any] = []
    while len(found) < 3:
        given = values(fetching, most)
        assert 0 < len(given) <= most
        found += given
        assert reading.position == len(found)
    assert found == [b"a", b"b", b"c"]
    for _ in range(2):
        with pytest.raises(CorruptRecordsError, match="t-3@3: checksum fails") as raised:
            values(fetching, most)
        assert raised.value.partition == PLACE
        assert reading.position == 3


@pytest.mark.parametrize("most", [1, 2, 500])
def test_records_before_one_that_the_applications_deserializer_refuses_are_handed_out(most: int) -> None:
    """Also those of its own batch, and a seek steps over it."""
    data = batch_of(0, b"1", b"2") + batch_of(2, b"3", b"four", b"5") + batch_of(5, b"6")
    fetching, reading = fetched(data, value_deserializer=int)
    found: list[Any] = []
    while len(found) < 3:
        given = values(fetching, most)
        assert 0 < len(given) <= most
        found += given
        assert reading.position == len(found)
    assert found == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(
            RecordDeserializationError, match="t-3@3: the value_deserializer raised"
        ) as raised:
            values(fetching, most)
        assert reading.position == 3
    error = raised.value
    assert (error.partition, error.offset, error.origin) == (PLACE, 3, "value")
    assert error.record.value == b"four", "the application may look at it, or keep it elsewhere"
    assert isinstance(error.__cause__, ValueError)
    reading.seek(error.offset + 1)
    reading.chunks.append(Chunk(memoryview(data), len(data), ()))
    while len(found) < 5:
        found += values(fetching, most)
    assert found == [1, 2, 3, 5, 6]


def test_a_record_that_is_refused_can_be_kept_as_a_dead_letter() -> None:
    data = batch_of(0, b"one")
    with Consumer(
        bootstrap_servers="localhost:1", group_id="g", retry_topics=True, value_deserializer=int
    ) as consumer:
        consumer.assign([PLACE])
        reading = consumer._consumer.fetching.readings[PLACE]
        reading.seek(0)
        reading.chunks.append(Chunk(memoryview(data), len(data), ()))
        with pytest.raises(RecordDeserializationError) as raised:
            consumer.poll(100)
        assert raised.value.record.source is consumer._handing_back


def test_a_key_that_is_refused_behind_a_value_that_is_comes_second() -> None:
    def no_key(_key: bytes) -> object:
        raise LookupError("no such schema")

    data = keyed((b"1", None), (b"two", None), (b"3", b"k"), (b"4", None))
    fetching, reading = fetched(data, value_deserializer=int, key_deserializer=no_key)
    assert values(fetching, 500) == [1]
    with pytest.raises(RecordDeserializationError, match="@1: the value_deserializer"):
        values(fetching, 500)
    reading.seek(2)
    reading.chunks.append(Chunk(memoryview(data), len(data), ()))
    with pytest.raises(
        RecordDeserializationError, match="@2: the key_deserializer raised LookupError"
    ) as raised:
        values(fetching, 500)
    assert raised.value.record.key == b"k"
    assert raised.value.record.value == b"3"


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_a_refused_offset_is_not_asked_for_all_the_time_while_records_before_it_wait(reset: str) -> None:
    """DeleteRecords has passed what is fetched next; the application has not taken what was fetched before."""
    fetching, reading = fetched(batch_of(0, b"a", b"b"), auto_offset_reset=reset)
    reading.fetch_offset = 2
    refused = FetchAnswer(
        PLACE.topic,
        PLACE.partition,
        int(ErrorCode.OFFSET_OUT_OF_RANGE),
        -1,
        -1,
        -1,
        None,
        memoryview(b""),
        None,
    )
    fetching._told(reading, 0, refused)
    assert reading.retry_at_s > 0.0
    assert values(fetching, 500) == [b"a", b"b"], "no error hides them"
    fetching._told(reading, 0, refused)
    if reset == "none":
        with pytest.raises(OffsetOutOfRangeError):
            values(fetching, 500)
    else:
        assert fetching.readings[PLACE].fetch_offset is None
        assert fetching.readings[PLACE].wants == "earliest"


def test_an_error_of_one_partition_loses_no_records_of_another() -> None:
    fetching, _ = fetched(batch_of(0, b"1", b"2"), value_deserializer=int)
    other = TopicPartition("t", 4)
    fetching.assign([PLACE, other])
    bad = batch_of(0, b"three")
    fetching.readings[other].seek(0)
    fetching.readings[other].chunks.append(Chunk(memoryview(bad), len(bad), ()))
    found: list[Any] = []
    for _ in range(4):
        try:
            found += values(fetching, 500)
        except RecordDeserializationError:
            continue
    assert found == [1, 2]
