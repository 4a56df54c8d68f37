"""A backup of a stopped appliance, whole: what it refuses, what it stores again, and what a failure leaves."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from appliance.control.backup import metadata_sources
from appliance.control.backup import restore as restore_module
from appliance.control.backup.cut import opened
from appliance.control.backup.manifest import BACKUPS
from appliance.control.backup.restore import restore
from appliance.control.backup.take import Taken, take_backup
from appliance.control.backup.target import DirectoryTarget, open_target, shown_place
from appliance.control.backup.upkeep import ids, read_manifest, verify
from appliance.errors import DiskFull, OperatorFault, StorageFault
from appliance.log.checkpoint import replace_file
from appliance.log.faults import storage_fault
from appliance.log.known_directories import KnownDirectories
from appliance.log.partition_metadata import write_topic_id
from appliance.log.partition_state import STATE, Mode, PartitionState, StateFile
from appliance.protocol.records.record import Record, encode_batch
from appliance.sasl.salt_secret import FILE as SALT_SECRET
from tests.cli.command import appliance, environment

TOPIC_ID = UUID(int=7)
META = b"version=1\ncluster.id=c\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n"


def write_partition(slot: Path, name: str, records: int) -> Path:
    """A partition that was closed cleanly, with one segment of `records` batches."""
    directory = slot / name
    directory.mkdir(parents=True)
    (slot / "meta.properties").write_bytes(META)
    write_topic_id(directory, TOPIC_ID)
    content = b"".join(encode_batch([Record(value=bytes(200))], base_offset=at) for at in range(records))
    (directory / f"{0:020d}.log").write_bytes(content)
    state = PartitionState(
        topic_id=TOPIC_ID,
        leader_epoch=0,
        log_start=0,
        high_watermark=records,
        last_stable=records,
        log_end=records,
        durable=records,
        active_base=0,
        active_bytes=len(content),
        leads=True,
        mode=Mode.CLOSED,
    )
    StateFile(directory, UUID(int=1)).publish(state)
    return directory


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A stopped appliance: partitions a-0 and a-1, each with 50 records in 13 kB."""
    data_dir = tmp_path / "data"
    for number in (0, 1):
        write_partition(data_dir / "slot-0", f"a-{number}", 50)
    sqlite3.connect(data_dir / "metadata.db").close()
    return data_dir


def take(data_dir: Path, target: Path, said: list[str] | None = None) -> Taken:
    place = open_target(str(target), writes=True)
    try:
        return take_backup(data_dir, place, say=([] if said is None else said).append)
    finally:
        place.close()


def segments(target: Path) -> list[Path]:
    return sorted(path for path in (target / "data").rglob("*") if ".log." in path.name)


def damages(target: Path, id: str) -> list[str]:
    return [each.reason for each in verify(open_target(str(target), writes=False), [id])[1]]


def test_objects_that_are_missing_or_cut_short_are_stored_again(data_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    first = take(data_dir, target)
    whole = take(data_dir, target)
    assert whole.copied_bytes == 0
    missing, short = segments(target)
    missing.unlink()
    os.truncate(short, 100)
    said: list[str] = []
    again = take(data_dir, target, said)
    assert "lacks objects of 2 files" in said[0]
    assert not damages(target, again.manifest.id)
    assert len(damages(target, first.manifest.id)) == 2, "the backups before stay as they are, and say so"
    assert take(data_dir, target).copied_bytes == 0
    place = open_target(str(target), writes=False)
    restore(read_manifest(place, again.manifest.id), place, tmp_path / "out", say=lambda _: None)
    for number in (0, 1):
        name = f"slot-0/a-{number}/{0:020d}.log"
        assert (tmp_path / "out" / name).read_bytes() == (data_dir / name).read_bytes()


class Failing(DirectoryTarget):
    """A directory on a disk that gets full after some objects, or fails at the second flush."""

    room = 100
    flushes = 0

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
        if self.room == 0:
            raise storage_fault(OSError(errno.ENOSPC, "No space left on device"), path)
        self.room -= 1
        return super().write(path, chunks)

    def flush(self) -> None:
        super().flush()
        self.flushes += 1
        if self.flushes == 2:
            raise storage_fault(OSError(errno.EIO, "Input/output error"), self.shown)


@pytest.mark.parametrize("room", [1, 2, 100])
def test_backup_that_fails_takes_back_what_it_has_stored(data_dir: Path, tmp_path: Path, room: int) -> None:
    """Without this, a target that is full stays full, and a manifest is there of a backup that has failed."""
    first = take(data_dir, tmp_path / "target")
    before = {path: path.read_bytes() for path in (tmp_path / "target").rglob("*") if path.is_file()}
    for directory in (data_dir / "slot-0").glob("a-*"):
        log = directory / f"{0:020d}.log"
        (directory / "aside").write_bytes(log.read_bytes())
        (directory / "aside").rename(log)  # another file: copied again
    target = Failing(tmp_path / "target", writes=True)
    target.room = room
    with pytest.raises(StorageFault) as caught:
        take_backup(data_dir, target, say=lambda _: None)
    assert isinstance(caught.value, DiskFull) == (room < 100)
    target.close()
    after = {path: path.read_bytes() for path in (tmp_path / "target").rglob("*") if path.is_file()}
    assert after == before
    assert ids(open_target(str(tmp_path / "target"), writes=False)) == [first.manifest.id]


def test_log_directory_that_is_not_mounted_is_not_left_out(data_dir: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    write_partition(disk, "b-0", 10)
    KnownDirectories(data_dir / "slot-0.log-dirs.json").note(data_dir / "slot-0")
    KnownDirectories(data_dir / "slot-0.log-dirs.json").note(disk)
    assert len(take(data_dir, tmp_path / "target").manifest.partitions) == 3
    disk.rename(tmp_path / "elsewhere")
    disk.mkdir()  # the empty mount point
    with pytest.raises(StorageFault, match="is its disk mounted"):
        take(data_dir, tmp_path / "target")


@pytest.mark.parametrize("content", [None, bytes(1024), b"LOGSTATE\x02\x00" + bytes(1014)])
def test_records_without_a_readable_state_are_not_left_out(
    data_dir: Path, tmp_path: Path, content: bytes | None
) -> None:
    state = data_dir / "slot-0" / "a-1" / STATE
    state.unlink() if content is None else state.write_bytes(content)
    with pytest.raises(OperatorFault, match=rf"a-1 has records, and its {STATE}"):
        take(data_dir, tmp_path / "target")
    (data_dir / "slot-0" / "a-1" / f"{0:020d}.log").write_bytes(b"")
    assert [each.partition for each in take(data_dir, tmp_path / "target").manifest.partitions] == [0]


def test_file_address_is_a_directory_with_its_lock_and_its_permissions(
    data_dir: Path, tmp_path: Path
) -> None:
    """As an object store, its files would be readable by everybody, and a kill would leave half a manifest."""
    place = f"file://{tmp_path}/my%20target"
    target = open_target(place, writes=True)
    take_backup(data_dir, target, say=lambda _: None)
    with pytest.raises(OperatorFault, match="another backup writes"):
        open_target(place, writes=True)
    target.close()
    stored = [path for path in (tmp_path / "my target").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in stored} == {0o600}
    inside = open_target(f"file://{data_dir}/target", writes=True)
    with pytest.raises(OperatorFault, match="is inside"):
        take_backup(data_dir, inside, say=lambda _: None)
    inside.close()
    with pytest.raises(OperatorFault, match="another host"):
        open_target("file://there/backups", writes=False)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("s3://AKIA:secret@bucket/here?region=x&scheme=http", "s3://bucket/here"),
        ("abfs://container@account/here", "abfs://container@account/here"),
        ("/mnt/what?/a:b@c", "/mnt/what?/a:b@c"),
    ],
)
def test_messages_and_metrics_show_no_credentials(place: str, shown: str) -> None:
    assert shown_place(place) == shown


def test_verify_reads_on_after_a_file_that_the_disk_cannot_read(data_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    taken = take(data_dir, target)
    bad, cut = segments(target)
    bad.unlink()
    bad.symlink_to(bad)  # a loop: an error that root gets, too
    os.truncate(cut, 100)
    (target / BACKUPS / "20200101T000000.000Z.json").symlink_to("20200101T000000.000Z.json")
    place = open_target(str(target), writes=False)
    _, found = verify(place, ids(place))
    assert [each.path.rpartition("/")[2] for each in found] == [
        "20200101T000000.000Z.json",
        bad.name,
        cut.name,
    ]
    assert [each.reason.partition(":")[0] for each in found[:2]] == ["cannot be read"] * 2
    assert found[1].backups == (taken.manifest.id,)
    (target / BACKUPS).rename(tmp_path / "gone")
    (target / BACKUPS).symlink_to(target / BACKUPS)
    with pytest.raises(StorageFault):
        verify(place, [taken.manifest.id])


def test_restore_into_the_target_is_refused(data_dir: Path, tmp_path: Path) -> None:
    """A directory of something else in the target would make each later backup fail."""
    target = tmp_path / "target"
    taken = take(data_dir, target)
    place = open_target(str(target), writes=False)
    for name in ("new", "data/new-0"):
        with pytest.raises(OperatorFault, match="is inside"):
            restore(taken.manifest, place, target / name, say=lambda _: None)
    take(data_dir, target)


@pytest.mark.parametrize("name", [SALT_SECRET, "slot-0/a-0/partition.metadata", "slot-0/meta.properties"])
def test_link_to_a_file_of_others_is_not_followed(data_dir: Path, tmp_path: Path, name: str) -> None:
    """The appliance's user may put it there before root takes a backup, and would get the content by a restore."""
    shadow = tmp_path / "shadow"
    shadow.write_bytes((data_dir / name).read_bytes() if (data_dir / name).exists() else b"secret")
    (data_dir / name).unlink(missing_ok=True)
    (data_dir / name).symlink_to(shadow)
    with pytest.raises(StorageFault):
        take(data_dir, tmp_path / "target")


def test_files_that_are_replaced_are_not_written_through_a_link(data_dir: Path, tmp_path: Path) -> None:
    """Root restores into a directory of the appliance's user, and writes metrics into one of node_exporter's."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    taken = take(data_dir, tmp_path / "target")
    (tmp_path / "page.prom.tmp").symlink_to(precious)
    metrics = ("--metrics", tmp_path / "page.prom")
    told = appliance("backup", data_dir, tmp_path / "target", *metrics)
    assert told.code == 1
    assert "page.prom" in told.errors
    (out := tmp_path / "out").mkdir()
    (tmp_path / "out" / "restore-in-progress.tmp").symlink_to(precious)
    place = open_target(str(tmp_path / "target"), writes=False)
    with pytest.raises(OperatorFault, match="not empty"):
        restore(taken.manifest, place, out, say=lambda _: None)
    with pytest.raises(StorageFault):
        replace_file(out / "restore-in-progress", b"id\n")  # as if the link had come after that look
    assert precious.read_text() == "precious"


def test_of_two_restores_into_one_directory_one_writes(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found it empty. The second one must not put its mark into what the first one has finished."""
    taken = take(data_dir, tmp_path / "target")
    place = open_target(str(tmp_path / "target"), writes=False)
    looked = restore_module._make_empty

    def found_empty(out: Path) -> None:
        looked(out)
        monkeypatch.setattr(restore_module, "_make_empty", looked)
        restore(taken.manifest, place, out, say=lambda _: None)
        (out / "restore-in-progress").write_text("a third one\n")

    monkeypatch.setattr(restore_module, "_make_empty", found_empty)
    with pytest.raises(OperatorFault, match="not empty"):
        restore(taken.manifest, place, tmp_path / "out", say=lambda _: None)
    assert (tmp_path / "out" / "restore-in-progress").read_text() == "a third one\n"


def test_metadata_that_somebody_locks_are_named(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_sources, "BUSY_S", 0.01)
    monkeypatch.setattr(metadata_sources, "PATIENCE_S", 0.1)
    with locked(data_dir / "metadata.db"), pytest.raises(StorageFault, match="was locked by another process"):
        take(data_dir, tmp_path / "target")
    take(data_dir, tmp_path / "target")


@contextmanager
def locked(database: Path) -> Iterator[None]:
    with closing(sqlite3.connect(database, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield


def test_backup_that_its_service_manager_ends_cleans_up(data_dir: Path, tmp_path: Path) -> None:
    """SIGTERM at any moment: here while it waits for the metadata."""
    page = tmp_path / "page.prom"
    places = map(str, (data_dir, tmp_path / "target", "--metrics", page))
    command = [sys.executable, "-m", "appliance", "backup", *places]
    with locked(data_dir / "metadata.db"):
        running = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while not (data_dir / ".lock").exists():
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running.terminate()
        _, errors = running.communicate(timeout=30)
    assert running.returncode > 0, "it ended by itself"
    assert "Traceback" not in errors
    assert "appliance_backup_succeeded" in page.read_text()


def test_backup_of_a_stopped_appliance_writes_nothing_into_it(data_dir: Path, tmp_path: Path) -> None:
    """Its disk may be full, or mounted read-only."""

    def everything() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in data_dir.rglob("*") if path.name != ".lock"}

    before = everything()
    take(data_dir, tmp_path / "target")
    assert everything() == before


def test_stopped_appliance_stays_stopped_during_the_backup(data_dir: Path) -> None:
    with opened(data_dir) as source:
        assert source.log_directories == [data_dir / "slot-0"]
        with open(data_dir / ".lock", "rb") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
