from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from appliance.delivery.waiting import HEADER, NotWaiting, Origin, Waiting, delay_partition, waiting_of
from appliance.protocol.records.record import Record, decode_records, encode_batch

TOPIC = UUID(int=7)
SENT = Record(b"v", b"k", (("a", None), ("delivery.delay", b"500"), ("\udcff", b"")), 123)
WAITING = Waiting(TOPIC, 3, 42, 1_000, Origin(9, 0, 17), SENT)


def test_a_waiting_record_is_read_back_as_it_was() -> None:
    (read,) = decode_records(encode_batch([WAITING.to_record(500)]))
    assert read.timestamp_ms == 500
    assert waiting_of(read) == WAITING


def test_no_more_is_left_of_a_delay_than_all_of_it() -> None:
    """The clock was set back by an hour after the due time was computed, and before the record was stored."""
    ahead = WAITING._replace(due_ms=3_600_000 + 1_000)
    assert waiting_of(ahead.to_record(520)).due_ms == 1_020
    at = replace(SENT, headers=(("delivery.at", b"3601000"), ("delivery.delay", b"500")))
    assert waiting_of(ahead._replace(record=at).to_record(520)) == ahead._replace(record=at)


def test_what_is_delivered_has_no_header_of_ours_but_where_it_comes_from() -> None:
    assert WAITING.to_deliver(1_001) == Record(
        b"v",
        b"k",
        (("a", None), ("\udcff", b""), ("delivery.timestamp", b"123"), ("delivery.offset", b"42")),
        1_001,
    )


def test_a_client_cannot_say_where_its_record_goes() -> None:
    forged = Waiting(UUID(int=1), 0, 0, 0, Origin(), Record(b"")).to_record(0).headers
    mine = WAITING._replace(record=Record(b"v", headers=forged))
    assert waiting_of(mine.to_record(5)).topic_id == TOPIC
    assert all(name != HEADER for name, _ in mine.to_deliver(5).headers)


@pytest.mark.parametrize("value", [None, b"", b"1,2", b"2" + b",1" * 8, b"1," + b"x," * 8, b"\xff"])
def test_what_is_no_waiting_record_is_named(value: bytes | None) -> None:
    with pytest.raises(NotWaiting, match=HEADER):
        waiting_of(Record(b"v", headers=((HEADER, value),)))
    with pytest.raises(NotWaiting, match=HEADER):
        waiting_of(Record(b"v"))


def test_partitions_go_round() -> None:
    assert [delay_partition(TOPIC, number, 4) for number in range(5)] == [3, 0, 1, 2, 3]
