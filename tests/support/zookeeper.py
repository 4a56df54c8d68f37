"""A real ZooKeeper for the tests: one server on a loopback port, or three that vote (scripts/install-zookeeper.sh)."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import psutil

from tests.support.broker import BrokerFailed, Output, end_with_the_test_runner
from tests.support.cut_line import CutLine
from tests.support.wire import free_ports

REPOSITORY: Final = Path(__file__).resolve().parents[2]
LIBS: Final = REPOSITORY / ".cache" / "zookeeper" / "libs"
INSTALL: Final = REPOSITORY / "scripts" / "install-zookeeper.sh"
START_TIMEOUT_S: Final = 120.0
TICK_MS: Final = 200
"""ZooKeeper takes session timeouts from two ticks on."""

# An ensemble has its patience in ticks: a server that was stopped for two seconds still follows.
_TERMS: Final = {"tickTime": 500, "initLimit": 40, "syncLimit": 10}

# A small heap, quick to start: the tree of a test is small. Nothing is flushed: what was written outlives SIGKILL, and
# power does not fail while a test runs.
_JVM: Final = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.maxClientCnxns=0",
)


class ZooKeeper:
    """One server. Its port and its data stay over a stop and a start.

    Args:
        peers: what `zoo.cfg` says of the ensemble that it belongs to; nothing where it is alone.
        number: its number in the ensemble.
    """

    def __init__(
        self, directory: Path, *, number: int = 0, peers: Mapping[str, object] | None = None
    ) -> None:
        self.directory = directory
        self.port = free_ports()
        self.number = number
        self._peers = dict(peers or {})
        self._process: subprocess.Popen[str] | None = None
        self._output: Output | None = None

    @property
    def address(self) -> str:
        """What `zookeeper.connect` takes, without a chroot."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Returns when it answers.

        Raises:
            BrokerFailed: it ended, or does not answer in time.
        """
        self.launch()
        self.await_answer()

    def launch(self) -> None:
        """Starts the process, and does not wait for it."""
        install()
        assert self._process is None, "already started"
        self._process = subprocess.Popen(
            [
                "java",
                *_JVM,
                "-cp",
                f"{LIBS}/*",
                f"org.apache.zookeeper.server.{'quorum.QuorumPeerMain' if self._peers else 'ZooKeeperServerMain'}",
                str(self._write_configuration()),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )
        self._output = Output(self._process, "\0")

    def await_answer(self) -> None:
        """Until it answers. Raises BrokerFailed."""
        assert self._process is not None, "not started"
        assert self._output is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = self._output.tail()
                self.kill()
                raise BrokerFailed(f"ZooKeeper does not serve\n{text}")
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether it says `imok` when it is asked `ruok`."""
        return self.say("ruok") == "imok"

    def mode(self) -> str:
        """`leader`, `follower` or `standalone`; empty while it serves nobody."""
        for line in self.say("srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def has_connection_of(self, session_id: int) -> bool:
        """Whether this is the server by which that session reaches the ensemble."""
        return f"sid=0x{session_id:x}," in self.say("cons")

    def say(self, word: str) -> str:
        """What it answers to one of its four-letter words; nothing where it does not answer."""
        text = b""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as asked:
            asked.sendall(word.encode())
            while data := asked.recv(4096):
                text += data
        return text.decode()

    def pause(self) -> None:
        """SIGSTOP: it takes connections and answers nobody, and its clock runs on. Returns when all of it stands."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """From now on none of its files takes another byte (RLIMIT_FSIZE), until its next start."""
        assert self._process is not None, "not started"
        nothing = (0, resource.RLIM_INFINITY)
        psutil.Process(self._process.pid).rlimit(psutil.RLIMIT_FSIZE, nothing)

    def await_end(self) -> None:
        """Until it has ended by itself."""
        assert self._process is not None, "not started"
        self._process.wait(START_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL; does nothing when it is not running."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(30)
        if self._output is not None:
            self._output.close()
        self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        os.kill(self._process.pid, number)

    def _write_configuration(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": TICK_MS,
            "maxSessionTimeout": 60_000,
            "4lw.commands.whitelist": "ruok,srvr,cons",
            **self._peers,
        }
        if self._peers:
            (self.directory / "data").mkdir(exist_ok=True)
            (self.directory / "data" / "myid").write_text(f"{self.number}\n")
        path = self.directory / "zoo.cfg"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path


class Ensemble:
    """Three servers that vote. Two of them are enough; one that cannot reach the others serves nobody.

    Args:
        can_be_cut: the servers speak with each other over lines that can fall silent, while clients reach all of them
            all the time.
    """

    def __init__(self, directory: Path, *, can_be_cut: bool = False) -> None:
        ports = {number: (free_ports(), free_ports()) for number in (1, 2, 3)}
        self._lines: list[tuple[set[int], CutLine]] = []
        self.servers: list[ZooKeeper] = []
        for own in ports:
            peers: dict[str, object] = dict(_TERMS)
            for number, direct in ports.items():
                by_line = can_be_cut and own != number
                quorum, election = (self._line({own, number}, port) if by_line else port for port in direct)
                peers[f"server.{number}"] = f"127.0.0.1:{quorum}:{election}"
            self.servers.append(ZooKeeper(directory / str(own), number=own, peers=peers))

    def _line(self, between: set[int], port: int) -> int:
        """A line to that port, for one server."""
        self._lines.append((between, CutLine(port)))
        return self._lines[-1][1].port

    @property
    def addresses(self) -> str:
        """What `zookeeper.connect` takes, without a chroot."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Starts those that are not running; returns when one leads and the others follow."""
        for server in self.servers:
            if not server.is_running:
                server.launch()
        for server in self.servers:
            server.await_answer()
        self.await_whole()

    def await_whole(self) -> None:
        """Until one leads and the others follow."""
        self.await_modes(["follower", "follower", "leader"])

    def await_modes(self, wanted: list[str]) -> None:
        """Until the servers are in these modes, in the alphabet's order; empty is one that serves nobody."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := sorted(server.mode() for server in self.servers)) != wanted:
            if time.monotonic() > deadline:
                raise BrokerFailed(f"the ensemble is {found}, not {wanted}")
            time.sleep(0.05)

    def leader(self) -> ZooKeeper:
        """Who leads now; there must be one."""
        return next(server for server in self.servers if server.mode() == "leader")

    def server_of(self, session_id: int) -> ZooKeeper | None:
        """By which server that session reaches the ensemble now; none while it moves."""
        return next((each for each in self.servers if each.has_connection_of(session_id)), None)

    def without(self, server: ZooKeeper) -> list[ZooKeeper]:
        """The others."""
        return [each for each in self.servers if each is not server]

    def cut_off(self, server: ZooKeeper) -> None:
        """It and the others hear nothing of each other until `mend`."""
        for between, line in self._lines:
            if server.number in between:
                line.silence()

    def mend(self) -> None:
        for _, line in self._lines:
            line.mend()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()
        for _, line in self._lines:
            line.close()


@cache
def install() -> None:
    """Fetches the server where it is missing."""
    subprocess.run([str(INSTALL)], check=True, timeout=600)
