"""How a test run starts brokers: through one template process (template.py), which it starts when it needs the first.

There is one launcher in each process that starts brokers. A process that was forked from a test run makes its own.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import appliance

ANSWER_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 5.0
_ANSWER_BYTES: Final = 4096
_KILLED: Final = -signal.SIGKILL
_MESSAGE_CHARACTERS: Final = 4000

_NOT_INHERITED: Final = frozenset(
    {
        # A broker without byte code compiles itself at each start, which takes a second.
        "PYTHONDONTWRITEBYTECODE",
        # Meant for the test run: warnings as errors, and what slows Python down.
        "PYTHONDEVMODE",
        "PYTHONWARNINGS",
        "PYTHONTRACEMALLOC",
        "PYTHONPROFILEIMPORTTIME",
        # systemd's, meant for what it started.
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "LISTEN_FDS",
        "LISTEN_PID",
    }
)
_NOT_INHERITED_PREFIXES: Final = ("COV_CORE_", "COVERAGE_PROCESS_")
"""pytest-cov would measure the broker, too."""


class TemplateFailed(Exception):
    """The template process cannot be started. The text has what it printed."""


class Launched:
    """A broker's supervisor, started through the template: what `subprocess.Popen` is for a child.

    `output` is the descriptor of its standard output, for reading; `close_output` closes it.
    """

    __slots__ = ("_exit_code", "_returned", "output", "pid")

    def __init__(self, pid: int, output: int, exit_code: int) -> None:
        self.pid = pid
        self.output = output
        self._exit_code = exit_code
        self._returned: int | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code once it has ended; negative for a signal.

        Raises:
            TimeoutError: it still runs.
        """
        if self._returned is None:
            poll = select.poll()
            poll.register(self._exit_code, select.POLLIN)
            if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                raise TimeoutError
            text = os.read(self._exit_code, 64)
            os.close(self._exit_code)
            # Without a code the template died, and its brokers with it.
            self._returned = int(text) if text else _KILLED
        return self._returned

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        with suppress(TimeoutError):
            return self.wait(0)
        return None

    def close_output(self) -> None:
        if self.output >= 0:
            os.close(self.output)
            self.output = -1


class Launcher:
    """Starts the template, and asks it for brokers. Any thread may call `launch`."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._template: subprocess.Popen[bytes] | None = None
        self._said = -1
        self._number = 0
        self._is_registered = False

    def close(self) -> None:
        """End the template, and with it the brokers that are left; nothing in a forked process."""
        if not self.is_ours():
            return
        with self._lock:
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            if self._template is not None:
                try:
                    self._template.wait(END_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self._template.kill()
                    self._template.wait()
                self._template = None

    def warm_up(self) -> None:
        """Start the template without waiting until it has loaded the broker's code."""
        with self._lock:
            if self._channel is None:
                self._start_template()

    def launch(self, argv: Sequence[str], log: int | None = None, *, clock: Path | None = None) -> Launched:
        """Start `appliance ARGV` with its standard error going to the descriptor `log`, or to its standard output.

        Args:
            clock: a file of wall_clock.py, from which all its processes take the time.

        Raises:
            TemplateFailed: the template cannot be started.
        """
        with self._lock:
            for _ in range(2):
                if self._channel is None:
                    self._start_template()
                    launched = self._ask(argv, log, clock)
                elif (launched := self._ask(argv, log, clock)) is None:
                    continue  # it was killed since the last broker: try with another one
                if launched is not None:
                    return launched
            raise TemplateFailed(self._last_words())

    def _start_template(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if self._said >= 0:
            os.close(self._said)
        self._said = os.memfd_create("appliance-template")
        with there:
            self._template = subprocess.Popen(
                [sys.executable, "-P", "-m", "appliance.testing.template"],
                stdin=there.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=environment(),
                start_new_session=True,  # Ctrl-C ends the test run, which then stops its brokers
            )
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.close)
        here.settimeout(ANSWER_TIMEOUT_S)
        self._channel = here

    def _ask(self, argv: Sequence[str], log: int | None, clock: Path | None) -> Launched | None:
        """Return the broker; None, with the template given up, where the template has ended.

        An interrupted call (Ctrl-C, a timeout of the test runner) leaves its answer in the socket. So answers have the
        number of their request, and a broker that nobody got is ended.
        """
        assert self._channel is not None
        self._number += 1
        number = self._number
        output, output_there = os.pipe2(os.O_CLOEXEC)
        exit_code, exit_code_there = os.pipe2(os.O_CLOEXEC)
        try:
            said = {"number": number, "argv": list(argv), "clock": None if clock is None else str(clock)}
            request = json.dumps(said).encode()
            descriptors = [output_there, output_there if log is None else log, exit_code_there]
            socket.send_fds(self._channel, [request], descriptors)
            while answer := self._channel.recv(_ANSWER_BYTES):
                found = json.loads(answer)
                if found["number"] == number:
                    return Launched(found["pid"], output, exit_code)
        except (ConnectionError, TimeoutError):
            pass
        except BaseException:
            os.close(output)
            os.close(exit_code)
            with suppress(OSError):
                self._channel.send(json.dumps({"end": number}).encode())
            raise
        finally:
            os.close(output_there)
            os.close(exit_code_there)
        os.close(output)
        os.close(exit_code)
        self._channel.close()
        self._channel = None
        return None

    def _last_words(self) -> str:
        if self._template is not None:
            self._template.kill()
            self._template.wait()
            self._template = None
        said = os.pread(self._said, 1 << 20, 0).decode(errors="replace")
        return f"the template process of brokers ended: {said[-_MESSAGE_CHARACTERS:]}"

    def is_ours(self) -> bool:
        """Return whether this process made it, and was not forked since."""
        return self._owner == os.getpid()


_launcher: Launcher | None = None
_making = threading.Lock()


def launcher() -> Launcher:
    """Return this process's launcher."""
    global _launcher  # noqa: PLW0603 (one in each process)
    with _making:
        if _launcher is None or not _launcher.is_ours():
            _launcher = Launcher()
        return _launcher


def environment() -> dict[str, str]:
    """Return the environment of brokers: this process's, without what is meant for the test run alone."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(_NOT_INHERITED_PREFIXES)
    }
    root = str(Path(appliance.__file__).parent.parent)
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    if root not in installed:  # the same appliance that this process has imported, wherever it is
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    return kept
