"""Packed offsets: the same as a dictionary, in less memory."""

from __future__ import annotations

import sys
import tracemalloc
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.offsets.packed_offsets import PackedOffsets, all_end_with, with_all
from appliance.protocol.records.offset_records import ValueEncoder

OFFSETS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from((b"aa", b"bb", b"cc", b"longer"))), min_size=1, max_size=30
)
GROUPS, PARTITIONS = 50, 100
BYTES_MAX = 20


@given(st.lists(st.one_of(OFFSETS, st.integers(0, 40)), max_size=8))
def test_whole_commits_and_tombstones_leave_what_a_dictionary_holds(
    changes: list[list[tuple[int, bytes]] | int],
) -> None:
    book, model = OffsetBook(), dict[int, bytes]()
    for change in changes:
        if isinstance(change, int):
            book.put("g", "t", change, None)
            model.pop(change, None)
        else:
            book.put_all("g", "t", change)
            model.update(change)
        book.check()
        assert book.of("g") == ({"t": model} if model else {})
        assert [book.value("g", "t", number) for number in range(41)] == [model.get(n) for n in range(41)]
        assert book.count("g") == len(model)


def test_values_of_one_length_are_packed_and_one_of_another_unpacks_them() -> None:
    held = with_all(None, [(7, b"aa"), (3, b"bb")])
    assert isinstance(held, PackedOffsets)
    assert with_all(held, [(5, b"cc")]) is held
    assert list(held.items()) == [(3, b"bb"), (5, b"cc"), (7, b"aa")]
    unpacked = with_all(held, [(5, b"longer")])
    assert unpacked == {3: b"bb", 5: b"longer", 7: b"aa"}
    assert isinstance(unpacked, dict)


@given(
    st.dictionaries(st.integers(0, 9), st.text("ab", min_size=2, max_size=2).map(str.encode), min_size=1),
    st.text("ab", max_size=3).map(str.encode),
)
def test_a_row_knows_what_all_its_values_end_with(values: dict[int, bytes], ending: bytes) -> None:
    row = with_all(None, sorted(values.items()))
    assert isinstance(row, PackedOffsets)
    expected = all(value.endswith(ending) for value in values.values())
    assert all_end_with(row, ending) == all_end_with(values, ending) == expected


@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 30), st.text("ab", min_size=4, max_size=4).map(str.encode), min_size=9
        ),
        min_size=1,
        max_size=3,
    ),
    st.text("ab", max_size=4).map(str.encode),
    st.integers(0, 30),
)
def test_many_values_share_what_they_begin_and_end_with(
    commits: list[dict[int, bytes]], ending: bytes, lost: int
) -> None:
    row, model = PackedOffsets(4), dict[int, bytes]()
    for commit in commits:
        commit.pop(lost, None)
        row.put_all(sorted(commit.items()))
        model.update(commit)
        row.check()
        assert dict(row.items()) == {**row} == model
        assert row.all_end_with(ending) == all(value.endswith(ending) for value in model.values())
    if lost in row:
        del row[lost]
    row.check()
    row.share()
    assert dict(row) == {partition: value for partition, value in model.items() if partition != lost}


def test_a_value_that_begins_or_ends_otherwise_is_taken_into_a_row_that_shares() -> None:
    alike = [(partition, b"begin-%02d-end" % partition) for partition in range(10)]
    for new in (b"other-07-end", b"begin-07-und", b"begin-07-end"):
        row = PackedOffsets(12)
        row.put_all(alike)
        row[7] = new
        row[3] = b"another-one."
        row[99] = new
        row.check()
        assert dict(row) == {**dict(alike), 7: new, 3: b"another-one.", 99: new}


def test_a_lone_commit_leaves_shared_what_it_has_alike() -> None:
    def bytes_of(row: PackedOffsets) -> int:
        return sum(sys.getsizeof(part) for part in (row._begin, row._middles, row._end))

    encode_then, encode_later = (
        ValueEncoder(1_763_800_000_000 + later_ms, UUID(int=1)).encode for later_ms in (0, 5_000)
    )
    row = PackedOffsets(len(encode_then(0, 0, b"")))
    row.put_all([(partition, encode_then(partition, 0, b"")) for partition in range(PARTITIONS)])
    few = bytes_of(row)
    row[7] = encode_later(700, 0, b"")
    row.check()
    topic_id_and_tag = 19
    assert bytes_of(row) < few + (row.width - topic_id_and_tag) * PARTITIONS
    assert row.all_end_with(UUID(int=1).bytes)
    assert row[7] == encode_later(700, 0, b"")
    assert row[8] == encode_then(8, 0, b"")


def test_values_that_are_all_the_same_are_held_once() -> None:
    row = PackedOffsets(5)
    row.put_all([(partition, b"alike") for partition in range(10)])
    assert dict(row.items()) == dict.fromkeys(range(10), b"alike")
    for partition in range(10):
        del row[partition]
    assert dict(row.items()) == {}
    row[4] = b"again"
    assert dict(row.items()) == {4: b"again"}


def test_a_committed_offset_takes_no_more_than_it_may() -> None:
    """Its partition and what it does not share with those it was committed with; counted, not timed."""
    encode = ValueEncoder(1_763_800_000_000, UUID(int=1)).encode
    book = OffsetBook()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for group in range(GROUPS):
            values = [(partition, encode(group, partition, b"")) for partition in range(PARTITIONS)]
            book.put_all(f"group-{group}", "t", values)
        del values
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < BYTES_MAX * GROUPS * PARTITIONS
