"""Headers that are read one by one are those that lie in the file, and the same stops the walk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from appliance.log.config import LogSettings
from appliance.protocol.columns.batch_headers import Stop, walk_headers
from appliance.protocol.columns.chunk import Corruption
from appliance.protocol.records.batch import HEADER_BYTES, MAGIC
from spark_connector import header_hops, scan
from spark_connector.errors import CorruptSegment, ShortRead
from spark_connector.header_hops import HOP_BYTES_MIN, hop_headers, worth_hopping
from spark_connector.scan import headers
from spark_connector.storage import LocalFile
from tests.log.batches import NOW_MS, batch_of
from tests.spark.logs import make_log, publish, tasks_of

ONE_SEGMENT = LogSettings(segment_bytes=64 << 20)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PAUSES_S", (0.001, 0.001, 0.001))


def log_of(home: Path, value_bytes: list[int]) -> Path:
    """The file of a log with a batch of one value of each size."""
    log, state_file = make_log(home, settings=ONE_SEGMENT)
    for number, size in enumerate(value_bytes):
        log.append(batch_of([b"v" * size], timestamp_ms=NOW_MS + number), leader_epoch=3)
    publish(log, state_file)
    return next((home / "orders-0").glob("*.log"))


def used_bytes(path: Path) -> int:
    return walk_headers(path.read_bytes()).position


@pytest.mark.parametrize("begin", [0, 1, 7])
@pytest.mark.parametrize("end", [8, 15, 20])
def test_hops_tell_what_a_walk_through_all_bytes_tells(tmp_path: Path, begin: int, end: int) -> None:
    path = log_of(tmp_path, [1, 500, 40_000, 0, 9] * 4)
    data = path.read_bytes()
    places = [*walk_headers(data).batches["file_position"].tolist(), used_bytes(path)]
    file = LocalFile(str(path))
    hopped = hop_headers(file, places[begin], places[end])
    walked = walk_headers(data[places[begin] : places[end]], file_position=places[begin])
    assert hopped.batches.tolist() == walked.batches.tolist()
    assert hopped[1:] == walked[1:]
    file.close()


@pytest.mark.parametrize("less", [1, 30_000, 40_000 + HEADER_BYTES])
def test_a_bound_inside_of_a_batch_cuts_it_as_it_does_in_memory(tmp_path: Path, less: int) -> None:
    path = log_of(tmp_path, [10, 40_000])
    end = used_bytes(path) - less
    file = LocalFile(str(path))
    hopped, walked = hop_headers(file, 0, end), walk_headers(path.read_bytes()[:end])
    assert len(hopped.batches) == len(walked.batches) == 1
    assert hopped.position == walked.position
    assert hopped.stop is walked.stop is Stop.CUT
    file.close()


def test_what_one_call_does_not_reach_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_hops, "HOPS_MAX", 3)
    log_of(tmp_path, [HOP_BYTES_MIN] * 10)
    (task,) = tasks_of(tmp_path)
    found = list(headers(task))
    assert [len(each) for each in found] == [3, 3, 3, 1]
    assert np.concatenate(found)["base_offset"].tolist() == list(range(10))


def test_large_and_small_batches_by_turns_are_all_told(tmp_path: Path) -> None:
    sizes = ([HOP_BYTES_MIN * 2] * 3 + [10] * 700) * 3
    log_of(tmp_path, sizes)
    (task,) = tasks_of(tmp_path)
    found = np.concatenate(list(headers(task, buffer_bytes=4096)))
    assert found["base_offset"].tolist() == list(range(len(sizes)))
    assert found["records"].tolist() == [1] * len(sizes)


def test_hopping_is_worth_it_for_large_batches_only(tmp_path: Path) -> None:
    large, small = log_of(tmp_path / "large", [HOP_BYTES_MIN] * 3), log_of(tmp_path / "small", [100] * 3)
    assert worth_hopping(walk_headers(large.read_bytes()))
    assert not worth_hopping(walk_headers(small.read_bytes()))


@pytest.mark.parametrize("left", [0, 1, HEADER_BYTES, 20_000])
def test_a_file_that_ends_inside_of_the_last_batch_is_an_error(tmp_path: Path, left: int) -> None:
    path = log_of(tmp_path, [40_000, 40_000])
    (task,) = tasks_of(tmp_path)
    first_bytes = int(walk_headers(path.read_bytes()).batches["length_bytes"][0])
    os.truncate(path, first_bytes + left)
    with pytest.raises((ShortRead, CorruptSegment)):
        list(headers(task))


def test_zeros_in_the_place_of_a_header_are_an_error(tmp_path: Path) -> None:
    path = log_of(tmp_path, [40_000, 40_000])
    (task,) = tasks_of(tmp_path)
    place = int(walk_headers(path.read_bytes()).batches["file_position"][1])
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes(HEADER_BYTES))
    with pytest.raises(ShortRead):
        list(headers(task))


def test_a_header_of_another_format_is_an_error_or_passed_over(tmp_path: Path) -> None:
    path = log_of(tmp_path, [40_000] * 5)
    (task,) = tasks_of(tmp_path)
    place = int(walk_headers(path.read_bytes()).batches["file_position"][1])
    with path.open("r+b") as file:
        file.seek(place + MAGIC)
        file.write(b"\7")
    with pytest.raises(CorruptSegment):
        list(headers(task))
    told: list[Corruption] = []
    found = np.concatenate(list(headers(task, on_corrupt="skip", corrupt=told)))
    assert told[0][1] == place
    assert found["base_offset"].tolist() == [0, 2, 3, 4]


def test_no_byte_between_headers_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_of(tmp_path, [HOP_BYTES_MIN] * 20)
    (task,) = tasks_of(tmp_path)
    reads: list[int] = []
    read = LocalFile.read

    def counted(file: LocalFile, length_bytes: int, position: int) -> bytes:
        reads.append(length_bytes)
        return read(file, length_bytes, position)

    monkeypatch.setattr(LocalFile, "read", counted)
    monkeypatch.delattr(LocalFile, "read_into")
    assert sum(len(each) for each in headers(task)) == 20
    assert sum(reads) <= (20 + 2) * HEADER_BYTES
