"""An instance of stand-ins under test: started as a program, watched through the stand-ins' diary."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from appliance.channels import runtime_directory
from tests.control.stand_ins import DIARY, STAGE
from tests.support.ready import is_readable
from tests.support.wire import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0

Note = dict[str, Any]


def kill_and_wait(*pids: int) -> None:
    """SIGKILL to all; returns when all are dead, and everything they held is closed."""
    pidfds = [os.pidfd_open(pid) for pid in pids]
    for pidfd in pidfds:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    for pidfd in pidfds:
        assert is_readable(pidfd, within_s=PATIENCE_S)
        os.close(pidfd)


class Instance:
    """One supervisor and its children, in a process group of their own.

    Args:
        directory: the data directory is made below it; a second Instance on it is a restart.
        arguments: passed to `stand_in_instance`.
        behaviours: role token → behaviour of its stand-in.
        environment: further variables.
        wrapper: a command that runs the one after it.
        pass_fds: descriptors that the supervisor inherits.
    """

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        behaviours: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
        pass_fds: tuple[int, ...] = (),
        port: int | None = None,
    ) -> None:
        self.data_dir = directory / "data"
        self.port = port or free_ports()
        self.notes: list[Note] = []
        # Not below `directory`: the path of a Unix socket has 107 bytes.
        stage = Path(tempfile.mkdtemp(prefix="stage-"))
        self._stage = stage
        for token, behaviour in (behaviours or {}).items():
            self.behave(token, behaviour)
        self._diary = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._diary.bind(str(stage / DIARY))
        self._changed = threading.Condition()
        threading.Thread(target=self._read_diary, daemon=True).start()
        command = [sys.executable, "-m", "tests.control.stand_in_instance", str(self.data_dir)]
        self.process = subprocess.Popen(
            [*wrapper, *command, f"port={self.port}", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, STAGE: str(stage), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    # What happens

    def wait_ready(self) -> str:
        """The ready line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "ready" in line, self.errors()
        return line

    def wait_for(
        self, wanted: Callable[[Note], bool], *, count: int = 1, outlived: bool = False
    ) -> list[Note]:
        """The first `count` notes that are `wanted`; fails when they do not come.

        The end of the supervisor ends the wait, unless its children are expected to have `outlived` it.
        """
        with self._changed:
            came = self._changed.wait_for(
                lambda: sum(map(wanted, self.notes)) >= count or (self._has_ended() and not outlived),
                PATIENCE_S,
            )
            found = [note for note in self.notes if wanted(note)]
        assert came, f"waited in vain; notes {self.notes}"
        assert len(found) >= count, f"only {found}; the end: {self.errors()}"
        return found[:count]

    def wait_said(self, text: str) -> None:
        """Returns when standard error has `text`."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.errors():
            assert time.monotonic() < deadline, self.errors()
            time.sleep(0.01)

    def wait_event(self, role: str, event: str, generation: int = 1) -> Note:
        """The note of that event in that life."""
        return self.wait_for(
            lambda note: (note["role"], note["event"], note["generation"]) == (role, event, generation)
        )[0]

    def wait_told(self, role: str, event: str, peer_generation: int, *, count: int = 1) -> list[Note]:
        """The first notes in which `role` is told "up" or "down" of peers' generation."""
        wanted = (role, event, peer_generation)
        return self.wait_for(
            lambda note: (note["role"], note["event"], note.get("peer_generation")) == wanted, count=count
        )

    def events(self, event: str) -> list[Note]:
        with self._changed:
            return [note for note in self.notes if note["event"] == event]

    def pid_of(self, role: str, generation: int = 1) -> int:
        return int(self.wait_event(role, "born", generation)["pid"])

    def children(self) -> dict[str, psutil.Process]:
        """Title of a living child without its prefix → process."""
        found: dict[str, psutil.Process] = {}
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                found[" ".join(child.cmdline()).removeprefix("appliance: ").strip("\0 ")] = child
        return found

    def names(self) -> list[str]:
        """The shared memory of this instance."""
        memory = runtime_directory.find(self.data_dir)
        return [] if memory is None else sorted(path.name for path in memory.iterdir() if path.is_file())

    @property
    def runtime_dir(self) -> Path:
        """Return where this instance's shared memory and sockets are; it must run, or have been killed."""
        found = runtime_directory.find(self.data_dir)
        assert found is not None, "no private directory"
        return found

    def errors(self) -> str:
        """Standard error so far, all of it once the processes are gone."""
        if self.process.poll() is not None:
            self._reader.join(PATIENCE_S)
        return "".join(self._errors)

    # What is done to it

    def behave(self, token: str, behaviour: str) -> None:
        """How the next life of a role behaves; "" takes it back."""
        path = self._stage / f"{token}.behaviour"
        if behaviour:
            path.write_text(behaviour)
        else:
            path.unlink()

    def kill(self, role: str, generation: int = 1) -> None:
        os.kill(self.pid_of(role, generation), signal.SIGKILL)

    def kill_all(self, *roles: str) -> None:
        """Kills the first lives of `roles`; returns when all of them are dead."""
        kill_and_wait(*(self.pid_of(role) for role in roles))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signals the supervisor; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Ends whatever still lives."""
        left = [note["pid"] for note in self.events("born")]
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in left:
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if "appliance" in " ".join(process.cmdline()):
                    process.kill()
        self._diary.shutdown(socket.SHUT_RDWR)
        self._diary.close()
        self._reader.join(PATIENCE_S)
        runtime_directory.remove(self.data_dir)
        shutil.rmtree(self._stage, ignore_errors=True)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    # Threads

    def _has_ended(self) -> bool:
        return self.process.poll() is not None

    def _read_diary(self) -> None:
        while True:
            try:
                data = self._diary.recv(65536)
            except OSError:
                return
            if not data:
                return
            with self._changed:
                self.notes.append(json.loads(data))
                self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line)
        with self._changed:
            self._changed.notify_all()
