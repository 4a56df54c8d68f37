from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from appliance.delivery.waiting import Origin, Waiting
from appliance.protocol.records.record import Record
from appliance.services.lane import BUFFER_BYTES, REMEMBERED_MS, Lane
from tests.services.stored_records import as_stored

NOW_MS = 10_000_000_000
DELAY_MS = 5_000


def stored(offset: int, *, at_ms: int = NOW_MS, sequence: int = -1, value: bytes = b"v") -> Record:
    waiting = Waiting(UUID(int=1), 0, 100 + offset, 0, Origin(min(sequence, 1), 0, sequence), Record(value))
    made = waiting.to_record(at_ms)
    return Record(made.value, made.key, made.headers, made.timestamp_ms, offset)


def taken(lane: Lane, *records: Record, now_ms: int = NOW_MS) -> Lane:
    lane.take(as_stored(records), next_offset=records[-1].offset + 1, now_ms=now_ms, uptime_ms=now_ms)
    lane.check()
    return lane


def test_entries_are_due_a_level_after_they_were_stored_in_order() -> None:
    lane = taken(Lane("5s", DELAY_MS, position=0), stored(0, at_ms=NOW_MS - 1_000), stored(1))
    assert lane.first_due(NOW_MS) == NOW_MS + 4_000
    assert lane.pop().offset == 0
    assert (lane.position, lane.first_due(NOW_MS)) == (1, NOW_MS + 5_000)
    lane.pop()
    assert (lane.position, lane.first_due(NOW_MS), lane.buffered_bytes) == (2, None, 0)


def test_what_is_delivered_is_read_only_to_know_it_again() -> None:
    lane = Lane("5s", DELAY_MS, position=2, wanted={1})
    behind = lane.has_caught_up
    taken(lane, stored(0, sequence=3), stored(1), stored(2, sequence=4))
    assert (behind, lane.has_caught_up) == (False, True)
    assert set(lane.found) == {1}
    assert [entry.offset for entry in lane.buffer] == [2]


def test_a_record_that_was_sent_again_is_passed_over() -> None:
    lane = taken(Lane("5s", DELAY_MS, position=0), stored(0, sequence=3), stored(1, sequence=4))
    again = stored(0, sequence=3)
    taken(lane, Record(again.value, again.key, again.headers, again.timestamp_ms, 2))
    assert [entry.offset for entry in lane.buffer] == [0, 1]
    assert lane.repeated == 1
    lane.pop()
    lane.pop()
    assert lane.position == 3


def test_a_batch_that_is_read_twice_counts_once() -> None:
    lane = taken(Lane("5s", DELAY_MS, position=0), stored(0), stored(1))
    taken(lane, stored(0), stored(1))
    assert len(lane.buffer) == 2


def test_a_batch_without_delayed_records_is_passed_over() -> None:
    lane = taken(Lane("5s", DELAY_MS, position=0), Record(b"x", timestamp_ms=NOW_MS, offset=0))
    assert (len(lane.buffer), lane.position) == (0, 1)


def test_a_clock_that_is_set_back_keeps_nothing_longer_than_its_level() -> None:
    lane = taken(Lane("5s", DELAY_MS, position=0), stored(0), stored(1))
    earlier_ms = NOW_MS - 3_600_000
    assert lane.first_due(earlier_ms) == earlier_ms + DELAY_MS
    assert lane.first_due(earlier_ms + 1_000) == earlier_ms + DELAY_MS
    lane.pop()
    assert lane.first_due(earlier_ms + DELAY_MS) == earlier_ms + DELAY_MS
    taken(lane, stored(2), now_ms=earlier_ms)
    assert lane.buffer[-1].due_ms == earlier_ms + DELAY_MS


def test_it_has_room_until_its_bound() -> None:
    lane, offset = Lane("5s", DELAY_MS, position=0), 0
    while lane.has_room:
        taken(lane, stored(offset, value=bytes(50_000)))
        offset += 1
    assert BUFFER_BYTES <= lane.buffered_bytes < BUFFER_BYTES + 60_000


def test_a_record_is_forgotten_when_it_is_delivered_and_old() -> None:
    lane = Lane("5s", DELAY_MS, position=0)
    for offset in range(20):
        at_ms = NOW_MS + offset * 60_000
        taken(lane, stored(offset, at_ms=at_ms, sequence=offset), now_ms=at_ms)
    assert lane.may_forget(NOW_MS + 20 * 60_000) == 0
    for _ in range(20):
        lane.pop()
    forgotten = lane.may_forget(NOW_MS + 20 * 60_000)
    assert 0 < forgotten <= 6, "about five minutes of twenty are older than fifteen"
    assert lane.may_forget(NOW_MS + 40 * 60_000 + REMEMBERED_MS) == 20


def test_a_record_that_cannot_be_recognized_is_forgotten_when_it_is_delivered() -> None:
    lane = taken(Lane("5s", DELAY_MS, position=0), stored(0), stored(1), stored(2, sequence=3), stored(3))
    lane.pop()
    assert lane.may_forget(NOW_MS) == 1
    for _ in range(3):
        lane.pop()
    assert lane.may_forget(NOW_MS) == 2


def test_a_log_that_begins_later_moves_the_position() -> None:
    lane = Lane("5s", DELAY_MS, position=5)
    lane.begin_at(9)
    assert (lane.position, lane.read_to, lane.has_caught_up) == (9, 9, True)


def test_headers_count_for_its_bound() -> None:
    for headers in ((("h", bytes(BUFFER_BYTES)),), tuple(("h", None) for _ in range(BUFFER_BYTES // 3))):
        waiting = Waiting(UUID(int=1), 0, 0, 0, Origin(), Record(b"v", headers=headers))
        assert not taken(
            Lane("5s", DELAY_MS, position=0), replace(waiting.to_record(NOW_MS), offset=0)
        ).has_room


def test_a_clock_that_was_set_back_by_years_does_not_keep_the_log_for_years() -> None:
    ahead_ms = NOW_MS + 365 * 86_400_000
    lane = taken(Lane("5s", DELAY_MS, position=0), stored(0, at_ms=ahead_ms, sequence=3))
    lane.pop()
    assert lane.may_forget(NOW_MS) == 0, "its batch can be sent again"
    assert lane.may_forget(NOW_MS + REMEMBERED_MS + 60_000) == 1
