"""`appliance top`, `bench`, `cluster health` and `perf latency` beside a running appliance."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import appliance, environment
from tests.support.broker import Appliance

LEAVES_SCREEN = b"\x1b[?1049l"
ENTERS_SCREEN = b"\x1b[?1049h"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(tmp_path_factory.mktemp("watching") / "data")
    started.start()
    try:
        address = ("-b", started.address)
        appliance("topics", "create", "orders", *address).succeeded()
        appliance("produce", "orders", *address, given=b"a\nb\nc\n").succeeded()
        appliance("consume", "orders", "-g", "billing", "-n", 1, *address).succeeded()
        yield started
    finally:
        started.stop()


def test_top_in_a_pipe_is_text_and_json(broker: Appliance) -> None:
    text = appliance("top", "--once", "--interval", 0.3, "--data-dir", broker.data_dir).succeeded().text
    for expected in ("netproc 0", "ioproc 0.0", "supervisor", "orders", "billing", "1 broker"):
        assert expected in text
    assert "\x1b" not in text
    told = (
        appliance("top", "--json", "-n", 2, "--interval", 0.3, "--data-dir", broker.data_dir)
        .succeeded()
        .text.splitlines()
    )
    first, second = map(json.loads, told)
    assert first.keys() == second.keys()
    idle = {each["role"]: each["idle"] for each in second["processes"]}
    assert idle["cleaner"] > 0.5
    assert second["group_lags"][0]["lag"] == 2
    # Each look asks the broker.
    assert second["totals"]["requests_per_second"] > 0


def test_top_needs_a_broker_and_says_so(tmp_path: Path) -> None:
    refused = appliance("top", "--once", "--data-dir", tmp_path, "-b", "127.0.0.1:1")
    assert refused.code == 1
    assert "--data-dir of a running appliance" in refused.errors


class Terminal:
    """A pseudo-terminal with a command on it, and everything that the command wrote."""

    def __init__(self, *arguments: object, rows: int, columns: int) -> None:
        self._master, slave = pty.openpty()
        self._slave = slave
        self.before = termios.tcgetattr(slave)
        self.resize(rows, columns)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "appliance", *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment({"TERM": "xterm-256color"}),
            start_new_session=True,
        )
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, pattern: bytes, *, start: int = 0, timeout_s: float = 30) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not re.search(pattern, self.seen[start:], re.DOTALL):
            assert time.monotonic() < deadline_s, self.seen[-2000:]
            if select.select([self._master], [], [], 0.2)[0]:
                self.seen += os.read(self._master, 65536)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def settings(self) -> object:
        return termios.tcgetattr(self._slave)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


def test_top_draws_in_place_follows_a_resize_and_gives_the_terminal_back(broker: Appliance) -> None:
    terminal = Terminal("top", "--interval", "0.3", "--data-dir", broker.data_dir, rows=40, columns=120)
    try:
        terminal.until(rb"netproc 0.*orders.*billing.*q ends")
        assert ENTERS_SCREEN in terminal.seen
        drawn = len(terminal.seen)
        terminal.until(rb"q ends.*q ends", start=drawn)
        # A picture is drawn over the one before: the screen is not cleared between two of them, so nothing flickers.
        assert b"\x1b[2J" not in terminal.seen[drawn:]
        drawn = len(terminal.seen)
        terminal.resize(12, 60)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.until(rb"\x1b\[2J.*q ends", start=drawn)
        resized = terminal.seen[drawn:].split(b"\x1b[2J")[-1]
        plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", resized).decode()
        picture = plain[: plain.index("q ends") + 6]
        lines = [line for line in picture.splitlines() if line.strip()]
        assert len(lines) <= 12
        assert max(len(line.rstrip()) for line in lines) <= 60
        terminal.press(b"q")
        assert terminal.process.wait(15) == 0
        terminal.until(re.escape(LEAVES_SCREEN))
        assert terminal.settings() == terminal.before
    finally:
        terminal.close()


def test_health_and_latency_of_a_whole_cluster(broker: Appliance) -> None:
    told = json.loads(appliance("cluster", "health", "--json", "-b", broker.address).succeeded().output)
    assert (told["healthy"], told["problems"], told["brokers"]) == (True, [], 1)
    figures = json.loads(
        appliance("perf", "latency", "orders", "-n", 50, "--json", "-b", broker.address).succeeded().output
    )
    assert 0 < figures["acknowledged_ms"]["p50"] <= figures["acknowledged_ms"]["max"]
    # A consumer has a record after the broker took it. Its timestamp is read later than the call, so not much earlier.
    assert figures["consumed_ms"]["p50"] > 0


def test_names_of_topics_and_groups_are_completed(broker: Appliance) -> None:
    def completed(*words: str) -> list[str]:
        more = {
            "_APPLIANCE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("appliance", *words)),
            "COMP_CWORD": str(len(words)),
            "APPLIANCE_BOOTSTRAP": broker.address,
        }
        return [line.partition(",")[2] for line in appliance(more=more).succeeded().text.split()]

    assert completed("consume", "o") == ["orders"]
    assert completed("groups", "lag", "b") == ["billing"]
    assert completed("topics", "delete", "--yes", "__c") == ["__consumer_offsets"]
    assert completed("consume", "nothing") == []


def leftovers(place: Path) -> list[str]:
    return os.listdir(place)


def test_bench_measures_a_broker_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    done = appliance("bench", "--seconds", 3, "--dir", tmp_path, timeout_s=120).succeeded().text
    lines = done.splitlines()
    assert lines[:2] == ["| appliance bench | 3 s |", "|---|---|"]
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines[2:])
    for expected in ("processor", "memory", "disk", "records/s", "requests/s", "p99"):
        assert expected in done
    assert os.uname().nodename not in done
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_bench_cleans_up_whatever_ends_it(tmp_path: Path, how: signal.Signals) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "appliance", "bench", "--seconds", "60", "--dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    try:
        deadline_s = time.monotonic() + 60
        while not list(tmp_path.glob("*/data/slot-0/appliance-bench-*")):
            assert time.monotonic() < deadline_s, "the load has begun"
            time.sleep(0.1)
        started.send_signal(how)
        code = started.wait(40)
        assert code == (130 if how is not signal.SIGKILL else -signal.SIGKILL)
        deadline_s = time.monotonic() + 30
        while leftovers(tmp_path):
            assert time.monotonic() < deadline_s, leftovers(tmp_path)
            time.sleep(0.1)
        if how is not signal.SIGKILL:
            assert started.stderr is not None
            assert b"Traceback" not in started.stderr.read()
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()
