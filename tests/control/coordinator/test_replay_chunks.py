"""A replay of the log leaves what the same records would have, one by one, whatever else lies between them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.control.coordinator.offsets.offset_book import OffsetBook, Replay
from appliance.control.coordinator.offsets.offset_records import offset_key
from appliance.control.coordinator.replay import replay_chunk
from appliance.errors import CorruptFile
from appliance.log.chunks import Chunk, read_chunks
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.keyed_batch import encode_keyed_batch

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
    for chunk in chunks:
        replay_chunk(
            chunk,
            replay,
            lambda key, value: others.append((key, value)),
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


def test_records_without_a_type_say_nothing_and_a_torn_key_is_corrupt(tmp_path: Path) -> None:
    book, others = replayed(chunks_of(tmp_path, [[(b"", b"x"), (b"\0", b"x")]]))
    assert (book.groups(), others) == ([], [])
    with pytest.raises(CorruptFile):
        replayed(chunks_of(tmp_path, [[(b"\0\1\0", b"x")]]))


def test_batches_before_the_offset_are_passed_over(tmp_path: Path) -> None:
    first, second = offset_key("g", "t", 0), offset_key("g", "t", 1)
    book, _ = replayed(chunks_of(tmp_path, [[(first, b"1")], [(second, b"2")]]), from_offset=1)
    assert book.of("g") == {"t": {1: b"2"}}
