from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.delivery.due import AT, CANCEL, DELAY, ID
from appliance.delivery.stored import batch_of, read_stored
from appliance.delivery.waiting import HEADER, OFFSET, TIMESTAMP, NotWaiting, Origin, Waiting, waiting_of
from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.record import Record, decode_records, encode_batch, frame_batch

NOW_MS = 1_800_000_000_000

names = st.sampled_from(
    [AT, DELAY, ID, CANCEL, TIMESTAMP, OFFSET, HEADER, "h", "nine-char", "é" * 5, "x" * 300]
)
values = st.one_of(st.none(), st.binary(max_size=200), st.integers(0, 10**9).map(lambda each: b"%d" % each))
records = st.builds(
    Record,
    value=st.one_of(st.none(), st.binary(max_size=300)),
    key=st.one_of(st.none(), st.binary(max_size=70)),
    headers=st.lists(st.tuples(names, values), max_size=6).map(tuple),
    timestamp_ms=st.integers(0, 2**45),
)
waits = st.builds(
    Waiting,
    topic_id=st.uuids(),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**62),
    due_ms=st.integers(0, 2**60),
    origin=st.builds(Origin, st.integers(-1, 2**62), st.integers(-2, 32_767), st.integers(-1, 2**31 - 1)),
    record=records,
)


@given(st.lists(waits, min_size=1, max_size=5), st.integers(0, 2**60))
def test_it_says_what_the_slow_way_says(waiting: list[Waiting], base_offset: int) -> None:
    batch = encode_batch([each.to_record(NOW_MS) for each in waiting], base_offset=base_offset)
    found, unread = read_stored(memoryview(batch))
    expected = [waiting_of(record) for record in decode_records(batch)]
    assert unread == 0
    assert [each.waiting() for each in found] == expected
    for number, (stored, slow) in enumerate(zip(found, expected, strict=True)):
        assert (stored.at, stored.stored_ms) == (base_offset + number, NOW_MS)
        assert (stored.topic_id, stored.partition, stored.offset) == (
            slow.topic_id,
            slow.partition,
            slow.offset,
        )
        assert (stored.due_ms, stored.origin, stored.delay_ms) == (slow.due_ms, slow.origin, slow.delay_ms)
        assert (stored.delivery_id, stored.cancels) == (slow.delivery_id, slow.cancels)


@given(st.lists(waits, min_size=1, max_size=5))
def test_what_is_made_of_tails_is_what_is_made_of_records(waiting: list[Waiting]) -> None:
    found, _ = read_stored(memoryview(encode_batch([each.to_record(NOW_MS) for each in waiting])))
    slow = [each.waiting() for each in found]
    numbers: Any = {"leader_epoch": 3, "producer_id": 9, "producer_epoch": 0, "base_sequence": 70}
    later_ms = NOW_MS + 77
    assert batch_of([each.to_deliver() for each in found], now_ms=later_ms, **numbers) == encode_batch(
        [each.to_deliver(later_ms) for each in slow], **numbers
    )
    moved = [each._replace(due_ms=later_ms, origin=Origin()).to_record(later_ms) for each in slow]
    assert batch_of([each.to_wait(later_ms) for each in found], now_ms=later_ms, **numbers) == encode_batch(
        moved, **numbers
    )


@pytest.mark.parametrize("count", [63, 64, 8_191, 8_192, 8_193])
def test_records_of_long_batches_are_numbered(count: int) -> None:
    record = Waiting(UUID(int=1), 0, 5, NOW_MS, Origin(), Record(b"v")).to_record(NOW_MS)
    [stored], _ = read_stored(memoryview(encode_batch([record])))
    batch = batch_of(
        [stored.to_deliver()] * count,
        now_ms=NOW_MS,
        leader_epoch=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
    assert [each.offset for each in decode_records(batch)] == list(range(count))


@pytest.mark.parametrize(
    "value", [None, b"", b"1", b"2,,,,,,,,", b"1,x,0,0,0,0,0,0,0", b"1," + b"0" * 32 + b",x" * 7]
)
def test_what_is_no_delayed_record_is_counted(value: bytes | None) -> None:
    good = Waiting(UUID(int=1), 0, 5, NOW_MS, Origin(), Record(b"v")).to_record(NOW_MS)
    batch = encode_batch([Record(b"v", headers=((HEADER, value),)), good, Record(b"v")])
    found, unread = read_stored(memoryview(batch))
    assert ([each.at for each in found], unread) == ([1], 2)


PLAIN = b"1," + b"0" * 32 + b",3,5,70,9,1,0,4"


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize(
    "text",
    [b"0", b"-1", b"-0", b"007", b" 5", b"+5", b"1_0", b"", b"-", b"5-", b"x", b"\xb2", b"9" * 18, b"9" * 25],
)
def test_fields_are_read_like_those_of_one_record(place: int, text: bytes) -> None:
    fields = PLAIN.split(b",")
    fields[place] = text
    values = [PLAIN, b",".join(fields), PLAIN, PLAIN + b",1", PLAIN[:-2], PLAIN[:40], PLAIN]
    # Each value comes behind every other one, because the bytes of the one before are remembered.
    records = [Record(b"v", headers=((HEADER, each),)) for first in values for each in (first, *values)]
    expected = []
    for record in decode_records(encode_batch(records)):
        with suppress(NotWaiting):
            expected.append((record.offset, waiting_of(record)))
    found, unread = read_stored(memoryview(encode_batch(records)))
    assert [(each.at, each.waiting()) for each in found] == expected
    assert [
        (each.topic_id, each.partition, each.offset, each.due_ms, each.timestamp_ms) for each in found
    ] == [
        (slow.topic_id, slow.partition, slow.offset, slow.due_ms, slow.record.timestamp_ms)
        for _, slow in expected
    ]
    assert [each.origin for each in found] == [slow.origin for _, slow in expected]
    assert unread == len(records) - len(expected)


@pytest.mark.parametrize(
    "payload", [b"\x08", b"\x02\0", b"\xff\xff\xff", b"\x0e\0\0\0\x01\x01\x02\0", b"\x0c\0\0\0\x01\x01\0\0"]
)
def test_bytes_that_do_not_add_up_are_an_error(payload: bytes) -> None:
    with pytest.raises(InvalidRecords):
        read_stored(memoryview(frame_batch(payload, count=1)))
