"""The supervisor's own lines reach the console: all of them in each of its lives; few wait for one that hangs."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from appliance.channels.roles import Role, RoleKind
from appliance.channels.supervision import LogLine, SupervisionSocket, socket_pair
from appliance.clock import ManualClock
from appliance.control.supervisor.back_off import BackOff
from appliance.control.supervisor.child_states import State
from appliance.control.supervisor.children import ChildRecord
from appliance.control.supervisor.own_lines import (
    AGAIN_MS,
    LINE_CHARACTERS_MAX,
    LINES_MAX,
    PAUSE_MS,
    OwnLines,
)
from appliance.ipc.agent import Timers
from appliance.journal import LineFormatter


class Bench:
    """A supervisor's records and timers, and the console's end of a real socket."""

    def __init__(self) -> None:
        self.lines = OwnLines()
        self.clock = ManualClock()
        self.timers = Timers(self.clock.monotonic_ns)
        self.console = ChildRecord(Role(RoleKind.CONSOLE), BackOff(1, 1))
        self.end: SupervisionSocket | None = None
        self.live()

    def live(self) -> None:
        """A life of the console begins, and serves."""
        self.close()
        ours, theirs = socket_pair()
        self.console.supervision, self.end = SupervisionSocket(ours), SupervisionSocket(theirs)
        self.console.state = State.SERVING
        self.console.generation += 1
        self.lines.send_to(self.console, tell=self.tell, after_ms=self.timers.after_ms)

    def tell(self, child: ChildRecord, message: LogLine) -> None:
        child.send(message)

    def received(self, after_ms: int = PAUSE_MS) -> list[str]:
        self.clock.advance(after_ms)
        self.timers.run_due(self.clock.monotonic_ns())
        assert self.end is not None
        messages = self.end.receive() or []
        return [each.text for each in messages if isinstance(each, LogLine)]

    def close(self) -> None:
        self.console.close()
        if self.end is not None:
            self.end.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_lines_of_before_and_of_now_arrive_once(bench: Bench) -> None:
    bench.lines.add("a")
    bench.lines.add("b")
    assert bench.received() == ["a", "b"]
    assert bench.received() == []
    bench.lines.add("c")
    assert bench.received(PAUSE_MS - 1) == []
    assert bench.received(1) == ["c"]


def test_the_next_life_of_a_console_gets_all_lines_again(bench: Bench) -> None:
    bench.lines.add("a")
    assert bench.received() == ["a"]
    bench.console.state = State.WAITING
    bench.lines.add("the console was killed")
    assert bench.received() == []
    # A line while the next life does not serve yet: it arrives once, with the others.
    bench.console.generation += 1
    bench.console.state = State.STARTING
    bench.lines.add("b")
    assert bench.received() == []
    bench.live()
    assert bench.received() == ["a", "the console was killed", "b"]


def test_a_console_that_does_not_read_keeps_one_line_waiting(bench: Bench) -> None:
    for number in range(5_000):
        bench.lines.add(f"{number:05} " + "x" * 1_000)
        if number % 50 == 0:
            bench.clock.advance(AGAIN_MS)
            bench.timers.run_due(bench.clock.monotonic_ns())
    assert len(bench.console.unsent) == 1
    assert bench.end is not None
    early = [each.text for each in bench.end.receive() or [] if isinstance(each, LogLine)]
    assert {len(each) for each in early} == {LINE_CHARACTERS_MAX}
    assert bench.console.flush()
    late = [each for _ in range(5) for each in (bench.received(AGAIN_MS), bench.console.flush())[0]]
    numbers = [int(each[:5]) for each in late]
    # What waited, and all that is still kept.
    assert numbers[-LINES_MAX:] == list(range(5_000 - LINES_MAX, 5_000))
    assert numbers == sorted(set(numbers))


def test_a_line_is_what_the_journal_writes_as_text() -> None:
    program = (
        "import logging; from appliance import journal; from appliance.control.supervisor.own_lines import OwnLines;"
        " lines = OwnLines(); journal.style('json', {'root': 'INFO'}); journal.start('supervisor');"
        " journal.copy_to(lines.add); logging.getLogger('appliance.x').warning('all is %s', 'well');"
        " logging.getLogger('appliance.x').debug('not logged'); print([each.text for each in lines._lines])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (line,) = ast.literal_eval(done.stdout)
    formatted = LineFormatter("supervisor").format(
        logging.LogRecord("x", logging.WARNING, "f", 1, "all is well", None, None)
    )
    assert line.partition(" ")[2] == formatted.partition(" ")[2]
