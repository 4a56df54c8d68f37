"""The five codecs, and decompression that stops at a bound.

    0 none · 1 gzip · 2 snappy (xerial's framing, as Java writes it, or one raw block) · 3 lz4 frame · 4 zstd

A bomb never gets more memory than the bound, one chunk and a room: sizes that are declared are checked before
anything is allocated, streams are read in pieces and given up at the first byte over the bound.

xerial's framing of snappy: 8 bytes of magic, version int32, oldest readable version int32, then blocks of
length int32 · raw snappy. Source: `clients/.../common/compress/*.java`; KIP-110 for zstd.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import chain
from struct import Struct
from typing import Any

from appliance.protocol.records.errors import BatchTooLarge, InvalidRecords, UnknownCodec

Buffer = bytes | bytearray | memoryview

DECOMPRESSED_BYTES_MAX = 100 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
ROOM_BYTES_MAX = 4 * 1024 * 1024
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
# magic, flags, block size, checksum of these
_LZ4_HEADER_BYTES_MIN = 4 + 1 + 1 + 1
_LZ4_BLOCK = Struct("<I")
_LZ4_BLOCK_BYTES = 0x7FFF_FFFF
_LZ4_BLOCK_CHECKSUMS, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM, _LZ4_DICTIONARY = 1 << 4, 1 << 3, 1 << 2, 1


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


class Room:
    """Memory to decompress into, again and again: what was decompressed before is overwritten.

    A batch that grows to a megabyte costs, in memory of its own, more for its pages and their copies than for being
    decompressed (decision 0070). Never more than `ROOM_BYTES_MAX`; what needs more lies elsewhere.
    """

    __slots__ = ("_view",)

    def __init__(self) -> None:
        self._view = memoryview(bytearray())

    def up_to(self, bytes_max: int) -> memoryview:
        """As much as is there, and not more than that."""
        return self._view[:bytes_max]

    def at_least(self, length_bytes: int) -> memoryview:
        """So much, or more; at most `ROOM_BYTES_MAX`."""
        if length_bytes > len(self._view):
            self._grow(length_bytes, 0)
        return self._view

    def gather(self, pieces: Iterator[bytes], bytes_max: int) -> Buffer:
        """The pieces, one after the other.

        Raises:
            BatchTooLarge: they are more than `bytes_max`.
        """
        at = 0
        for piece in pieces:
            end = at + len(piece)
            if end > bytes_max:
                raise _too_large(bytes_max)
            if end > ROOM_BYTES_MAX:
                return _gather(chain((self._view[:at], piece), pieces), bytes_max)
            if end > len(self._view):
                self._grow(end, at)
            self._view[at:end] = piece
            at = end
        return self._view[:at]

    def _grow(self, length_bytes: int, keep_bytes: int) -> None:
        # With an eighth to spare: of what fills it to the brim nobody would know whether it was all.
        wanted = max(length_bytes + length_bytes // 8, 2 * len(self._view), CHUNK_BYTES)
        # Another one, since the old cannot be resized while somebody looks into it.
        grown = memoryview(bytearray(min(wanted, ROOM_BYTES_MAX)))
        grown[:keep_bytes] = self._view[:keep_bytes]
        self._view = grown


def _gather(pieces: Iterator[Buffer], bytes_max: int) -> bytearray:
    out = bytearray()
    for piece in pieces:
        if len(out) + len(piece) > bytes_max:
            raise _too_large(bytes_max)
        out += piece
    return out


class _Here(threading.local):
    """A room for each thread: two that decompress at once must not write over each other."""

    def __init__(self) -> None:
        self.room = Room()


_here = _Here()


def room_of_thread() -> Room:
    """The room of this thread, for who is done with what was decompressed before the thread decompresses again."""
    return _here.room


def decompress(codec: int, data: Buffer, bytes_max: int, room: Room | None = None) -> Buffer:
    """The bytes that were compressed; with `Codec.NONE` the buffer itself.

    Args:
        room: what they may lie in, until it is used again; without, in memory of their own.

    Raises:
        BatchTooLarge: they would be more than `bytes_max`.
        InvalidRecords: the stream is damaged or ends early.
        UnknownCodec: the number is none of `Codec`.
    """
    try:
        decompressor = _DECOMPRESSORS[codec]
    except IndexError:
        raise UnknownCodec(f"codec {codec} is not assigned") from None
    return decompressor(data, bytes_max, Room() if room is None else room)


def _too_large(bytes_max: int) -> BatchTooLarge:
    return BatchTooLarge(f"the batch decompresses to more than {bytes_max} bytes")


def _plain(data: Buffer, bytes_max: int, _room: Room) -> Buffer:
    if len(data) > bytes_max:
        raise _too_large(bytes_max)
    return data


def _uncompressed(data: Buffer, _level: int | None) -> bytes:
    return bytes(data)


def _gzip(data: Buffer, level: int | None) -> bytes:
    if level is None or level < 0:
        level = _GZIP_LEVEL
    return gzip.compress(data, compresslevel=level, mtime=0)


def _gunzip(data: Buffer, bytes_max: int, room: Room) -> Buffer:
    return room.gather(_gunzip_pieces(memoryview(data)), bytes_max)


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


def _unsnappy(data: Buffer, bytes_max: int, room: Room) -> Buffer:
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _unsnappy_at_once(view, bytes_max, room)
    if len(view) < _XERIAL_HEADER_BYTES:
        raise InvalidRecords("the snappy data ends inside of its header")
    return room.gather(_unsnappy_pieces(view, bytes_max), bytes_max)


def _unsnappy_pieces(view: memoryview, bytes_max: int) -> Iterator[bytes]:
    left = bytes_max
    at = _XERIAL_HEADER_BYTES
    while at < len(view):
        if len(view) - at < _INT32.size:
            raise InvalidRecords("the snappy data ends inside of a block length")
        length: int = _INT32.unpack_from(view, at)[0]
        at += _INT32.size
        if not 0 < length <= len(view) - at:
            raise InvalidRecords(f"a snappy block of {length} bytes does not fit its batch")
        piece = _unsnappy_block(view[at : at + length], left, bytes_max)
        yield piece
        left -= len(piece)
        at += length


def _unsnappy_at_once(block: memoryview, bytes_max: int, room: Room) -> memoryview:
    from cramjam import DecompressionError, snappy

    declared = _snappy_length(block, bytes_max, bytes_max)
    if declared > ROOM_BYTES_MAX:
        return memoryview(_unsnappy_block(block, bytes_max, bytes_max))
    out = room.at_least(declared)
    try:
        return out[: snappy.decompress_raw_into(block, out)]
    except DecompressionError as damage:
        raise InvalidRecords(f"damaged snappy data: {damage}") from None


def _unsnappy_block(block: memoryview, left: int, bytes_max: int) -> bytes:
    from cramjam import DecompressionError, snappy

    _snappy_length(block, left, bytes_max)
    try:
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as damage:
        raise InvalidRecords(f"damaged snappy data: {damage}") from None


def _snappy_length(block: memoryview, left: int, bytes_max: int) -> int:
    """The length that a raw block declares, which is not more than what is left of the bound."""
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
    return declared


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


def _unlz4(data: Buffer, bytes_max: int, room: Room) -> Buffer:
    at_once = _unlz4_at_once(memoryview(data), room.up_to(bytes_max))
    return room.gather(_unlz4_pieces(data), bytes_max) if at_once is None else at_once


def _unlz4_at_once(data: memoryview, room: memoryview) -> memoryview | None:
    """In one call; None where it is not one whole frame or does not fit: what is wrong then is found piece by piece."""
    from cramjam import DecompressionError, lz4

    if not room or _lz4_frame_end(data) != len(data):
        return None
    try:
        length_bytes: int = lz4.decompress_into(data, room)
    except DecompressionError:
        return None
    return room[:length_bytes]


def _lz4_frame_end(data: memoryview) -> int:
    """Where the first frame ends, or more than there is. Source: lz4_Frame_format.md."""
    if len(data) < _LZ4_HEADER_BYTES_MIN:
        return len(data) + 1
    flags = data[4]
    at = (
        _LZ4_HEADER_BYTES_MIN
        + (8 if flags & _LZ4_CONTENT_SIZE else 0)
        + (4 if flags & _LZ4_DICTIONARY else 0)
    )
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUMS else 0
    while at + 4 <= len(data):
        (block,) = _LZ4_BLOCK.unpack_from(data, at)
        at += 4
        if not block:
            return at + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)
        at += (block & _LZ4_BLOCK_BYTES) + checksum_bytes
    return len(data) + 1


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


def _unzstd(data: Buffer, bytes_max: int, room: Room) -> Buffer:
    import zstandard

    # The window is memory too: a frame may ask for as much as the bound, never for more than zstd's default.
    window = min(max(1 << bytes_max.bit_length(), _ZSTD_WINDOW_BYTES_MIN), _ZSTD_WINDOW_BYTES_MAX)
    try:
        declared = zstandard.frame_content_size(data)
        if declared > bytes_max:
            raise _too_large(bytes_max)
        _check_zstd_ends(memoryview(data))
        at_once = room.up_to(bytes_max)
        if 0 < len(at_once) > declared and (made := _unzstd_at_once(data, window, at_once)) is not None:
            return made
        reader, size = _zstd_reader(data, window), max(declared, CHUNK_BYTES)
        return room.gather(iter(lambda: reader.read(size), b""), bytes_max)
    except zstandard.ZstdError as damage:
        raise InvalidRecords(f"damaged zstd data: {damage}") from None


def _unzstd_at_once(data: Buffer, window_bytes: int, room: memoryview) -> memoryview | None:
    """In one call; None where it does not fit, or is damaged: what is wrong then is found piece by piece."""
    import zstandard

    try:
        length_bytes: int = _zstd_reader(data, window_bytes).readinto(room)
    except zstandard.ZstdError:
        return None
    # Of what has filled it nobody knows whether it was all.
    return room[:length_bytes] if length_bytes < len(room) else None


def _zstd_reader(data: Buffer, window_bytes: int) -> Any:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=window_bytes)
    return decompressor.stream_reader(data, read_across_frames=True)


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
_DECOMPRESSORS: tuple[Callable[[Buffer, int, Room], Buffer], ...] = (
    _plain,
    _gunzip,
    _unsnappy,
    _unlz4,
    _unzstd,
)
