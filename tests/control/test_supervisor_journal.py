"""One event, one line: what the journal promises."""

from __future__ import annotations

import logging
import subprocess
import sys

from appliance.clock import ManualClock
from appliance.ipc.agent import Timers
from appliance.journal import Burst, LineFormatter, RateLimited
from appliance.journal_line import TEXT_LENGTH_MAX, one_line


def record(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("room", level, "file.py", 1, text, None, None)


def test_line_has_time_level_and_role() -> None:
    line = LineFormatter("netproc 1").format(record("serving"))
    time, level, rest = line.split(" ", 2)
    assert time.endswith("Z")
    assert len(time) == len("2026-03-01T12:00:00.123Z")
    assert level == "WARNING"
    assert rest == "netproc 1: serving"


def test_line_for_systemd_begins_with_the_priority() -> None:
    formatter = LineFormatter("acceptor", for_systemd=True)
    assert formatter.format(record("x", logging.ERROR)) == "<3>acceptor: x"
    assert formatter.format(record("x", logging.INFO)) == "<6>acceptor: x"


def test_text_of_a_client_cannot_forge_a_line() -> None:
    forged = "topic\n2026-01-01T00:00:00.000Z INFO controller: all is well\r\x1b[2J\u2028"
    line = LineFormatter("netproc 0").format(record(forged))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert len(one_line("x" * 100_000)) == TEXT_LENGTH_MAX


def test_rate_limited_line_counts_what_it_left_out() -> None:
    clock = ManualClock(monotonic_ns=1)
    said: list[str] = []
    say = RateLimited(said.append, clock, interval_ms=1000)
    assert say("refused")
    assert not say("refused")
    assert not say("refused")
    clock.advance(1000)
    assert say("refused")
    assert said == ["refused", "refused (and 2 more like it)"]


def test_process_goes_on_when_nobody_reads_its_standard_error() -> None:
    program = (
        "import logging, os; from appliance import journal; journal.start('x'); os.close(2);"
        " logging.getLogger('x').error('gone'); print('on')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "on\n"


def test_burst_says_some_lines_of_each_interval_and_how_many_were_left_out() -> None:
    clock, said = ManualClock(), list[str]()
    timers = Timers()
    say = Burst(said.append, clock, at=timers.add, lines=2, what="doors were closed", interval_ms=60_000)
    for number in range(1_236):
        say(f"door {number}")
    assert said == ["door 0", "door 1"]
    clock.advance(59_999)
    say("door late")
    timers.run_due(clock.monotonic_ns())
    assert len(said) == 2
    clock.advance(1)
    timers.run_due(clock.monotonic_ns())
    assert said[2:] == ["… and 1,235 more doors were closed in the last 60 s"]
    say("door again")
    assert said[3:] == ["door again"]
    assert not timers.any


def test_burst_that_left_out_nothing_says_nothing_of_it() -> None:
    clock, said = ManualClock(), list[str]()
    timers = Timers()
    say = Burst(said.append, clock, at=timers.add, lines=2, what="doors", interval_ms=1_000)
    for number in range(6):
        say(str(number))
        clock.advance(600)
    assert said == list("012345")
    assert not timers.any
