"""How the harness keeps cores awake: in the way that wakes them soonest, and not beyond the case that asked for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from benchmarks import awake
from benchmarks.awake import Way
from benchmarks.load import build


@pytest.fixture(autouse=True)
def _taken_anew() -> Iterator[None]:
    awake.wakes_us.cache_clear()
    yield
    awake.wakes_us.cache_clear()


def spinners() -> list[Path]:
    """Running ones, of anybody."""
    return [
        each
        for each in Path("/proc").glob("[0-9]*/comm")
        if each.exists() and each.read_text().strip() == "spinner"
    ]


def test_the_quickest_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Way] = []

    @contextmanager
    def keeping(way: Way) -> Iterator[None]:
        entered.append(way)
        yield

    def ways(way: Way) -> AbstractContextManager[None]:
        return keeping(way)

    monkeypatch.setattr(awake, "WAYS", {way: lambda way=way: ways(way) for way in Way})
    for quickest in Way:
        monkeypatch.setattr(
            awake,
            "wakes_us",
            lambda quickest=quickest: {way: 5.0 if way is quickest else 50.0 for way in Way},
        )
        assert awake.way() is quickest
        with awake.awake_cores():
            assert entered[-1] is quickest


def test_a_way_that_is_not_ours_to_take_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever is not root may not ask the kernel; where there is no such file, nobody."""
    monkeypatch.setattr(awake, "WAKE_LATENCY", tmp_path / "not-there")
    taken = awake.wakes_us()
    assert set(taken) == {Way.HALTING, Way.SPINNING}
    assert all(0.1 < us < 10_000 for us in taken.values())


def test_a_way_whose_trial_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "wake", lambda: Path("/bin/false"))
    assert awake.wakes_us() == {}
    assert awake.way() is Way.HALTING


def test_one_core_wakes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert awake.wakes_us() == {}
    assert awake.told({}) == "there and back between two cores: there is one"


def test_the_kernel_s_word_is_taken_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By closing the file, so that it ends with the process too; zero µs as an i32 is what it reads."""
    file = tmp_path / "latency"
    file.write_bytes(b"\xff" * 4)
    monkeypatch.setattr(awake, "WAKE_LATENCY", file)
    before = len(os.listdir("/proc/self/fd"))
    with suppress(KeyError), awake.WAYS[Way.LOOKING]():
        assert len(os.listdir("/proc/self/fd")) == before + 1
        assert file.read_bytes() == bytes(4)
        raise KeyError
    assert len(os.listdir("/proc/self/fd")) == before


def test_spinners_end_with_the_case() -> None:
    """In each core one, whatever becomes of the case."""
    had = len(spinners())
    with suppress(KeyError), awake.WAYS[Way.SPINNING]():
        assert len(spinners()) == had + len(os.sched_getaffinity(0))
        raise KeyError
    assert len(spinners()) == had


def test_a_spinner_that_cannot_be_started_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def second_fails(*words: object, **named: object) -> object:
        if started:
            raise OSError("no more")
        started.append(real(*words, **named))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", second_fails)
    if len(os.sched_getaffinity(0)) < 2:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(OSError, match="no more"), awake.WAYS[Way.SPINNING]():
        pass
    assert started[0].poll() is not None


def test_what_they_took_is_told() -> None:
    assert awake.told({Way.HALTING: 89.6, Way.LOOKING: 5.1}) == (
        "there and back between two cores: halting 90 µs, looking 5 µs"
    )
    assert isinstance(awake.WAYS[Way.HALTING](), nullcontext)
