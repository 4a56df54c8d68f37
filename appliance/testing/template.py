"""The template process: it has loaded the broker's code, and forks a broker whenever the test run asks for one.

    test run ── number, argv, clock; descriptors for output, log, exit code ──→ template ──fork──→ supervisor ──→ …
             ←── number, process id ────────────────────────────────────────────
             ── end: number ────────────────────────────────────────────────────→ (nobody waits for this broker)

Loading takes 280 ms of a cold start of 330 ms. A broker that is forked from the template starts in a third of that, so
each test can have its own. Decision 0046 refused this for a service, which starts once.

What it does: fork, reap, and write the exit code of a broker into the descriptor that came with the request.
What it never does: start a thread, make a ZeroMQ context, or open a file that a broker would inherit.
How it ends: the test run closes the socket or dies. Its brokers watch it as their parent, and end then, too.

The socket is its standard input, of type SOCK_SEQPACKET: a message is one request, however long.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

from appliance.cli.ephemeral import PARENT_VARIABLE
from appliance.control.supervisor.parent import watch_parent
from appliance.testing import wall_clock

REQUEST_BYTES_MAX: Final = 1 << 20
DESCRIPTORS: Final = 3
"""Standard output, standard error (the log) and the exit code."""
_LOADED: Final = (
    "appliance.channels.wiring",
    "appliance.cli.program",
    "appliance.cli.serve",
    "appliance.control.supervisor.duty_cycle",
    "appliance.control.supervisor.main",
    "appliance.control.supervisor.parent",
)
"""What `serve --ephemeral` imports late, beside the entry points."""
_C_LIBRARY: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_COMMAND: Final = str(Path(__file__).parent.parent / "__main__.py")
_CHANNEL: Final = 0
_FAILED: Final = 1


class Template:
    """The duty cycle of the process. `load` comes first, so that forked brokers share what it loaded."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._exit_codes: dict[int, int] = {}
        """Process id of a living broker → the descriptor for its exit code."""
        self._numbers: dict[int, int] = {}
        """Process id of a living broker → the number of the request for it."""
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A process that the test run has forked may hold the other end of the socket, and outlive the run.
        self._test_run = watch_parent()

    def run(self) -> None:
        """Serve until the test run is gone."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        if self._test_run >= 0:
            poll.register(self._test_run, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._test_run in ready:
                return
            if self._wake_read in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                self._reap()
            if self._channel.fileno() in ready and not self._take():
                return

    def _take(self) -> bool:
        """Carry out one request. Return False when there will be no more."""
        try:
            request, descriptors, _, _ = socket.recv_fds(self._channel, REQUEST_BYTES_MAX, DESCRIPTORS)
        except ConnectionError:
            return False
        if not request:
            return False
        wanted = json.loads(request)
        if "end" in wanted:
            self._end(wanted["end"])
            return True
        output, log, exit_code = descriptors
        pid = os.fork()
        if pid == 0:
            self._be(wanted["argv"], output, log, clock=wanted["clock"])
        os.close(output)
        os.close(log)
        self._exit_codes[pid] = exit_code
        self._numbers[pid] = wanted["number"]
        with suppress(ConnectionError):
            self._channel.send(json.dumps({"number": wanted["number"], "pid": pid}).encode())
        return True

    def _end(self, number: int) -> None:
        """Stop the broker of a request. Its process id cannot be another's, because only `_reap` gives it free."""
        for pid, asked in self._numbers.items():
            if asked == number:
                os.kill(pid, signal.SIGTERM)

    def _reap(self) -> None:
        for pid, descriptor in list(self._exit_codes.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                with suppress(OSError):  # nobody waits for it any more
                    os.write(descriptor, f"{os.waitstatus_to_exitcode(status)}\n".encode())
                os.close(descriptor)
                del self._exit_codes[pid], self._numbers[pid]

    def _be(self, argv: list[str], output: int, log: int, *, clock: str | None) -> NoReturn:
        """In the child: become the supervisor of a broker, whose wall clock is in the file `clock`."""
        code = _FAILED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ[PARENT_VARIABLE] = str(os.getppid())
            # `serve --ephemeral` watches its parent. What else is started here ends with the template by this signal.
            _C_LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            os.setsid()  # as a process group it can be killed at once, and Ctrl-C does not reach it
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor, becomes in ((nothing, 0), (output, 1), (log, 2)):
                os.dup2(descriptor, becomes)
            # Below `nothing` lies what the template has: its pipe, and descriptors for exit codes of other brokers.
            os.closerange(3, max(nothing, output, log, self._test_run, *self._exit_codes.values()) + 1)
            if clock is not None:
                wall_clock.follow(Path(clock))
            sys.argv = [_COMMAND, *argv]  # what a broker prints names its own command
            from appliance.cli.program import main

            code = main(argv)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else _FAILED
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(code)


def load() -> None:
    """Load what every broker needs."""
    # What is loaded lives as long as the process; to look through it takes a seventh of the time.
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in _LOADED:
        import_module(name)
    from appliance.channels.roles import RoleKind
    from appliance.control.supervisor.entry_points import ENTRY_POINTS, load_all

    load_all(ENTRY_POINTS, set(ENTRY_POINTS) - {RoleKind.AUDITOR, RoleKind.KEYS})


def main() -> None:
    import setproctitle

    setproctitle.setproctitle("appliance: template of test brokers")
    load()
    Template(socket.socket(fileno=_CHANNEL)).run()


if __name__ == "__main__":
    main()
