"""The last lines of a process in its page: whole lines only, whatever the writer does and wherever it dies."""

from __future__ import annotations

import random

import pytest

from appliance.ipc.line_ring import LINE_BYTES_MAX, LINES_AT, RING_BYTES, LineRing, lines_of

PAGE_BYTES = 4096


def texts(page: bytearray) -> list[str]:
    return [each.text for each in lines_of(memoryview(page))]


def test_lines_are_there_in_order_and_old_ones_give_way() -> None:
    page = bytearray(PAGE_BYTES)
    assert texts(page) == []
    ring = LineRing(memoryview(page))
    for number in range(500):
        ring.write(f"line {number} ü")
    found = texts(page)
    assert found[-1] == "line 499 ü"
    first = 500 - len(found)
    assert found == [f"line {number} ü" for number in range(first, 500)]
    assert len(found) > RING_BYTES // 20
    assert page[:LINES_AT] == bytes(LINES_AT), "the row is not touched"


def test_a_line_is_one_line_and_is_bounded() -> None:
    page = bytearray(PAGE_BYTES)
    ring = LineRing(memoryview(page))
    ring.write("a\nb")
    ring.write("x" * 10_000)
    assert texts(page) == ["a b", "x" * LINE_BYTES_MAX]


def test_positions_name_a_line_once() -> None:
    page = bytearray(PAGE_BYTES)
    ring = LineRing(memoryview(page))
    seen = 0
    names: list[str] = []
    for number in range(300):
        ring.write(f"{number}")
        if number % 7 == 0:
            new = [each for each in lines_of(memoryview(page)) if each.position > seen]
            names += [each.text for each in new]
            seen = new[-1].position
    assert names == [str(number) for number in range(295)]


def test_a_new_life_goes_on_behind_the_lines_of_the_one_before() -> None:
    page = bytearray(PAGE_BYTES)
    LineRing(memoryview(page)).write("before")
    LineRing(memoryview(page)).write("after")
    assert texts(page) == ["before", "after"]


def test_a_writer_that_is_killed_in_the_middle_leaves_whole_lines() -> None:
    page = bytearray(PAGE_BYTES)
    ring = LineRing(memoryview(page))
    for number in range(200):
        ring.write(f"line {number} of the life before")
    words = memoryview(page)[LINES_AT : LINES_AT + 16].cast("q")
    words[0] += 100  # it had begun a line, and copied nothing
    whole = {f"line {number} of the life before" for number in range(200)}
    assert set(texts(page)) <= whole
    ring = LineRing(memoryview(page))
    ring.write("next")
    found = texts(page)
    assert found[-1] == "next"
    assert sum(each not in whole for each in found) <= 4, "what was there before may be cut, and is text"


@pytest.mark.parametrize("seed", range(20))
def test_a_page_of_rubbish_is_read_without_an_error(seed: int) -> None:
    page = bytearray(random.Random(seed).randbytes(PAGE_BYTES))
    assert isinstance(texts(page), list)
    words = memoryview(page)[LINES_AT : LINES_AT + 16].cast("q")
    words[0], words[1] = seed * 700, seed * 600
    assert isinstance(texts(page), list)
