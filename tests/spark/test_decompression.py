import random

import lz4.frame
import pytest

from appliance.protocol.columns.decompression import Decompressed
from appliance.protocol.records.compression import Codec, compress
from appliance.protocol.records.errors import BatchTooLarge, InvalidRecords, UnknownCodec

MANY = 8 << 20
SOME = random.Random(11).randbytes(70_000) + bytes(130_000)


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_any_codec_lie_one_behind_another(codec: Codec) -> None:
    into = Decompressed(MANY)
    for records in (SOME, b"", b"a", bytes(3_000_000), SOME):
        begin = into.size_bytes
        into.append(codec, compress(codec, records))
        assert into.data[begin : into.size_bytes] == records


def test_memory_is_used_again_after_clear() -> None:
    into = Decompressed(MANY)
    into.append(Codec.LZ4, compress(Codec.LZ4, SOME))
    memory = into.data
    for _ in range(10):
        into.clear()
        into.append(Codec.LZ4, compress(Codec.LZ4, SOME))
        assert into.data is memory
        assert into.data[: into.size_bytes] == SOME


def test_lz4_that_grows_beyond_every_expectation_is_whole() -> None:
    grown = bytes(MANY)
    into = Decompressed(MANY)
    into.append(Codec.LZ4, compress(Codec.LZ4, grown))
    assert into.data[: into.size_bytes] == grown


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_batch_beyond_the_bound_is_refused_and_changes_nothing(codec: Codec) -> None:
    into = Decompressed(len(SOME))
    into.append(codec, compress(codec, SOME))
    with pytest.raises(BatchTooLarge):
        into.append(codec, compress(codec, SOME + b"a"))
    assert into.data[: into.size_bytes] == SOME


def test_the_bound_holds_where_there_is_room_for_more() -> None:
    into = Decompressed(len(SOME))
    into.append(Codec.LZ4, compress(Codec.LZ4, SOME))
    into.clear()
    with pytest.raises(BatchTooLarge):
        into.append(Codec.LZ4, compress(Codec.LZ4, SOME + b"a"))
    assert into.size_bytes == 0


@pytest.mark.parametrize("missing", [1, 4, 5, 1_000, 70_000])
def test_lz4_that_ends_early_is_refused_and_changes_nothing(missing: int) -> None:
    into = Decompressed(MANY)
    into.append(Codec.LZ4, compress(Codec.LZ4, SOME))
    with pytest.raises(InvalidRecords):
        into.append(Codec.LZ4, compress(Codec.LZ4, SOME)[:-missing])
    assert into.data[: into.size_bytes] == SOME


def test_lz4_with_a_content_size_and_linked_blocks_is_read() -> None:
    into = Decompressed(MANY)
    into.append(Codec.LZ4, lz4.frame.compress(SOME, block_linked=True, store_size=True))
    assert into.data[: into.size_bytes] == SOME


def test_bytes_behind_the_end_of_lz4_are_passed_over() -> None:
    into = Decompressed(MANY)
    into.append(Codec.LZ4, compress(Codec.LZ4, SOME) + b"behind the end")
    assert into.data[: into.size_bytes] == SOME


def test_a_codec_that_is_not_assigned_is_refused() -> None:
    into = Decompressed(MANY)
    with pytest.raises(UnknownCodec):
        into.append(7, b"")
    assert into.size_bytes == 0
