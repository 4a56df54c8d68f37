"""Run steps of the gate side by side, each with its output kept apart.

usage: scripts/side_by_side.py [--at-once N] [--beside "system-waits unit-waits"] "check unit-spark" "unit-pure clients"

Each argument is a lane: targets of the Makefile that run one after the other. The lanes run at the same time, or N of
them: then the next step is the first one that waits, by the order of the lanes, so the longest belong to the front.
A lane that is `--beside` begins at once and is not counted: it is for steps that leave the processors to the others.

    a step ends well      its output is printed whole, under a headline with its time
    a step fails          one line says so at once; its output is printed at the end, behind all others. No further step
                          begins, and those that run end by themselves. The exit code is 1
    each minute           one line names the steps that run, and the last line that each has printed
    Ctrl-C, SIGTERM, hup  every step is interrupted, then ended; what each has printed follows. The exit code is 130

Every step has a process group of its own and no standard input. Its output goes to a file without a name, so a reader
that falls behind holds nobody up.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Final

LOOK_S: Final = 0.1
NEWS_S: Final = 60.0
TAIL_BYTES: Final = 4096
LINE_CHARACTERS: Final = 100
PATIENCE_S: Final = {signal.SIGINT: 20.0, signal.SIGTERM: 5.0, signal.SIGKILL: 5.0}
"""How long a step may take to end after each signal."""

EXIT_INTERRUPTED: Final = 130

C_LIBRARY: Final = ctypes.CDLL(None)
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


@dataclass
class Step:
    """A target of the Makefile, and the process that makes it."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    begun_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    @classmethod
    def begun(cls, name: str) -> Step:
        output = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the step)
        process = subprocess.Popen(
            [os.environ.get("MAKE", "make"), "--no-print-directory", name],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_us,  # noqa: PLW1509 (one C call, takes no lock)
        )
        return cls(name, process, output)

    def has_ended(self) -> bool:
        if self.process.poll() is None:
            return False
        self.ended_s = time.monotonic()
        return True

    @property
    def seconds(self) -> float:
        return (self.ended_s or time.monotonic()) - self.begun_s

    def text(self, bytes_max: int | None = None) -> str:
        """What it has printed, or the end of it. Reads by position, because the step writes through the same file."""
        file = self.output.fileno()
        size_bytes = os.fstat(file).st_size
        at = 0 if bytes_max is None else max(size_bytes - bytes_max, 0)
        pieces = []
        while at < size_bytes and (piece := os.pread(file, size_bytes - at, at)):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces).decode("utf-8", "replace")

    def last_line(self) -> str:
        """The last line of it that says anything."""
        lines = [line.strip() for line in self.text(TAIL_BYTES).splitlines() if line.strip()]
        return lines[-1][-LINE_CHARACTERS:] if lines else "nothing printed yet"

    def signal(self, number: signal.Signals) -> None:
        """To it and to everything that it has started in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Waits for the end of an interrupted step, and ends it and its group by force where it does not come.

        One SIGINT and no more: a second one would cut short what stops the brokers of a test.
        """
        for number, patience_s in PATIENCE_S.items():
            if number != signal.SIGINT:
                self.signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
                break
        self.signal(signal.SIGKILL)  # what is left of its group
        self.has_ended()


class Lanes:
    """The steps that wait, run and have failed."""

    def __init__(
        self, lanes: Sequence[Sequence[str]], *, at_once: int, beside: Sequence[Sequence[str]] = ()
    ) -> None:
        self.is_interrupted = False
        self._at_once = at_once
        self._beside = range(len(beside))
        self._waiting = [list(lane) for lane in (*beside, *lanes)]
        self._running: dict[int, Step] = {}
        self._failed: list[Step] = []

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """A signal handler: the lanes are looked at a moment later."""
        self.is_interrupted = True

    def run(self) -> int:
        """Runs all of it; the exit code."""
        news_s = time.monotonic() + NEWS_S
        while not self.is_interrupted:
            self._begin()
            if not self._running:
                return self._conclude()
            time.sleep(LOOK_S)
            self._look()
            if time.monotonic() >= news_s:
                news_s += NEWS_S
                for step in self._running.values():
                    say(f"{step.name} has run for {step.seconds:.0f} s: {step.last_line()}")
        for step in self._running.values():
            step.signal(signal.SIGINT)
        for step in self._running.values():
            step.end()
            show(step, "interrupted")
        return EXIT_INTERRUPTED

    def _begin(self) -> None:
        for number, lane in enumerate(self._waiting):
            counted = sum(each not in self._beside for each in self._running)
            has_place = number not in self._running and (number in self._beside or counted < self._at_once)
            if has_place and lane and not self._failed:
                self._running[number] = Step.begun(lane.pop(0))

    def _look(self) -> None:
        for number, step in list(self._running.items()):
            if not step.has_ended():
                continue
            del self._running[number]
            if step.process.returncode == 0:
                show(step, "passed")
            else:
                self._failed.append(step)
                say(f"{step.name}: FAILED after {step.seconds:.0f} s; its output follows at the end")

    def _conclude(self) -> int:
        for step in self._failed:
            show(step, "FAILED")
        if not self._failed:
            return 0
        failed = ", ".join(step.name for step in self._failed)
        left = ", ".join(name for lane in self._waiting for name in lane)
        say(f"failed: {failed}; not begun: {left or 'nothing'}")
        return 1


def end_with_us() -> None:
    """For a new step: SIGTERM when we are killed, as it would get it with us if it were in our process group."""
    C_LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def say(line: str) -> None:
    print(f"== {line} ({time.strftime('%H:%M:%S')}) ==", flush=True)


def show(step: Step, how: str) -> None:
    """Prints the output of a step, whole."""
    say(f"{step.name}: {how} after {step.seconds:.0f} s")
    print(step.text().rstrip("\n"), flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lanes", nargs="+", metavar="LANE", help="targets that run one after the other")
    parser.add_argument(
        "--at-once", type=int, metavar="N", help="run so many lanes at a time; all by default"
    )
    parser.add_argument(
        "--beside", action="append", default=[], metavar="LANE", help="a lane that is not counted as one of N"
    )
    asked = parser.parse_args(arguments)
    lanes = [lane.split() for lane in asked.lanes]
    beside = [lane.split() for lane in asked.beside]
    at_once = len(lanes) if asked.at_once is None else asked.at_once
    if not all(lanes) or not all(beside) or at_once < 1:
        parser.error("a lane without a target, or none at once")
    steps = Lanes(lanes, at_once=at_once, beside=beside)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, steps.interrupt)
    return steps.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
