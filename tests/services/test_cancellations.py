from __future__ import annotations

import random
from dataclasses import replace
from uuid import UUID

import pytest

from appliance.clock import NS_PER_MS
from appliance.delivery.due import CANCEL, ID
from appliance.delivery.waiting import Origin, Waiting
from appliance.protocol.records.record import Record
from appliance.services.cancellations import BYTES_MAX, GROUP_MS, KEPT_MS, Cancellations

TOPIC_ID = UUID(int=5)
KEPT_NS = KEPT_MS * NS_PER_MS


def waiting(name: bytes, *, offset: int = 0, partition: int = 0) -> Waiting:
    record = Record(b"v", headers=((ID, name),))
    return Waiting(TOPIC_ID, partition, offset, 0, Origin(), record)


def cancel(name: bytes, *, at: int, offset: int = 100, partition: int = 0) -> Record:
    """Return a record of the log of cancellations, at offset `at`."""
    record = Record(None, headers=((CANCEL, name),))
    stored = Waiting(TOPIC_ID, partition, offset, 0, Origin(), record).to_record(0)
    return replace(stored, offset=at)


@pytest.fixture
def cancelled() -> Cancellations:
    made = Cancellations(0)
    made.take([cancel(b"a", at=0), cancel(b"b", at=1, partition=1)], next_offset=2, now_ns=0)
    return made


def test_earlier_records_of_the_same_partition_with_this_id_are_cancelled(cancelled: Cancellations) -> None:
    assert cancelled.has(waiting(b"a", offset=99))
    assert not cancelled.has(waiting(b"a", offset=101)), "it came later"
    assert not cancelled.has(waiting(b"b", offset=99)), "another partition"
    assert not cancelled.has(waiting(b"a")._replace(record=Record(b"v"))), "no id"
    assert not cancelled.has(waiting(b"a")._replace(topic_id=UUID(int=6)))


def test_a_cancellation_is_forgotten_when_everything_before_it_was_delivered(
    cancelled: Cancellations,
) -> None:
    assert not cancelled.wants_close(GROUP_MS * NS_PER_MS - 1)
    assert cancelled.wants_close(GROUP_MS * NS_PER_MS)
    cancelled.close({"5s": 10, "2h": 30})
    cancelled.expire({"5s": 20, "2h": 29}, KEPT_NS)
    cancelled.expire({"5s": 20, "2h": 30}, KEPT_NS - 1)
    assert (len(cancelled), cancelled.position) == (2, 0)
    cancelled.expire({"5s": 20, "2h": 30}, KEPT_NS)
    assert (len(cancelled), cancelled.position, cancelled.size_bytes) == (0, 2, 0)


def test_an_id_that_is_cancelled_once_more_is_kept_for_longer(cancelled: Cancellations) -> None:
    cancelled.close({})
    cancelled.take([cancel(b"a", at=2, offset=200)], next_offset=3, now_ns=KEPT_NS)
    cancelled.expire({}, KEPT_NS)
    assert (len(cancelled), cancelled.position) == (1, 2)
    assert cancelled.has(waiting(b"a", offset=199))
    cancelled.take([cancel(b"a", at=3, offset=150)], next_offset=4, now_ns=KEPT_NS)
    assert cancelled.has(waiting(b"a", offset=199)), "what was sent again changes nothing"


def test_records_of_another_kind_are_counted_and_change_nothing() -> None:
    made = Cancellations(0)
    bare = replace(cancel(b"a", at=1), headers=())
    made.take([Record(b"x", offset=0), bare], next_offset=2, now_ns=0)
    assert (made.unread, len(made), made.position) == (2, 0, 2)


def test_memory_is_bounded() -> None:
    made = Cancellations(0)
    at = 0
    while made.has_room:
        made.take([cancel(b"%0200d" % at, at=at)], next_offset=at + 1, now_ns=0)
        at += 1
    assert made.size_bytes < BYTES_MAX + 1_000
    assert at > 20_000


def test_it_agrees_with_a_list_of_everything() -> None:
    dice = random.Random(7)
    made, every = Cancellations(0), dict[bytes, int]()
    found = expired = 0
    for step in range(2_000):
        name, offset, now_ns = b"%d" % dice.randrange(30), dice.randrange(1_000), step * 1_000 * NS_PER_MS
        match dice.randrange(4):
            case 0:
                made.take([cancel(name, at=step, offset=offset)], next_offset=step + 1, now_ns=now_ns)
                every[name] = max(every.get(name, -1), offset)
            case 1 if made.wants_close(now_ns):
                made.close({"5s": step})
            case 2:
                before = len(made)
                made.expire({"5s": step - 100}, now_ns)
                expired += before - len(made)
            case _:
                if made.has(waiting(name, offset=offset)):
                    found += 1
                    assert offset < every[name]
        made.check()
    assert found > 50
    assert expired > 50
