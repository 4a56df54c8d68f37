"""What a backup copies of a partition's files, and what it believes of a manifest."""

from __future__ import annotations

import os
import sqlite3
from array import array
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from struct import pack
from uuid import UUID

import pytest

from appliance.control.backup import cut
from appliance.control.backup.cut import StoppedSource, copy_while_quiet, slot_properties
from appliance.control.backup.manifest import (
    Manifest,
    Mark,
    Piece,
    StoredFile,
    StoredPartition,
    decode,
    encode,
    id_after,
    id_of,
    manifest_path,
    moment_of,
)
from appliance.control.backup.metadata_sources import EmbeddedMetadata
from appliance.control.backup.restore import give_to_owner
from appliance.control.backup.segments import (
    PlannedFileGone,
    end_of_segment,
    index_of,
    open_planned,
    plan_segments,
)
from appliance.control.backup.take import _reusable
from appliance.control.backup.target import DirectoryTarget
from appliance.control.backup.upkeep import prune
from appliance.errors import CorruptFile, HostFault, OperatorFault, StorageFault
from appliance.log.partition_metadata import write_topic_id
from appliance.log.partition_state import Mode, PartitionState, StateFile
from appliance.protocol.records.record import Record, encode_batch

ROOM = bytes(4096)
ID = "20260101T000000.000Z"


def batches(first: int, count: int) -> list[bytes]:
    return [encode_batch([Record(value=b"%d" % (first + n))], base_offset=first + n) for n in range(count)]


def segment(directory: Path, base: int, count: int, *, index: bytes | None = None, room: bytes = b"") -> int:
    """Writes a segment of batches of one record each; the bytes of its batches."""
    content = b"".join(batches(base, count))
    (directory / f"{base:020d}.log").write_bytes(content + room)
    if index is not None:
        (directory / f"{base:020d}.index").write_bytes(index)
    return len(content)


def planned(directory: Path, *, log_start: int, high_watermark: int) -> list[str]:
    return [
        each.path.name.lstrip("0") or each.path.name
        for each in plan_segments(directory, log_start=log_start, high_watermark=high_watermark)
    ]


def end(directory: Path, base: int, below: int) -> int:
    (file,) = [
        each
        for each in plan_segments(directory, log_start=base, high_watermark=below)
        if each.path.name == f"{base:020d}.log"
    ]
    descriptor = open_planned(file)
    try:
        index = index_of(file, [])
        return end_of_segment(
            descriptor, index, base_offset=base, below=below, length_bytes=os.fstat(descriptor).st_size
        )
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("room", [b"", ROOM])
@pytest.mark.parametrize("indexed", [False, True])
def test_segment_ends_at_the_high_watermark_or_at_its_last_batch(
    tmp_path: Path, indexed: bool, room: bytes
) -> None:
    lengths = [len(each) for each in batches(100, 20)]
    entries = b"".join(pack(">II", n, sum(lengths[:n])) for n in range(4, 20, 4))
    whole = segment(tmp_path, 100, 20, index=entries + ROOM if indexed else None, room=room)
    assert whole == sum(lengths)
    for below in (101, 104, 105, 112, 119, 120):
        assert end(tmp_path, 100, below) == sum(lengths[: below - 100])
    assert end(tmp_path, 100, 500) == whole, "the room behind the last batch is no part of it"


def test_index_that_lies_is_not_believed(tmp_path: Path) -> None:
    lengths = [len(each) for each in batches(0, 10)]
    lies = pack(">II", 3, 17) + pack(">II", 4, 1 << 30) + pack(">II", 2, lengths[0])
    segment(tmp_path, 0, 10, index=lies)
    assert end(tmp_path, 0, 5) == sum(lengths[:5])


def test_torn_batch_at_the_end_is_left_out(tmp_path: Path) -> None:
    whole = segment(tmp_path, 0, 3, room=batches(3, 1)[0][:-1])
    assert end(tmp_path, 0, 10) == whole


def test_plan_has_what_readers_may_read(tmp_path: Path) -> None:
    for base in (0, 10, 20, 30):
        segment(tmp_path, base, 10, index=b"")
        (tmp_path / f"{base:020d}.timeindex").touch()
        (tmp_path / f"{base:020d}.snapshot").touch()
    (tmp_path / f"{40:020d}.log.deleted").touch()
    (tmp_path / ".state").touch()
    assert planned(tmp_path, log_start=12, high_watermark=25) == [
        "10.log",
        "10.index",
        "10.timeindex",
        "20.log",
        "20.snapshot",
    ]
    assert planned(tmp_path, log_start=0, high_watermark=10)[-2:] == [
        f"{0:020d}.log".lstrip("0"),
        "10.snapshot",
    ]
    assert planned(tmp_path, log_start=30, high_watermark=30)[0] == "30.log", (
        "its name says where the log begins"
    )
    (tmp_path / f"{0:020d}.log").unlink()
    with pytest.raises(CorruptFile, match="log start"):
        plan_segments(tmp_path, log_start=3, high_watermark=25)


def test_file_is_found_by_its_inode_after_compaction_and_missed_after_removal(tmp_path: Path) -> None:
    segment(tmp_path, 0, 5)
    (file,) = plan_segments(tmp_path, log_start=0, high_watermark=5)
    content = file.path.read_bytes()
    file.path.rename(file.path.with_name(file.path.name + ".deleted"))
    segment(tmp_path, 0, 1)
    descriptor = open_planned(file)
    assert os.pread(descriptor, 1 << 20, 0) == content
    os.close(descriptor)
    file.path.with_name(file.path.name + ".deleted").unlink()
    with pytest.raises(PlannedFileGone):
        open_planned(file)


MARK = Mark(1, 2, 3, 4)
PIECES = (Piece("data/a-0/0.log.0.x", 100, "00"),)


@pytest.mark.parametrize(
    ("known", "mark", "length", "reused"),
    [
        (StoredFile("0.log", 100, PIECES, mark=MARK, is_open=True), Mark(1, 2, 9, 4), 150, True),
        (StoredFile("0.log", 100, PIECES, mark=MARK), MARK, 100, True),
        (StoredFile("0.log", 100, PIECES, mark=MARK), Mark(1, 2, 9, 4), 100, False),  # repaired in place
        (
            StoredFile("0.log", 100, PIECES, mark=MARK, is_open=True),
            Mark(1, 2, 3, 5),
            150,
            False,
        ),  # truncated
        (
            StoredFile("0.log", 100, PIECES, mark=MARK, is_open=True),
            Mark(1, 7, 3, 4),
            150,
            False,
        ),  # another file
        (StoredFile("0.log", 100, PIECES, mark=MARK, is_open=True), MARK, 50, False),
        (StoredFile("0.log", 100, PIECES * 200, mark=MARK, is_open=True), MARK, 150, False),
        (None, MARK, 100, False),
        # Compaction keeps the modification time, and the file system gives the inode to a later file.
        (StoredFile("0.log", 100, PIECES, mark=Mark(1, 2, 3, 4, 5)), Mark(1, 2, 3, 4, 6), 150, False),
        (
            StoredFile("0.log", 100, PIECES, mark=Mark(1, 2, 3, 4, 5, 6), is_open=True),
            Mark(1, 2, 9, 4, 7, 8),
            150,
            False,
        ),
        (
            StoredFile("0.log", 100, PIECES, mark=Mark(1, 2, 3, 4, 5, 6), is_open=True),
            Mark(1, 2, 9, 4, 7, 6),
            150,
            True,
        ),
    ],
)
def test_pieces_are_used_again_only_if_the_file_was_only_appended_to(
    known: StoredFile | None, mark: Mark, length: int, reused: bool
) -> None:
    assert bool(_reusable(known, mark, length)) == reused


def manifest(
    *,
    file: str = "0.log",
    piece: str = "data/a-0/0.log.0.x",
    topic: str = "a",
    length: int = 100,
    slot: int = 0,
) -> bytes:
    stored = StoredFile(file, length, (Piece(piece, 100, "00"),))
    partition = StoredPartition(topic, 0, "id", (slot,), 0, 5, 0, (stored,))
    return encode(Manifest(ID, "cluster", "0.1", 0, (), {0: b"x"}, (partition,)))


def test_manifest_is_read_back() -> None:
    found = decode(manifest(), "m")
    assert found.length_bytes == 100
    assert found.slots == {0: b"x"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}\n",
        manifest()[:-70],
        manifest().replace(b'"cluster"', b'"another"'),
        manifest(file="../../etc/passwd"),
        manifest(file=".."),
        manifest(piece="/etc/passwd"),
        manifest(piece="data/../../etc/passwd"),
        manifest(piece="data/a/../../../etc/passwd"),
        manifest(piece="data/a-0/b/c"),
        manifest(piece="data/a-0/0.log\0"),
        manifest(topic="../a"),
        manifest(length=101),
        manifest(slot=1),  # no slot would get the partition
        b"{" + b"\n" + sha256(b"{").hexdigest().encode(),
    ],
)
def test_manifest_that_is_damaged_or_leads_outside_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode(content, "m")


def test_newest_backup_has_the_highest_id_when_the_clock_was_set_back() -> None:
    now_ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000
    assert id_after([], now_ms) == ID
    assert id_after([ID], now_ms + 5) == "20260101T000000.005Z"
    first = id_after(["20260301T000000.000Z", ID], now_ms)
    second = id_after([ID, "20260301T000000.000Z", first], now_ms + 60_000)
    assert [first, second] == ["20260301T000000.001Z", "20260301T000000.002Z"]
    assert moment_of(ID) == now_ms
    assert id_of("20260231T000000.000Z.json") is None


TRANSACTIONS, OFFSETS, RECORDS = range(3)


def test_no_transaction_has_its_end_in_a_backup_and_not_its_markers() -> None:
    table = [10, 10, 10]

    def row_by_row() -> memoryview:
        """As memcpy: a transaction writes markers and end between the first row and the next."""
        content = array("q", [0, table[OFFSETS], table[RECORDS]])
        if table[TRANSACTIONS] < 13:
            table[OFFSETS] += 1
            table[RECORDS] += 1
            table[TRANSACTIONS] += 1
        content[TRANSACTIONS] = table[TRANSACTIONS]
        return memoryview(content)

    tables = copy_while_quiet(row_by_row, [TRANSACTIONS])
    found = [tables[kind][kind] for kind in (TRANSACTIONS, OFFSETS, RECORDS)]
    assert found[OFFSETS] >= found[TRANSACTIONS]
    assert found[RECORDS] >= found[TRANSACTIONS]


def test_cut_gives_up_if_transactions_end_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "QUIET_TRIES", 3)
    ends = count()
    with pytest.raises(HostFault, match="all the time"):
        copy_while_quiet(lambda: memoryview(array("q", [next(ends)])), [0])


def test_slot_is_in_the_backup_if_the_disk_of_its_first_directory_failed(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "meta.properties").write_bytes(b"version=1\n")
    assert slot_properties([tmp_path / "a", tmp_path / "b"]) == b"version=1\n"
    assert slot_properties([tmp_path / "a"]) is None


def stopped_copy(data_dir: Path, slot: int, *, epoch: int, leads: bool, high_watermark: int) -> Path:
    """A cleanly closed copy of partition a-0, as a slot leaves it."""
    directory = data_dir / f"slot-{slot}" / "a-0"
    directory.mkdir(parents=True)
    write_topic_id(directory, UUID(int=7))
    state = PartitionState(
        topic_id=UUID(int=7),
        leader_epoch=epoch,
        log_start=0,
        high_watermark=high_watermark,
        last_stable=high_watermark,
        log_end=high_watermark,
        durable=high_watermark,
        active_base=0,
        active_bytes=0,
        leads=leads,
        mode=Mode.CLOSED,
    )
    StateFile(directory, UUID(int=1)).publish(state)
    return directory


@pytest.mark.parametrize(
    ("copies", "chosen"),
    [
        ([(3, True, 50), (4, False, 90)], 1),  # slot 0 led before, and has not heard of its successor
        ([(4, True, 90), (3, True, 99)], 0),
        ([(4, False, 95), (4, True, 90)], 1),  # of one epoch the leader's counts
        ([(4, False, 95), (4, False, 90)], 0),
    ],
)
def test_stopped_copy_of_the_highest_leader_epoch_goes_into_the_backup(
    tmp_path: Path, copies: list[tuple[int, bool, int]], chosen: int
) -> None:
    for slot, (epoch, leads, high_watermark) in enumerate(copies):
        stopped_copy(tmp_path, slot, epoch=epoch, leads=leads, high_watermark=high_watermark)
        (tmp_path / f"slot-{slot}" / "meta.properties").write_bytes(b"cluster.id=c\n")
    sqlite3.connect(tmp_path / "metadata.db").close()
    (found,) = StoppedSource(tmp_path, EmbeddedMetadata(tmp_path)).cut().partitions
    assert found.directory.parent.name == f"slot-{chosen}"
    assert found.high_watermark == copies[chosen][2]
    assert found.replicas == (0, 1)


def test_directory_is_written_by_one_backup_at_a_time(tmp_path: Path) -> None:
    target = DirectoryTarget(tmp_path / "t", writes=True)
    with pytest.raises(OperatorFault, match="another backup writes"):
        DirectoryTarget(tmp_path / "t", writes=True)
    DirectoryTarget(tmp_path / "t", writes=False).close()
    target.close()
    DirectoryTarget(tmp_path / "t", writes=True).close()


def test_what_a_killed_backup_was_writing_is_removed(tmp_path: Path) -> None:
    DirectoryTarget(tmp_path / "t", writes=True).close()
    parts = [
        tmp_path / "t" / "data" / "a-0" / f"0.log.0.{ID}.part",
        tmp_path / "t" / "backups" / f"{ID}.json.part",
    ]
    others = tmp_path / "t" / "data" / "films" / "a.part"
    for each in (*parts, others):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.touch()
    DirectoryTarget(tmp_path / "t", writes=True).close()
    assert not any(each.exists() for each in parts)
    assert others.exists(), "no backup has written it"


def test_prune_removes_nothing_that_no_backup_has_written(tmp_path: Path) -> None:
    target = DirectoryTarget(tmp_path / "t", writes=True)
    orphan = tmp_path / "t" / "data" / "a-0" / f"0.log.0.{ID}"
    others = tmp_path / "t" / "data" / "films" / "a.mkv"
    for each in (orphan, others):
        each.parent.mkdir(parents=True)
        each.touch()
    assert prune(target, 1) == ([], 0), "nobody knows what a target without a manifest holds"
    assert orphan.exists()
    target.write(manifest_path(ID), [manifest()])
    assert prune(target, 1) == ([], 1)
    assert not orphan.exists()
    assert others.exists()
    target.close()


def test_manifests_that_cannot_be_listed_are_an_error_and_prune_removes_nothing(tmp_path: Path) -> None:
    target = DirectoryTarget(tmp_path / "t", writes=True)
    needed = tmp_path / "t" / "data" / "a-0" / f"0.log.0.{ID}"
    needed.parent.mkdir(parents=True)
    needed.touch()
    # A loop of links: listing it fails for root, too.
    (tmp_path / "t" / "backups").symlink_to(tmp_path / "t" / "backups")
    with pytest.raises(StorageFault):
        prune(target, 1)
    assert needed.exists()
    target.close()


def test_object_is_not_written_through_a_link(tmp_path: Path) -> None:
    target = DirectoryTarget(tmp_path / "t", writes=True)
    elsewhere = tmp_path / "precious"
    elsewhere.write_text("precious")
    (tmp_path / "t" / "data" / "a-0").mkdir(parents=True)
    (tmp_path / "t" / "data" / "a-0" / "x.part").symlink_to(elsewhere)
    with pytest.raises(StorageFault):
        target.write("data/a-0/x", [b"bytes"])
    assert elsewhere.read_text() == "precious"
    target.close()


def test_restore_as_root_gives_the_files_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    data_dir, elsewhere = tmp_path / "data", tmp_path / "precious"
    (data_dir / "slot-0").mkdir(parents=True)
    (data_dir / "slot-0" / "meta.properties").touch()
    elsewhere.touch()
    os.link(elsewhere, data_dir / "linked")
    wanted = 12_345 if os.geteuid() == 0 else os.geteuid()
    os.chown(data_dir, wanted, -1)
    give_to_owner(data_dir)
    assert (data_dir / "slot-0").stat().st_uid == wanted
    assert (data_dir / "slot-0" / "meta.properties").stat().st_uid == wanted
    assert elsewhere.stat().st_uid == os.geteuid(), "a file with another name is not given away"
