"""The window of records in process, against a model: order, contiguous commits, bounds, partitions that move."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance_client.values import ConsumerRecord, TopicPartition
from appliance_client.window import Order, Task, Window

HERE: Final = TopicPartition("t", 0)
THERE: Final = TopicPartition("t", 1)


def record(offset: int, key: Any = None, place: TopicPartition = HERE) -> ConsumerRecord:
    return ConsumerRecord(
        topic=place.topic,
        partition=place.partition,
        offset=offset,
        timestamp=0,
        timestamp_type=0,
        key=key,
        value=b"v",
        headers=(),
        leader_epoch=0,
    )


def window(order: Order = Order.KEY, size: int = 100) -> Window:
    return Window(order=order, size=size)


def taken(window: Window) -> list[Task]:
    found = []
    while (task := window.next()) is not None:
        found.append(task)
    return found


def test_only_what_is_contiguous_is_committed() -> None:
    window_ = window(Order.UNORDERED)
    window_.add(HERE, [record(offset) for offset in (3, 4, 7, 8)])
    three, four, seven, eight = taken(window_)
    window_.done(four)
    window_.done(eight)
    assert window_.committable() == {HERE: 3}, "where it began, so that the next owner begins there"
    window_.done(three)
    assert window_.committable() == {HERE: 5}
    window_.committed({HERE: 5})
    assert window_.committable() == {}
    window_.done(seven)
    assert window_.committable() == {HERE: 9}


def test_records_of_a_key_wait_for_each_other_and_others_do_not() -> None:
    window_ = window()
    window_.add(HERE, [record(0, b"a"), record(1, b"a"), record(2, b"b"), record(3), record(4)])
    first = taken(window_)
    assert [task.record.offset for task in first] == [0, 2, 3, 4]
    window_.done(first[0])
    assert [task.record.offset for task in taken(window_)] == [1]


def test_the_same_key_in_another_partition_is_another_one() -> None:
    window_ = window()
    window_.add(HERE, [record(0, b"a")])
    window_.add(THERE, [record(0, b"a", THERE)])
    assert len(taken(window_)) == 2


@pytest.mark.parametrize(("order", "at_once"), [(Order.PARTITION, 2), (Order.UNORDERED, 6), (Order.KEY, 4)])
def test_each_order_lets_so_many_run(order: Order, at_once: int) -> None:
    window_ = window(order)
    for place in (HERE, THERE):
        window_.add(place, [record(offset, b"%d" % (offset // 2), place) for offset in range(3)])
    assert len(taken(window_)) == at_once


def test_a_key_without_a_hash_waits_for_its_partition() -> None:
    window_ = window()
    window_.add(HERE, [record(0, {"a": 1}), record(1, {"a": 2})])
    assert len(taken(window_)) == 1


def test_a_record_that_takes_long_fills_the_window() -> None:
    window_ = window(Order.UNORDERED, size=3)
    window_.add(HERE, [record(offset) for offset in range(3)])
    tasks = taken(window_)
    assert window_.is_full(HERE)
    assert not window_.is_full(THERE)
    for task in tasks[1:]:
        assert not window_.done(task)
    assert window_.is_full(HERE), "what is done behind it still has a place"
    assert window_.done(tasks[0]), "now there is room"
    assert not window_.is_full(HERE)


def test_a_partition_that_goes_away_and_comes_back_begins_again() -> None:
    window_ = window()
    window_.add(HERE, [record(0, b"a"), record(1, b"a"), record(2, b"b")])
    running = window_.next()
    assert running is not None
    window_.take_back([HERE])
    assert window_.next() is None
    assert window_.running([HERE]) == 1
    window_.forget([HERE])
    window_.add(HERE, [record(0, b"a"), record(1, b"a")])
    window_.done(running)  # it comes late
    assert window_.committable() == {HERE: 0}
    again = taken(window_)
    assert [task.record.offset for task in again] == [0]
    window_.done(again[0])
    assert window_.committable() == {HERE: 1}
    window_.check()


def test_what_has_failed_is_never_passed() -> None:
    window_ = window()
    window_.add(HERE, [record(0, b"a"), record(1, b"a"), record(2, b"b")])
    first, other = taken(window_)
    window_.give_up(first)
    window_.done(other)
    assert taken(window_) == []
    assert window_.committable() == {HERE: 0}


@given(
    order=st.sampled_from(list(Order)),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=60),
)
def test_it_does_what_a_plain_model_does(order: Order, steps: list[tuple[int, int]]) -> None:
    window_ = window(order, size=5)
    running: list[Task] = []
    given_: dict[TopicPartition, list[int]] = defaultdict(list)
    done: dict[TopicPartition, set[int]] = defaultdict(set)
    seen: dict[tuple[TopicPartition, Any], list[int]] = defaultdict(list)
    next_offset: dict[TopicPartition, int] = defaultdict(int)
    for action, number in steps:
        place = (HERE, THERE)[number % 2]
        if action == 0:
            offsets = [next_offset[place] + step for step in range(number % 3 + 1)]
            next_offset[place] = offsets[-1] + 1 + number % 2  # a compacted log has gaps
            given_[place] += offsets
            window_.add(place, [record(each, b"%d" % (each % 3), place) for each in offsets])
        elif action == 1 and (task := window_.next()) is not None:
            lane = {Order.KEY: task.record.key, Order.PARTITION: 0, Order.UNORDERED: task.record.offset}[
                order
            ]
            busy = {(each.share.place, each.lane) for each in running}
            assert (task.share.place, task.lane) not in busy
            seen[task.share.place, lane].append(task.record.offset)
            running.append(task)
        elif action == 2 and running:
            task = running.pop(number % len(running))
            window_.done(task)
            done[task.share.place].add(task.record.offset)
        elif action == 3 and number == 7:
            late = [task for task in running if task.share.place == place]
            window_.take_back([place])
            window_.forget([place])
            running = [task for task in running if task.share.place != place]
            for task in late:
                window_.done(task)
            given_[place], done[place] = [], set()
            for key in [key for key in seen if key[0] == place]:
                del seen[key]
        window_.check()
        expected = {}
        for each, offsets in given_.items():
            contiguous = [
                offset for offset in offsets if all(o in done[each] for o in offsets if o <= offset)
            ]
            if offsets:
                expected[each] = contiguous[-1] + 1 if contiguous else offsets[0]
        assert window_.committable() == expected
    for offsets in seen.values():
        assert offsets == sorted(offsets), "records of a lane run in their order"
