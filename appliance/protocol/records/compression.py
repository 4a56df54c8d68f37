"""The five codecs, and decompression that stops at a bound.

    0 none · 1 gzip · 2 snappy (xerial's framing, as Java writes it, or one raw block) · 3 lz4 frame · 4 zstd

A bomb never gets more memory than the bound and one chunk: sizes that are declared are checked before
anything is allocated, streams are read in pieces and given up at the first byte over the bound.

xerial's framing of snappy: 8 bytes of magic, version int32, oldest readable version int32, then blocks of
length int32 · raw snappy. Source: `clients/.../common/compress/*.java`; KIP-110 for zstd.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct

from appliance.protocol.records.errors import BatchTooLarge, InvalidRecords, UnknownCodec

Buffer = bytes | bytearray | memoryview

DECOMPRESSED_BYTES_MAX = 100 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
_FEED_BYTES = 16 * 1024

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = Struct(">ii")
_XERIAL_HEADER_BYTES = len(XERIAL_MAGIC) + _XERIAL_VERSIONS.size
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = Struct(">i")
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
_ZSTD_WINDOW_BYTES_MAX = 1 << 27
_ZSTD_WINDOW_BYTES_MIN = 1 << 23
_ZSTD_BLOCK_HEADER_BYTES = 3
_GZIP_LEVEL = 6
_LZ4_FAST_LEVEL = 9
_ZSTD_LEVEL = 3


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes; `codec.name.lower()` is Kafka's word in `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's framing that every Kafka client reads; snappy in xerial's.

    `level` as in `compression.<codec>.level` of Kafka; None is the codec's own default. As with Kafka lz4's level
    9 is its fast mode, every other one its high compression.
    """
    return _COMPRESSORS[codec](data, level)


def decompress(codec: int, data: Buffer, bytes_max: int) -> Buffer:
    """The bytes that were compressed; with `Codec.NONE` the buffer itself.

    Raises:
        BatchTooLarge: they would be more than `bytes_max`.
        InvalidRecords: the stream is damaged or ends early.
        UnknownCodec: the number is none of `Codec`.
    """
    try:
        decompressor = _DECOMPRESSORS[codec]
    except IndexError:
        raise UnknownCodec(f"codec {codec} is not assigned") from None
    return decompressor(data, bytes_max)


def _too_large(bytes_max: int) -> BatchTooLarge:
    return BatchTooLarge(f"the batch decompresses to more than {bytes_max} bytes")


def _gather(pieces: Iterator[bytes], bytes_max: int) -> bytearray:
    out = bytearray()
    for piece in pieces:
        if len(out) + len(piece) > bytes_max:
            raise _too_large(bytes_max)
        out += piece
    return out


def _plain(data: Buffer, bytes_max: int) -> Buffer:
    if len(data) > bytes_max:
        raise _too_large(bytes_max)
    return data


def _uncompressed(data: Buffer, _level: int | None) -> bytes:
    return bytes(data)


def _gzip(data: Buffer, level: int | None) -> bytes:
    if level is None or level < 0:
        level = _GZIP_LEVEL
    return gzip.compress(data, compresslevel=level, mtime=0)


def _gunzip(data: Buffer, bytes_max: int) -> Buffer:
    return _gather(_gunzip_pieces(memoryview(data)), bytes_max)


def _gunzip_pieces(data: memoryview) -> Iterator[bytes]:
    # A gzip stream may be several members one after another; Java reads them all.
    stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        for start in range(0, len(data), _FEED_BYTES):
            rest: Buffer = data[start : start + _FEED_BYTES]
            while rest:
                if stream.eof:
                    stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
                yield stream.decompress(rest, CHUNK_BYTES)
                rest = stream.unconsumed_tail or stream.unused_data
        # What the input is exhausted for may still wait inside of the decompressor.
        while not stream.eof and (piece := stream.decompress(b"", CHUNK_BYTES)):
            yield piece
    except zlib.error as damage:
        raise InvalidRecords(f"damaged gzip data: {damage}") from None
    if not stream.eof:
        raise InvalidRecords("the gzip data ends early")


def _snappy(data: Buffer, _level: int | None) -> bytes:
    from cramjam import snappy

    data = bytes(data)
    out = bytearray(XERIAL_MAGIC + _XERIAL_VERSIONS.pack(1, 1))
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        out += _INT32.pack(len(block))
        out += block
    return bytes(out)


def _unsnappy(data: Buffer, bytes_max: int) -> Buffer:
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _unsnappy_block(view, bytes_max, bytes_max)
    if len(view) < _XERIAL_HEADER_BYTES:
        raise InvalidRecords("the snappy data ends inside of its header")
    out = bytearray()
    at = _XERIAL_HEADER_BYTES
    while at < len(view):
        if len(view) - at < _INT32.size:
            raise InvalidRecords("the snappy data ends inside of a block length")
        length: int = _INT32.unpack_from(view, at)[0]
        at += _INT32.size
        if not 0 < length <= len(view) - at:
            raise InvalidRecords(f"a snappy block of {length} bytes does not fit its batch")
        out += _unsnappy_block(view[at : at + length], bytes_max - len(out), bytes_max)
        at += length
    return out


def _unsnappy_block(block: memoryview, left: int, bytes_max: int) -> bytes:
    from cramjam import DecompressionError, snappy

    # A raw block begins with its uncompressed length: seven bits a byte, at most five bytes.
    declared = 0
    for index, byte in enumerate(bytes(block[:5])):
        declared |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    else:
        raise InvalidRecords("a snappy block does not say its length")
    if declared > left:
        raise _too_large(bytes_max)
    try:
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as damage:
        raise InvalidRecords(f"damaged snappy data: {damage}") from None


def _lz4(data: Buffer, level: int | None) -> bytes:
    import lz4.frame

    fast = level is None or level == _LZ4_FAST_LEVEL
    compressed: bytes = lz4.frame.compress(
        data,
        compression_level=0 if fast else max(level or 0, lz4.frame.COMPRESSIONLEVEL_MINHC),
        block_linked=False,
        store_size=False,
    )
    return compressed


def _unlz4(data: Buffer, bytes_max: int) -> Buffer:
    return _gather(_unlz4_pieces(data), bytes_max)


def _unlz4_pieces(data: Buffer) -> Iterator[bytes]:
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        yield stream.decompress(data, CHUNK_BYTES)
        while not stream.eof and (piece := stream.decompress(b"", CHUNK_BYTES)):
            yield piece
    except (RuntimeError, EOFError) as damage:
        raise InvalidRecords(f"damaged lz4 data: {damage}") from None
    if not stream.eof:
        raise InvalidRecords("the lz4 data ends early")


def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL if level is None else level).compress(data)


def _unzstd(data: Buffer, bytes_max: int) -> Buffer:
    import zstandard

    # The window is memory too: a frame may ask for as much as the bound, never for more than zstd's default.
    window = min(max(1 << bytes_max.bit_length(), _ZSTD_WINDOW_BYTES_MIN), _ZSTD_WINDOW_BYTES_MAX)
    try:
        declared = zstandard.frame_content_size(data)
        if declared > bytes_max:
            raise _too_large(bytes_max)
        _check_zstd_ends(memoryview(data))
        reader = zstandard.ZstdDecompressor(max_window_size=window).stream_reader(
            data, read_across_frames=True
        )
        size = max(declared, CHUNK_BYTES)
        return _gather(iter(lambda: reader.read(size), b""), bytes_max)
    except zstandard.ZstdError as damage:
        raise InvalidRecords(f"damaged zstd data: {damage}") from None


def _check_zstd_ends(data: memoryview) -> None:
    """Walks frames and blocks (RFC 8878, 3.1.1): the reader takes a cut stream for a finished one."""
    import zstandard

    at = 0
    while at < len(data):
        checksum_bytes = 4 if zstandard.get_frame_parameters(data[at:]).has_checksum else 0
        at += zstandard.frame_header_size(data[at:])
        last = False
        while not last:
            if len(data) - at < _ZSTD_BLOCK_HEADER_BYTES:
                raise InvalidRecords("the zstd data ends early")
            block = int.from_bytes(data[at : at + _ZSTD_BLOCK_HEADER_BYTES], "little")
            last = bool(block & 1)
            run_length = block >> 1 & 3 == 1
            at += _ZSTD_BLOCK_HEADER_BYTES + (1 if run_length else block >> 3)
        at += checksum_bytes
    if at > len(data):
        raise InvalidRecords("the zstd data ends early")


_COMPRESSORS: tuple[Callable[[Buffer, int | None], bytes], ...] = (
    _uncompressed,
    _gzip,
    _snappy,
    _lz4,
    _zstd,
)
_DECOMPRESSORS: tuple[Callable[[Buffer, int], Buffer], ...] = (_plain, _gunzip, _unsnappy, _unlz4, _unzstd)
