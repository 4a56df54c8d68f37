"""Flame graphs of every workload: also of those that kill what is watched. The watcher is a stand-in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cases import CASES
from benchmarks.profile import Watch, setting_of
from tests.benchmarks.stand_ins import StandIn

SPY = """\
#!{python}
import os, signal, sys, time
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
def tell(*_):
    open(options["--output"], "w").write("graph")
    sys.exit()
signal.signal(signal.SIGINT, tell)
print("watching", flush=True)
while os.path.exists("/proc/" + options["--pid"]):
    time.sleep(0.01)
tell()
"""


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text(SPY.format(python=sys.executable))
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{spy.parent}:/usr/bin:/bin")
    return StandIn(tmp_path)


@pytest.fixture
def living() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes with nothing to do."""
    made = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    yield made
    for one in made:
        one.kill()
        one.wait()


def test_each_process_is_watched_from_when_it_comes_whatever_becomes_of_it(
    broker: StandIn, living: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    first, second = living
    known = [first.pid]
    broker.pids = lambda: known  # type: ignore[method-assign]
    watch = Watch(broker, tmp_path, native=False, seconds=None)
    watch.look()
    watch.look()
    for watcher in watch.watchers.values():
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "watching\n"
    first.kill()
    first.wait()
    known = [second.pid]
    watch.look()
    newest = watch.watchers[second.pid]
    assert newest.stdout is not None
    assert newest.stdout.readline() == "watching\n"
    graphs = {tmp_path / f"sleep-{one.pid}.svg" for one in living}
    assert set(map(Path, watch.end())) == graphs
    assert all(graph.read_text() == "graph" for graph in graphs)


def test_a_case_is_watched_under_what_it_is_made_for() -> None:
    assert setting_of(CASES["latency"], None).name == ""
    assert setting_of(CASES["latency"], "fsync").fsync
    assert setting_of(CASES["failover_100"], None).slots == 3
