"""Leases of readers off the disk: `<partition>/.readers/<id>.lease`, files that keep segments from being removed.

    {"version": 1, "owner": "nightly export", "host": "db7", "kind": "batch", "ttl_ms": 600000, "from_offset": 4711}

A reader writes one into every partition's directory that it plans to read (written aside, then renamed), touches it
as long as it reads, and removes it. Files of segments that end above `from_offset` are then still renamed to
`.deleted`, since retention and compaction go on, but not removed. Apache Kafka does not look into a folder of a
partition's directory, while one beside the partitions would keep it from starting.

Who removes files asks a `LeaseBook`. It does not trust a clock that can jump: a lease has run out when its file has
not changed for `ttl_ms` of the *monotonic* clock since that file was first seen so; after a restart of the process
the count begins anew. It is bounded, too: what readers hold is removed at `reader.lease.max.bytes` (of a process, the
longest held first) or `reader.lease.max.ms`, and then the lease is renamed to `.revoked` first, so that the reader
can say why it fails, and the journal names it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from appliance.clock import Clock

READERS: Final = ".readers"
LEASE: Final = ".lease"
REVOKED: Final = ".revoked"
VERSION: Final = 1
TTL_MS_MIN: Final = 1_000
LEASE_BYTES_MAX: Final = 4096
LEASES_MAX: Final = 1000
"""Of one partition; what is more is not looked at."""
AGAIN_MS_MIN: Final = 1_000
AGAIN_MS_MAX: Final = 5_000
_REVOKED_KEPT_MS: Final = 86_400_000
_NS_PER_MS: Final = 1_000_000


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
    mark: tuple[int, int, int]
    lease: Lease | None
    since_ns: int


@dataclass(slots=True)
class _Held:
    size_bytes: int
    since_ns: int


def has_leases(folder: Path) -> bool:
    """Whether there may be leases on a partition; whether they have run out is for the book to find."""
    try:
        return any(name.endswith(LEASE) for name in os.listdir(folder / READERS))
    except OSError:
        return False


class LeaseBook:
    """What one process knows of leases on its partitions, and what it holds for them. May be asked on any thread.

    Args:
        warn: hears of every lease that is revoked.
    """

    __slots__ = ("_asking", "_clock", "_held", "_max_bytes", "_max_ms", "_seen", "_warn")

    def __init__(self, clock: Clock, *, max_bytes: int, max_ms: int, warn: Callable[[str], object]) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_ms = max_ms
        self._warn = warn
        self._asking = Lock()
        self._seen: dict[str, _Seen] = {}
        self._held: dict[str, _Held] = {}

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

    def _may_remove(self, what: Path, folder: Path, end_offset: int | None, size_bytes: int) -> Again | None:
        key = str(what)
        leases = [
            lease for lease in self._leases(folder) if end_offset is None or lease.from_offset < end_offset
        ]
        if not leases:
            self._held.pop(key, None)
            return None
        now_ns = self._clock.monotonic_ns()
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(size_bytes, now_ns)
        held_ms = (now_ns - held.since_ns) // _NS_PER_MS
        reason = None
        if held_ms >= self._max_ms:
            reason = f"it has held {what.name} for {held_ms // 1000} s (reader.lease.max.ms = {self._max_ms})"
        elif self.held_bytes > self._max_bytes and key == next(iter(self._held)):
            reason = (
                f"leases hold {self.held_bytes} bytes (reader.lease.max.bytes = {self._max_bytes}),"
                f" and {what.name} the longest"
            )
        if reason is None:
            soonest_ms = min(lease.ttl_ms for lease in leases)
            if self.held_bytes > self._max_bytes:
                soonest_ms = AGAIN_MS_MIN
            rest_ms = min(soonest_ms, self._max_ms - held_ms)
            return Again(max(AGAIN_MS_MIN, min(rest_ms, AGAIN_MS_MAX)))
        for lease in leases:
            self._revoke(folder, lease, reason)
        self._held.pop(key, None)
        return None

    @property
    def held_bytes(self) -> int:
        """Bytes that would be removed already, were it not for leases."""
        return sum(held.size_bytes for held in self._held.values())

    def _leases(self, folder: Path) -> list[Lease]:
        """The leases on a partition that have not run out. O(leases)."""
        readers = folder / READERS
        try:
            names = sorted(os.listdir(readers))
        except OSError:
            return []
        now_ns = self._clock.monotonic_ns()
        found = []
        for name in [each for each in names if each.endswith(LEASE)][:LEASES_MAX]:
            seen = self._look(readers / name, now_ns)
            if seen is None or seen.lease is None:
                continue
            if (now_ns - seen.since_ns) // _NS_PER_MS >= seen.lease.ttl_ms:
                self._drop(readers / name)
                continue
            found.append(seen.lease)
        return found

    def _look(self, path: Path, now_ns: int) -> _Seen | None:
        try:
            status = os.stat(path)
            mark = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._seen.get(str(path))
            if known is not None and known.mark == mark:
                return known
            with path.open("rb") as file:
                content = file.read(LEASE_BYTES_MAX)
        except OSError:
            self._seen.pop(str(path), None)
            return None
        lease = decode_lease(path.name.removesuffix(LEASE), content)
        seen = self._seen[str(path)] = _Seen(mark, lease, now_ns)
        return seen

    def _drop(self, path: Path) -> None:
        self._seen.pop(str(path), None)
        try:
            os.unlink(path)
        except OSError as error:
            self._warn(f"{path} has run out and could not be removed: {error}")

    def _revoke(self, folder: Path, lease: Lease, reason: str) -> None:
        path = folder / READERS / (lease.id + LEASE)
        self._seen.pop(str(path), None)
        try:
            os.rename(path, path.with_suffix(REVOKED))
        except OSError as error:
            self._warn(f"{path} could not be renamed: {error}")
        self._warn(
            f"partition {folder.name}: lease {lease.id} of {lease.kind} reader {lease.owner!r} on {lease.host}"
            f" is revoked: {reason}"
        )
