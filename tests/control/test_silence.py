"""Who hangs and who is at long work: the rule, and the figure that it looks at."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from appliance.control.supervisor.silence import SPIN_FACTOR, Silence, processor_ns

SECOND = 1_000_000_000
ALLOWED = 3 * SECOND


def asked(ran_ns: int = 0) -> Silence:
    silence = Silence()
    silence.asked(100 * SECOND, ran_ns)
    return silence


def looks(silence: Silence, *ran_ns: int) -> list[bool]:
    """What a look in each of the seconds after the question says."""
    return [
        silence.is_hang((101 + second) * SECOND, ran, allowed_ns=ALLOWED) for second, ran in enumerate(ran_ns)
    ]


def test_who_takes_no_processor_time_for_as_long_as_is_allowed_hangs() -> None:
    assert looks(asked(7), 7, 7, 7, 7) == [False, False, True, True]


def test_patience_begins_anew_when_it_moved() -> None:
    assert looks(asked(7), 7, 7, 8, 8, 8, 8) == [False, False, False, False, False, True]


def test_who_spins_is_given_up_in_the_end() -> None:
    seen = looks(asked(), *range(SPIN_FACTOR * 3 + 1))
    assert seen.index(True) == SPIN_FACTOR * 3 - 1
    assert not any(seen[: SPIN_FACTOR * 3 - 1])


def test_an_answer_ends_it_and_a_question_begins_it() -> None:
    silence = Silence()
    owed = [silence.is_owed]
    silence.asked(SECOND, 0)
    owed.append(silence.is_owed)
    silence.answered()
    owed.append(silence.is_owed)
    assert owed == [False, True, False]


@pytest.fixture
def spinning() -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


def test_processor_time_grows_while_a_process_runs_and_not_while_it_is_stopped(
    spinning: psutil.Process,
) -> None:
    begun = processor_ns(spinning.pid)
    deadline = time.monotonic() + 30
    while processor_ns(spinning.pid) < begun + SECOND // 100:
        assert time.monotonic() < deadline
    spinning.suspend()
    while spinning.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
    stopped = processor_ns(spinning.pid)
    time.sleep(0.2)
    assert processor_ns(spinning.pid) == stopped


def test_processor_time_of_nobody_is_none() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert processor_ns(process.pid) == 0
