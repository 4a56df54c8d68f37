"""A replay of the log leaves what the same records would have, one by one, whatever else lies between them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.control.coordinator.offsets import offset_replay as replay_module
from appliance.control.coordinator.offsets.offset_book import OffsetBook, Replay
from appliance.control.coordinator.offsets.offset_replay import COMPARED_BYTES_MAX, ROW_MIN, replay_block
from appliance.control.coordinator.offsets.packed_offsets import PackedOffsets
from appliance.control.coordinator.runtime.record_block import RecordBlock
from appliance.control.coordinator.runtime.replay import replay_chunk
from appliance.errors import CorruptFile
from appliance.log.chunks import Chunk, read_chunks
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.keyed_batch import encode_keyed_batch
from appliance.protocol.records.offset_records import offset_key
from tests.control.coordinator.runtime.toy import ToyMachine

Record = tuple[bytes, bytes | None]

OFFSETS = st.builds(
    offset_key,
    st.sampled_from(("g", "h", "")),
    st.sampled_from(("t", "u", "t\0")),
    st.sampled_from((0, 1, 255, 256, 1 << 24, (1 << 31) - 1)),
)
OTHERS = st.sampled_from((b"\0\2\0\1g", b"\0\3\0\1g", b"\0\5", b"\0\2", b"\0\7\0\1g\0\1t\0\0\0\0"))
RECORDS = st.lists(
    st.tuples(st.one_of(OFFSETS, OTHERS), st.one_of(st.none(), st.binary(min_size=1, max_size=3))),
    min_size=1,
    max_size=30,
)


def records_of(
    kind: int, group: str, topic: str, partitions: list[int], values: list[bytes | None]
) -> list[Record]:
    """What one commit writes: `kind` is the type of its keys."""
    return [
        (bytes((0, kind)) + offset_key(group, topic, partition)[2:], value)
        for partition, value in zip(partitions, values * len(partitions), strict=False)
    ]


COMMITS = st.lists(
    st.builds(
        records_of,
        st.sampled_from((1, 1, 1, 0, 2)),
        st.sampled_from(("g", "h", "group of a long name", "group of a long nome")),
        st.sampled_from(("t", "u", "")),
        st.one_of(
            st.just(list(range(2 * ROW_MIN))),
            st.lists(st.integers(0, 3 * ROW_MIN), min_size=1, unique=True).map(sorted),
            st.permutations(range(2 * ROW_MIN)),
        ),
        st.one_of(
            st.sampled_from(([b"one"], [b"two"], [b"longer"], [None])),
            st.lists(st.sampled_from((b"a", b"b", b"cc", None)), min_size=1),
        ),
    ),
    min_size=1,
    max_size=8,
)


def chunks_of(folder: Path, batches: list[list[Record]], codec: Codec = Codec.NONE) -> list[Chunk]:
    """The batches as the log would have them."""
    data, offset = bytearray(), 0
    for records in batches:
        batch = bytearray(encode_keyed_batch(records, timestamp_ms=1, codec=codec))
        struct.pack_into(">q", batch, 0, offset)
        offset += len(records)
        data += batch
    path = folder / "00000000000000000000.log"
    path.write_bytes(data)
    return list(read_chunks(path, 0, len(data)))


def replayed(chunks: list[Chunk], *, from_offset: int = 0) -> tuple[OffsetBook, list[Record]]:
    book, others = OffsetBook(), list[Record]()
    replay = Replay(book)

    def take(block: RecordBlock) -> None:
        replay_block(block, replay, lambda key, value: others.append((key, value)))

    for chunk in chunks:
        replay_chunk(
            chunk,
            ToyMachine(0),
            take,
            path=Path("log"),
            from_offset=from_offset,
            decompressed_bytes_max=1 << 20,
        )
    replay.done()
    book.check()
    return book, others


@given(st.lists(RECORDS, min_size=1, max_size=4), st.sampled_from((Codec.NONE, Codec.GZIP)))
def test_a_replay_leaves_what_each_record_says_in_order(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Record]], codec: Codec
) -> None:
    book, others = replayed(chunks_of(tmp_path_factory.mktemp("log"), batches, codec))
    expected, expected_others = OffsetBook(), list[Record]()
    for key, value in (record for records in batches for record in records):
        if key[:2] == b"\0\1":
            expected.apply(key, value)
        else:
            expected_others.append((key, value))
    assert {group: dict(book.of(group)) for group in book.groups()} == {
        group: dict(expected.of(group)) for group in expected.groups()
    }
    assert others == expected_others


@given(st.lists(COMMITS, min_size=1, max_size=3))
def test_commits_of_many_partitions_leave_what_each_of_their_records_says(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[list[Record]]]
) -> None:
    records = [[record for commit in batch for record in commit] for batch in batches]
    book, others = replayed(chunks_of(tmp_path_factory.mktemp("log"), records))
    expected, expected_others = OffsetBook(), list[Record]()
    for key, value in (record for batch in records for record in batch):
        if key[1] <= 1:
            expected.apply(key, value)
        else:
            expected_others.append((key, value))
    assert others == expected_others
    before = {group: {topic: dict(held) for topic, held in book.of(group).items()} for group in book.groups()}
    assert before == {group: dict(expected.of(group)) for group in expected.groups()}
    packed = sum(book.packing())
    book.check()
    assert packed <= book.statistics()["offsets"]
    assert {group: dict(book.of(group)) for group in book.groups()} == before


def test_a_commit_of_many_partitions_is_packed_as_it_is_read_and_others_afterwards(tmp_path: Path) -> None:
    many, few = list(range(ROW_MIN)), list(range(3))
    batches = [
        [*records_of(1, "g", "t", many, [b"old"]), *records_of(1, "h", "t", few, [b"few"])],
        records_of(1, "g", "t", many, [b"new"]),
    ]
    book, _ = replayed(chunks_of(tmp_path, batches))
    assert isinstance(book.of("g")["t"], PackedOffsets)
    assert book.of("g") == {"t": dict.fromkeys(many, b"new")}
    packing = book.packing()
    assert [next(packing), next(packing)] == [len(many), len(few)]
    assert isinstance(book.of("h")["t"], PackedOffsets)
    assert next(packing, None) is None
    assert book.of("g") == {"t": dict.fromkeys(many, b"new")}
    assert book.of("h") == {"t": dict.fromkeys(few, b"few")}


@pytest.mark.parametrize("group", ["g", "group of a long name"])
def test_a_row_ends_where_the_last_letter_of_the_topic_is_another(tmp_path: Path, group: str) -> None:
    commits = [
        record
        for number, topic in enumerate(("topic-1", "topic-2", "other"))
        for record in records_of(
            1, group, topic, list(range(number * ROW_MIN, (number + 1) * ROW_MIN)), [b"v"]
        )
    ]
    book, _ = replayed(chunks_of(tmp_path, [commits]))
    assert {topic: len(held) for topic, held in book.of(group).items()} == {
        "topic-1": ROW_MIN,
        "topic-2": ROW_MIN,
        "other": ROW_MIN,
    }


def test_a_book_is_used_while_it_is_packed(tmp_path: Path) -> None:
    groups = [f"g{number}" for number in range(4)]
    one_by_one = [record for group in groups for record in records_of(1, group, "t", [3, 1, 2], [b"old"])]
    book, _ = replayed(chunks_of(tmp_path, [one_by_one]))
    packing = book.packing()
    next(packing)
    book.put_all("g1", "t", [(2, b"new"), (4, b"new")])
    book.put_all("g1", "u", [(0, b"of another length")])
    for partition in (1, 2, 3):
        book.put("g2", "t", partition, None)
    book.put("late", "t", 0, b"late")
    assert list(packing) == [4, 1, 3]
    book.check()
    assert book.of("g1") == {
        "t": {1: b"old", 2: b"new", 3: b"old", 4: b"new"},
        "u": {0: b"of another length"},
    }
    assert not book.has("g2")
    assert book.of("late") == {"t": {0: b"late"}}


def test_records_without_a_type_say_nothing_and_a_torn_key_is_corrupt(tmp_path: Path) -> None:
    book, others = replayed(chunks_of(tmp_path, [[(b"", b"x"), (b"\0", b"x")]]))
    assert (book.groups(), others) == ([], [])
    with pytest.raises(CorruptFile):
        replayed(chunks_of(tmp_path, [[(b"\0\1\0", b"x")]]))


def test_batches_before_the_offset_are_passed_over(tmp_path: Path) -> None:
    first, second = offset_key("g", "t", 0), offset_key("g", "t", 1)
    book, _ = replayed(chunks_of(tmp_path, [[(first, b"1")], [(second, b"2")]]), from_offset=1)
    assert book.of("g") == {"t": {1: b"2"}}


def test_keys_that_are_too_long_to_compare_are_told_apart(tmp_path: Path) -> None:
    """They differ behind what is compared, and their partitions go on where the other's end."""
    one, other = "g" * COMPARED_BYTES_MAX + "a", "g" * COMPARED_BYTES_MAX + "b"
    low, high = list(range(ROW_MIN)), list(range(ROW_MIN, 2 * ROW_MIN))
    book, _ = replayed(
        chunks_of(
            tmp_path, [[*records_of(1, one, "t", low, [b"x"]), *records_of(1, other, "t", high, [b"x"])]]
        )
    )
    assert dict(book.of(one)) == {"t": dict.fromkeys(low, b"x")}
    assert dict(book.of(other)) == {"t": dict.fromkeys(high, b"x")}


def test_one_long_key_costs_the_records_beside_it_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words compared, for all records of a piece: not as many as the longest key has."""
    looks = 0
    arange = range

    def counted(*limits: int) -> range:
        nonlocal looks
        made = arange(*limits)
        looks += len(made) if limits[-1] == 8 else 0
        return made

    monkeypatch.setattr(replay_module, "range", counted, raising=False)
    many = records_of(1, "g", "t", list(range(100)), [b"x"])
    book, _ = replayed(chunks_of(tmp_path, [[*many, *records_of(1, "h" * 30_000, "t", [0], [b"x"])]]))
    assert len(book.of("g")["t"]) == 100
    assert looks <= COMPARED_BYTES_MAX // 8
