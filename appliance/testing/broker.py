"""`Broker`: an ephemeral broker in processes of its own, and what a test may do to it.

It runs `appliance serve --ephemeral`, forked from a template process (template.py). Its data are in memory (scratch.py
says where exactly). Its processes end when the test run ends, also when that is killed: the broker watches the
template, and the template watches the test run.

Importing this module costs a test run a few milliseconds. What only faults and topics need is imported when it is used.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from appliance.control.supervisor.scratch import Scratch
from appliance.errors import ApplianceError
from appliance.testing import wall_clock
from appliance.testing.launcher import Launched, TemplateFailed, launcher

if TYPE_CHECKING:
    from appliance.testing.topics import Topics

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 5.0
KILL_TIMEOUT_S: Final = 10.0
LOG_LINES: Final = 60
"""How much of the broker's output the text of an error has."""

_LOOK_S: Final = 0.005


class BrokerFailed(ApplianceError):
    """The broker did not start, did not do what was asked, or is not running. The text ends with its output."""


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """One process of a broker. `role` as in `appliance status`: `netproc 0`, `ioproc 0.0`, `controller`."""

    role: str
    pid: int
    generation: int


class Broker:
    """A broker for tests; use it with `with` or `async with`, or call `start` and `close`.

    Args:
        slots: broker slots; clients see each as one broker. With 3, a topic has 3 replicas.
        options: option → value, as in docs/configuration.md. They win over what an ephemeral broker sets by itself.
        port: that of slot 0; None chooses free ports.
        directory: where the data are put; None is memory. The broker makes a directory of its own there.
        start_timeout_s: how long a start may take.

    Thread-safe as far as one thread at a time starts, stops and closes it.
    """

    def __init__(
        self,
        *,
        slots: int = 1,
        options: Mapping[str, object] | None = None,
        port: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._slots = slots
        self._options = dict(options or {})
        self._port = port
        self._directory = None if directory is None else Path(directory)
        self._start_timeout_s = start_timeout_s
        self._scratch: Scratch | None = None
        self._process: Launched | None = None
        self._facts: dict[str, Any] = {}

    # Its life

    def start(self) -> Self:
        """Start it and return when clients can connect. After `stop` and `kill_all` it has the data from before.

        Raises:
            BrokerFailed: it runs already, ended, or was not ready in time.
        """
        if self._process is not None:
            raise BrokerFailed("the broker runs already")
        if self._scratch is None:
            self._scratch = Scratch.make(self._directory)
        wall_clock.make(self._scratch.path / wall_clock.NAME)
        try:
            with self._scratch.log.open("ab") as log:
                process = launcher().launch(
                    self._arguments(self._scratch), log.fileno(), clock=self._scratch.path / wall_clock.NAME
                )
        except TemplateFailed as failure:
            raise BrokerFailed(str(failure)) from None
        self._process = process
        try:
            self._facts = json.loads(self._first_line(process))
        except BaseException:
            self.kill_all()
            raise
        finally:
            process.close_output()
        self._port = int(self._facts["port"])
        return self

    def stop(self) -> None:
        """Stop it cleanly, and keep the data for the next `start`; nothing when it does not run.

        Raises:
            BrokerFailed: it did not stop in time, and was killed.
        """
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)  # those that a test has frozen
            os.kill(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except TimeoutError:
            self.kill_all()
            raise BrokerFailed(f"the broker did not stop in {STOP_TIMEOUT_S:.0f} s and was killed") from None
        self._end_orphans(process.pid)
        self._process = None

    def restart(self) -> Self:
        """Stop it cleanly and start it with the same data, options and ports."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End it and throw its data away. May be called again."""
        with suppress(BrokerFailed):
            self.stop()
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        import asyncio

        lock = threading.Lock()
        is_started = is_cancelled = False

        def enter() -> None:
            nonlocal is_started
            self.__enter__()
            with lock:
                is_started = True
                if not is_cancelled:
                    return
            self.close()  # the task did not wait, and nobody else closes it

        try:
            await asyncio.to_thread(enter)
        except asyncio.CancelledError:
            with lock:
                is_cancelled = True
            if is_started:
                await asyncio.shield(asyncio.to_thread(self.close))
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    # What a client needs

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of each slot, separated by commas: what Kafka clients call `bootstrap.servers`."""
        return str(self._fact("bootstrap_servers"))

    @property
    def port(self) -> int:
        """The port of slot 0; slot n has `port + n`."""
        return int(self._fact("port"))

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def data_dir(self) -> Path:
        """The data directory: segments in Kafka's format are in `slot-0/TOPIC-PARTITION/`."""
        return Path(self._fact("data_dir"))

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return int(self._fact("pid"))

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def topics(self) -> Topics:
        """Create, delete and list topics without a client."""
        from appliance.testing.topics import Topics

        if (protocol := self._fact("security_protocol")) != "PLAINTEXT":
            raise BrokerFailed(f"topics needs a listener in plain text, and this broker's is {protocol}")
        return Topics(self.bootstrap_servers)

    def log(self, lines: int | None = None) -> str:
        """Return what the broker printed in all its lives, or the last `lines` of it."""
        if self._scratch is None:
            return ""
        with suppress(FileNotFoundError):
            text = self._scratch.log.read_text(errors="replace")
            return text if lines is None else "".join(text.splitlines(keepends=True)[-lines:])
        return ""

    # Faults

    def processes(self) -> list[BrokerProcess]:
        """Return the living processes. One that died just now may be missing until it is started again."""
        from appliance.cli.status import processes_of

        rows = processes_of(self.data_dir) or []
        return [
            BrokerProcess(row["role"], row["pid"], row["generation"])
            for row in rows
            if row["pid"] is not None
        ]

    def kill(self, role: str, index: int = 0) -> int:
        """Kill (SIGKILL) one process and return its process id, when it is dead. The supervisor starts another one.

        Args:
            role: whole (`ioproc 2.0`) or its first word (`netproc`, `ioproc`, `replica`, `controller`, `coordinator`,
                `acceptor`, `purgatory`, `cleaner`). Without its `supervisor` the broker stops.
            index: which of several.

        Raises:
            BrokerFailed: there is no such process.
        """
        pids = self._wait_for_pids(role, index + 1)
        os.kill(pids[index], signal.SIGKILL)
        if self._process is not None and pids[index] == self._process.pid:
            self._process.wait(KILL_TIMEOUT_S)
            self._end_orphans(self._process.pid)
            self._process = None
        else:
            self._wait_until_dead([pids[index]])
        return pids[index]

    def drop_connections(self) -> None:
        """Break every client's connection, by killing the processes that have them."""
        for index in range(len(self._pids("netproc"))):
            self.kill(f"netproc {index}")

    def kill_all(self) -> None:
        """Kill all processes at once, as a power cut that leaves the page cache; `start` starts it with its data."""
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(KILL_TIMEOUT_S)
        self._end_orphans(process.pid)
        self._process = None

    @contextmanager
    def frozen(self, role: str) -> Iterator[None]:
        """Stop the processes of a role (SIGSTOP), as a host does that swaps or a disk that does not answer.

        With several slots the supervisor kills a worker that does not answer for `worker.hang.timeout.ms`.
        """
        pids = self._wait_for_pids(role, 1)
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def set_clock_ahead(self, seconds: float) -> None:
        """Set the wall clock of all processes ahead of the host's, at once and also after a restart.

        A negative number sets it behind, 0 sets it right. Timeouts use another clock, and take no notice.

        Raises:
            BrokerFailed: it was never started.
            ValueError: `seconds` is more than 146 years, or no number.
        """
        if self._scratch is None:
            raise BrokerFailed("the broker was never started, so it has no clock")
        wall_clock.set_ahead(self._scratch.path / wall_clock.NAME, seconds)

    def stop_slot(self, slot: int) -> None:
        """Stop a slot and return when other slots lead its partitions. Clients see a broker that left.

        Raises:
            BrokerError: there is no such slot, or it does not hand over in 30 s.
        """
        from appliance.cli.slot_stops import stop_slot

        stop_slot(self._another_address(slot), slot)

    def start_slot(self, slot: int) -> None:
        """Start a stopped slot and return when clients can use it.

        Raises:
            BrokerError: there is no such slot, or it does not come back in 30 s.
        """
        from appliance.cli.slot_stops import start_slot

        start_slot(self._another_address(slot), slot)

    def wait_until_whole(self, timeout_s: float = KILL_TIMEOUT_S) -> None:
        """Return when every process that was ever started lives and serves.

        Raises:
            BrokerFailed: not in time.
        """
        from appliance.cli.status import processes_of

        deadline = time.monotonic() + timeout_s
        while True:
            rows = processes_of(self.data_dir) or []
            # The supervisor has no row of its own, and so no state.
            missing = [row["role"] for row in rows if row["pid"] is None or row.get("state") == "starting"]
            if rows and not missing:
                return
            self._look_again(deadline, f"not running: {', '.join(missing) or 'anything'}")

    # Small parts

    def _arguments(self, scratch: Scratch) -> list[str]:
        arguments = [
            "serve",
            "--ephemeral",
            "--json",
            "--scratch",
            str(scratch.path),
            "--slots",
            str(self._slots),
        ]
        if self._port is not None and "listeners" not in self._options:
            arguments += ["--port", str(self._port)]
        for name, value in self._options.items():
            arguments += ["--set", f"{name}={_text(value)}"]
        return arguments

    def _first_line(self, process: Launched) -> bytes:
        """Return the line that says where the broker listens."""
        poll = select.poll()
        poll.register(process.output, select.POLLIN)
        deadline = time.monotonic() + self._start_timeout_s
        line = b""
        while not line.endswith(b"\n"):
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0 or not poll.poll(left_ms):
                raise self._failure(f"was not ready in {self._start_timeout_s:.0f} s")
            piece = os.read(process.output, 1 << 16)
            if not piece:
                code = process.wait(KILL_TIMEOUT_S)
                raise self._failure(f"ended at the start with exit code {code}")
            line += piece
        return line

    def _failure(self, what: str) -> BrokerFailed:
        return BrokerFailed(f"the broker {what}\n{self.log(LOG_LINES)}")

    def _fact(self, name: str) -> Any:
        if not self._facts:
            raise BrokerFailed("the broker was not started")
        return self._facts[name]

    def _pids(self, role: str) -> list[int]:
        return [each.pid for each in self.processes() if role in (each.role, each.role.split()[0])]

    def _wait_for_pids(self, role: str, count: int) -> list[int]:
        deadline = time.monotonic() + KILL_TIMEOUT_S
        if not any(role in (each.role, each.role.split()[0]) for each in self._ever_started()):
            known = sorted({each.role for each in self._ever_started()})
            raise BrokerFailed(f"no process has the role {role!r}; there are {', '.join(known) or 'none'}")
        while len(pids := self._pids(role)) < count:
            self._look_again(deadline, f"{count} processes of role {role} are not there")
        return pids

    def _ever_started(self) -> list[BrokerProcess]:
        from appliance.cli.status import processes_of

        rows = processes_of(self.data_dir) or []
        return [BrokerProcess(row["role"], row["pid"] or 0, row["generation"]) for row in rows]

    def _look_again(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise self._failure(what)
        time.sleep(_LOOK_S)

    def _wait_until_dead(self, pids: list[int]) -> None:
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while any(map(_runs, pids)):
            self._look_again(deadline, f"processes {pids} live on")

    def _end_orphans(self, group: int) -> None:
        """Kill what the supervisor left, wait until it is dead, and remove its shared memory."""
        if left := _members(group):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            self._wait_until_dead(left)
        if self._scratch is not None and self._scratch.data_dir.exists():
            from appliance.channels import runtime_directory

            runtime_directory.remove(self._scratch.data_dir)

    def _another_address(self, slot: int) -> str:
        addresses = self.bootstrap_servers.split(",")
        return addresses[0] if slot != 0 or len(addresses) == 1 else addresses[1]


def _members(group: int) -> list[int]:
    """Return the processes of a process group, zombies too."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                if os.getpgid(int(name)) == group:
                    found.append(int(name))
    return found


def _runs(pid: int) -> bool:
    """Return whether a process still has its files and locks. A zombie has none, and may stay where nobody reaps it."""
    try:
        # `pid (name) state …`: the name may hold anything, also a parenthesis.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _text(value: object) -> str:
    """A value of an option as text: lists as in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)
