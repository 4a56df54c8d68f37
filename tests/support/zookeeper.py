"""A real ZooKeeper server for the tests: one JVM on a loopback port, from scripts/install-zookeeper.sh."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.broker import BrokerFailed, Output, end_with_the_test_runner
from tests.support.wire import free_ports

REPOSITORY: Final = Path(__file__).resolve().parents[2]
LIBS: Final = REPOSITORY / ".cache" / "zookeeper" / "libs"
INSTALL: Final = REPOSITORY / "scripts" / "install-zookeeper.sh"
START_TIMEOUT_S: Final = 60.0
TICK_MS: Final = 200
"""ZooKeeper takes session timeouts from two ticks on."""

# A small heap, quick to start: the tree of a test is small.
_JVM: Final = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.maxClientCnxns=0",
)


class ZooKeeper:
    """One server. Its port and its data stay over a stop and a start."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_ports()
        self._process: subprocess.Popen[str] | None = None
        self._output: Output | None = None

    @property
    def address(self) -> str:
        """What `zookeeper.connect` takes, without a chroot."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it answers.

        Raises:
            BrokerFailed: it ended, or does not answer in time.
        """
        install()
        assert self._process is None, "already started"
        self._process = subprocess.Popen(
            [
                "java",
                *_JVM,
                "-cp",
                f"{LIBS}/*",
                "org.apache.zookeeper.server.ZooKeeperServerMain",
                str(self._write_configuration()),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )
        self._output = Output(self._process, "\0")
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = self._output.tail()
                self.kill()
                raise BrokerFailed(f"ZooKeeper does not serve\n{text}")
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether it says `imok` when it is asked `ruok`."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as asked:
            asked.sendall(b"ruok")
            return asked.recv(16) == b"imok"
        return False

    def pause(self) -> None:
        """SIGSTOP: it takes connections and answers nobody, and its clock runs on. Returns when all of it stands."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

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
            "4lw.commands.whitelist": "ruok",
        }
        path = self.directory / "zoo.cfg"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path


@cache
def install() -> None:
    """Fetches the server where it is missing."""
    subprocess.run([str(INSTALL)], check=True, timeout=600)
