"""The lease that keeps segments while a backup copies them (docs/reading-off-disk.md), on every partition of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self
from uuid import uuid4

from appliance.log.faults import storage_faults
from appliance.log.reader_leases import ASIDE, GRACE_MS, LEASE, READERS, Lease

TTL_MS: Final = 60_000
_BEAT_S: Final = GRACE_MS / 3 / 1000


class BackupLease:
    """A lease file in each partition's directory. A thread renews them until the `with` block ends.

    If the process dies, the leases expire after TTL_MS.
    """

    __slots__ = ("_ended", "_id", "_owner", "_paths", "_thread")

    def __init__(self, owner: int) -> None:
        """`owner`: the user id of the appliance, to whom files belong that root makes."""
        self._id = f"backup-{uuid4().hex}"
        self._owner = owner
        self._paths: dict[Path, Path] = {}
        self._ended = Event()
        self._thread = Thread(target=self._beat, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for path in self._paths.values():
            with suppress(OSError):
                path.unlink()

    def take(self, directories: Iterable[Path]) -> None:
        """Keep every segment in these directories from now on. Directories that have the lease keep it.

        Raises:
            StorageFault: a lease cannot be written.
        """
        lease = Lease(self._id, "backup", socket.gethostname(), "backup", TTL_MS, 0).encode()
        for directory in directories:
            if directory in self._paths:
                continue
            path = directory / READERS / f"{self._id}{LEASE}"
            aside = path.with_suffix(ASIDE)
            with storage_faults(path):
                try:
                    path.parent.mkdir(exist_ok=True)
                except FileNotFoundError:
                    continue  # the partition has no directory yet, or was deleted just now
                self._give(path.parent)
                aside.write_bytes(lease)
                self._give(aside)
                aside.rename(path)
            self._paths[directory] = path

    def _give(self, path: Path) -> None:
        if os.geteuid() == 0 and self._owner:
            os.chown(path, self._owner, -1, follow_symlinks=False)

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            for path in list(self._paths.values()):
                with suppress(OSError):
                    os.utime(path)
