"""The appliance under test: started as a user starts it, stopped as systemd stops it.

Readiness is a line with `ready` on standard output and an answer to ApiVersions on the port. A stop is
SIGTERM; it is clean when the command exits with 0 in time and leaves no process and no shared memory name.
"""

from __future__ import annotations

import codecs
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from appliance.channels import runtime_directory
from appliance.cli.status import living_process, processes_of
from appliance.control.supervisor.duty_cycle import EXIT_KILLED
from tests.support.forked import Forked, can_fork
from tests.support.store import chosen_options
from tests.support.wire import answers_api_versions, free_ports

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
_AT_ONCE: Final = {"group.initial.rebalance.delay.ms": 0}
"""As Apache Kafka ships it in server.properties. With the default, each new group of a test waits for 3 s."""
_C_LIBRARY: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class Broker(Protocol):
    """What a client test needs of a broker."""

    @property
    def address(self) -> str:
        """`host:port` of the first broker slot."""

    def start(self) -> None:
        """Returns when requests are answered."""

    def stop(self) -> None:
        """Stops it and asserts that the stop was clean."""


class BrokerFailed(AssertionError):
    """The broker did not start, did not stop, or left something behind. The text ends with its output."""


class Output:
    """Everything a process printed, gathered by a thread so that its pipe is never full; `copy` gets it, too."""

    def __init__(self, process: subprocess.Popen[str] | Forked, ready: str, copy: Path | None = None) -> None:
        self._text = ""
        self._copy = copy
        self._ready = ready
        self.is_ready = threading.Event()
        assert process.stdout is not None
        self._stream = process.stdout
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._gather, daemon=True)
        self._thread.start()

    def _gather(self) -> None:
        while self._is_there(None):
            with self._reading:
                if not self._is_there(0):
                    continue  # somebody asked for the text, and took it
                if not self._take():
                    break
        self.is_ready.set()  # the end of the output wakes the waiter, which then sees the exit code

    def _is_there(self, timeout_ms: int | None) -> bool:
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        return bool(poll.poll(timeout_ms))

    def _take(self) -> bool:
        """Reads what is there. Whether that is not the end."""
        data = os.read(self._stream.fileno(), 1 << 16)
        self._text += self._decoder.decode(data)
        if self._copy is not None:
            with self._copy.open("ab") as copy:
                copy.write(data)
        if self._ready in self._text:
            self.is_ready.set()
        return bool(data)

    def text(self) -> str:
        """What was printed so far, to the last byte."""
        with self._reading:
            while not self._stream.closed and self._is_there(0) and self._take():
                pass
            return self._text

    def tail(self, lines: int = 40) -> str:
        """The last lines, for a failure's text."""
        return "".join(self.text().splitlines(keepends=True)[-lines:])

    def close(self) -> None:
        """Waits for the end of the output; the process must have ended."""
        self._thread.join(timeout=STOP_TIMEOUT_S)
        with self._reading:
            self._stream.close()


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process as `appliance status` tells it."""

    role: str
    pid: int
    generation: int


class Appliance:
    """`appliance serve` in a process of its own.

    Args:
        data_dir: kept over a stop and a start, so that a test can restart on the same data.
        slots: broker slots; slot n listens on `port + n`.
        settings: options under their names, written to the configuration file. Where they name a `metadata.store`,
            it is that one, whatever the run asks for. A new group's members wait for no others unless they say so.
        arguments: further flags of `appliance serve`.
        output_to: a file to which all its lives' output is appended.
        build: a directory with another build of the appliance for the same interpreter; none for this tree.
        wrapper: a command that runs the one after it in its own process, as another user perhaps.
        port: that of slot 0, where `settings` name listeners: one of them must be in plain text there, on loopback.
        is_forked: whether it may come from the template that has loaded the code (`forked.py`). False for tests of what
            a start loads, or of what processes share.
        shares_session: whether it runs in our session, so that nice values decide between it and clients in this one.
            With `kernel.sched_autogroup_enabled` they count within a session only.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        slots: int = 1,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        output_to: Path | None = None,
        build: Path | None = None,
        wrapper: Sequence[str] = (),
        port: int | None = None,
        is_forked: bool = True,
        shares_session: bool = False,
    ) -> None:
        self._wrapper = tuple(wrapper)
        self._is_forked = is_forked and not shares_session
        self._shares_session = shares_session
        self._output_to = output_to
        self._build = build
        self.data_dir = data_dir
        self.slots = slots
        self.port = free_ports(slots) if port is None else port
        asked = settings or {}
        store = {} if "metadata.store" in asked else chosen_options(data_dir)
        self._settings = {**_AT_ONCE, **store, **asked}
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[str] | Forked | None = None
        self._output: Output | None = None
        self._family: dict[int, psutil.Process] = {}
        self._memory: Path | None = None

    @property
    def address(self) -> str:
        """`host:port` of slot 0."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    def set_option(self, name: str, value: object) -> None:
        """From its next start on."""
        self._settings[name] = value

    def output(self) -> str:
        """What the appliance printed so far."""
        return self._output.text() if self._output else ""

    @property
    def _environment(self) -> dict[str, str]:
        own = {"PYTHONUNBUFFERED": "1"} | ({"PYTHONPATH": str(self._build)} if self._build else {})
        return os.environ | own

    def run(self, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run `appliance ARGUMENTS` from this broker's build. Raises `TimeoutExpired`."""
        return subprocess.run(
            [*_command(), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=self._environment,
            cwd=self._build,
        )

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the appliance and returns when it answers.

        Raises:
            BrokerFailed: it ended, or was not ready in time.
        """
        assert self._process is None, "already started"
        self._process = self._new_process()
        self._output = Output(self._process, "ready", self._output_to)
        deadline = time.monotonic() + timeout_s
        ready = self._output.is_ready.wait(timeout_s)
        if not ready or self._process.poll() is not None:
            self._give_up("was not ready in time" if self._process.poll() is None else "ended at start")
        for slot in range(self.slots):
            # A refusal may have "ready" in its text, too ("already"), and be read before its process has ended.
            left_s = deadline - time.monotonic()
            if not answers_api_versions(self.port + slot, left_s, is_running=self._is_running):
                self._give_up(f"said ready, but port {self.port + slot} does not answer ApiVersions")
        self._memory = _memory_of(self.data_dir)
        self._remember_family()

    def _new_process(self) -> subprocess.Popen[str] | Forked:
        if self._is_forked and not self._wrapper and self._build is None and can_fork():
            return Forked(self._arguments_of_serve())
        return subprocess.Popen(
            self._command(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            cwd=self._build,
            # A Ctrl-C at the test runner is not the appliance's.
            start_new_session=not self._shares_session,
            process_group=0 if self._shares_session else None,
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """SIGTERM, then the checks of a clean stop; does nothing when it is not running.

        Raises:
            BrokerFailed: wrong exit code, too slow, or something left behind.
        """
        if self._process is None:
            return
        self._remember_family()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._give_up(f"did not stop within {STOP_TIMEOUT_S:.0f} s of SIGTERM")
        _, alive = psutil.wait_procs(list(self._family.values()), timeout=STOP_TIMEOUT_S)
        left_names = [str(self._memory)] if self._memory is not None and self._memory.exists() else []
        if code != 0:
            self._give_up(f"exited with {code} after SIGTERM")
        if alive:
            self._give_up(f"left processes behind: {[' '.join(_title(process)) for process in alive]}")
        if left_names:
            self._give_up(f"left shared memory behind: {left_names}")
        self._forget()

    def wait(self, timeout_s: float) -> int:
        """Return the exit code of the command once it has ended. Raises `TimeoutExpired`."""
        assert self._process is not None, "not started"
        return self._process.wait(timeout_s)

    def stop_without(self, timeout_s: float) -> list[psutil.Process]:
        """SIGTERM where something cannot be ended; the processes that are left once the command has said so.

        Raises:
            BrokerFailed: it did not end in time, or with another exit code.
        """
        assert self._process is not None, "not started"
        self._remember_family()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._give_up(f"did not stop within {timeout_s:.0f} s of SIGTERM")
        if code != EXIT_KILLED:
            self._give_up(f"exited with {code} after SIGTERM, not {EXIT_KILLED}")
        left = [process for process in self._family.values() if process.is_running()]
        self._process, self._family = None, {}  # its output ends with the last of them
        return left

    def kill(self) -> None:
        """SIGKILL for every process at once, as a power cut; leaves what they leave behind."""
        if self._process is None:
            return
        self._remember_family()
        for process in self._family.values():  # the supervisor first, so that nothing is restarted
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in self._family.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        psutil.wait_procs(list(self._family.values()), timeout=STOP_TIMEOUT_S)
        self._forget()

    def processes(self) -> list[ProcessRow]:
        """The living processes as `appliance status` tells them; who is between two lives is not among them."""
        return [
            ProcessRow(role=row["role"], pid=row["pid"], generation=row["generation"])
            for row in self._rows()
            if row["pid"] is not None
        ]

    def is_whole(self) -> bool:
        """Whether every process that was ever started lives."""
        return all(row["pid"] is not None for row in self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        rows = processes_of(self.data_dir.resolve())
        assert rows is not None, self._output.tail() if self._output else "not started"
        return rows

    def pids(self, role: str) -> list[int]:
        """Process ids of a role, such as `netproc`, in the order in which the appliance tells them.

        A role matches whole or by its first word: `ioproc` finds `ioproc 0.0`.
        """
        return [row.pid for row in self.processes() if role in (row.role, row.role.split()[0])]

    def kill_role(self, role: str, index: int = 0) -> int:
        """SIGKILL for one process of a role, waited for between two lives; returns the process id, which has died."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(pids := self.pids(role)) <= index:
            assert time.monotonic() < deadline, f"no process {index} of role {role}: {self.processes()}"
            time.sleep(0.02)
        os.kill(pids[index], signal.SIGKILL)
        while living_process(pids[index]) is not None:
            assert time.monotonic() < deadline, f"process {pids[index]} of role {role} lives on"
            time.sleep(0.002)
        return pids[index]

    def family(self) -> list[psutil.Process]:
        """The supervisor and all its descendants, living."""
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]

    def _command(self) -> list[str]:
        return [*self._wrapper, *_command(), *self._arguments_of_serve()]

    def _arguments_of_serve(self) -> list[str]:
        command = ["serve", "--data-dir", str(self.data_dir)]
        if "listeners" not in self._settings:
            command += ["--port", str(self.port)]
        command += ["--slots", str(self.slots)]
        if self._settings:
            command += ["--config", str(self._write_configuration())]
        return [*command, *self._arguments]

    def _write_configuration(self) -> Path:
        path = self.data_dir.with_name(self.data_dir.name + ".toml")
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f'"{name}" = {json.dumps(value)}\n' for name, value in self._settings.items()]
        path.write_text("".join(lines))
        if "delegation.token.secret.key" in self._settings:
            path.chmod(0o600)
        return path

    def _remember_family(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self._family.update((process.pid, process) for process in self.family())

    def _give_up(self, reason: str) -> None:
        assert self._output is not None
        text = f"the appliance {reason}\n{self._output.tail()}"
        self.kill()
        runtime_directory.remove(self.data_dir)
        raise BrokerFailed(text)

    def _forget(self) -> None:
        if self._output is not None:
            self._output.close()
        self._process = None
        self._family = {}


def end_with_the_test_runner() -> None:
    """In the child: SIGTERM when the test runner dies, so that a killed run leaves nothing behind."""
    _C_LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def shared_memory_names(data_dir: Path) -> frozenset[str]:
    """Return the names of the instance's shared memory and sockets, in its private directory."""
    memory = _memory_of(data_dir)
    return frozenset() if memory is None else frozenset(path.name for path in memory.iterdir())


def _memory_of(data_dir: Path) -> Path | None:
    """Return the private directory of the instance, whoever owns it; None where there is none."""
    with suppress(FileNotFoundError):
        return runtime_directory.find(data_dir, owner=data_dir.stat().st_uid)
    return None


def _command() -> list[str]:
    return [sys.executable, "-m", "appliance"]


def _title(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return [str(process.pid)]
