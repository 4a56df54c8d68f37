from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.errors import CorruptFile, DiskFull, StorageFault
from appliance.log.faults import is_lasting
from appliance.log.segment_file import SMALL_BATCH_BYTES, STRETCH_BYTES_MIN, SegmentFile
from appliance.protocol.records.batch import H_BASE_OFFSET, PLACEMENT, PLACEMENT_BYTES
from tests.log.batches import batch_of


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SegmentFile]:
    file = SegmentFile(tmp_path, 0)
    file.path.touch()
    yield file
    file.abandon()


def append(file: SegmentFile, batch: memoryview, base_offset: int = 0) -> None:
    file.reserve(len(batch))
    file.append(batch, PLACEMENT.pack(base_offset, len(batch) - 12, 5, 2))


@pytest.mark.parametrize("size", [1, SMALL_BATCH_BYTES - 200, SMALL_BATCH_BYTES + 1, 1 << 20])
def test_bytes_small_and_large_reach_the_file_with_their_placement(file: SegmentFile, size: int) -> None:
    batches = [batch_of([bytes([number]) * size]) for number in range(5)]
    for number, batch in enumerate(batches):
        append(file, batch, number)
    position = 0
    for number, batch in enumerate(batches):
        found = file.read(position, len(batch))
        assert found[:PLACEMENT_BYTES] == PLACEMENT.pack(number, len(batch) - 12, 5, 2)
        assert found[PLACEMENT_BYTES:] == batch[PLACEMENT_BYTES:]
        position += len(batch)
    assert position == file.size_bytes


def test_small_and_large_batches_may_take_turns(file: SegmentFile) -> None:
    sizes = [10, 5000, 20, 70_000, 100, 1_000, 300_000, 1]
    for number, size in enumerate(sizes):
        append(file, batch_of([b"x" * size]), number)
    assert [header[H_BASE_OFFSET] for _, header in file.headers(0, end=file.size_bytes)] == list(
        range(len(sizes))
    )


def test_the_caller_keeps_its_bytes_as_they_were(file: SegmentFile) -> None:
    data = bytearray(batch_of())
    before = bytes(data)
    append(file, memoryview(data), 99)
    assert bytes(data) == before


def test_room_is_taken_in_stretches_that_double_and_given_back(file: SegmentFile) -> None:
    append(file, batch_of())
    assert file.allocated_bytes == STRETCH_BYTES_MIN
    append(file, batch_of([bytes(STRETCH_BYTES_MIN)]))
    assert file.allocated_bytes == 2 * STRETCH_BYTES_MIN
    assert os.stat(file.path).st_size == file.allocated_bytes
    assert os.stat(file.path).st_blocks * 512 >= file.allocated_bytes
    file.release()
    assert os.stat(file.path).st_size == file.size_bytes == file.allocated_bytes


def test_room_is_never_taken_beyond_the_segment_size(tmp_path: Path) -> None:
    file = SegmentFile(tmp_path, 0, growth_bytes_max=20_000)
    file.path.touch()
    append(file, batch_of())
    assert file.allocated_bytes == 20_000
    file.abandon()


def test_appending_goes_on_after_a_release(file: SegmentFile) -> None:
    append(file, batch_of([b"one"]), 0)
    file.release()
    assert not file.is_open
    append(file, batch_of([b"two"]), 1)
    append(file, batch_of([b"x" * 9000]), 2)
    assert [header[H_BASE_OFFSET] for _, header in file.headers(0, end=file.size_bytes)] == [0, 1, 2]


def test_no_room_is_an_error_before_anything_is_written(file: SegmentFile) -> None:
    append(file, batch_of())
    size = file.size_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (STRETCH_BYTES_MIN + 100, hard))
    try:
        with pytest.raises(DiskFull):
            file.reserve(STRETCH_BYTES_MIN + 101)
        assert file.size_bytes == size
        # What still fits is taken, although a whole stretch would not be.
        append(file, batch_of([bytes(STRETCH_BYTES_MIN - size)]), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append(file, batch_of([bytes(STRETCH_BYTES_MIN)]), 2)
    assert [header[H_BASE_OFFSET] for _, header in file.headers(0, end=file.size_bytes)] == [0, 1, 2]


def test_preallocated_zeros_read_as_the_end(file: SegmentFile) -> None:
    append(file, batch_of())
    assert len(list(file.headers(0, end=file.allocated_bytes))) == 1


def test_bytes_that_are_no_batch_are_told_from_the_end(file: SegmentFile) -> None:
    append(file, batch_of())
    end = file.size_bytes
    with file.path.open("r+b") as raw:
        raw.seek(end)
        raw.write(b"garbage!" * 20)
    with pytest.raises(CorruptFile, match=f"position {end}"):
        list(file.headers(0, end=end + 160))


def test_headers_are_found_whatever_piece_is_read_at_once(file: SegmentFile) -> None:
    for number in range(50):
        append(file, batch_of([b"x" * (number * 37 % 400)]), number)
    for read_bytes in (61, 62, 100, 1000, 1 << 20):
        found = [
            header[H_BASE_OFFSET] for _, header in file.headers(0, end=file.size_bytes, read_bytes=read_bytes)
        ]
        assert found == list(range(50)), read_bytes


def test_a_file_that_is_gone_is_a_storage_fault(tmp_path: Path) -> None:
    with pytest.raises(StorageFault):
        SegmentFile(tmp_path / "gone", 0).reserve(1)


def io_error(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("first", [no_room, io_error])
def test_disk_that_fails_while_a_failed_allocation_is_given_back_is_a_lasting_fault_of_the_directory(
    file: SegmentFile, monkeypatch: pytest.MonkeyPatch, first: Callable[..., None]
) -> None:
    append(file, batch_of([b"kept"]))
    monkeypatch.setattr(os, "posix_fallocate", first)
    monkeypatch.setattr(os, "ftruncate", io_error)
    with pytest.raises(StorageFault) as fault:
        append(file, batch_of([bytes(1 << 20)]), 1)
    assert is_lasting(fault.value)
    assert str(file.path) in str(fault.value)


def test_disk_that_fails_while_a_failed_write_is_cut_off_is_a_lasting_fault_of_the_directory(
    file: SegmentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(file, batch_of([b"kept"]))
    size_bytes = file.size_bytes
    monkeypatch.setattr(os, "pwritev", no_room)
    monkeypatch.setattr(os, "ftruncate", io_error)
    with pytest.raises(StorageFault) as fault:
        append(file, batch_of([bytes(SMALL_BATCH_BYTES + 1)]), 1)
    assert is_lasting(fault.value)
    assert file.size_bytes == size_bytes
