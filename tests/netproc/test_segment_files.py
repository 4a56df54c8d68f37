"""Segments held open for sending: whose they are, and when they are let go."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from appliance.netproc.segment_files import SegmentFiles
from appliance.netproc.topic_routes import PartitionRoute

SEGMENT = "00000000000000000000.log"


def route(partition: int = 0, *, incarnation: int = 1) -> PartitionRoute:
    return PartitionRoute("t", uuid4(), partition, partition, incarnation, 0, 0, None)


def files_in(directory: Path, *, serving: set[int], partitions: int = 1, limit: int = 1024) -> SegmentFiles:
    for partition in range(partitions):
        (directory / f"t-{partition}").mkdir()
        (directory / f"t-{partition}" / SEGMENT).write_bytes(b"records")
    return SegmentFiles({0: (directory,)}, is_served=lambda r: r.incarnation in serving, limit=limit)


def test_a_successors_segment_is_never_sent_for_its_predecessor(tmp_path: Path) -> None:
    """The topic was deleted and made again between the owner's answer and the opening of the file."""
    files = files_in(tmp_path, serving={2})
    with pytest.raises(FileNotFoundError):
        files.hold(route(incarnation=1), 0)
    assert files.statistics() == {"open": 0, "held": 0}


def test_a_held_segment_stays_readable_when_it_is_forgotten(tmp_path: Path) -> None:
    files = files_in(tmp_path, serving={1})
    held = files.hold(route(), 0)
    (tmp_path / "t-0" / SEGMENT).unlink()
    files.retain(set())
    assert os.pread(held.fd, 7, 0) == b"records"
    descriptor = held.fd
    held.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_the_least_recently_used_is_closed_first(tmp_path: Path) -> None:
    files = files_in(tmp_path, serving={1}, partitions=3, limit=2)
    for partition in (0, 1, 0, 2):
        files.hold(route(partition), 0).release()
    before = files.hold(route(0), 0)
    assert files.statistics() == {"open": 2, "held": 1}
    before.release()
    files.close()


def test_a_removed_file_is_let_go_at_once_or_when_its_last_response_left(tmp_path: Path) -> None:
    files = files_in(tmp_path, serving={1}, partitions=3)
    files.hold(route(0), 0).release()
    sending = files.hold(route(1), 0)
    files.hold(route(2), 0).release()
    for partition in (0, 1):
        marked = tmp_path / f"t-{partition}" / f"{SEGMENT}.deleted"
        (tmp_path / f"t-{partition}" / SEGMENT).rename(marked)
        files.let_go_of_removed()
        assert files.statistics()["open"] == 3 - partition  # another name is a name
        marked.unlink()
        files.let_go_of_removed()
        assert files.statistics()["open"] == 2 - partition
    assert os.pread(sending.fd, 7, 0) == b"records"
    sending.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(sending.fd)
