"""Segments held open for sending: whose they are, and when they are let go."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from appliance.requests.segment_files import SegmentFiles
from appliance.requests.segment_replaced import SegmentReplaced
from appliance.requests.topic_routes import PartitionRoute

SEGMENT = "00000000000000000000.log"
INDEX = "00000000000000000000.index"


def route(partition: int = 0, *, incarnation: int = 1) -> PartitionRoute:
    return PartitionRoute("t", uuid4(), partition, partition, incarnation, 0, 0, None, 0)


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


def test_the_index_of_a_segment_counts_as_a_file_of_its_own(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files = files_in(tmp_path, serving={1}, partitions=8, limit=5)
    for partition in range(8):
        (tmp_path / f"t-{partition}" / INDEX).write_bytes(bytes(8))
        where = route(partition)
        held = files.hold(where, 0)
        files.index_of(held, where, 0, 0)
        held.release()
        assert len(os.listdir("/proc/self/fd")) - before == files.statistics()["open"] <= 5
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before


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


class SwappingOwner:
    """Puts another file under the segment's name at the reader's look number `swap_at` at the files version."""

    def __init__(self, segment: Path, *, swap_at: int) -> None:
        self._segment = segment
        self._swap_at = swap_at
        self.version = 0

    def look(self, _route: PartitionRoute) -> int:
        self._swap_at -= 1
        if not self._swap_at:
            other = self._segment.with_suffix(".swap")
            other.write_bytes(b"compact")
            other.rename(self._segment)
            self.version += 2
        return self.version


@pytest.mark.parametrize("swap_at", [1, 2])
def test_a_swapped_segment_is_never_sent_for_what_its_name_meant_before(tmp_path: Path, swap_at: int) -> None:
    """Compaction swaps between the owner's answer and the opening of the file, or while it is opened."""
    files_in(tmp_path, serving={1}).close()
    owner = SwappingOwner(tmp_path / "t-0" / SEGMENT, swap_at=swap_at)
    files = SegmentFiles({0: (tmp_path,)}, is_served=lambda _: True, version=owner.look)
    with pytest.raises(SegmentReplaced):
        files.hold(route(), 0, version=0)
    assert files.statistics() == {"open": 0, "held": 0}
    held = files.hold(route(), 0, version=2)
    assert os.pread(held.fd, 7, 0) == b"compact"
    held.release()
    files.close()


def test_a_swap_makes_the_next_reader_open_the_new_file_while_the_old_one_is_still_sent(
    tmp_path: Path,
) -> None:
    files_in(tmp_path, serving={1}).close()
    owner = SwappingOwner(tmp_path / "t-0" / SEGMENT, swap_at=3)
    files = SegmentFiles({0: (tmp_path,)}, is_served=lambda _: True, version=owner.look)
    sending = files.hold(route(), 0, version=0)
    with pytest.raises(SegmentReplaced):
        files.expect(route(), version=0)
    after = files.hold(route(), 0, version=2)
    assert (os.pread(sending.fd, 7, 0), os.pread(after.fd, 7, 0)) == (b"records", b"compact")
    sending.release()
    after.release()
    assert files.statistics() == {"open": 1, "held": 0}
    files.close()
