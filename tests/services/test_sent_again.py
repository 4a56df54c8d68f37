from __future__ import annotations

import tracemalloc
from uuid import UUID

from appliance.delivery.waiting import HANDED_BACK, Origin, Waiting
from appliance.protocol.records.record import Record
from appliance.services.sent_again import PRODUCERS_MAX, REMEMBERED_S, Room, SentAgain


def waiting(
    offset: int, sequence: int = 0, *, producer: int = 1, partition: int = 0, epoch: int = 0
) -> Waiting:
    return Waiting(UUID(int=1), partition, offset, 0, Origin(producer, epoch, sequence), Record(b""))


def test_a_batch_that_is_sent_again_is_known_up_to_what_was_stored() -> None:
    seen = SentAgain(room=Room())
    assert [seen.is_known(waiting(offset)) for offset in (7, 9)] == [False, False]
    assert [seen.is_known(waiting(offset)) for offset in (7, 9, 12)] == [True, True, False]


def test_batches_may_come_in_any_order() -> None:
    seen = SentAgain(room=Room())
    assert not seen.is_known(waiting(20, 10))
    assert not seen.is_known(waiting(5, 0))
    assert seen.is_known(waiting(20, 10))
    assert seen.is_known(waiting(5, 0))


def test_producers_partitions_and_epochs_are_told_apart() -> None:
    seen = SentAgain(room=Room())
    for each in (waiting(1), waiting(1, producer=2), waiting(1, partition=1), waiting(1, epoch=1)):
        assert not seen.is_known(each)


def test_without_a_producer_nothing_is_known() -> None:
    seen = SentAgain(room=Room())
    assert not any(seen.is_known(waiting(1, -1, producer=-1)) for _ in range(2))
    assert not len(seen)


def test_five_batches_of_a_producer_are_remembered() -> None:
    seen = SentAgain(room=Room())
    for number in range(6):
        seen.is_known(waiting(number, number))
    assert [seen.is_known(waiting(number, number)) for number in (5, 4, 3, 2, 1)] == [True] * 5
    assert not seen.is_known(waiting(0, 0))


def test_a_record_that_was_handed_back_is_known_at_any_offset() -> None:
    seen = SentAgain(room=Room())
    assert not seen.is_known(waiting(7, 1, epoch=HANDED_BACK))
    assert seen.is_known(waiting(9, 1, epoch=HANDED_BACK))
    assert not seen.is_known(waiting(9, 2, epoch=HANDED_BACK))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_producer_is_forgotten_a_quarter_of_an_hour_after_its_last_record() -> None:
    clock = Clock()
    seen = SentAgain(room=Room(now_s=clock))
    seen.is_known(waiting(1, producer=1))
    seen.is_known(waiting(1, producer=2))
    clock.now_s = REMEMBERED_S - 1
    assert seen.is_known(waiting(1, producer=2))
    clock.now_s = REMEMBERED_S
    assert not seen.is_known(waiting(1, producer=3))
    assert len(seen) == 2, "producer 1 is old, producer 2 was heard of a second ago"
    assert not seen.is_known(waiting(1, producer=1))


def test_a_lane_that_gets_nothing_more_forgets_too() -> None:
    clock = Clock()
    room = Room(now_s=clock)
    silent, other = SentAgain(room=room), SentAgain(room=room)
    for producer in range(10):
        silent.is_known(waiting(1, producer=producer))
    clock.now_s = REMEMBERED_S
    other.is_known(waiting(1))
    assert (len(silent), len(other)) == (0, 1)


def test_all_lanes_together_are_bounded_and_the_largest_forgets_first() -> None:
    room = Room(producers_max=100)
    small, large = SentAgain(room=room), SentAgain(room=room)
    for producer in range(10):
        small.is_known(waiting(1, producer=producer))
    for number in range(1_000):
        large.is_known(waiting(number, number, producer=1_000 + number, epoch=HANDED_BACK))
        assert room.statistics()["producers"] <= 100
    assert len(small) == 10
    assert large.is_known(waiting(2_000, 999, producer=1_999, epoch=HANDED_BACK)), "the last ones are known"


def test_a_lane_that_ends_makes_room() -> None:
    room = Room(producers_max=100)
    ended, other = SentAgain(room=room), SentAgain(room=room)
    for producer in range(90):
        ended.is_known(waiting(1, producer=producer))
    del ended
    for producer in range(100):
        other.is_known(waiting(1, producer=producer))
    assert len(other) == 100


def test_what_a_process_remembers_takes_at_most_110_mb() -> None:
    """As docs/retries.md says. With a tenth of it: what is remembered grows in proportion."""
    room = Room(producers_max=PRODUCERS_MAX // 10)
    seen = SentAgain(room=room)
    tracemalloc.start()
    for number in range(room.producers_max):
        origin = Origin(2**62 + number, HANDED_BACK, 1)
        seen.is_known(Waiting(UUID(int=2**100), number % 50, 10**6 + number, 0, origin, Record(b"")))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= 110_000_000 / 10
