"""Holes that compaction has left, and damage that must not be taken for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from appliance.cli.compaction_holes import were_compacted
from appliance.log.file_names import LOG, segment_file_name
from appliance.protocol.records.batch import HEADER_BYTES
from appliance.protocol.records.record import frame_batch
from tests.cli.test_log_verify import batch

BASES = (32, 34, 36, 38)
ROOM = bytes(512)


def copy_of(directory: Path, segments: Mapping[int, Sequence[bytes]]) -> Path:
    directory.mkdir()
    for base_offset, batches in segments.items():
        (directory / segment_file_name(base_offset, LOG)).write_bytes(b"".join(batches) + ROOM)
    return directory


@pytest.mark.parametrize(
    "segments",
    [
        {0: [batch(2), batch(4)]},  # at the beginning of a segment
        {0: [batch(0), batch(4), batch(6)]},  # between its batches
        {0: [batch(0), batch(4)], 6: [batch(6)]},  # before its last batch, where the next one begins
        {0: [batch(0), batch(4)], 8: [batch(8)]},  # and where its end is missing, too
        {0: [batch(0)], 2: [batch(4), batch(6)]},  # in the newest one
    ],
)
def test_a_hole_before_a_batch_that_the_log_goes_on_from_is_one_of_compaction(
    tmp_path: Path, segments: Mapping[int, Sequence[bytes]]
) -> None:
    assert were_compacted([copy_of(tmp_path / str(slot), segments) for slot in range(3)])


@pytest.mark.parametrize(
    "segments",
    [
        {},
        {0: []},
        {0: [batch(0), batch(2)], 4: [batch(4)]},
        {0: [], 6: [batch(6)]},  # as a copy is made of a log that begins later
        {0: [batch(0)], 6: [batch(6)]},  # the end of a segment may be lost
        {0: [batch(0), batch(4)]},  # the base offset of the newest batch may be damaged
    ],
)
def test_what_damage_may_have_done_proves_no_compaction(
    tmp_path: Path, segments: Mapping[int, Sequence[bytes]]
) -> None:
    assert not were_compacted([copy_of(tmp_path / str(slot), segments) for slot in range(3)])


def thinned(base_offset: int) -> bytes:
    """Two records of three offsets."""
    return frame_batch(batch(0)[HEADER_BYTES:], count=2, base_offset=base_offset, last_offset_delta=2)


def test_a_batch_with_fewer_records_than_offsets_proves_compaction(tmp_path: Path) -> None:
    assert were_compacted([copy_of(tmp_path / "0", {0: [thinned(0)], 3: [batch(3)]})])
    damaged = bytearray(thinned(0))
    damaged[70] ^= 1
    assert not were_compacted([copy_of(tmp_path / "1", {0: [bytes(damaged)], 3: [batch(3)]})])


def test_an_empty_file_proves_compaction_only_where_several_replicas_have_nothing_there(
    tmp_path: Path,
) -> None:
    segments: Mapping[int, Sequence[bytes]] = {0: [batch(0)], 2: [batch(2)], 4: [batch(4)]}
    first, second, whole = (copy_of(tmp_path / str(slot), segments) for slot in range(3))
    for each in (first, second):
        (each / segment_file_name(2, LOG)).write_bytes(b"")
    assert were_compacted([first, second])
    assert not were_compacted([first])
    assert not were_compacted([first, second, whole])
    later = copy_of(tmp_path / "3", {4: [batch(4)]})  # retention was quicker here
    assert not were_compacted([first, later])
    behind = copy_of(tmp_path / "4", {0: [batch(0)]})  # has not copied it yet
    assert not were_compacted([first, behind])


def test_a_hole_that_another_replica_fills_is_none_of_compaction(tmp_path: Path) -> None:
    lacking = copy_of(tmp_path / "0", {0: [batch(0), batch(4), batch(6)]})
    whole = copy_of(tmp_path / "1", {0: [batch(0)], 2: [batch(2)], 4: [batch(4), batch(6)]})
    assert were_compacted([lacking])
    assert not were_compacted([lacking, whole])
    later = copy_of(tmp_path / "2", {4: [batch(4), batch(6)]})  # retention was quicker here
    assert were_compacted([lacking, later])


def test_a_damaged_batch_fills_no_hole(tmp_path: Path) -> None:
    segments = {0: [batch(0), batch(4), batch(6)]}
    one, other = (copy_of(tmp_path / str(slot), segments) for slot in (0, 1))
    path = other / segment_file_name(0, LOG)
    data = bytearray(path.read_bytes())
    data[len(batch(0)) + 7] ^= 6  # it is of offset 2 now
    data[len(batch(0)) + 70] ^= 1
    path.write_bytes(data)
    assert were_compacted([one, other])


@pytest.mark.parametrize("number", range(len(BASES)))
@pytest.mark.parametrize("is_closed", [True, False])
def test_no_bit_that_is_flipped_looks_like_compaction(
    tmp_path: Path, *, number: int, is_closed: bool
) -> None:
    later: dict[int, Sequence[bytes]] = {40: [batch(40)]} if is_closed else {}
    directory = copy_of(tmp_path / "0", {32: [batch(base) for base in BASES]} | later)
    path = directory / segment_file_name(32, LOG)
    whole = path.read_bytes()
    size_bytes = len(batch(BASES[0]))
    taken = []
    for at in range(number * size_bytes, (number + 1) * size_bytes):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            path.write_bytes(data)
            if were_compacted([directory]):
                taken.append((at - number * size_bytes, bit))
    assert taken == []
