from __future__ import annotations

import resource
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import DiskFull
from appliance.log.offset_index import OffsetIndex
from appliance.log.time_index import TimeIndex
from appliance.log.transaction_index import AbortedTransaction, TransactionIndex

BASE = 1000


def offset_index(directory: Path, entries: list[tuple[int, int]], *, bytes_max: int = 1 << 20) -> OffsetIndex:
    index = OffsetIndex(directory, BASE, size_bytes=0, bytes_max=bytes_max)
    index.create()
    for offset, position in entries:
        index.reserve()
        index.append(offset, position)
    return index


def time_index(directory: Path, entries: list[tuple[int, int]], *, bytes_max: int = 1 << 20) -> TimeIndex:
    index = TimeIndex(directory, BASE, size_bytes=0, bytes_max=bytes_max)
    index.create()
    for timestamp_ms, offset in entries:
        index.reserve()
        index.append_if_later(timestamp_ms, offset)
    return index


def test_an_offset_entry_is_two_big_endian_integers(tmp_path: Path) -> None:
    index = offset_index(tmp_path, [(1009, 4120), (1019, 8270)])
    index.release()
    assert (tmp_path / "00000000000000001000.index").read_bytes().hex() == "0000000900001018000000130000204e"


def test_a_time_entry_is_a_timestamp_and_an_offset(tmp_path: Path) -> None:
    index = time_index(tmp_path, [(0x0102030405, 1009)])
    index.release()
    assert (tmp_path / "00000000000000001000.timeindex").read_bytes().hex() == "000000010203040500000009"


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(0, 3200))
def test_lookup_finds_the_last_entry_that_is_not_beyond(gaps: list[int], offset: int) -> None:
    entries = []
    at = BASE
    for number, gap in enumerate(gaps):
        at += gap
        entries.append((at, number * 100 + 7))
    with TemporaryDirectory() as directory:
        index = offset_index(Path(directory), entries)
        expected = max((entry for entry in entries if entry[0] <= BASE + offset), default=(0, 0))
        assert index.lookup(BASE + offset) == expected[1]
        assert index.last() == (entries[-1] if entries else (BASE, 0))
        index.release_mapping()


def test_an_index_survives_release_and_reopening(tmp_path: Path) -> None:
    entries = [(BASE + number, number * 50) for number in range(1, 2000)]
    path = tmp_path / "00000000000000001000.index"
    index = offset_index(tmp_path, entries)
    assert path.stat().st_size > len(entries) * 8
    index.release()
    assert path.stat().st_size == len(entries) * 8
    again = OffsetIndex(tmp_path, BASE, size_bytes=path.stat().st_size, bytes_max=1 << 20)
    assert again.fault(1 << 20) is None
    assert [again.entry(number) for number in range(again.entries)] == entries
    again.reserve()
    again.append(BASE + 5000, 999_999)
    assert again.lookup(BASE + 9999) == 999_999
    again.release()


def test_an_index_is_full_at_its_size(tmp_path: Path) -> None:
    entries = [(BASE + number, number) for number in range(1, 11)]
    index = offset_index(tmp_path, entries, bytes_max=87)
    assert index.entries_max == 10
    assert index.is_full
    times = time_index(tmp_path, [(number, BASE + number) for number in range(9)], bytes_max=120)
    assert times.is_full, "one entry is kept for the closing of the segment"
    times.reserve()
    times.append_if_later(99, BASE + 99)
    assert times.entries == 10
    index.release()
    times.release()


@pytest.mark.parametrize("offset", [1000, 1001, 1009, 1010, 1020, 5000])
def test_truncation_drops_an_offset_and_what_follows(tmp_path: Path, offset: int) -> None:
    entries = [(1009, 10), (1019, 20), (1029, 30)]
    index = offset_index(tmp_path, entries)
    index.truncate_to(offset)
    assert [index.entry(number) for number in range(index.entries)] == [e for e in entries if e[0] < offset]
    times = time_index(tmp_path, [(position, o) for o, position in entries])
    times.truncate_to(offset)
    assert [times.entry(number)[1] for number in range(times.entries)] == [
        e[0] for e in entries if e[0] < offset
    ]
    index.release()
    times.release()


def test_time_index_keeps_rising_timestamps_only(tmp_path: Path) -> None:
    index = time_index(tmp_path, [(5, 1001), (5, 1002), (4, 1003), (9, 1004)])
    assert [index.entry(number) for number in range(index.entries)] == [(5, 1001), (9, 1004)]
    assert index.lookup(4) == BASE
    assert index.lookup(5) == BASE
    assert index.lookup(6) == 1001
    assert index.lookup(100) == 1004
    index.release()


@pytest.mark.parametrize(
    ("content", "believable"),
    [
        (b"", True),
        (b"\0\0\0\1\0\0\0\5", True),
        (b"\0\0\0\1\0\0", False),
        (b"\xff\0\0\1\0\0\0\5", False),
        (b"\0\0\0\1\1\0\0\0", False),
    ],
)
def test_an_index_that_cannot_be_right_says_so(tmp_path: Path, content: bytes, believable: bool) -> None:
    path = tmp_path / "00000000000000001000.index"
    path.write_bytes(content)
    index = OffsetIndex(tmp_path, BASE, size_bytes=len(content), bytes_max=1 << 20)
    assert (index.fault(1000) is None) is believable
    index.release_mapping()


def test_no_room_for_an_index_changes_nothing(tmp_path: Path) -> None:
    index = offset_index(tmp_path, [(BASE + number, number) for number in range(1, 513)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DiskFull):
            index.reserve()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert index.lookup(BASE + 512) == 512
    index.reserve()
    index.append(BASE + 513, 513)
    assert index.entries == 513
    index.release()


def test_aborted_transactions_take_34_bytes_each_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000001000.txnindex"
    index = TransactionIndex(tmp_path, BASE)
    assert index.entries() == []
    assert not path.exists()
    entries = [AbortedTransaction(7, 0, 10, 11), AbortedTransaction(8, 5, 20, 21)]
    for entry in entries:
        index.append(entry)
    assert path.stat().st_size == 68
    assert (
        path.read_bytes()[:34].hex() == "000000000000000000070000000000000000000000000000000a000000000000000b"
    )
    assert TransactionIndex(tmp_path, BASE).entries() == entries
    index.truncate_to(20)
    assert TransactionIndex(tmp_path, BASE).entries() == entries[:1]
    index.reset()
    assert not path.exists()
