"""A reader's lease: it keeps the segments that it has planned to read from being removed.

    take_lease    one file in `<partition>/.readers/` for every partition, with the lowest offset that is wanted
    renew         by whoever reads: a task touches the file of its partition (one file, where many say the same)
    move          a stream has read on
    release       the files are removed; a lease that nobody releases runs out after `ttl_ms` without a touch

Take the lease, look at the partition again (its log start may have moved before the lease was there), then plan. The
format, and what the broker does with it: `appliance.log.reader_leases`. A directory that cannot be written is read
without a lease: what is deleted meanwhile stays for `file.delete.delay.ms` only.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from appliance.log.reader_leases import LEASE, READERS, REVOKED, TTL_MS_MIN, Lease
from spark_connector.directory import PartitionView

BATCH_TTL_MS: Final = 600_000
STREAM_TTL_MS: Final = 86_400_000
Kind = Literal["batch", "stream"]


@dataclass(frozen=True, slots=True)
class LeaseRef:
    """Names a lease wherever it is used; travels to the tasks."""

    id: str
    ttl_ms: int


class ReaderLease:
    """A lease on some partitions. `unprotected` names the directories that could not be written, and why."""

    __slots__ = ("_kind", "_owner", "_paths", "ref", "unprotected")

    def __init__(self, ref: LeaseRef, *, owner: str, kind: Kind) -> None:
        self.ref = ref
        self._owner = owner
        self._kind: Kind = kind
        self._paths: dict[str, str] = {}
        self.unprotected: tuple[str, ...] = ()

    def move(self, wanted: Iterable[tuple[PartitionView, int]]) -> None:
        """Holds, of each partition, what ends above an offset; partitions that are not named stay as they were."""
        refused = list(self.unprotected)
        host, name = socket.gethostname(), self.ref.id + LEASE
        written: dict[bytes, str] = {}
        for view, from_offset in wanted:
            folder = f"{view.directory}/{READERS}"
            path = f"{folder}/{name}"
            lease = Lease(self.ref.id, self._owner, host, self._kind, self.ref.ttl_ms, from_offset)
            content = lease.encode()
            try:
                if not (content in written and _link(written[content], folder, path)):
                    _place(folder, path, content)
                    written[content] = path
            except OSError as error:
                text = f"{folder}: {error.strerror}"
                if text not in refused:
                    refused.append(text)
                continue
            self._paths[view.name] = path
        self.unprotected = tuple(refused)

    def renew(self) -> list[str]:
        """Touches every file; the partitions on which the lease does not stand any more."""
        return [name for name, path in self._paths.items() if not _touch(path)]

    def release(self) -> None:
        """Gives everything free. May be called again."""
        for path in self._paths.values():
            for each in (path, path.removesuffix(LEASE) + REVOKED):
                with suppress(OSError):
                    os.unlink(each)
        self._paths.clear()


def take_lease(
    wanted: Sequence[tuple[PartitionView, int]],
    *,
    owner: str,
    kind: Kind = "batch",
    ttl_ms: int = BATCH_TTL_MS,
    id: str | None = None,
) -> ReaderLease:
    """A lease on partitions from an offset each; with the `id` of an earlier one, that one goes on.

    Never fails: see `ReaderLease.unprotected`.
    """
    ref = LeaseRef(id or uuid4().hex, max(ttl_ms, TTL_MS_MIN))
    lease = ReaderLease(ref, owner=owner, kind=kind)
    lease.move(wanted)
    return lease


def renew(ref: LeaseRef, homes: Sequence[str], name: str) -> bool:
    """Touches the lease's file of the partition `name`; whether it stands."""
    return any(_touch(path) for path in _paths(ref, homes, name, LEASE))


def is_revoked(ref: LeaseRef, homes: Sequence[str], name: str) -> bool:
    """Whether the broker has taken the lease on the partition `name` back."""
    return any(path.exists() for path in _paths(ref, homes, name, REVOKED))


def _paths(ref: LeaseRef, homes: Sequence[str], name: str, suffix: str) -> list[Path]:
    return [Path(home) / name / READERS / (ref.id + suffix) for home in homes]


def _link(written: str, folder: str, path: str) -> bool:
    """Gives a file that says the same one name more, which costs a quarter of a file; whether that can be."""
    try:
        try:
            os.link(written, path)
        except FileNotFoundError:
            os.mkdir(folder)
            os.link(written, path)
    except OSError:
        return False  # another file system, one without links, too many, or a name that is taken
    return True


def _place(folder: str, path: str, content: bytes) -> None:
    """Writes a file whole or not at all, into a folder that need not be there."""
    aside = path.removesuffix(LEASE) + ".tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(aside, flags, 0o666)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(folder)
        descriptor = os.open(aside, flags, 0o666)
    try:
        if os.write(descriptor, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
    os.rename(aside, path)


def _touch(path: str | Path) -> bool:
    try:
        os.utime(path)
    except OSError:
        return False
    return True
