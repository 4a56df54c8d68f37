"""Leases of readers: they hold what is deleted, by no clock that jumps, and up to a cap."""

from __future__ import annotations

import os
from collections import deque
from itertools import pairwise
from pathlib import Path

import pytest

from appliance.clock import ManualClock
from appliance.log import reader_leases
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.reader_leases import (
    AGAIN_MS_MIN,
    ASIDE,
    GRACE_MS,
    LEASE,
    LEASES_MAX,
    READERS,
    REVOKED,
    TALLY,
    Again,
    Lease,
    LeaseBook,
    decode_lease,
)
from appliance.log.removal import Removal
from tests.log.batches import NOW_MS, batch_of, open_log

SETTINGS = LogSettings(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=0)
TTL_MS = 60_000


def lease(folder: Path, name: str = "a", *, from_offset: int = 0, ttl_ms: int = TTL_MS) -> Path:
    path = folder / READERS / (name + LEASE)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(Lease(name, "tests", "here", "batch", ttl_ms, from_offset).encode())
    return path


def touch(path: Path, at_ms: int | None = None) -> None:
    """As a reader does, at a moment of the owner's wall clock; without one, just another time than before."""
    time_ns = os.stat(path).st_mtime_ns + 1 if at_ms is None else at_ms * 1_000_000
    os.utime(path, ns=(time_ns, time_ns))


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


def test_a_lease_that_nobody_touches_expires_by_the_monotonic_clock(owner: Owner) -> None:
    path = lease(owner.log.directory)
    owner.retire(1)
    assert owner.sweep()
    owner.clock.set_wall(NOW_MS + 100 * TTL_MS)
    assert owner.sweep(), "the wall clock jumped"
    owner.clock.advance(TTL_MS - 1)
    touch(path)
    assert owner.sweep()
    owner.clock.set_wall(NOW_MS - 100 * TTL_MS)
    owner.clock.advance(TTL_MS - 1)
    assert owner.sweep(), "it was touched"
    owner.clock.advance(AGAIN_MS_MIN)
    assert owner.sweep() == []
    assert not path.exists()
    assert owner.said == []


def test_a_dead_lease_does_not_get_its_time_again_when_its_owner_starts_again(owner: Owner) -> None:
    path = lease(owner.log.directory, ttl_ms=10 * TTL_MS)
    touch(path, NOW_MS - 20 * TTL_MS)
    owner.retire(1)
    assert owner.sweep()
    owner.clock.advance(GRACE_MS)
    assert owner.sweep() == []
    assert not path.exists()


def test_a_wall_clock_that_jumps_ahead_expires_no_lease_that_is_touched(owner: Owner) -> None:
    path = lease(owner.log.directory)
    touch(path, NOW_MS)
    owner.clock.set_wall(NOW_MS + 1000 * TTL_MS)
    owner.retire(1)
    for _ in range(20):
        assert owner.sweep()
        owner.clock.advance(GRACE_MS // 3)
        touch(path, owner.clock.now_ms())
    assert owner.sweep()
    assert path.exists()


def test_a_wall_clock_that_jumps_back_keeps_no_dead_lease_for_longer_than_its_time(owner: Owner) -> None:
    path = lease(owner.log.directory)
    touch(path, NOW_MS + 1000 * TTL_MS)
    owner.retire(1)
    owner.clock.advance(TTL_MS - 1)
    assert owner.sweep()
    owner.clock.advance(TTL_MS)
    assert owner.sweep() == []
    assert not path.exists()


def test_a_running_readers_lease_holds_among_thousands_that_have_expired(owner: Owner) -> None:
    for number in range(3 * LEASES_MAX):
        touch(lease(owner.log.directory, f"{number:032x}", ttl_ms=1_000), NOW_MS)
    running = lease(owner.log.directory, "f" * 32)
    owner.clock.advance(1_000)
    touch(running, owner.clock.now_ms())
    owner.retire(1)
    assert owner.sweep()
    owner.clock.advance(1_000)
    touch(running, owner.clock.now_ms())
    assert owner.sweep()
    assert [path.name for path in running.parent.iterdir()] == [running.name]


def test_no_live_lease_is_ignored_however_many_there_are(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_leases, "LOOKED_AT_MAX", 50)
    for number in range(60):
        lease(owner.log.directory, f"{number:032x}", from_offset=1 << 40)
    lease(owner.log.directory, "f" * 32, from_offset=0)
    owner.retire(1)
    assert owner.sweep()
    assert owner.deleted()


def test_a_reader_that_renews_its_lease_is_not_cut_off_by_the_cap_of_time(tmp_path: Path) -> None:
    owner = Owner(tmp_path, max_ms=3_600_000)
    path = lease(owner.log.directory)
    owner.retire(1)
    for _ in range(3 * 60):
        assert owner.sweep()
        owner.clock.advance(TTL_MS - 1)
        touch(path)
    assert path.exists()
    assert owner.said == []


def test_at_the_cap_of_time_a_lease_that_nobody_renews_is_revoked_and_named(tmp_path: Path) -> None:
    owner = Owner(tmp_path, max_ms=10_000)
    path = lease(owner.log.directory, "nightly")
    owner.retire(1)
    assert owner.sweep()
    owner.clock.advance(10_000)
    assert owner.sweep() == []
    assert owner.deleted() == []
    assert path.with_suffix(REVOKED).exists()
    assert not path.exists()
    assert len(owner.said) == 1
    assert "nightly" in owner.said[0]
    assert "t-0" in owner.said[0]
    assert "reader.lease.max.ms" in owner.said[0]


def test_a_sweep_removes_what_has_expired_though_nothing_is_deleted(owner: Owner) -> None:
    folders = [owner.log.directory]
    dead, running = lease(owner.log.directory, "dead"), lease(owner.log.directory, "running")
    readers = dead.parent
    for suffix in (REVOKED, TALLY, ASIDE):
        for name, age_ms in (("old", 2 * 86_400_000), ("new", 0)):
            (readers / (name + suffix)).touch()
            touch(readers / (name + suffix), NOW_MS - age_ms)
    owner.book.sweep(folders)
    owner.clock.advance(TTL_MS)
    touch(running)
    owner.book.sweep(folders)
    assert sorted(path.name for path in readers.iterdir()) == [
        "new.revoked",
        "new.tally",
        "new.tmp",
        "running.lease",
    ]
    running.unlink()
    owner.book.sweep(folders)
    assert owner.book.statistics()["leases"] == 0, "what is gone is not remembered"


def test_one_sweep_does_a_bounded_part_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_leases, "SWEPT_FILES_MAX", 20)
    clock = ManualClock(NOW_MS)
    book = LeaseBook(clock, max_bytes=0, max_ms=3_600_000, warn=print)
    folders = [tmp_path / f"t-{number}" for number in range(12)]
    for folder in folders:
        folder.mkdir()
        for number in range(10):
            lease(folder, f"{number}")
    left = [120]
    for _ in range(12):
        book.sweep(folders)
        clock.advance(TTL_MS)
        left.append(len(list(tmp_path.glob("*/.readers/*"))))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= 20


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
