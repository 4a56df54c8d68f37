from __future__ import annotations

import gzip
import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kafka.codec as kafka_python
import pytest
import zstandard
from cramjam import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.compression import (
    CHUNK_BYTES,
    ROOM_BYTES_MAX,
    Codec,
    Room,
    compress,
    decompress,
    room_of_thread,
)
from appliance.protocol.records.errors import BatchTooLarge, InvalidRecords, UnknownCodec

REAL_CODECS = [codec for codec in Codec if codec is not Codec.NONE]
PLAIN = os.urandom(5000) * 40

ENCODERS: dict[Codec, Any] = {
    Codec.GZIP: kafka_python.gzip_encode,
    Codec.SNAPPY: kafka_python.snappy_encode,
    Codec.LZ4: kafka_python.lz4_encode,
    Codec.ZSTD: kafka_python.zstd_encode,
}
DECODERS: dict[Codec, Any] = {
    Codec.GZIP: kafka_python.gzip_decode,
    Codec.SNAPPY: kafka_python.snappy_decode,
    Codec.LZ4: kafka_python.lz4_decode,
    Codec.ZSTD: kafka_python.zstd_decode,
}


@given(st.binary(max_size=3000), st.sampled_from(Codec), st.integers(1, 50))
def test_data_comes_back(data: bytes, codec: Codec, times: int) -> None:
    assert decompress(codec, memoryview(compress(codec, data * times)), 1 << 20) == data * times


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_other_clients_and_we_read_each_other(codec: Codec) -> None:
    assert decompress(codec, ENCODERS[codec](PLAIN), len(PLAIN)) == PLAIN
    assert bytes(DECODERS[codec](compress(codec, PLAIN))) == PLAIN


def test_snappy_without_xerials_framing_is_read() -> None:
    assert decompress(Codec.SNAPPY, bytes(snappy.compress_raw(PLAIN)), len(PLAIN)) == PLAIN


def test_gzip_of_several_members_is_read_whole() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 6) == b"onetwo"


def test_zstd_that_does_not_say_its_size_is_read() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    data = stream.compress(PLAIN) + stream.flush()
    assert zstandard.frame_content_size(data) == -1
    assert decompress(Codec.ZSTD, data, len(PLAIN)) == PLAIN
    with pytest.raises(BatchTooLarge):
        decompress(Codec.ZSTD, data, len(PLAIN) - 1)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_bound_itself_is_allowed_and_one_more_byte_is_not(codec: Codec) -> None:
    data = compress(codec, PLAIN)
    assert decompress(codec, data, len(PLAIN)) == PLAIN
    with pytest.raises(BatchTooLarge) as refused:
        decompress(codec, data, len(PLAIN) - 1)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize("bound", [4 << 20, 48 << 20])
def test_a_bomb_never_takes_more_than_its_bound(codec: Codec, bound: int) -> None:
    bomb = compress(codec, bytes(64 << 20))
    room = Room()
    decompress(codec, compress(codec, bytes(2_900_000)), bound, room)
    tracemalloc.start()
    try:
        for each in (room, None):
            with pytest.raises(BatchTooLarge):
                decompress(codec, bomb, bound, each)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A growing buffer is moved with an eighth to spare; while it moves, both may exist. What is large is no room's.
    both = bound * 9 // 8 + min(bound * 9 // 8, 3 * ROOM_BYTES_MAX)
    assert peak < both + 4 * CHUNK_BYTES


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_stream_cut_anywhere_is_refused(codec: Codec) -> None:
    data = compress(codec, os.urandom(300) * 3)
    # xerial's framing has no mark at its end: cut between two blocks it is whole, and the record walk must notice.
    unmarked = {16} if codec is Codec.SNAPPY else set()
    for length in set(range(len(data))) - unmarked:
        with pytest.raises(InvalidRecords):
            decompress(codec, data[:length], 1 << 20)


@given(st.sampled_from(REAL_CODECS), st.binary(max_size=200), st.integers(0, 10**6), st.integers(1, 255))
def test_a_damaged_stream_is_refused_or_read_and_nothing_else(
    codec: Codec, data: bytes, position: int, flip: int
) -> None:
    damaged = bytearray(compress(codec, data * 3))
    damaged[position % len(damaged)] ^= flip
    try:
        decompress(codec, damaged, 1 << 16)
    except (InvalidRecords, BatchTooLarge):
        return


@given(st.sampled_from(REAL_CODECS), st.binary(max_size=200))
def test_noise_is_refused_or_read_and_nothing_else(codec: Codec, noise: bytes) -> None:
    try:
        decompress(codec, noise, 1 << 16)
    except (InvalidRecords, BatchTooLarge):
        return


def verdict(codec: Codec, data: bytes, bytes_max: int, room: Room | None = None) -> bytes | type[Exception]:
    """What becomes of the stream: its bytes, or why it is refused."""
    try:
        return bytes(decompress(codec, memoryview(data), bytes_max, room))
    except (InvalidRecords, BatchTooLarge) as refused:
        return type(refused)


@settings(max_examples=300)
@given(st.sampled_from(REAL_CODECS), st.data())
def test_room_that_was_used_before_changes_nothing(codec: Codec, data: st.DataObject) -> None:
    room = Room()
    for _ in range(data.draw(st.integers(1, 4))):
        plain = data.draw(st.binary(max_size=300)) * data.draw(st.sampled_from((1, 3, 400)))
        stream = bytearray(compress(codec, plain))
        if data.draw(st.booleans()):
            stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
        stream += data.draw(st.sampled_from((b"", b"x", bytes(compress(codec, b"another")))))
        stop = len(stream) - data.draw(st.sampled_from((0, 0, 1, len(stream) // 2)))
        bound = data.draw(st.sampled_from((1 << 20, len(plain), max(0, len(plain) - 1))))
        cut = bytes(stream[:stop])
        assert verdict(codec, cut, bound, room) == verdict(codec, cut, bound)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_room_is_decompressed_into_again_and_grows(codec: Codec) -> None:
    room = Room()
    assert decompress(codec, compress(codec, PLAIN), 1 << 24, room) == PLAIN
    tracemalloc.start()
    try:
        looked_at = memoryview(decompress(codec, compress(codec, PLAIN[::-1]), 1 << 24, room))
        assert tracemalloc.get_traced_memory()[0] < len(PLAIN) // 2
    finally:
        tracemalloc.stop()
    assert looked_at == PLAIN[::-1]
    # What is still looked into does not keep it from growing.
    assert decompress(codec, compress(codec, 3 * PLAIN), 1 << 24, room) == 3 * PLAIN


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize("length_bytes", [2_500_000, ROOM_BYTES_MAX])
def test_room_up_to_its_bound_stays(codec: Codec, length_bytes: int) -> None:
    room = Room()
    stream = compress(codec, bytes(length_bytes))
    decompress(codec, stream, 1 << 24, room)
    kept = room.up_to(1 << 24)
    assert length_bytes <= len(kept) <= ROOM_BYTES_MAX
    decompress(codec, stream, 1 << 24, room)
    assert room.up_to(1 << 24).obj is kept.obj


def test_length_that_a_snappy_block_makes_up_is_not_allocated() -> None:
    declares_100_mib = bytes.fromhex("80808032") + b"\0x"
    tracemalloc.start()
    try:
        for room in (Room(), room_of_thread()):
            with pytest.raises(InvalidRecords):
                decompress(Codec.SNAPPY, declares_100_mib, 1 << 27, room)
        assert tracemalloc.get_traced_memory()[1] < ROOM_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_room_keeps_no_more_than_its_bound(codec: Codec) -> None:
    room = Room()
    large = bytes(ROOM_BYTES_MAX + 1)
    stream = compress(codec, large)
    tracemalloc.start()
    try:
        assert decompress(codec, stream, 1 << 24, room) == large
        assert tracemalloc.get_traced_memory()[0] <= ROOM_BYTES_MAX + CHUNK_BYTES
    finally:
        tracemalloc.stop()


def test_each_thread_has_its_own_room() -> None:
    with ThreadPoolExecutor(1) as other:
        assert other.submit(room_of_thread).result() is not room_of_thread()
    assert room_of_thread() is room_of_thread()


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_nobody_has_assigned_are_refused(codec: int) -> None:
    with pytest.raises(UnknownCodec):
        decompress(codec, b"", 1)
