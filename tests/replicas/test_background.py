"""Work on a thread behind others: its outcome is its caller's, a defect as well as an answer."""

from __future__ import annotations

import os
import threading

import pytest

from appliance.replicas.background import BACKGROUND_NICE, behind_others


def test_its_answer_is_returned_and_the_caller_is_called_meanwhile() -> None:
    heard = threading.Event()

    def work() -> int:
        assert heard.wait(30), "nobody was called"
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert behind_others(work, meanwhile=heard.set) == max(before, BACKGROUND_NICE)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_defect_ends_who_asked_for_it() -> None:
    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        behind_others(work, meanwhile=lambda: None)
