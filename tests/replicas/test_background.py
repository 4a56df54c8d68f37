"""Work on a thread behind others: its outcome is its caller's, a defect as well as an answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

import pytest

from appliance.log.flusher import Flusher
from appliance.replicas.background import BACKGROUND_NICE, behind_others

Result = TypeVar("Result")


def one_step(work: Callable[[], Result]) -> Generator[None, None, Result]:
    yield
    return work()


def own_priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_its_answer_is_returned_and_the_caller_is_called_meanwhile() -> None:
    heard = threading.Event()

    def work() -> int:
        assert heard.wait(30), "nobody was called"
        return own_priority()

    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert behind_others(one_step(work), meanwhile=heard.set) == max(before, BACKGROUND_NICE)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.parametrize("begun_before", [True, False])
def test_threads_that_flush_go_behind_nobody_where_they_were_begun_before(begun_before: bool) -> None:
    eventfd = os.eventfd(0, os.EFD_NONBLOCK)
    flusher = Flusher("test", eventfd=eventfd)
    before, seen, ended = os.getpriority(os.PRIO_PROCESS, 0), [], threading.Event()

    def flush() -> None:
        seen.append(own_priority())

    if begun_before:
        flusher.begin()
    behind_others(one_step(lambda: flusher.submit(flush, lambda _: ended.set())), meanwhile=lambda: None)
    assert ended.wait(30)
    flusher.close()
    os.close(eventfd)
    assert seen == [before if begun_before else max(before, BACKGROUND_NICE)]


def test_a_defect_ends_who_asked_for_it() -> None:
    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        behind_others(one_step(work), meanwhile=lambda: None)


def test_long_work_goes_behind_others_for_a_bounded_time() -> None:
    before = own_priority()
    seen: list[int] = []

    def work() -> Generator[None, None, str]:
        for _ in range(5):
            seen.append(own_priority())
            time.sleep(0.03)
            yield
        return "done"

    assert behind_others(work(), meanwhile=lambda: None, at_most_ms=50) == "done"
    assert seen[0] == max(before, BACKGROUND_NICE)
    assert seen[-1] == before
    assert len(seen) == 5


def test_a_defect_after_that_time_ends_who_asked_for_it() -> None:
    def work() -> Generator[None, None, None]:
        yield
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        behind_others(work(), meanwhile=lambda: None, at_most_ms=0)
