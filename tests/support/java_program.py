"""A long-running program of Kafka's jars that a test kills and starts again: Connect, MirrorMaker 2, a copier."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.apache_kafka import java
from tests.support.broker import end_with_the_test_runner

JVM: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Small, and quick to start: such a program lives for a minute."""


class JavaProgram:
    """Args:
    arguments: the main class and its arguments.
    output: a file to which the output of all its lives is appended.
    more: further jars.
    """

    def __init__(self, arguments: Sequence[str], output: Path, *, more: Path | None = None) -> None:
        self._command = [*java(*JVM, more=more), *arguments]
        self.output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns at once: the program is not ready yet."""
        assert not self.lives(), "already started"
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the test runner is not the program's
                preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
            )

    def kill(self) -> None:
        """SIGKILL; does nothing when it does not run."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)

    def pause(self) -> None:
        """SIGSTOP: it becomes a zombie that may come back after its successor."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, which: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(which)

    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        """None while it runs, and before its first start."""
        return None if self._process is None else self._process.poll()

    def told(self) -> str:
        """The end of its output, for a failure's text."""
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else "(no output)"
