"""The right to write into an object store: one backup or prune at a time, without a lock that the store would keep.

pyarrow's file systems know no conditional write, and not every store has one. What they have is that a listing shows
every object whose write has ended before (Amazon S3 since 2020, Google, Azure, MinIO). That is enough:

    1  write an object of one's own     writers/<host>-<process id>-<random>.json
    2  list writers/                    someone else is there: remove one's own, refuse
    3  work; write the object again every BEAT_S
    4  remove it

Of two that begin at the same time, the one that wrote its object later sees the other. Both may see each other, and
both refuse then, which is safe.

**Killed.** The claim of a dead process stays. Its age is the difference of two times that the store itself has noted:
when it was written last, and when one's own was written just now. So no clock of a host counts. The clock of the store
may step, and then a fresh claim looks old, or an old one lies in the future. Therefore a claim older than STALE_S, or
that far in the future, is looked at again after two beats. It is removed and does not count if nobody has renewed it.

**Suspended.** A process that could not write its claim again for half of STALE_S stops by itself, before others take
its claim for a dead one's. The clock for this goes on while the host sleeps. A claim that was renewed so late that
another command may have taken it over, and may have removed it between the look at it and the renewal, stays lost.
`check` looks for the claim in the store, too. Backups ask it before and after they write a manifest, and prune asks
before it removes anything.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NoReturn

from appliance.errors import OperatorFault, StorageFault
from appliance.log.faults import storage_faults

WRITERS: Final = "writers"
BEAT_S: Final = 30.0
STALE_S: Final = 300.0
RELEASE_TIMEOUT_S: Final = 10.0
LOOK_AGAIN_BEATS: Final = 2
_CLAIM_BYTES_MAX: Final = 4096
_UNSAFE: Final = str.maketrans(dict.fromkeys("/?#%\\", "-"))


def boot_time_s() -> float:
    """Seconds since the host has started, with those in which it slept. `time.monotonic` leaves them out."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Claim:
    """A claim, from its construction to `release`. One thread of its own renews it.

    Args:
        files: a file system of pyarrow.
        root: where the backups are in it.
        shown: the same for messages.

    Raises:
        OperatorFault: another backup or prune writes there.
        StorageFault: the place cannot be written or listed.
    """

    def __init__(
        self,
        files: Any,
        root: str,
        shown: str,
        *,
        beat_s: float = BEAT_S,
        stale_s: float = STALE_S,
        monotonic_s: Callable[[], float] = boot_time_s,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._files = files
        self._folder = f"{root}/{WRITERS}"
        self._shown = shown
        self._beat_s = beat_s
        self._stale_s = stale_s
        self._monotonic_s = monotonic_s
        self._say = say
        self._host = socket.gethostname()
        self._began = datetime.now().astimezone().isoformat(timespec="seconds")
        name = f"{self._host.translate(_UNSAFE)}-{os.getpid()}-{secrets.token_hex(8)}.json"
        self._path = f"{self._folder}/{name}"
        self._ended = threading.Event()
        self._renewed_s = 0.0
        self._is_lost = False
        with storage_faults(f"{shown}/{WRITERS}"):
            try:
                self._write()
                self._refuse_others()
            except BaseException:
                self._remove(self._path)
                raise
        self._renewing = threading.Thread(target=self._renew, name="claim", daemon=True)
        self._renewing.start()

    def check(self) -> None:
        """Raises StorageFault if the claim is lost, or may be."""
        silent_s = self._monotonic_s() - self._renewed_s
        if self._is_lost:
            raise StorageFault(
                f"{self._shown}: this command could not say for a while that it still runs, so another one may have"
                " written there"
            )
        if silent_s > self._stale_s / 2:
            raise StorageFault(
                f"{self._shown}: this command could not say for {silent_s:.0f} s that it still runs, so another one may"
                " write there now"
            )
        from pyarrow import fs

        with storage_faults(f"{self._shown}/{WRITERS}"):
            if self._files.get_file_info(self._path).type != fs.FileType.File:
                raise StorageFault(
                    f"{self._shown}: another backup or prune took this command for dead, or somebody removed"
                    f" {self._path}"
                )

    def release(self) -> None:
        """Let others write. Does nothing more if the store does not answer: the claim gets old by itself."""
        if not self._ended.is_set():
            self._ended.set()
            self._renewing.join(RELEASE_TIMEOUT_S)
            self._remove(self._path)

    def _write(self) -> None:
        """Write the claim. It counts from before the write, because the store may note an earlier time than the end."""
        begun_s = self._monotonic_s()
        if self._files.type_name in ("local", "hdfs"):
            self._files.create_dir(self._folder, recursive=True)
        told = {"host": self._host, "pid": os.getpid(), "since": self._began}
        with self._files.open_output_stream(self._path) as stream:
            stream.write(json.dumps(told).encode())
        self._renewed_s = begun_s

    def _renew(self) -> None:
        while not self._ended.wait(self._beat_s):
            try:
                from pyarrow import fs

                # An own claim that somebody has removed is not put there again: `check` is to see that.
                before_s = self._renewed_s
                if self._files.get_file_info(self._path).type == fs.FileType.File:
                    self._write()
                    if self._monotonic_s() - before_s > self._stale_s - self._beat_s:
                        self._is_lost = True
            except OSError:
                continue  # `check` knows how long it has been

    def _refuse_others(self) -> None:
        """Raises OperatorFault if another command writes. Removes the claims of dead ones."""
        others = self._listed()
        own_ns = others.pop(self._path)
        ages_s = {path: (own_ns - written_ns) / 1e9 for path, written_ns in sorted(others.items())}
        for path, age_s in ages_s.items():
            if -self._stale_s <= age_s <= self._stale_s:
                self._refuse(path, max(0.0, age_s))
        if not others:
            return
        pause_s = LOOK_AGAIN_BEATS * self._beat_s
        self._say(
            f"{self._shown}: looking for {pause_s:.0f} s whether {self._named(next(iter(ages_s)))} still runs"
        )
        self._ended.wait(pause_s)
        self._write()
        now = self._listed()
        for path, written_ns in others.items():
            if path in now and now[path] != written_ns:
                self._refuse(path, 0.0)
        for path in others:
            self._remove(path)

    def _listed(self) -> dict[str, int]:
        """All claims, and when the store has noted each, in nanoseconds. Raises StorageFault if this one is missing."""
        from pyarrow import fs

        found = self._files.get_file_info(fs.FileSelector(self._folder))
        claims = {info.path: info.mtime_ns for info in found if info.type == fs.FileType.File}
        if self._path not in claims:
            raise StorageFault(f"{self._shown} does not list what was written just now")
        return claims

    def _refuse(self, path: str, age_s: float) -> NoReturn:
        raise OperatorFault(
            f"another backup or prune writes to {self._shown}: {self._named(path)}, heard of {age_s:.0f} s ago."
            f" If it was killed, try again in {self._stale_s - age_s + 1:.0f} s"
        )

    def _named(self, path: str) -> str:
        """Who made a claim, as far as the object says so."""
        try:
            with self._files.open_input_stream(path) as stream:
                told = json.loads(stream.read(_CLAIM_BYTES_MAX))
            return f"process {int(told['pid'])} on host {str(told['host'])[:64]!r} since {str(told['since'])[:32]}"
        except (OSError, ValueError, KeyError, TypeError):
            return path.rpartition("/")[2]

    def _remove(self, path: str) -> None:
        try:
            self._files.delete_file(path)
        except OSError:
            return
