"""The data directory belongs to one instance at a time: an flock on `DATA_DIR/.lock` says to which.

Children inherit the locked descriptor, so the directory is held while any process of the instance lives,
also when the supervisor was killed. The lock's file holds the supervisor's pid, for the message that
refuses a second instance; `DATA_DIR/run.json` says more, for `appliance status`.

    {"instance": "appliance-0123456789", "pid": 42, "host": "127.0.0.1", "port": 9092, "slots": 1,
     "started_ms": 1700000000000}

Another user can open neither the directory nor the lock's file, and so cannot lock it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from appliance.channels import runtime_directory
from appliance.control.store.reserve import Reserve
from appliance.control.supervisor.permissions import ReadersGroup, check_directory, make_files_private
from appliance.errors import DataDirectoryInUse, HostFault, OperatorFault
from appliance.log.faults import NO_ROOM
from appliance.log.lock_file import holders_named, named, open_in, open_lock_file

LOCK_FILE = ".lock"
RUN_FILE = "run.json"

_logger = logging.getLogger(__name__)


class DataDirectory:
    """A data directory that this process holds. `lock` is the descriptor that children keep open."""

    __slots__ = ("lock", "path")

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock

    @classmethod
    def hold(cls, path: Path, *, patience_ms: int, group: ReadersGroup | None = None) -> DataDirectory:
        """Create `path` with mode 0700 where there is none, and take its lock.

        A directory that others may write or read is checked first (permissions.py). Where the supervisor of an
        earlier instance is dead and its children are still stopping, waits for them, at most `patience_ms`.

        Raises:
            DataDirectoryInUse: another instance lives there; the text names its pid.
            OperatorFault: the directory cannot be made or written, or it belongs to another user.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_directory(path, "data directory", group=group, has_logs=False)
            lock = open_lock_file(path / LOCK_FILE)
        except OSError as error:
            raise OperatorFault(f"data directory {path}: {error.strerror}") from error
        deadline_ns = time.monotonic_ns() + patience_ms * 1_000_000
        try:
            while not _try_lock(lock):
                _wait_for_orphans(path, lock, deadline_ns)
            os.ftruncate(lock, 0)
            _despite_full_disk(path, lambda: os.pwrite(lock, f"{os.getpid()}\n".encode(), 0), LOCK_FILE)
            make_files_private(path)
        except OSError as error:
            os.close(lock)
            raise HostFault(f"data directory {path}: {error}") from error
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock)

    def write_run_file(self, facts: Mapping[str, object]) -> None:
        """Replaces run.json whole; leaves it out where the disk is full and the reserve is used up."""
        temporary = self.path / f"{RUN_FILE}.new"

        def write() -> None:
            temporary.write_text(json.dumps(facts) + "\n")
            temporary.replace(self.path / RUN_FILE)

        try:
            _despite_full_disk(self.path, write, RUN_FILE)
        except OSError as error:
            raise HostFault(f"data directory {self.path}: {error}") from error

    def make_salt_secret(self) -> None:
        """Write the file that SCRAM needs if there is none; leave it out where the disk is full.

        Raises:
            HostFault: the data directory cannot be written.
        """
        from appliance.sasl.salt_secret import FILE, make_salt_secret

        try:
            _despite_full_disk(self.path, lambda: make_salt_secret(self.path), FILE)
        except OSError as error:
            raise HostFault(f"data directory {self.path}: {error}") from error

    def create_runtime_directory(self) -> Path:
        """Create the private directory of this life; a full disk gets room from the reserve for the file that names it.

        Raises:
            HostFault: the data directory or /dev/shm cannot be written.
        """
        reserve = Reserve(self.path, monotonic_s=time.monotonic)
        while True:
            try:
                return runtime_directory.create(self.path)
            except OSError as error:
                if error.errno not in NO_ROOM or not reserve.give():
                    name = self.path / runtime_directory.RUNTIME_FILE
                    raise HostFault(f"{name}: {error.strerror}") from error

    def release(self) -> None:
        """Removes run.json and gives the directory free, unless a child still holds it."""
        with suppress(OSError):
            (self.path / RUN_FILE).unlink(missing_ok=True)
        with suppress(OSError):
            os.ftruncate(self.lock, 0)
        os.close(self.lock)


def _despite_full_disk(path: Path, write: Callable[[], object], name: str) -> None:
    """Writes a file that the data plane can do without. A full disk must not keep the appliance from starting, because
    then nobody could delete a topic to make room. Raises OSError where something else is wrong."""
    reserve = Reserve(path, monotonic_s=time.monotonic)
    while True:
        try:
            write()
            return
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        if not reserve.give():
            _logger.error(
                "data directory %s: the disk is full, so %s was not written: free some space",
                path,
                name,
            )
            return


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_orphans(path: Path, lock: int, deadline_ns: int) -> None:
    """Returns once a process that holds the lock has ended and it is worth another try."""
    holders = open_in(lock)
    if not holders:
        # It ended while we looked, or belongs to a user whose descriptors we may not see.
        if time.monotonic_ns() >= deadline_ns:
            raise DataDirectoryInUse(
                f"data directory {path} is in use: {path / LOCK_FILE} is locked by {holders_named(lock)}"
            )
        time.sleep(0.01)
        return
    owner = os.pread(lock, 32, 0).strip().decode(errors="replace")
    if owner in {str(pid) for pid in holders}:
        raise DataDirectoryInUse(f"data directory {path} is in use by another appliance (pid {owner})")
    poll = select.poll()
    pidfds: list[int] = []
    try:
        for pid in holders:
            with suppress(ProcessLookupError):
                pidfds.append(os.pidfd_open(pid))
                poll.register(pidfds[-1], select.POLLIN)
        left_ms = (deadline_ns - time.monotonic_ns()) // 1_000_000
        if left_ms <= 0 or (pidfds and not poll.poll(left_ms)):
            raise DataDirectoryInUse(
                f"data directory {path} is still held by processes that the supervisor of an earlier appliance left:"
                f" {named(holders)}; they did not stop in time; kill them"
            )
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
