"""What the embedded store promises beyond the suite: kills, damage, a full disk, sessions of dead processes."""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from appliance.clock import SystemClock
from appliance.control.store.database_file import CACHE_KIB
from appliance.control.store.embedded_store import DATABASE_NAME, SESSIONS_NAME, EmbeddedStore
from appliance.control.store.errors import StoreDamaged
from appliance.control.store.metadata_copy import COPY_NAME
from appliance.control.store.metadata_store import Create, Delete, EventKind, SetData, WatchEvent
from appliance.control.store.session_file import SessionFile
from appliance.errors import CorruptFile, DiskFull, StorageFault
from tests.control.store.conftest import wait_for_events

WAL_NAME = DATABASE_NAME + "-wal"
FORKED_LIVES_S: Final = 60


def opened(directory: Path) -> EmbeddedStore:
    return EmbeddedStore(directory, SystemClock())


def forked(directory: Path, work: Callable[[EmbeddedStore, int], None]) -> tuple[int, int]:
    """A process with a session of its own that runs `work(store, descriptor)`; pid and where to read from."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(FORKED_LIVES_S)  # not longer than a test that failed and forgot it
            os.close(reading)
            work(opened(directory), writing)
        finally:
            os._exit(70)
    os.close(writing)
    return pid, reading


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def hold(path: str) -> Callable[[EmbeddedStore, int], None]:
    def work(store: EmbeddedStore, said: int) -> None:
        store.create(path, b"alive", ephemeral=True)
        os.write(said, b"!")
        signal.pause()

    return work


def test_killed_process_loses_its_ephemeral_node_at_once_and_watchers_hear_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    pid, said = forked(tmp_path, hold("/controller"))
    assert os.read(said, 1) == b"!"
    assert store.exists("/controller", watch=True) is not None
    killed(pid)
    assert wait_for_events(store) == [WatchEvent(EventKind.DELETED, "/controller")]
    store.close()
    os.close(said)


def test_death_between_the_look_and_the_watch_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    pid, said = forked(tmp_path, hold("/controller"))
    assert os.read(said, 1) == b"!"
    listen = SessionFile.listen

    def too_late(self: SessionFile) -> None:
        killed(pid)
        listen(self)

    monkeypatch.setattr(SessionFile, "listen", too_late)
    assert store.exists("/controller", watch=True) is not None
    assert wait_for_events(store, timeout_ms=5_000) == [WatchEvent(EventKind.DELETED, "/controller")]
    store.close()
    os.close(said)


def test_death_while_another_is_buried_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    living = [forked(tmp_path, hold(path)) for path in ("/first", "/second")]
    assert [os.read(said, 1) for _, said in living] == [b"!", b"!"]
    for path in ("/first", "/second"):
        assert store.exists(path, watch=True) is not None
    bury = EmbeddedStore._bury_the_dead

    def slow(self: EmbeddedStore, path: str | None = None) -> bool:
        found = bury(self, path)
        monkeypatch.undo()
        killed(living[1][0])
        return found

    killed(living[0][0])
    monkeypatch.setattr(EmbeddedStore, "_bury_the_dead", slow)
    events: list[WatchEvent] = []
    while len(events) < 2 and (more := wait_for_events(store, timeout_ms=5_000)):
        events += more
    assert events == [WatchEvent(EventKind.DELETED, "/first"), WatchEvent(EventKind.DELETED, "/second")]
    store.close()
    for _, said in living:
        os.close(said)


def unlock_when_told(told: int) -> Callable[[EmbeddedStore, int], None]:
    """Its session ends without an event of inotify, as the kernel ends one: the close is told before the lock goes."""

    def work(store: EmbeddedStore, said: int) -> None:
        store.create("/controller", b"alive", ephemeral=True)
        os.write(said, b"!")
        os.read(told, 1)
        everything = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
        for each in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if each.readlink().name == SESSIONS_NAME:
                    fcntl.fcntl(int(each.name), fcntl.F_OFD_SETLK, everything)
        signal.pause()

    return work


def test_session_whose_lock_falls_after_its_close_was_told_is_heard(tmp_path: Path) -> None:
    store = opened(tmp_path)
    told, tell = os.pipe()
    pid, said = forked(tmp_path, unlock_when_told(told))
    assert os.read(said, 1) == b"!"
    assert store.exists("/controller", watch=True) is not None
    (tmp_path / SESSIONS_NAME).open("r+").close()
    assert wait_for_events(store, timeout_ms=100) == []
    os.write(tell, b"!")
    assert wait_for_events(store, timeout_ms=5_000) == [WatchEvent(EventKind.DELETED, "/controller")]
    store.close()
    killed(pid)
    for each in (said, told, tell):
        os.close(each)


def test_living_session_is_looked_for_ever_more_seldom(tmp_path: Path) -> None:
    store = opened(tmp_path)
    pid, said = forked(tmp_path, hold("/controller"))
    assert os.read(said, 1) == b"!"
    assert store.exists("/controller", watch=True) is not None
    poll = select.poll()
    poll.register(store.fileno(), select.POLLIN)
    looks, until = 0, time.monotonic() + 1.0
    while (left := until - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            looks += 1
            assert store.events() == []
    assert 1 <= looks <= 10
    store.close()
    killed(pid)
    os.close(said)


def test_place_of_a_killed_process_is_free_for_the_next_without_a_watch(tmp_path: Path) -> None:
    store = opened(tmp_path)
    pid, said = forked(tmp_path, hold("/controller"))
    assert os.read(said, 1) == b"!"
    killed(pid)
    store.create("/controller", b"next", ephemeral=True)
    assert store.get("/controller").data == b"next"
    store.close()
    os.close(said)


def test_stopped_process_keeps_its_ephemeral_node(tmp_path: Path) -> None:
    store = opened(tmp_path)
    pid, said = forked(tmp_path, hold("/controller"))
    assert os.read(said, 1) == b"!"
    os.kill(pid, signal.SIGSTOP)
    opened(tmp_path).close()
    assert store.exists("/controller") is not None
    killed(pid)
    store.close()
    os.close(said)


def change_for_ever(store: EmbeddedStore, said: int) -> None:
    """Each change writes its number into three nodes and replaces a hundred others; then it is reported."""
    number = 0
    for path in ("/a", "/b"):
        store.create(path, b"0")
    while True:
        number += 1
        data = b"%d" % number
        store.multi(
            [
                SetData("/a", data),
                *(Create(f"/a/{number}-{index}", data) for index in range(50)),
                *(Delete(f"/a/{number - 1}-{index}") for index in range(50 if number > 1 else 0)),
                SetData("/b", data),
            ]
        )
        os.write(said, number.to_bytes(4, "little"))


@pytest.mark.parametrize("seed", range(8))
def test_multi_is_whole_or_absent_after_a_kill_and_kept_once_it_returned(tmp_path: Path, seed: int) -> None:
    pid, said = forked(tmp_path, change_for_ever)
    chance = random.Random(seed)
    returned = 0
    for _ in range(chance.randrange(2, 12)):
        returned = int.from_bytes(os.read(said, 4), "little")
    poll_until = chance.random() * 0.02
    signal.setitimer(signal.ITIMER_REAL, poll_until or 0.001)
    previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    os.waitpid(pid, 0)
    signal.signal(signal.SIGALRM, previous)
    while data := os.read(said, 4):
        returned = int.from_bytes(data, "little")
    os.close(said)
    store = opened(tmp_path)
    store.check()
    number = int(store.get("/a").data)
    assert number in {returned, returned + 1}
    assert int(store.get("/b").data) == number
    assert store.children("/a") == sorted(f"{number}-{index}" for index in range(50))
    store.close()


def test_what_returned_is_there_when_everything_died(tmp_path: Path) -> None:
    def work(store: EmbeddedStore, said: int) -> None:
        store.create("/a", b"kept")
        os.write(said, b"!")
        signal.pause()

    pid, said = forked(tmp_path, work)
    assert os.read(said, 1) == b"!"
    killed(pid)
    os.close(said)
    store = opened(tmp_path)
    assert store.get("/a").data == b"kept"
    store.close()


# Damage


def filled(directory: Path) -> Path:
    """A store, and no copy of it (test_metadata_copy.py is about that)."""
    store = opened(directory)
    store.create("/t")
    store.multi([Create(f"/t/{number}", b"x" * 200) for number in range(300)])
    store.close()
    (directory / COPY_NAME).unlink()
    return directory / DATABASE_NAME


def refused(directory: Path) -> str:
    """Why the store cannot be opened; not a byte of its files is changed by the attempt."""
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(CorruptFile) as damage:
        opened(directory)
    after = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert {name: after[name] for name in before} == before
    assert str(directory / DATABASE_NAME) in str(damage.value)
    return str(damage.value)


@pytest.mark.parametrize("page", [0, 1, 5, 9])
def test_overwritten_page_is_found_when_the_store_is_opened(tmp_path: Path, page: int) -> None:
    path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    data[page * 4096 : (page + 1) * 4096] = b"\x5a" * 4096
    path.write_bytes(data)
    assert "damaged" in refused(tmp_path)


def test_cut_file_is_found_when_the_store_is_opened(tmp_path: Path) -> None:
    path = filled(tmp_path)
    os.truncate(path, path.stat().st_size // 2)
    assert "damaged" in refused(tmp_path)


def test_emptied_file_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    os.truncate(filled(tmp_path), 0)
    assert "empty" in refused(tmp_path)


def test_database_of_another_program_is_not_touched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / DATABASE_NAME) as other:
        other.execute("CREATE TABLE theirs (a)")
    other.close()
    assert "another program" in refused(tmp_path)


def test_flipped_bit_in_a_node_is_found_when_the_store_is_opened(tmp_path: Path) -> None:
    path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"x" * 200) + 100] ^= 1
    path.write_bytes(data)
    assert "checksum" in refused(tmp_path)


def test_flipped_bit_in_a_node_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = filled(tmp_path)
    store = opened(tmp_path)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE node SET data = ? WHERE path = '/t/7'", (b"x" * 199 + b"y",))
    other.close()
    with pytest.raises(StoreDamaged, match="checksum"):
        store.get_many(f"/t/{number}" for number in range(300))
    store.close()


def test_lost_write_ahead_log_is_found_when_the_store_is_opened(tmp_path: Path) -> None:
    def work(store: EmbeddedStore, said: int) -> None:
        store.create("/lost")
        os.write(said, b"!")
        signal.pause()

    filled(tmp_path)
    pid, said = forked(tmp_path, work)
    assert os.read(said, 1) == b"!"
    killed(pid)
    os.close(said)
    (tmp_path / WAL_NAME).unlink()
    (tmp_path / COPY_NAME).unlink()
    with pytest.raises(CorruptFile, match="was committed"):
        opened(tmp_path)


def test_missing_database_is_no_new_beginning(tmp_path: Path) -> None:
    filled(tmp_path).rename(tmp_path / "aside")
    assert "missing" in refused(tmp_path)


def test_new_beginning_is_made_once_the_session_file_is_gone_too(tmp_path: Path) -> None:
    filled(tmp_path).rename(tmp_path / "aside")
    (tmp_path / SESSIONS_NAME).unlink()
    store = opened(tmp_path)
    assert store.children("/") == []
    store.close()


def test_restored_backup_is_taken_once_the_session_file_is_gone(tmp_path: Path) -> None:
    path = filled(tmp_path)
    backup = path.read_bytes()
    store = opened(tmp_path)
    store.create("/after the backup")
    store.close()
    path.write_bytes(backup)
    (tmp_path / COPY_NAME).unlink()
    assert "was committed" in refused(tmp_path)
    (tmp_path / SESSIONS_NAME).unlink()
    store = opened(tmp_path)
    assert len(store.children("/t")) == 300
    store.close()


# A full disk


def test_full_disk_refuses_the_change_whole_and_reads_go_on(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.create("/a", b"old")
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(DiskFull):
        store.multi([SetData("/a", b"new"), *(Create(f"/a/{n}", b"y" * 1000) for n in range(100))])
    assert (store.get("/a").data, store.get("/a").version) == (b"old", 0)
    assert store.children("/a") == []
    store._database.execute("PRAGMA max_page_count = 1000000")
    store.create("/a/1", b"room again")
    store.check()
    store.close()


def test_directory_that_cannot_be_made_is_a_storage_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFault):
        opened(tmp_path / "file" / "data")


_GROWS: Final = """
import sys
from pathlib import Path
from appliance.clock import SystemClock
from appliance.control.store.embedded_store import EmbeddedStore
from appliance.control.store.metadata_store import Create

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def fill(first):
    store.multi([Create(f"/t/{number}", bytes(200)) for number in range(first, first + 1000)])

store = EmbeddedStore(Path(sys.argv[1]), SystemClock())
store.create("/t")
fill(0)
before = resident()
for first in range(1000, 9000, 1000):
    fill(first)
print(resident() - before)
"""


def test_a_tree_that_grows_stays_on_the_disk(tmp_path: Path) -> None:
    """A process of its own: what it takes is not hidden by memory that others have freed."""
    grown = subprocess.run(
        [sys.executable, "-c", _GROWS, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert int(grown.stdout) < 4 * CACHE_KIB * 1024


def test_unused_store_holds_no_descriptor_after_close(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        opened(tmp_path).close()
    assert len(os.listdir("/proc/self/fd")) == before
