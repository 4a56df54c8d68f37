"""A reader's lease: it keeps the segments that it has planned to read from being removed.

    take_lease    one file in `<partition>/.readers/` for every partition, with the lowest offset that is wanted
    beat          every BEAT_S while somebody reads: a touch, or the file once more where it is gone
    move          a stream has read on
    task_done     the last task of a batch query lets its leases expire in GRACE_MS
    release       the files are removed; a lease that nobody releases expires `ttl_ms` after its last touch

Take the lease, look at the partition again (its log start may have moved before the lease was there), then plan. The
format, and what the broker does with it: `appliance.log.reader_leases`. A directory that cannot be written is read
without a lease: what is deleted meanwhile stays for `file.delete.delay.ms` only.

**The end of a batch query.** Spark plans in one process, reads in others, and tells none of them when a query ends. So
each task that has come to its end adds its number to `<id>.tally` beside the first partition's lease. The task that
makes the tally complete sets the time of all lease files back, so that they expire in GRACE_MS, and the owner's sweep
removes them. They are not removed at once, because the same plan may be read again: by the other side of a self-join,
a second action, another attempt at a task. Such a reader touches its lease, and all others of its query with it. A
query whose tasks do not all come to their end (a `limit`, a failure) leaves leases that expire after `ttl_ms`.

**Bounds.** A partition takes leases of LEASES_MAX readers; `take_lease` raises `TooManyReaders` above that. Before, it
removes leases that readers of this host have left behind and that have expired.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from appliance.log.file_names import parse_partition_directory_name
from appliance.log.reader_leases import (
    ASIDE,
    GRACE_MS,
    LEASE,
    LEASE_BYTES_MAX,
    LEASES_MAX,
    READERS,
    REVOKED,
    TALLY,
    TTL_MS_MIN,
    Lease,
    decode_lease,
)
from spark_connector.beats import start_beating, stop_beating
from spark_connector.directory import PartitionView
from spark_connector.errors import TooManyReaders

BATCH_TTL_MS: Final = 600_000
STREAM_TTL_MS: Final = 3_600_000
"""The broker's default of `reader.lease.max.ms`, which bounds every lease that nobody renews."""
STOPPED_TTL_MS: Final = 600_000
"""How long a stream's lease holds after the stream was stopped with records left to read."""
Kind = Literal["batch", "stream"]
_TIDIED_MAX: Final = 20
"""Files of other readers that taking a lease looks at in a partition; all of them where there is no room."""
_TOPICS_MAX: Final = 100
_RENEWALS_A_LEASE: Final = 3
_REMEMBERED_MAX: Final = 100
_NUMBER: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class LeaseRef:
    """Names a lease wherever it is used; travels to the tasks.

    Attributes:
        topics: whose partitions it is on; empty: of any.
        tasks: the lease ends when so many tasks have come to their end; 0: it does not end with tasks.
        tally: the file in which those tasks count, where there are several.
    """

    id: str
    ttl_ms: int
    topics: tuple[str, ...] = ()
    tasks: int = 0
    tally: str = ""


class ReaderLease:
    """A lease on some partitions. `unprotected` names the directories that could not be written, and why."""

    __slots__ = (
        "__weakref__",
        "_beat",
        "_changing",
        "_content",
        "_kind",
        "_owner",
        "_paths",
        "ref",
        "unprotected",
    )

    def __init__(self, ref: LeaseRef, *, owner: str, kind: Kind) -> None:
        self.ref = ref
        self._owner = owner
        self._kind: Kind = kind
        self._changing = threading.RLock()
        self._paths: dict[str, str] = {}
        self._content: dict[str, bytes] = {}
        self._beat: int | None = None
        self.unprotected: tuple[str, ...] = ()

    def move(self, wanted: Iterable[tuple[PartitionView, int]], *, ttl_ms: int | None = None) -> None:
        """Hold, of each partition, what ends above an offset; partitions that are not named stay as they were.

        Raises:
            TooManyReaders: a partition has leases of LEASES_MAX others.
        """
        with self._changing:
            self._move(wanted, self.ref.ttl_ms if ttl_ms is None else ttl_ms)

    def _move(self, wanted: Iterable[tuple[PartitionView, int]], ttl_ms: int) -> None:
        refused = list(self.unprotected)
        host, name = socket.gethostname(), self.ref.id + LEASE
        written: dict[bytes, str] = {}
        for view, from_offset in wanted:
            folder = f"{view.directory}/{READERS}"
            path = f"{folder}/{name}"
            lease = Lease(self.ref.id, self._owner, host, self._kind, ttl_ms, from_offset)
            content = lease.encode()
            is_new = self._paths.get(view.name) != path and not os.path.exists(path)
            has_others = is_new and os.path.exists(folder)
            try:
                if not (content in written and _link(written[content], folder, path)):
                    _place(folder, path, content)
                    written[content] = path
                if has_others:
                    _make_room(view.name, folder, path, host)
            except OSError as error:
                text = f"{folder}: {error.strerror}"
                if text not in refused:
                    refused.append(text)
                continue
            self._paths[view.name] = path
            self._content[view.name] = content
        self.unprotected = tuple(refused)

    def renew(self) -> list[str]:
        """Touch every file, and write those anew that are gone without having been revoked.

        Returns the partitions on which the lease does not stand any more.
        """
        with self._changing:
            lost = []
            for name, path in self._paths.items():
                if not _touch(path) and not _again(path, self._content[name]):
                    lost.append(name)
            return lost

    def beat(self) -> None:
        """Renew, from the thread of beats."""
        self.renew()

    def start_beating(self) -> None:
        """Renew it at intervals from now on, until it is released or nobody refers to it."""
        if self._beat is None:
            self._beat = start_beating(self, ttl_ms=self.ref.ttl_ms)

    def stop_beating(self) -> None:
        """Leave it to its time."""
        if self._beat is not None:
            stop_beating(self._beat)
            self._beat = None

    @contextmanager
    def held(self) -> Iterator[ReaderLease]:
        """Renew it at intervals in the body, and release it at its end."""
        self.start_beating()
        try:
            yield self
        finally:
            self.release()

    def release(self) -> None:
        """Give everything free. May be called again."""
        self.stop_beating()
        with self._changing:
            for path in self._paths.values():
                for suffix in (LEASE, REVOKED, TALLY):
                    with suppress(OSError):
                        os.unlink(path.removesuffix(LEASE) + suffix)
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

    A directory that cannot be written is no error: see `ReaderLease.unprotected`.

    Raises:
        TooManyReaders: a partition has leases of LEASES_MAX others.
    """
    topics = tuple(sorted({view.topic for view, _ in wanted}))
    ref = LeaseRef(
        id or uuid4().hex, max(ttl_ms, TTL_MS_MIN), topics=topics if len(topics) <= _TOPICS_MAX else ()
    )
    lease = ReaderLease(ref, owner=owner, kind=kind)
    try:
        lease.move(wanted)
    except TooManyReaders:
        lease.release()
        raise
    return lease


class TaskLease:
    """The lease of a query in one of its tasks, which keeps it alive on every partition of the query.

    The partition that the task reads is touched at every beat. The others wait for tasks of theirs, perhaps for longer
    than `ttl_ms`: they are touched a few times in that, and at once where another task has let the lease expire.
    """

    __slots__ = ("__weakref__", "_directory", "_homes", "_name", "_ref")

    def __init__(self, ref: LeaseRef, homes: Sequence[str], *, name: str, directory: str) -> None:
        self._ref = ref
        self._homes = tuple(homes)
        self._name = name
        self._directory = directory

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the lease alive in the body."""
        self.beat()
        number = start_beating(self, ttl_ms=self._ref.ttl_ms)
        try:
            yield
        finally:
            stop_beating(number)

    def move(self, directory: str) -> None:
        """The task reads in another directory from now on."""
        self._directory = directory

    def beat(self) -> None:
        """Touch what is due; write the lease on the own partition anew where it is gone without being revoked."""
        is_due = _is_due(self._ref) or self._was_let_go()
        stands = renew(self._ref, self._homes, self._name)
        if not stands and not is_revoked(self._ref, self._homes, self._name):
            path = f"{self._directory}/{READERS}/{self._ref.id}{LEASE}"
            owner = f"process {os.getpid()}"
            # From the first offset on: other tasks of the query may read below this one.
            lease = Lease(self._ref.id, owner, socket.gethostname(), "batch", self._ref.ttl_ms, 0)
            _again(path, lease.encode())
        if is_due:
            for path in _everywhere(self._ref, self._homes):
                _touch(path)

    def _was_let_go(self) -> bool:
        """Whether another task of the query has let the lease expire, or it is about to expire anyway."""
        for path in _paths(self._ref, self._homes, self._name, LEASE):
            with suppress(OSError):
                age_ms = (time.time() - os.stat(path).st_mtime) * 1000
                if age_ms < max(GRACE_MS, self._ref.ttl_ms - GRACE_MS):
                    return False
        return True


_touched_at_s: OrderedDict[str, float] = OrderedDict()
"""By lease: when this process has touched all its files."""


def _is_due(ref: LeaseRef) -> bool:
    """Whether all files of a lease are to be touched by this process now; notes that they are."""
    now_s = time.monotonic()
    at_s = _touched_at_s.get(ref.id)
    if at_s is not None and now_s - at_s < ref.ttl_ms / 1000 / _RENEWALS_A_LEASE:
        return False
    _touched_at_s[ref.id] = now_s
    _touched_at_s.move_to_end(ref.id)
    while len(_touched_at_s) > _REMEMBERED_MAX:
        _touched_at_s.popitem(last=False)
    return True


def task_done(ref: LeaseRef, homes: Sequence[str], number: int) -> None:
    """Count a task that has come to its end; the last one of the query lets the leases expire in GRACE_MS.

    Args:
        number: of the task in its plan; the same one may come several times. -1: the task is none of the plan's.
    """
    if ref.tasks == 0 or number < 0:
        return
    if ref.tasks > 1:
        try:
            if not _is_complete(ref, number):
                return
        except OSError:
            return  # the leases expire by themselves
    for path in _everywhere(ref, homes):
        _let_expire(path, ref.ttl_ms)


def _is_complete(ref: LeaseRef, number: int) -> bool:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(ref.tally, flags, 0o666)
    try:
        os.write(descriptor, _NUMBER.pack(number))
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)
    whole = content[: len(content) // _NUMBER.size * _NUMBER.size]
    return len({number for (number,) in _NUMBER.iter_unpack(whole)}) >= ref.tasks


def _let_expire(path: str, ttl_ms: int) -> None:
    """Set a lease's time back so that GRACE_MS of it are left, by the clock of the file system."""
    back_ms = ttl_ms - GRACE_MS
    if back_ms <= 0 or not _touch(path):
        return
    with suppress(OSError):
        touched_ns = os.stat(path).st_mtime_ns
        os.utime(path, ns=(touched_ns, touched_ns - back_ms * 1_000_000))


def renew(ref: LeaseRef, homes: Sequence[str], name: str) -> bool:
    """Touch the lease's file of the partition `name`; whether it stands."""
    touched = [_touch(path) for path in _paths(ref, homes, name, LEASE)]
    return any(touched)


def is_revoked(ref: LeaseRef, homes: Sequence[str], name: str) -> bool:
    """Whether the broker has taken the lease on the partition `name` back."""
    return any(path.exists() for path in _paths(ref, homes, name, REVOKED))


def _paths(ref: LeaseRef, homes: Sequence[str], name: str, suffix: str) -> list[Path]:
    return [Path(home) / name / READERS / (ref.id + suffix) for home in homes]


def _everywhere(ref: LeaseRef, homes: Sequence[str]) -> Iterator[str]:
    """Where files of a lease may lie: in each partition of its topics, and in what is left of deleted ones."""
    topics = frozenset(ref.topics)
    for home in homes:
        try:
            names = os.listdir(home)
        except OSError:
            continue  # an address, or gone
        for name in names:
            partition = parse_partition_directory_name(name)
            if not topics or partition is None or partition.topic in topics:
                yield f"{home}/{name}/{READERS}/{ref.id}{LEASE}"


def _again(path: str, content: bytes) -> bool:
    """Write a lease anew that is gone and was not revoked; whether it stands."""
    if os.path.exists(path.removesuffix(LEASE) + REVOKED):
        return False
    try:
        _place(os.path.dirname(path), path, content)
    except OSError:
        return False
    return True


def _make_room(partition: str, folder: str, path: str, host: str) -> None:
    """Remove dead leases that readers of this host have left beside the new one at `path`.

    "Now" is the new file's time, so that only the file system's clock counts.

    Raises:
        TooManyReaders: there are more than LEASES_MAX; the new one is removed.
    """
    own = os.path.basename(path)
    with os.scandir(folder) as entries:
        others = [each.name for each in entries if each.name.endswith(LEASE) and each.name != own]
    if not others:
        return
    is_full = len(others) >= LEASES_MAX
    at = 0 if is_full else hash(own) % len(others)
    looked_at = [*others[at:], *others[:at]][: None if is_full else _TIDIED_MAX]
    now_ns = os.stat(path).st_mtime_ns
    left = len(others) - sum(_remove_dead(f"{folder}/{name}", host, now_ns) for name in looked_at)
    if left >= LEASES_MAX:
        os.unlink(path)
        raise TooManyReaders(
            f"{partition}: {left} readers have leases there, and a partition takes {LEASES_MAX}; leases of queries"
            " that have ended expire by themselves"
        )


def _remove_dead(path: str, host: str, now_ns: int) -> bool:
    """Remove a lease of this host that has expired GRACE_MS ago; whether it is gone."""
    try:
        age_ms = (now_ns - os.stat(path).st_mtime_ns) // 1_000_000
        if age_ms < TTL_MS_MIN + GRACE_MS:
            return False
        with open(path, "rb") as file:
            lease = decode_lease("", file.read(LEASE_BYTES_MAX))
        if lease is None or lease.host != host or age_ms < lease.ttl_ms + GRACE_MS:
            return False
        os.unlink(path)
        with suppress(OSError):
            os.unlink(path.removesuffix(LEASE) + TALLY)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _link(written: str, folder: str, path: str) -> bool:
    """Give a file of the same content one more name, which costs a quarter of a file; whether that worked."""
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
    """Write a file whole or not at all, into a folder that need not be there."""
    aside = path.removesuffix(LEASE) + ASIDE
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
