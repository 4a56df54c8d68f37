"""log verify on replicas written here byte by byte."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.cluster import TopicPartition
from appliance.control.supervisor.data_directory import DataDirectory
from appliance.log.checkpoint import write_offsets
from appliance.log.file_names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG,
    RECOVERY_POINTS,
    segment_file_name,
)
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import Outcome, appliance

TIME_MS = 1_700_000_000_000


def batch(base_offset: int, value: bytes = b"value", *, leader_epoch: int = 0) -> bytes:
    """Two records."""
    records = [Record(value, timestamp_ms=TIME_MS) for _ in range(2)]
    return encode_batch(records, base_offset=base_offset, leader_epoch=leader_epoch)


def write(data_dir: Path, slot: int, segments: dict[int, Sequence[bytes]], name: str = "t-0") -> Path:
    """Base offset → batches of the segment, then space that is allocated ahead."""
    directory = data_dir / f"slot-{slot}" / name
    directory.mkdir(parents=True)
    for base_offset, batches in segments.items():
        (directory / segment_file_name(base_offset, LOG)).write_bytes(b"".join(batches) + bytes(512))
    return directory


def verify(data_dir: Path, *arguments: str) -> tuple[Outcome, list[dict[str, Any]]]:
    outcome = appliance("log", "verify", "--json", "--data-dir", str(data_dir), *arguments)
    return outcome, json.loads(outcome.output)["partitions"]


def test_replicas_alike_are_told_so_wherever_their_segments_begin(tmp_path: Path) -> None:
    write(tmp_path, 0, {0: [batch(0), batch(2)], 4: [batch(4)]})
    write(tmp_path, 1, {0: [batch(0)], 2: [batch(2), batch(4)]})
    write(tmp_path, 2, {2: [batch(2)], 4: [batch(4)]})  # retention was quicker here
    outcome, (fact,) = verify(tmp_path)
    assert outcome.code == 0
    assert (fact["verdict"], fact["compared_from"], fact["compared_to"], fact["batches"]) == (
        "alike",
        2,
        6,
        2,
    )
    assert [each["log_start_offset"] for each in fact["replicas"]] == [0, 0, 2]
    table = appliance("log", "verify", "--data-dir", str(tmp_path)).succeeded()
    assert "t-0" in table.text
    assert "1 partitions: 0 differ, 0 behind" in table.text


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (batch(2, b"VALUE"), "the batch at offset 2 differs between slot 0 and slot 1 at its byte"),
        (batch(2, leader_epoch=1), "the batch at offset 2 differs between slot 0 and slot 1 at its byte 15"),
        (batch(2, b"longer value"), "the batch at offset 2 has"),
        (batch(4), "after offset 2: slot 0 continues with a batch at 2, slot 1 with one at 4"),
    ],
)
def test_difference_is_named_by_its_place_and_ends_with_one(tmp_path: Path, other: bytes, why: str) -> None:
    write(tmp_path, 0, {0: [batch(0), batch(2)]})
    write(tmp_path, 1, {0: [batch(0), other]})
    write(tmp_path, 0, {0: [batch(0)]}, "u-0")
    write(tmp_path, 1, {0: [batch(0)]}, "u-0")
    outcome, (differs, alike) = verify(tmp_path)
    assert outcome.code == 1
    assert differs["verdict"] == "differs"
    assert differs["difference"].startswith(why)
    assert alike["verdict"] == "alike"
    assert why in appliance("log", "verify", "--data-dir", str(tmp_path)).text
    assert verify(tmp_path, "u")[0].code == 0
    assert verify(tmp_path, "t-0")[0].code == 1


def test_same_wrong_bytes_everywhere_are_a_difference_too(tmp_path: Path) -> None:
    broken = bytearray(batch(0))
    broken[-1] ^= 1
    for slot in range(2):
        write(tmp_path, slot, {0: [bytes(broken), batch(2)]})
    outcome, (fact,) = verify(tmp_path)
    assert outcome.code == 1
    assert "has a wrong checksum" in fact["difference"]


def test_replica_that_ends_early_is_behind_and_a_difference_only_if_asked(tmp_path: Path) -> None:
    write(tmp_path, 0, {0: [batch(0), batch(2)]})
    write(tmp_path, 1, {0: [batch(0)]})
    write(tmp_path, 2, {0: [batch(0), batch(2)[:-5]]})  # killed while it wrote
    outcome, (fact,) = verify(tmp_path)
    assert outcome.code == 0
    assert (fact["verdict"], fact["compared_to"]) == ("behind", 2)
    assert [each["log_end_offset"] for each in fact["replicas"]] == [4, 2, 2]
    assert verify(tmp_path, "--complete")[0].code == 1


def test_what_any_replica_has_compacted_is_not_compared(tmp_path: Path) -> None:
    write(tmp_path, 0, {0: [batch(0), batch(2)], 4: [batch(4)]})
    write(tmp_path, 1, {0: [batch(2)], 4: [batch(4)]})
    assert verify(tmp_path)[0].code == 0  # begins where the highest first batch is
    write(tmp_path, 2, {0: [batch(0)], 4: [batch(4)]})
    assert verify(tmp_path)[0].code == 1
    write_offsets(tmp_path / "slot-2" / CLEANER_OFFSETS, {TopicPartition("t", 0): 4})
    outcome, (fact,) = verify(tmp_path)
    assert outcome.code == 0
    assert (fact["compared_from"], fact["compared_to"]) == (4, 6)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, {0: [batch(0)]})
    refused = appliance("log", "verify", "--data-dir", str(tmp_path), "nothing")
    assert refused.code == 1
    assert "nothing: no such topic or partition" in refused.errors
    assert appliance("log", "verify", "--data-dir", str(tmp_path / "none")).code == 1


def test_log_dirs_of_a_configuration_are_searched(tmp_path: Path) -> None:
    configuration = tmp_path / "appliance.toml"
    configuration.write_text('"slots" = 2\n"log.dirs" = "a-{slot},b-{slot}"\n')
    data_dir = tmp_path / "data"
    for name in ("a-0", "b-1"):
        directory = data_dir / name / "t-0"
        directory.mkdir(parents=True)
        (directory / segment_file_name(0, LOG)).write_bytes(batch(0))
    _, (fact,) = verify(data_dir, "--config", str(configuration))
    assert [each["slot"] for each in fact["replicas"]] == [0, 1]


def repaired(data_dir: Path) -> tuple[int, list[dict[str, Any]]]:
    outcome = appliance("log", "verify", "--repair", "--json", "--data-dir", str(data_dir))
    return outcome.code, json.loads(outcome.output)["repairs"]


def damage(directory: Path, position: int, base_offset: int = 0) -> None:
    path = directory / segment_file_name(base_offset, LOG)
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.log")}


@pytest.mark.parametrize(
    "place", [3, 9, 16, 30, 70]
)  # base offset, length, magic, the last offset delta, a record
def test_a_damaged_batch_is_replaced_by_that_of_a_whole_replica(tmp_path: Path, place: int) -> None:
    batches = [batch(0), batch(2), batch(4)]
    damaged, whole = (write(tmp_path, slot, {0: batches, 6: [batch(6)]}) for slot in (0, 1))
    before = content(damaged)
    damage(damaged, len(batches[0]) + place)
    code, (repair,) = repaired(tmp_path)
    assert (code, repair["slot"], repair["offset"], repair["done"]) == (0, 0, 2, True)
    assert "offsets 2 to 3 repaired from slot 1" in repair["outcome"]
    assert content(damaged) == content(whole) == before
    assert [path.name for path in (damaged / "recovered").iterdir()] == [f"{0:020d}.log.at-{len(batches[0])}"]
    assert repaired(tmp_path) == (0, [])


def test_each_of_two_replicas_is_repaired_from_the_other(tmp_path: Path) -> None:
    batches = [batch(0), batch(2), batch(4)]
    first, second = (write(tmp_path, slot, {0: batches}) for slot in (0, 1))
    before = content(first)
    damage(first, 70)
    damage(second, len(batches[0]) + 70)
    code, repairs = repaired(tmp_path)
    assert (code, [(each["slot"], each["offset"]) for each in repairs]) == (0, [(0, 0), (1, 2)])
    assert content(first) == content(second) == before


def test_the_lost_end_of_a_closed_segment_is_filled_from_a_whole_replica(tmp_path: Path) -> None:
    batches = [batch(0), batch(2), batch(4)]
    first = write(tmp_path, 0, {0: batches, 6: [batch(6)]})
    write(tmp_path, 1, {0: batches, 6: [batch(6)]})
    (first / segment_file_name(0, LOG)).write_bytes(batches[0])
    code, repairs = repaired(tmp_path)
    assert (code, [each["offset"] for each in repairs]) == (0, [2, 4])
    assert (first / segment_file_name(0, LOG)).read_bytes() == b"".join(batches)


def test_what_nobody_has_whole_is_said_and_left_as_it_is(tmp_path: Path) -> None:
    batches = [batch(0), batch(2), batch(4)]
    directories = [write(tmp_path, slot, {0: batches}) for slot in (0, 1)]
    for each in directories:
        damage(each, len(batches[0]) + 70)
    before = [content(each) for each in directories]
    code, repairs = repaired(tmp_path)
    assert (code, [(each["offset"], each["done"]) for each in repairs]) == (1, [(2, False), (2, False)])
    assert [content(each) for each in directories] == before
    outcome = appliance("log", "verify", "--repair", "--data-dir", str(tmp_path))
    assert (
        "t-0: slot 1, offset 2: damaged, and no other replica is whole at this offset: not repaired"
        in outcome.text
    )


def test_a_torn_tail_is_left_to_the_next_start(tmp_path: Path) -> None:
    batches = [batch(0), batch(2)]
    first, _ = (write(tmp_path, slot, {0: batches}) for slot in (0, 1))
    torn = b"".join(batches) + batch(4)[:-3]
    (first / segment_file_name(0, LOG)).write_bytes(torn)
    assert repaired(tmp_path) == (0, [])
    assert (first / segment_file_name(0, LOG)).read_bytes() == torn


def test_a_compacted_replica_is_replaced_by_a_copy_of_a_whole_one(tmp_path: Path) -> None:
    damaged = write(tmp_path, 0, {0: [batch(0), batch(2), batch(4)], 6: [batch(6)]})
    whole = write(tmp_path, 1, {0: [batch(2), batch(4)], 6: [batch(6)]})
    for slot in (0, 1):
        write_offsets(tmp_path / f"slot-{slot}" / CLEANER_OFFSETS, {TopicPartition("t", 0): 6})
    kept = content(damaged)
    damage(damaged, len(batch(0)) + 70)
    (damaged / segment_file_name(0, ".index")).write_bytes(b"of the old segment")
    code, (repair,) = repaired(tmp_path)
    assert (code, repair["slot"], repair["offset"], repair["done"]) == (0, 0, 2, True)
    assert content(damaged) == content(whole)
    assert {path.name for path in (damaged / "recovered").iterdir()} == set(kept)
    assert not list(damaged.glob("*.index"))


COMPACTED: Final[dict[int, Sequence[bytes]]] = {0: [batch(2), batch(8)], 12: [batch(12), batch(14)]}
"""Compaction took batches out before, between and behind those of the first segment."""


def test_holes_of_compaction_are_no_damage_though_no_checkpoint_tells_of_them(tmp_path: Path) -> None:
    """As when disks are replaced one after the other, or the topic is compacted no more."""
    directories = [write(tmp_path, slot, COMPACTED) for slot in range(3)]
    before = [content(each) for each in directories]
    assert repaired(tmp_path) == (0, [])
    assert [content(each) for each in directories] == before


@pytest.mark.parametrize(("base_offset", "offset"), [(0, 4), (12, 12)])
def test_damage_among_such_holes_is_repaired_from_a_whole_replica(
    tmp_path: Path, *, base_offset: int, offset: int
) -> None:
    damaged, *_, whole = [write(tmp_path, slot, COMPACTED) for slot in range(3)]
    damage(damaged, 70 + (0 if base_offset else len(batch(2))), base_offset)
    code, (repair,) = repaired(tmp_path)
    assert (code, repair["slot"], repair["offset"], repair["done"]) == (0, 0, offset, True)
    assert content(damaged) == content(whole)
    assert repaired(tmp_path) == (0, [])


def test_a_replica_alone_tells_holes_of_compaction_from_damage(tmp_path: Path) -> None:
    directory = write(tmp_path, 0, COMPACTED)
    assert repaired(tmp_path) == (0, [])
    damage(directory, 70)
    code, (repair,) = repaired(tmp_path)
    assert (code, repair["offset"], repair["done"]) == (1, 0, False)


def test_a_batch_that_only_one_replica_lacks_is_copied_from_another(tmp_path: Path) -> None:
    """Nothing was compacted: a hole where another replica has records hides none of them."""
    batches = [batch(0), batch(2), batch(4)]
    write(tmp_path, 0, {0: [batches[0], batches[2]], 6: [batch(6)]})
    write(tmp_path, 1, {0: batches, 6: [batch(6)]})
    code, (repair, *_) = repaired(tmp_path)
    assert (code, repair["slot"], repair["offset"], repair["done"]) == (0, 0, 2, True)
    _, (fact,) = verify(tmp_path)
    assert (fact["verdict"], fact["compared_to"], fact["batches"]) == ("alike", 8, 4)


@pytest.mark.parametrize("bit", [1, 3, 5])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_damaged_base_offset_is_not_taken_for_a_hole_of_compaction(
    tmp_path: Path, *, number: int, bit: int
) -> None:
    batches = [batch(base) for base in (32, 34, 36, 38)]
    damaged, whole = (write(tmp_path, slot, {32: batches, 40: [batch(40)]}) for slot in (0, 1))
    path = damaged / segment_file_name(32, LOG)
    data = bytearray(path.read_bytes())
    data[number * len(batches[0]) + 7] ^= 1 << bit
    path.write_bytes(data)
    code, (repair,) = repaired(tmp_path)
    assert (code, repair["offset"], repair["done"]) == (0, 32 + 2 * number, True)
    assert content(damaged) == content(whole)


@pytest.mark.parametrize("bit", [1, 3, 5])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_damaged_base_offset_of_the_only_replica_is_said(tmp_path: Path, *, number: int, bit: int) -> None:
    batches = [batch(base) for base in (32, 34, 36, 38)]
    directory = write(tmp_path, 0, {32: batches, 40: [batch(40)]})
    path = directory / segment_file_name(32, LOG)
    data = bytearray(path.read_bytes())
    data[number * len(batches[0]) + 7] ^= 1 << bit
    path.write_bytes(data)
    code, (repair,) = repaired(tmp_path)
    assert (code, repair["done"]) == (1, False)


def test_a_lost_end_of_a_closed_segment_is_said_where_no_replica_has_it(tmp_path: Path) -> None:
    for slot in (0, 1):
        write(tmp_path, slot, {0: [batch(0)], 6: [batch(6)]})
    code, repairs = repaired(tmp_path)
    assert (code, [(each["offset"], each["done"]) for each in repairs]) == (1, [(2, False), (2, False)])


@pytest.mark.parametrize(
    ("recovery_point", "is_clean", "is_done"),
    [(2, False, True), (4, False, True), (6, False, False), (2, True, False)],
)
def test_damage_that_the_next_start_finds_is_left_to_it(
    tmp_path: Path, *, recovery_point: int, is_clean: bool, is_done: bool
) -> None:
    """The others were killed before they had the last record, so no copy of theirs can take the place of ours."""
    damaged = write(tmp_path, 0, {0: [batch(0), batch(2), batch(4), batch(6)]})
    write(tmp_path, 1, {0: [batch(2), batch(4)]})
    for slot in (0, 1):
        write_offsets(tmp_path / f"slot-{slot}" / CLEANER_OFFSETS, {TopicPartition("t", 0): 4})
        write_offsets(tmp_path / f"slot-{slot}" / RECOVERY_POINTS, {TopicPartition("t", 0): recovery_point})
    if is_clean:
        (tmp_path / "slot-0" / CLEAN_SHUTDOWN).touch()
    damage(damaged, 2 * len(batch(0)) + 70)
    before = content(damaged)
    code, (repair,) = repaired(tmp_path)
    assert (code, repair["slot"], repair["offset"], repair["done"]) == (int(not is_done), 0, 4, is_done)
    assert content(damaged) == before
    if is_done:
        assert "the next start cuts the log there and copies the rest from slot 1" in repair["outcome"]


def test_a_copied_data_directory_is_repaired_itself_not_its_original(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    whole, damaged = batch(0) + batch(2), batch(0) + batch(2, b"VALUE")[:-1] + b"?"
    for slot, content in enumerate((damaged, whole)):
        write(original, slot, {0: [content]})
    facts = {
        "data_dir": str(original.resolve()),
        "log_dirs": [[str(original / f"slot-{slot}")] for slot in range(2)],
    }
    (original / "run.json").write_text(json.dumps(facts))
    shutil.copytree(original, copy)
    assert verify(copy, "--repair")[0].code == 0
    segment = f"t-0/{segment_file_name(0, LOG)}"
    assert (copy / "slot-0" / segment).read_bytes()[: len(whole)] == whole
    assert (original / "slot-0" / segment).read_bytes()[: len(damaged)] == damaged


def test_nothing_is_repaired_while_an_appliance_runs(tmp_path: Path) -> None:
    write(tmp_path, 0, {0: [batch(0)]})
    held = DataDirectory.hold(tmp_path, patience_ms=0)
    outcome = appliance("log", "verify", "--repair", "--data-dir", str(tmp_path))
    held.release()
    assert outcome.code == 1
    assert "is in use" in outcome.errors


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_replica_of_another_history_repairs_nothing(tmp_path: Path, *, is_compacted: bool) -> None:
    """Slot 1 led alone, slot 0 was chosen though it lacked that: other records lie at the same offsets."""
    ours = [batch(0), *(batch(n, b"new", leader_epoch=2) for n in (2, 4, 6))]
    damaged = write(tmp_path, 0, {0: ours})
    (damaged / LEADER_EPOCHS).write_text("0\n2\n0 0\n2 2\n")
    write(tmp_path, 1, {0: [batch(0), *(batch(n, b"old", leader_epoch=0) for n in (2, 4, 6))]})
    if is_compacted:
        for slot in (0, 1):
            write_offsets(tmp_path / f"slot-{slot}" / CLEANER_OFFSETS, {TopicPartition("t", 0): 6})
    damage(damaged, len(ours[0]) + len(ours[1]) + 70)
    before = content(damaged)
    code, (repair,) = repaired(tmp_path)
    assert (code, repair["slot"], repair["offset"], repair["done"]) == (1, 0, 4, False)
    assert content(damaged) == before
