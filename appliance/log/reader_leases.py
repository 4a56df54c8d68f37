"""Leases of readers off the disk: `<partition>/.readers/<id>.lease`, files that keep segments from being removed.

    {"version": 1, "owner": "nightly export", "host": "db7", "kind": "batch", "ttl_ms": 600000, "from_offset": 4711}

A reader writes one into the directory of every partition that it plans to read (written aside, then renamed), touches
it while it reads, and removes it at its end. Retention and compaction go on: files of segments that end above
`from_offset` are renamed to `.deleted`, but they are not removed. Apache Kafka does not look into a folder of a
partition's directory, while one beside the partitions would keep it from starting.

**Expiry.** A lease expires at its file's modification time plus `ttl_ms` (`reader.lease.max.ms` if that is less).
The process that removes files (it asks a `LeaseBook`) reads the wall clock once for each change of a file, to learn how
old the lease is by then. From there it counts by its monotonic clock:

    age when first seen = wall clock - modification time, at least 0, at most ttl - GRACE_MS
    expired             = age when first seen + monotonic time since then >= ttl

So a dead reader's lease expires on time, even after a restart of this process. A wall clock that jumps back cannot keep
a lease for longer than its ttl. A wall clock that jumps ahead cannot expire the lease of a live reader: the lease has
GRACE_MS left whenever this process sees it first, and a live reader touches it several times in GRACE_MS.

**Bounds.** Retained segments above `reader.lease.max.bytes` (of a process, the longest held first) are removed. Their
leases are renamed to `.revoked` first, so that the reader can say why it fails, and the journal names them. The same
happens when `reader.lease.max.ms` cuts a lease short. A partition takes leases of LEASES_MAX readers: the reader
rejects a plan above that. The owner ignores none; files that it cannot look at in one go count as held.

**Files beside the leases.** `<id>.tally` counts a query's finished tasks, `<id>.tmp` is a lease being written. `sweep`
removes them some time after their last change.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from appliance.clock import NS_PER_MS, Clock

READERS: Final = ".readers"
LEASE: Final = ".lease"
REVOKED: Final = ".revoked"
TALLY: Final = ".tally"
ASIDE: Final = ".tmp"
VERSION: Final = 1
TTL_MS_MIN: Final = 1_000
GRACE_MS: Final = 30_000
"""How long a lease holds at least after a process has seen it first. Live readers touch theirs every GRACE_MS / 3."""
LEASE_BYTES_MAX: Final = 4096
LEASES_MAX: Final = 1000
"""Of one partition. A reader that would add one more is rejected when it plans."""
LOOKED_AT_MAX: Final = 10_000
"""Lease files of one partition that one look reads; above it the partition's segments count as held."""
SWEEP_MS: Final = 60_000
SWEPT_PARTITIONS_MAX: Final = 1000
"""Directories that one sweep lists; the next sweep goes on behind them."""
SWEPT_FILES_MAX: Final = 2000
"""Files that one sweep looks at, or little more than these."""
AGAIN_MS_MIN: Final = 1_000
AGAIN_MS_MAX: Final = 5_000
_KEPT_MS: Final = {REVOKED: 86_400_000, TALLY: 86_400_000, ASIDE: 3_600_000}


@dataclass(frozen=True, slots=True)
class Lease:
    """What a lease file says. `from_offset`: segments that end above it are to be kept."""

    id: str
    owner: str
    host: str
    kind: str
    ttl_ms: int
    from_offset: int

    def encode(self) -> bytes:
        """The file's content."""
        return json.dumps(
            {
                "version": VERSION,
                "owner": self.owner,
                "host": self.host,
                "kind": self.kind,
                "ttl_ms": self.ttl_ms,
                "from_offset": self.from_offset,
            }
        ).encode()


_UNREAD: Final = Lease("", f"more than {LOOKED_AT_MAX} readers", "", "", TTL_MS_MIN, 0)
"""Stands for the lease files that one look did not come to."""


def decode_lease(id: str, content: bytes) -> Lease | None:
    """The lease that a file's content means; None if it is none. Times out of range are brought into it."""
    try:
        found = json.loads(content)
        if found["version"] != VERSION:
            return None
        return Lease(
            id=id,
            owner=str(found.get("owner", ""))[:200],
            host=str(found.get("host", ""))[:200],
            kind=str(found.get("kind", ""))[:20],
            ttl_ms=max(TTL_MS_MIN, int(found["ttl_ms"])),
            from_offset=int(found["from_offset"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Again:
    """What was to be removed is held; look again in `delay_ms`."""

    delay_ms: int


@dataclass(slots=True)
class _Seen:
    """A lease file as it was at its last change. `since_ns`: when its time began, by the monotonic clock."""

    mark: tuple[int, int, int]
    lease: Lease | None
    since_ns: int


@dataclass(slots=True)
class _Readers:
    """What one look has found in a folder of leases."""

    files: dict[str, _Seen] = field(default_factory=dict)
    looked_at_ns: int = 0
    alive: list[Lease] = field(default_factory=list)


def has_leases(folder: Path) -> bool:
    """Whether there may be leases on a partition; only a `LeaseBook` knows whether they have expired."""
    try:
        return any(name.endswith(LEASE) for name in os.listdir(folder / READERS))
    except OSError:
        return False


class LeaseBook:
    """What one process knows of leases on its partitions, and what it holds for them. Any thread may call it.

    Args:
        max_bytes: of removed-but-held segments (`reader.lease.max.bytes`).
        max_ms: of a lease that nobody touches (`reader.lease.max.ms`).
        warn: gets a line for every lease that is revoked.
    """

    __slots__ = ("_asking", "_clock", "_held", "_max_bytes", "_max_ms", "_seen", "_swept", "_warn")

    def __init__(self, clock: Clock, *, max_bytes: int, max_ms: int, warn: Callable[[str], object]) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_ms = max_ms
        self._warn = warn
        self._asking = Lock()
        self._seen: dict[str, _Readers] = {}
        """By folder of leases."""
        self._held: dict[str, int] = {}
        """Bytes by what is held, the longest held first."""
        self._swept = ""

    def may_remove(
        self, what: Path, *, folder: Path, end_offset: int | None, size_bytes: int
    ) -> Again | None:
        """Whether files may be removed: None, or when to ask again.

        Args:
            what: names what is to be removed, each time the same.
            folder: the partition's directory.
            end_offset: what is to be removed holds records below it; None: all of the partition's.
        """
        with self._asking:
            return self._may_remove(what, folder, end_offset, size_bytes)

    def remove_partitions(self, remove_deleted: Callable[[Callable[[Path], bool]], object]) -> Again | None:
        """Has deleted partitions removed (`LogDirectories.remove_deleted`), but for those that readers read still.

        Raises:
            StorageFault: as that does.
        """
        waits: list[Again] = []

        def is_free(directory: Path) -> bool:
            again = None
            if has_leases(directory):
                size_bytes = sum(path.stat().st_size for path in directory.glob("*.log*"))
                again = self.may_remove(directory, folder=directory, end_offset=None, size_bytes=size_bytes)
            if again is not None:
                waits.append(again)
            return again is None

        remove_deleted(is_free)
        return min(waits, key=lambda each: each.delay_ms, default=None)

    def sweep(self, folders: Sequence[Path]) -> bool:
        """Remove expired leases, and what readers left beside them. Returns False: it removes no segments.

        One call lists SWEPT_PARTITIONS_MAX directories at most and stops behind SWEPT_FILES_MAX files; the next one
        goes on where this one ended.

        Args:
            folders: directories of all partitions that this process owns.
        """
        paths = sorted(map(str, folders))
        at = bisect_right(paths, self._swept) % max(1, len(paths))
        turn = [*paths[at:], *paths[:at]][:SWEPT_PARTITIONS_MAX]
        looked_at = 0
        for path in turn:
            with self._asking:
                looked_at += self._sweep(Path(path))
            self._swept = path
            if looked_at >= SWEPT_FILES_MAX:
                break
        return False

    def _sweep(self, folder: Path) -> int:
        """Sweeps one partition. Returns the number of files looked at."""
        readers = folder / READERS
        names = _names(readers)
        self._leases(readers, names)
        now_ms = self._clock.now_ms()
        beside = [name for name in names if not name.endswith(LEASE)][:SWEPT_FILES_MAX]
        for name in beside:
            kept_ms = _KEPT_MS.get(os.path.splitext(name)[1])
            try:
                if (
                    kept_ms is not None
                    and now_ms - os.stat(readers / name).st_mtime_ns // NS_PER_MS > kept_ms
                ):
                    os.unlink(readers / name)
            except OSError:
                continue  # its reader has removed it, or may not let us: nothing depends on it
        return len(names)

    def _may_remove(self, what: Path, folder: Path, end_offset: int | None, size_bytes: int) -> Again | None:
        key = str(what)
        readers = folder / READERS
        holder = self._known_holder(readers, end_offset)
        holders = [holder] if holder is not None else self._holders(readers, end_offset)
        if not holders:
            self._held.pop(key, None)
            return None
        self._held.setdefault(key, size_bytes)
        if self.held_bytes <= self._max_bytes:
            return Again(max(AGAIN_MS_MIN, min(holders[0].ttl_ms, AGAIN_MS_MAX)))
        if key != next(iter(self._held)):
            return Again(AGAIN_MS_MIN)
        reason = (
            f"leases hold {self.held_bytes} bytes (reader.lease.max.bytes = {self._max_bytes}),"
            f" and {what.name} the longest"
        )
        for lease in self._holders(readers, end_offset):
            self._revoke(readers, lease, reason)
        self._held.pop(key, None)
        return None

    def _known_holder(self, readers: Path, end_offset: int | None) -> Lease | None:
        """A lease that holds, of those found alive less than AGAIN_MS_MIN ago; None: look at all of them.

        Many segments of a partition are asked for in a row. Each would cost a look at every lease of the partition.
        """
        found = self._seen.get(str(readers))
        if found is None or self._clock.monotonic_ns() - found.looked_at_ns >= AGAIN_MS_MIN * NS_PER_MS:
            return None
        for lease in found.alive:
            if _holds(lease, end_offset) and os.path.exists(readers / (lease.id + LEASE)):
                return lease
        return None

    def _holders(self, readers: Path, end_offset: int | None) -> list[Lease]:
        return [each for each in self._leases(readers, _names(readers)) if _holds(each, end_offset)]

    @property
    def held_bytes(self) -> int:
        """Bytes that would be removed already, were it not for leases."""
        return sum(self._held.values())

    def statistics(self) -> dict[str, int]:
        """What is known and held now."""
        return {
            "leases": sum(len(each.files) for each in self._seen.values()),
            "held": len(self._held),
            "held_bytes": self.held_bytes,
        }

    def _leases(self, readers: Path, names: Sequence[str]) -> list[Lease]:
        """The leases among files of a folder that have not expired; expired ones are removed on the way.

        What lies beyond LOOKED_AT_MAX files is one lease on everything.
        """
        leases = [name for name in names if name.endswith(LEASE)]
        found = self._seen.pop(str(readers), None)
        if not leases:
            return []
        if found is None:
            found = _Readers()
        self._seen[str(readers)] = found
        for gone in found.files.keys() - set(leases):
            del found.files[gone]
        found.looked_at_ns = self._clock.monotonic_ns()
        found.alive = []
        for name in leases[:LOOKED_AT_MAX]:
            lease = self._look(readers / name, found)
            if lease is not None:
                found.alive.append(lease)
        if len(leases) > LOOKED_AT_MAX:
            found.alive.append(_UNREAD)
        return found.alive

    def _look(self, path: Path, found: _Readers) -> Lease | None:
        """A file's lease; None if it is none, or has expired and is removed."""
        seen = self._file(path, found)
        if seen is None or seen.lease is None:
            return None
        lease = seen.lease
        age_ms = (found.looked_at_ns - seen.since_ns) // NS_PER_MS
        if age_ms < min(lease.ttl_ms, self._max_ms):
            return lease
        del found.files[path.name]
        if age_ms < lease.ttl_ms:
            reason = f"nobody has renewed it for {age_ms // 1000} s (reader.lease.max.ms = {self._max_ms})"
            self._revoke(path.parent, lease, reason)
        else:
            self._drop(path)
        return None

    def _file(self, path: Path, found: _Readers) -> _Seen | None:
        seen = found.files
        try:
            status = os.stat(path)
            mark = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = seen.get(path.name)
            if known is not None and known.mark == mark:
                return known
            with path.open("rb") as file:
                content = file.read(LEASE_BYTES_MAX)
        except OSError:
            seen.pop(path.name, None)
            return None
        lease = decode_lease(path.name.removesuffix(LEASE), content)
        age_ms = 0
        if lease is not None:
            most_ms = min(lease.ttl_ms, self._max_ms) - GRACE_MS
            age_ms = max(0, min(self._clock.now_ms() - status.st_mtime_ns // NS_PER_MS, most_ms))
        fresh = seen[path.name] = _Seen(mark, lease, found.looked_at_ns - age_ms * NS_PER_MS)
        return fresh

    def _drop(self, path: Path) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            self._warn(f"{path} has expired and could not be removed: {error}")

    def _revoke(self, readers: Path, lease: Lease, reason: str) -> None:
        path = readers / (lease.id + LEASE)
        known = self._seen.get(str(readers))
        if known is not None:
            known.files.pop(path.name, None)
        if lease.id:
            try:
                os.rename(path, path.with_suffix(REVOKED))
            except OSError as error:
                self._warn(f"{path} could not be renamed: {error}")
        self._warn(
            f"partition {readers.parent.name}: lease {lease.id} of {lease.kind} reader {lease.owner!r} on {lease.host}"
            f" is revoked: {reason}"
        )


def _holds(lease: Lease, end_offset: int | None) -> bool:
    return end_offset is None or lease.from_offset < end_offset


def _names(readers: Path) -> list[str]:
    """What lies in a folder of leases, in order; nothing if there is no folder."""
    try:
        return sorted(os.listdir(readers))
    except OSError:
        return []
