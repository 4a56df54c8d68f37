"""How the harness keeps cores awake: in the way that suits the machine, and not beyond the case that asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import awake
from benchmarks.awake import ENOUGH, TURNS, Way
from benchmarks.awake import wakes_us as tried
from benchmarks.load import build
from benchmarks.page import page
from benchmarks.void import Void
from tests.benchmarks.test_results import run

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core wakes no other")


@pytest.fixture(autouse=True)
def _tried_anew() -> Iterator[None]:
    tried.cache_clear()
    yield
    tried.cache_clear()


def children() -> set[int]:
    """Processes that this one has started and not waited for."""
    return set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()))


@pytest.mark.parametrize(
    ("took", "way"),
    [
        ({Way.HALTING: 90.0, Way.LOOKING: 5.0, Way.SPINNING: 65.0}, Way.LOOKING),
        ({Way.HALTING: 90.0, Way.SPINNING: 11.0}, Way.SPINNING),
        ({Way.HALTING: 90.0, Way.LOOKING: 85.0, Way.SPINNING: 11.0}, Way.SPINNING),
        ({Way.HALTING: 90.0, Way.LOOKING: 9.0, Way.SPINNING: 5.0}, Way.LOOKING),
        ({Way.HALTING: 90.0, Way.SPINNING: 65.0}, Way.HALTING),
        ({Way.HALTING: 5.3, Way.LOOKING: 5.2, Way.SPINNING: 5.1}, Way.HALTING),
        ({}, Way.HALTING),
    ],
)
def test_the_machine_is_left_as_it_is_unless_another_way_is_twice_as_quick(
    monkeypatch: pytest.MonkeyPatch, took: dict[Way, float], way: Way
) -> None:
    entered: list[Way] = []

    @contextmanager
    def enter(which: Way) -> Iterator[None]:
        entered.append(which)
        yield

    monkeypatch.setattr(awake, "WAYS", {which: lambda which=which: enter(which) for which in Way})
    monkeypatch.setattr(awake, "wakes_us", lambda: took)
    assert ENOUGH == 2.0
    assert awake.chosen() is way
    with awake.awake_cores():
        assert entered == [way]


@TWO_CORES
def test_a_way_that_is_not_ours_to_take_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever is not root may not ask the kernel; where there is no such file, nobody."""
    monkeypatch.setattr(awake, "WAKE_LATENCY", tmp_path / "not-there")
    taken = tried()
    assert set(taken) == {Way.HALTING, Way.SPINNING}
    assert all(0.1 < us < 10_000 for us in taken.values())


def test_what_a_way_took_is_the_median_of_its_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of which one was disturbed."""
    turns = tmp_path / "turns"
    script = tmp_path / "wake"
    script.write_text(f'#!/bin/sh\necho x >> {turns}\n[ "$(wc -l < {turns})" = 2 ] && echo 900 || echo 7\n')
    script.chmod(0o755)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(awake, "_is_ours", lambda way: way is Way.HALTING)
    monkeypatch.setattr(build, "wake", lambda: script)
    assert tried() == {Way.HALTING: 7.0}
    assert len(turns.read_text().split()) == TURNS


def test_a_trial_that_fails_is_no_quick_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a machine of one core: the run says so and ends."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(awake, "_is_ours", lambda way: way is Way.HALTING)
    monkeypatch.setattr(build, "wake", lambda: Path("/bin/false"))
    with pytest.raises(Void, match="how soon a core is woken cannot be tried"):
        tried()


def test_the_program_says_when_there_is_no_such_core() -> None:
    for first, second in (("0", "4096"), ("4096", "0")):
        told = subprocess.run(
            [build.wake(), first, second, "10"], capture_output=True, timeout=10, check=False
        )
        assert (told.returncode, told.stdout) == (1, b""), (first, second)


def test_one_core_wakes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert tried() == {}
    assert awake.described({}) == "there and back between two cores: there is one"


def test_the_kernel_s_word_is_taken_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By closing the file, so that it ends with the process too; zero µs as an i32 is what it reads."""
    file = tmp_path / "latency"
    file.write_bytes(b"\xff" * 4)
    monkeypatch.setattr(awake, "WAKE_LATENCY", file)

    def held() -> int:
        return sum(os.path.realpath(each) == str(file) for each in Path("/proc/self/fd").iterdir())

    with suppress(KeyError), awake.WAYS[Way.LOOKING]():
        assert held() == 1
        assert file.read_bytes() == bytes(4)
        raise KeyError
    assert held() == 0


def test_spinners_end_with_the_case() -> None:
    """In each core one, whatever becomes of the case."""
    build.spinner()
    before = children()
    with suppress(KeyError), awake.WAYS[Way.SPINNING]():
        assert len(children() - before) == len(os.sched_getaffinity(0))
        raise KeyError
    assert children() == before


def test_a_spinner_that_ends_before_its_time_voids_the_case() -> None:
    build.spinner()
    before = children()
    with pytest.raises(Void, match="has ended"), awake.WAYS[Way.SPINNING]():
        end(min(children() - before))
    assert children() == before


def end(pid: int) -> None:
    """Kills it and waits until it is dead, though not for its status."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_spinner_that_cannot_be_started_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    spinner, real = build.spinner(), subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def second_fails(*words: object, **named: object) -> object:
        if started:
            raise OSError("no more")
        started.append(real(*words, **named))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", second_fails)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(OSError, match="no more"), awake.WAYS[Way.SPINNING]():
        pass
    (only,) = started
    assert only.args[0] == spinner  # type: ignore[index]
    assert only.poll() is not None


def test_a_page_tells_what_idle_cores_did_and_what_is_not_compared_by_it() -> None:
    made = replace(
        run([{"throughput_1k.in_mb_s": 1.0}]), awake_by="looking", wakes_us={"halting": 89.6, "looking": 5.1}
    )
    text = page(made)
    assert "there and back between two cores: halting 90 µs, looking 5 µs" in text
    assert "| idle cores, where they are kept awake | looking (" in text
    assert "not compared with" not in text
    assert "which used spinning; this run used looking" in page(made, replace(made, awake_by="spinning"))
    assert "not compared with" not in page(made, replace(made))
