"""The copy of the embedded store: what was acknowledged survives the loss or damage of the database file."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from appliance.clock import SystemClock
from appliance.control.store import database_file
from appliance.control.store.embedded_store import DATABASE_NAME, SESSIONS_NAME, EmbeddedStore
from appliance.control.store.errors import (
    NodeExists,
    NoNode,
    NotEmpty,
    StoreDamaged,
    StoreUnavailable,
)
from appliance.control.store.metadata_copy import COMPACT_BYTES, COPY_NAME, end_of
from appliance.control.store.metadata_store import Create, Delete, Operation, SetData
from appliance.control.store.node_table import all_rows
from appliance.control.store.reserve import RESERVE_NAME
from appliance.errors import StorageFault
from tests.control.store.test_embedded_store import forked, killed
from tests.support.power_loss import LAYER

SUFFIXES = ("", "-wal", "-shm")


def opened(directory: Path, *copies: Path) -> EmbeddedStore:
    return EmbeddedStore(directory, SystemClock(), copies)


def rows(store: EmbeddedStore) -> list[tuple[object, ...]]:
    return sorted(all_rows(store._database))


def crashed(store: EmbeddedStore) -> None:
    """Leaves the files as a kill would: no checkpoint, no goodbye."""
    store.session_id = 0
    store._copy.close()
    store._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    store._database.close()
    store._sessions.close()


def filled(directory: Path, *copies: Path) -> list[tuple[object, ...]]:
    store = opened(directory, *copies)
    store.create("/t")
    store.multi([Create(f"/t/{number}", b"x" * 200) for number in range(700)])
    store.set("/t/3", b"changed")
    store.delete("/t/4")
    found = rows(store)
    store.close()
    return found


def overwrite_page(path: Path, page: int = 5) -> None:
    data = bytearray(path.read_bytes())
    data[page * 4096 : (page + 1) * 4096] = b"\x5a" * 4096
    path.write_bytes(data)


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"x" * 200) + 100] ^= 1
    path.write_bytes(data)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [overwrite_page, flip_bit, cut_in_half, empty, Path.unlink])
def test_damaged_store_is_restored_whole_and_the_damaged_file_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    before = filled(tmp_path)
    path = tmp_path / DATABASE_NAME
    damage(path)
    was = path.read_bytes() if path.exists() else None
    store = opened(tmp_path)
    assert rows(store) == before
    store.check()
    store.create("/t/after")
    store.close()
    assert "RESTORED" in caplog.text
    aside = tmp_path / f"{DATABASE_NAME}.aside-1"
    assert (aside.read_bytes() if aside.exists() else None) == was
    store = opened(tmp_path)
    assert store.exists("/t/after")
    store.close()


def test_copy_in_another_directory_outlives_the_whole_data_directory(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    before = filled(home, other)
    for path in home.iterdir():
        path.unlink()
    assert (other / COPY_NAME).exists()
    store = opened(home, other)
    assert rows(store) == before
    store.close()


def test_copy_moves_when_another_directory_is_named_for_it(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    filled(home)
    assert (home / COPY_NAME).exists()
    opened(home, other).close()
    assert not (home / COPY_NAME).exists()
    (home / DATABASE_NAME).unlink()
    store = opened(home, other)
    assert len(store.children("/t")) == 699
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_copy_gives_back_every_row_after_any_changes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = opened(tmp_path)
    for _ in range(60):
        names = [f"/{number}" for number in range(6)]
        paths = [*names, *(f"{first}{second}" for first in names for second in names)]
        operations: list[Operation] = []
        for _ in range(chance.randrange(1, 5)):
            path, data = chance.choice(paths), chance.randbytes(chance.randrange(50))
            kinds: list[Operation] = [Create(path, data), SetData(path, data), Delete(path)]
            operations.append(chance.choice(kinds))
        with suppress(NoNode, NodeExists, NotEmpty):
            store.multi(operations)
        if chance.random() < 0.1:
            store.close()
            store = opened(tmp_path)
    before = rows(store)
    crashed(store)
    for suffix in SUFFIXES:
        (tmp_path / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)
    store = opened(tmp_path)
    assert rows(store) == before
    store.check()
    store.close()


def change_for_ever(store: EmbeddedStore, said: int) -> None:
    store.create("/a", b"0")
    number = 0
    while True:
        number += 1
        store.multi([SetData("/a", b"%d" % number), Create(f"/a/{number}", bytes(300))])
        os.write(said, number.to_bytes(4, "little"))


@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_by_a_kill_and_the_loss_of_the_database(
    tmp_path: Path, seed: int
) -> None:
    pid, said = forked(tmp_path, change_for_ever)
    os.read(said, 4)
    time.sleep(random.Random(seed).random() * 0.05)
    killed(pid)
    returned = 1
    while data := os.read(said, 4):
        returned = int.from_bytes(data, "little")
    os.close(said)
    for suffix in SUFFIXES:
        (tmp_path / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)
    store = opened(tmp_path)
    number = int(store.get("/a").data)
    assert number in {returned, returned + 1}
    assert len(store.children("/a")) == number
    store.check()
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_kill_at_any_time_needs_no_restoring(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    pid, said = forked(tmp_path, change_for_ever)
    os.read(said, 4)
    time.sleep(random.Random(seed).random() * 0.05)
    killed(pid)
    os.close(said)
    opened(tmp_path).close()
    assert caplog.text == ""


def test_lost_write_ahead_log_is_made_again_from_the_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)

    def work(store: EmbeddedStore, said: int) -> None:
        for number in range(3):
            store.create(f"/late-{number}")
        os.write(said, b"!")
        signal.pause()

    pid, said = forked(tmp_path, work)
    assert os.read(said, 1) == b"!"
    killed(pid)
    os.close(said)
    (tmp_path / f"{DATABASE_NAME}-wal").unlink()
    store = opened(tmp_path)
    assert [name for name in store.children("/") if "late" in name] == ["late-0", "late-1", "late-2"]
    store.close()
    assert "and got them from its copy" in caplog.text
    assert not (tmp_path / f"{DATABASE_NAME}.aside-1").exists()


def test_change_that_sqlite_refused_to_commit_does_not_come_back(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.create("/kept")
    limit_bytes = (tmp_path / f"{DATABASE_NAME}-wal").stat().st_size
    assert (tmp_path / COPY_NAME).stat().st_size < limit_bytes // 2
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        with pytest.raises(StorageFault):
            store.create("/refused")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    copy = end_of(tmp_path / COPY_NAME)
    assert copy is not None
    assert copy.is_clean
    store.create("/after")
    before = rows(store)
    crashed(store)
    for suffix in SUFFIXES:
        (tmp_path / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)
    store = opened(tmp_path)
    assert rows(store) == before
    assert store.exists("/refused") is None
    store.close()


def test_copy_that_cannot_be_written_refuses_no_change_and_is_never_taken_for_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    store = opened(home, other)
    store.create("/a")
    kept = (other / COPY_NAME).read_bytes()
    (other / COPY_NAME).unlink()
    other.rmdir()
    other.write_bytes(b"no directory")
    for number in range(3):
        store.create(f"/a/{number}")
    assert caplog.text.count("cannot be written") == 1
    store.close()
    other.unlink()
    other.mkdir()
    (other / COPY_NAME).write_bytes(kept)
    (home / DATABASE_NAME).unlink()
    with pytest.raises(StoreDamaged, match="ends at transaction 1, but 4 was committed"):
        opened(home, other)
    assert sorted(path.name for path in home.iterdir()) == [RESERVE_NAME, SESSIONS_NAME]
    assert (other / COPY_NAME).read_bytes() == kept


def test_copy_is_whole_again_once_it_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.control.store.metadata_copy.RETRY_S", 0.0)
    home, other = tmp_path / "home", tmp_path / "other"
    store = opened(home, other)
    (other / COPY_NAME).unlink()
    other.rmdir()
    other.write_bytes(b"no directory")
    store.create("/a")
    other.unlink()
    store.create("/b")
    before = rows(store)
    crashed(store)
    (home / DATABASE_NAME).unlink()
    store = opened(home, other)
    assert rows(store) == before
    store.close()


def test_two_sessions_that_change_in_turns_keep_one_whole_copy(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    for number in range(4):
        first.create(f"/first-{number}")
        second.create(f"/second-{number}")
    before = rows(first)
    for store in (first, second):
        crashed(store)
    for suffix in SUFFIXES:
        (tmp_path / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)
    store = opened(tmp_path)
    assert rows(store) == before
    store.close()


def test_copy_does_not_grow_for_ever(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.create("/a")
    size_max = 0
    for _ in range(50):
        store.set("/a", bytes(900_000))
        size_max = max(size_max, (tmp_path / COPY_NAME).stat().st_size)
    assert size_max < 6 * COMPACT_BYTES
    store.close()
    opened(tmp_path).close()
    assert (tmp_path / COPY_NAME).stat().st_size < 2 * COMPACT_BYTES


def test_ephemeral_nodes_of_the_dead_do_not_come_back_and_their_ids_are_not_given_again(
    tmp_path: Path,
) -> None:
    def work(store: EmbeddedStore, said: int) -> None:
        store.create("/controller", ephemeral=True)
        os.write(said, b"%d" % store.session_id)
        signal.pause()

    pid, said = forked(tmp_path, work)
    owner = int(os.read(said, 10))
    killed(pid)
    os.close(said)
    for suffix in SUFFIXES:
        (tmp_path / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)
    store = opened(tmp_path)
    assert store.exists("/controller") is None
    assert store.session_id > owner
    store.check()
    store.close()


def test_store_that_another_process_has_open_is_not_replaced_below_it(tmp_path: Path) -> None:
    def work(store: EmbeddedStore, said: int) -> None:
        store.create("/controller", ephemeral=True)
        os.write(said, b"!")
        signal.pause()

    pid, said = forked(tmp_path, work)
    assert os.read(said, 1) == b"!"
    (tmp_path / DATABASE_NAME).rename(tmp_path / "gone")
    with pytest.raises(StoreUnavailable, match="another process"):
        opened(tmp_path)
    killed(pid)
    os.close(said)
    opened(tmp_path).close()


def damaged_everywhere(directory: Path) -> None:
    filled(directory)
    overwrite_page(directory / DATABASE_NAME)
    data = bytearray((directory / COPY_NAME).read_bytes())
    data[20] ^= 1
    (directory / COPY_NAME).write_bytes(data)


def test_store_whose_copies_are_damaged_too_is_refused_and_not_a_byte_is_changed(tmp_path: Path) -> None:
    damaged_everywhere(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StoreDamaged) as damage:
        opened(tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    text = str(damage.value)
    assert str(tmp_path / DATABASE_NAME) in text
    assert "docs/metadata.md" in text
    assert "Keep all files" in text
    assert "move it away" not in text


def test_backup_that_the_operator_put_there_counts_once_the_session_file_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    backup = (tmp_path / DATABASE_NAME).read_bytes()
    store = opened(tmp_path)
    for number in range(3):
        store.create(f"/late-{number}")
    store.close()
    (tmp_path / DATABASE_NAME).write_bytes(backup)
    (tmp_path / SESSIONS_NAME).unlink()
    store = opened(tmp_path)
    assert [name for name in store.children("/") if "late" in name] == []
    store.close()
    assert "the copy is kept as" in caplog.text
    assert (tmp_path / f"{COPY_NAME}.aside-1").exists()


def test_lock_of_another_process_is_waited_for_with_a_limit_and_its_holder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_file, "BUSY_TIMEOUT_S", 0.2)
    store = opened(tmp_path)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        other = sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        os.write(writing, b"!")
        signal.alarm(60)
        signal.pause()
    assert os.read(reading, 1) == b"!"
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=rf"held by pid {pid} \("):
        store.create("/a")
    assert time.monotonic() - began < 5
    killed(pid)
    store.create("/a")
    store.close()
    os.close(reading)
    os.close(writing)


_IN_TROUBLE: Final = """
import errno, os, sys
from pathlib import Path
from appliance.clock import SystemClock
from appliance.control.store.embedded_store import EmbeddedStore
from appliance.control.store.metadata_store import Create
from appliance.errors import ApplianceError

directory, trigger = Path(sys.argv[1]), Path(os.environ["DISK_LAYER_SQLITE"])

def attempt(work):
    try:
        return work() and "ok"
    except ApplianceError as fault:
        return type(fault).__name__

for number in (errno.EIO, errno.ENOSPC, errno.EMFILE):
    for calls in ("*", "pread64,pread,read"):
        for name in ("metadata.db", "metadata.db-wal", "metadata.db-shm"):
            for kills in (False, True):
                home = directory / f"{number}-{calls[0]}-{name}-{kills}"
                pid = os.fork()
                if not pid:
                    store = EmbeddedStore(home, SystemClock())
                    store.multi([Create(f"/{n}", bytes(300)) for n in range(100)])
                    store.close() if not kills else None
                    os._exit(0)
                os.waitpid(pid, 0)
                trigger.write_text(f"{number} {calls} {home.name}/{name}")
                told = attempt(lambda: EmbeddedStore(home, SystemClock()))
                trigger.unlink()
                store = EmbeddedStore(home, SystemClock())
                print(home.name, told, len(store.children("/")), flush=True)
os._exit(0)
"""


def test_error_of_the_disk_while_the_store_opens_is_never_called_damage(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(LAYER),
        "DISK_LAYER_SQLITE": str(tmp_path / "trigger"),
    }
    ended = subprocess.run(
        [sys.executable, "-c", _IN_TROUBLE, str(tmp_path)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    told = [line.split() for line in ended.stdout.splitlines()]
    assert len(told) == 36
    assert {each[1] for each in told} <= {"StorageFault", "DiskFull", "ok"}, ended.stdout
    assert "StorageFault" in {each[1] for each in told}
    assert {each[2] for each in told} == {"100"}
    assert not list(tmp_path.rglob("*.aside-*"))
