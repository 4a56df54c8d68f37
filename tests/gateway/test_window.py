"""A client is never sent more than its window and one message beyond what it has provably read."""

from __future__ import annotations

import random
from collections import deque
from itertools import count

from appliance.gateway.window import MESSAGE_BYTES_MIN, Window

MIB = 1 << 20


def window(size: int, maximum: int = 16 * MIB) -> Window:
    return Window(size, window_max=maximum, new_mark=count(1).__next__)


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
