"""Leases of readers: they hold what is deleted, by no clock that jumps, and up to a cap."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import pytest

from appliance.clock import ManualClock
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.reader_leases import LEASE, READERS, REVOKED, Again, Lease, LeaseBook, decode_lease
from appliance.log.removal import Removal
from tests.log.batches import NOW_MS, batch_of, open_log

SETTINGS = LogSettings(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=0)
TTL_MS = 60_000


def lease(folder: Path, name: str = "a", *, from_offset: int = 0, ttl_ms: int = TTL_MS) -> Path:
    path = folder / READERS / (name + LEASE)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(Lease(name, "tests", "here", "batch", ttl_ms, from_offset).encode())
    return path


def touch(path: Path) -> None:
    """As a reader does; a clock that stands still must not make it look like nothing."""
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


class Owner:
    """A log of many segments, and the book of its process."""

    def __init__(self, root: Path, *, max_bytes: int = 1 << 30, max_ms: int = 3_600_000) -> None:
        self.clock = ManualClock(NOW_MS)
        self.said: list[str] = []
        self.removals: deque[Removal] = deque()
        self.log: PartitionLog = open_log(root / "t-0", settings=SETTINGS, removals=self.removals)
        for number in range(40):
            self.log.append(batch_of([b"value-%d" % number]), leader_epoch=0)
        self.book = LeaseBook(self.clock, max_bytes=max_bytes, max_ms=max_ms, warn=self.said.append)

    def retire(self, count: int) -> None:
        bases = [segment.base_offset for segment in self.log.segments_since(0)]
        self.log.advance_start(bases[count])
        self.log.retire_oldest(count)

    def sweep(self) -> list[Again]:
        """Tries all removals; what is held stays for the next time."""
        held = []
        for _ in range(len(self.removals)):
            removal = self.removals.popleft()
            again = removal.run_unless_held(self.book)
            if again is not None:
                held.append(again)
                self.removals.append(removal)
        return held

    def deleted(self) -> list[str]:
        return sorted(path.name for path in self.log.directory.glob("*.log.deleted"))


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def test_without_a_lease_files_go_and_with_one_those_that_it_wants_stay(owner: Owner) -> None:
    bases = [segment.base_offset for segment in owner.log.segments_since(0)]
    path = lease(owner.log.directory, from_offset=bases[2])
    owner.retire(4)
    assert len(owner.sweep()) == 2
    assert owner.deleted() == [f"{base:020d}.log.deleted" for base in bases[2:4]]
    path.unlink()
    assert owner.sweep() == []
    assert owner.deleted() == []


def test_a_lease_that_nobody_touches_runs_out_by_the_monotonic_clock_only(owner: Owner) -> None:
    path = lease(owner.log.directory)
    owner.retire(1)
    assert owner.sweep()
    owner.clock.set_wall(NOW_MS + 100 * TTL_MS)
    assert owner.sweep(), "the wall clock jumped"
    owner.clock.advance(TTL_MS - 1)
    touch(path)
    assert owner.sweep()
    owner.clock.advance(TTL_MS - 1)
    assert owner.sweep(), "it was touched"
    owner.clock.advance(1)
    assert owner.sweep() == []
    assert not path.exists()
    assert owner.said == []


def test_at_the_cap_of_time_a_lease_is_revoked_and_named(tmp_path: Path) -> None:
    owner = Owner(tmp_path, max_ms=10_000)
    path = lease(owner.log.directory, "nightly")
    owner.retire(1)
    assert owner.sweep()
    owner.clock.advance(10_000)
    touch(path)
    assert owner.sweep() == []
    assert owner.deleted() == []
    assert path.with_suffix(REVOKED).exists()
    assert not path.exists()
    assert len(owner.said) == 1
    assert "nightly" in owner.said[0]
    assert "t-0" in owner.said[0]
    assert "reader.lease.max.ms" in owner.said[0]


def test_at_the_cap_of_bytes_what_was_held_longest_goes_first(tmp_path: Path) -> None:
    owner = Owner(tmp_path, max_bytes=900)
    bases = [segment.base_offset for segment in owner.log.segments_since(0)]
    lease(owner.log.directory, "old", from_offset=0)
    owner.retire(2)
    assert len(owner.sweep()) == 2
    lease(owner.log.directory, "new", from_offset=bases[2])
    owner.retire(2)
    owner.sweep()
    owner.sweep()
    assert owner.book.held_bytes <= 900
    assert f"{bases[0]:020d}.log.deleted" not in owner.deleted()
    assert "old" in owner.said[0]
    assert "reader.lease.max.bytes" in owner.said[0]


def test_what_was_held_is_held_after_a_restart_and_goes_after_it(owner: Owner) -> None:
    path = lease(owner.log.directory)
    owner.retire(2)
    before = owner.deleted()
    owner.log.close(clean=True)
    removals: deque[Removal] = deque()
    reopened = open_log(owner.log.directory, settings=SETTINGS, clean=True, removals=removals)
    assert owner.deleted() == before
    assert reopened.first_base_offset == reopened.log_start_offset
    book = LeaseBook(owner.clock, max_bytes=1 << 30, max_ms=3_600_000, warn=owner.said.append)
    assert all(removal.run_unless_held(book) for removal in removals)
    path.unlink()
    assert not any(removal.run_unless_held(book) for removal in removals)
    assert owner.deleted() == []


def test_without_leases_an_opening_removes_what_was_left(owner: Owner) -> None:
    owner.retire(2)
    owner.log.close(clean=True)
    removals: deque[Removal] = deque()
    open_log(owner.log.directory, settings=SETTINGS, clean=True, removals=removals)
    assert owner.deleted() == []
    assert not removals


def test_a_deleted_partition_stays_as_long_as_it_is_leased(owner: Owner) -> None:
    path = lease(owner.log.directory)
    gone: list[Path] = []

    def remove_deleted(is_free: object) -> None:
        assert callable(is_free)
        if is_free(owner.log.directory):
            gone.append(owner.log.directory)

    assert isinstance(owner.book.remove_partitions(remove_deleted), Again)
    assert gone == []
    path.unlink()
    assert owner.book.remove_partitions(remove_deleted) is None
    assert gone == [owner.log.directory]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"7",
        b'{"version": 2, "ttl_ms": 1, "from_offset": 0}',
        b'{"version": 1, "ttl_ms": "long", "from_offset": 0}',
        b'{"version": 1, "ttl_ms": 10}',
        b"[" * 4096,
    ],
)
def test_a_file_that_is_no_lease_holds_nothing(owner: Owner, content: bytes) -> None:
    assert decode_lease("x", content) is None
    lease(owner.log.directory).write_bytes(content)
    owner.retire(1)
    assert owner.sweep() == []
    assert owner.deleted() == []
