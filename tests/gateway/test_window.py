"""A client is never sent more than its window and one message beyond what it has provably read."""

from __future__ import annotations

import random
from collections import deque
from itertools import count

from appliance.gateway.window import MESSAGE_BYTES_MIN, Outstanding, Window

MIB = 1 << 20


def window(size: int, maximum: int = 16 * MIB, outstanding: Outstanding | None = None) -> Window:
    shared = Outstanding(1 << 40) if outstanding is None else outstanding
    return Window(size, window_max=maximum, new_mark=count(1).__next__, outstanding=shared)


def may_send(a: Window) -> bool:
    return a.is_open


def lacks_mark(a: Window) -> bool:
    return a.wants_mark


def test_a_client_that_acknowledges_nothing_is_sent_a_window_and_no_more() -> None:
    a = window(4 * MIB)
    sent = 0
    while a.is_open:
        a.sent(MIB // 2)
        sent += MIB // 2
    assert sent == 4 * MIB


def test_granting_without_reading_opens_nothing() -> None:
    a = window(MIB)
    marks = [a.sent(MIB)]
    for invented in range(1000, 1100):
        a.credit(invented, MIB)
    a.credit(0, 1 << 60)
    while a.is_open:  # its own wish is bounded by the broker's
        marks.append(a.sent(MIB))
    assert a.outstanding_bytes == 16 * MIB
    a.credit(max(marks), 16 * MIB)
    assert may_send(a)
    assert a.outstanding_bytes < 4 * MIB  # what was sent behind the last mark


def test_an_old_mark_takes_nothing_back() -> None:
    a = window(4 * MIB)
    first, second = a.sent(MIB), a.sent(MIB)
    a.credit(second, 4 * MIB)
    a.credit(first, 4 * MIB)
    assert not a.outstanding_bytes


def test_a_small_message_costs_what_it_costs_us() -> None:
    a = window(1000 * MESSAGE_BYTES_MIN)
    sent = 0
    while a.is_open:
        a.sent(1)
        sent += 1
    assert sent == 1000


def test_a_window_of_nothing_pauses_and_a_mark_frees_what_had_none() -> None:
    a = window(MIB)
    assert not a.sent(2000)
    a.credit(0, 0)
    assert not may_send(a)
    a.credit(0, 1024)
    assert not may_send(a)  # 2000 bytes are outstanding, and no mark tells of them
    assert lacks_mark(a)
    mark = a.mark()
    assert not lacks_mark(a)
    a.credit(mark, 1024)
    assert may_send(a)


def test_any_client_that_acknowledges_in_order_is_never_stuck() -> None:
    """A seeded run of random sizes, windows and delays; whatever is blocked has a mark that frees it."""
    dice = random.Random(30)
    for _ in range(50):
        size = dice.choice([1, 1024, 65536, MIB])
        a = window(size)
        unread: deque[int] = deque()
        for _ in range(400):
            if a.is_open and dice.random() < 0.7:
                unread.append(a.sent(dice.choice([1, 3000, 70_000, MIB])))
            elif not a.is_open and not any(unread):
                assert lacks_mark(a) or size == 0
                if lacks_mark(a):
                    unread.append(a.mark())
            if dice.random() < 0.1:
                size = dice.choice([0, 1, 1024, 65536, MIB])
                a.credit(0, size)
            if unread and dice.random() < 0.5 and (mark := unread.popleft()):
                a.credit(mark, size)
            a.check()
        size = 1
        while unread:
            if mark := unread.popleft():
                a.credit(mark, size)
        if a.wants_mark:
            a.credit(a.mark(), size)
        a.credit(0, size)
        assert may_send(a)


def test_clients_that_do_not_read_take_a_bounded_memory_together() -> None:
    shared = Outstanding(8 * MIB)
    deaf = [window(4 * MIB, outstanding=shared) for _ in range(100)]
    for _ in range(10):
        for each in deaf:
            if each.is_open:
                each.sent(MIB)
    assert shared.bytes == sum(each.outstanding_bytes for each in deaf) <= 8 * MIB + 100 * MIB
    assert {each.outstanding_bytes for each in deaf[8:]} == {MIB}
    reading = window(4 * MIB, outstanding=shared)
    for _ in range(10):  # one that acknowledges goes on, one message after the other
        assert may_send(reading)
        mark = reading.sent(100) or reading.mark()
        assert not may_send(reading)
        reading.credit(mark, 4 * MIB)
    for each in deaf:
        each.forget()
    assert not shared.bytes
    reading.sent(100)
    assert may_send(reading)


def test_any_history_leaves_nothing_outstanding_for_all() -> None:
    dice, shared = random.Random(31), Outstanding(3 * MIB)
    for _ in range(50):
        several = [window(MIB, outstanding=shared) for _ in range(4)]
        marks: list[tuple[Window, int]] = []
        for _ in range(200):
            one = dice.choice(several)
            if one.is_open:
                marks.append((one, one.sent(dice.choice([1, 70_000, MIB]))))
            elif one.wants_mark:
                marks.append((one, one.mark()))
            if marks and dice.random() < 0.4:
                whose, mark = marks.pop(dice.randrange(len(marks)))
                whose.credit(mark, MIB)
            assert shared.bytes == sum(each.outstanding_bytes for each in several)
        for each in several:
            each.forget()
            each.forget()
            each.check()
        assert not shared.bytes
