from __future__ import annotations

import gzip
import os
import tracemalloc
from typing import Any

import kafka.codec as kafka_python
import pytest
import zstandard
from cramjam import snappy
from hypothesis import given
from hypothesis import strategies as st

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.compression import CHUNK_BYTES, Codec, compress, decompress
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
def test_a_bomb_never_takes_more_than_its_bound(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 << 20))
    bound = 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLarge):
            decompress(codec, bomb, bound)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A growing buffer is moved with an eighth to spare; while it moves, both may exist.
    assert peak < bound * 9 // 8 * 2 + 4 * CHUNK_BYTES


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


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_nobody_has_assigned_are_refused(codec: int) -> None:
    with pytest.raises(UnknownCodec):
        decompress(codec, b"", 1)
