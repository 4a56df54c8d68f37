"""Work on a thread behind others: its outcome is its caller's, a defect as well as an answer."""

from __future__ import annotations

import os
import threading

import pytest

from appliance.log.flusher import Flusher
from appliance.replicas.background import BACKGROUND_NICE, behind_others


def test_its_answer_is_returned_and_the_caller_is_called_meanwhile() -> None:
    heard = threading.Event()

    def work() -> int:
        assert heard.wait(30), "nobody was called"
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert behind_others(work, meanwhile=heard.set) == max(before, BACKGROUND_NICE)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.parametrize("begun_before", [True, False])
def test_threads_that_flush_go_behind_nobody_where_they_were_begun_before(begun_before: bool) -> None:
    eventfd = os.eventfd(0, os.EFD_NONBLOCK)
    flusher = Flusher("test", eventfd=eventfd)
    before, seen, ended = os.getpriority(os.PRIO_PROCESS, 0), [], threading.Event()

    def flush() -> None:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    if begun_before:
        flusher.begin()
    behind_others(lambda: flusher.submit(flush, lambda _: ended.set()), meanwhile=lambda: None)
    assert ended.wait(30)
    flusher.close()
    os.close(eventfd)
    assert seen == [before if begun_before else max(before, BACKGROUND_NICE)]


def test_a_defect_ends_who_asked_for_it() -> None:
    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        behind_others(work, meanwhile=lambda: None)
