"""Records inside of a batch, and whole batches made from records.

    record = length varint · attributes int8 (0) · timestamp delta varlong · offset delta varint
             · key length varint (-1 = null) · key · value length varint (-1 = null) · value
             · headers count varint · { key length varint · key utf-8 · value length varint · value }*

`length` counts what follows it. Deltas are against the base offset and base timestamp of the batch.
Source: `clients/.../common/record/DefaultRecord.java`, `RecordHeader.java`.

This file serves tests, tools and coordinators; the append path never turns bytes into `Record` values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX, Codec, compress, decompress
from appliance.protocol.records.crc32c import checksum
from appliance.protocol.records.errors import CorruptBatch, InvalidRecords
from appliance.protocol.records.varint import read_varint, read_varlong, varint_bytes, write_varint

if TYPE_CHECKING:
    from mypy_extensions import i64

EVERY_OFFSET: Final = -(1 << 62)
"""Below the offset of any record, whatever a damaged batch says."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `key` and `value` are None for null, which is not the same as empty.

    `timestamp_ms` -1 means none. `offset` is filled by the decoder; the encoder numbers records itself.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = b.NO_TIMESTAMP
    offset: int = -1


def encode_record(record: Record, *, offset_delta: int, timestamp_delta_ms: int) -> bytes:
    """One record with its length in front."""
    body = bytearray(b"\0")
    write_varint(body, timestamp_delta_ms)
    write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode("utf-8", "surrogateescape"))
        _write_bytes(body, value)
    out = bytearray()
    write_varint(out, len(body))
    return bytes(out + body)


_BEGINNINGS: Final = [b"\0\0" + varint_bytes(number) for number in range(1_024)]


def record_beginning(number: i64) -> bytes:
    """Return what stands between the length and the key of record `number` of a batch, if it has the base timestamp."""
    return _BEGINNINGS[number] if number < len(_BEGINNINGS) else b"\0\0" + varint_bytes(number)


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = b.NO_LEADER_EPOCH,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    producer_id: int = b.NO_PRODUCER_ID,
    producer_epoch: int = b.NO_PRODUCER_EPOCH,
    base_sequence: int = b.NO_SEQUENCE,
) -> bytes:
    """A whole batch with its checksum. `attributes` brings the flags, `codec` the codec bits."""
    numbered = list(records)
    base_timestamp_ms = numbered[0].timestamp_ms if numbered else b.NO_TIMESTAMP
    max_timestamp_ms = max((record.timestamp_ms for record in numbered), default=b.NO_TIMESTAMP)
    payload = b"".join(
        encode_record(record, offset_delta=index, timestamp_delta_ms=record.timestamp_ms - base_timestamp_ms)
        for index, record in enumerate(numbered)
    )
    return frame_batch(
        compress(codec, payload),
        count=len(numbered),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes & ~b.CODEC_MASK | codec,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def frame_batch(
    payload: bytes,
    *,
    count: int,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    leader_epoch: int = b.NO_LEADER_EPOCH,
    attributes: int = 0,
    base_timestamp_ms: int = b.NO_TIMESTAMP,
    max_timestamp_ms: int = b.NO_TIMESTAMP,
    producer_id: int = b.NO_PRODUCER_ID,
    producer_epoch: int = b.NO_PRODUCER_EPOCH,
    base_sequence: int = b.NO_SEQUENCE,
) -> bytes:
    """A header with a right length and checksum in front of `payload`, whatever that holds.

    `last_offset_delta` is count - 1 unless given (a compacted batch keeps its old one).
    """
    out = bytearray(b.HEADER_BYTES + len(payload))
    b.HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - b.LOG_OVERHEAD,
        leader_epoch,
        b.MAGIC_V2,
        0,
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    out[b.RECORDS :] = payload
    out[b.CRC : b.ATTRIBUTES] = checksum(memoryview(out)[b.ATTRIBUTES :]).to_bytes(4, "big")
    return bytes(out)


def decode_records(
    batch: b.Buffer, position: int = 0, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """The records of the batch at `position`, decompressed, with absolute offsets and timestamps.

    With LogAppendTime every record carries the batch's max timestamp.

    Raises:
        CorruptBatch: the batch is not whole.
        InvalidRecords: its records do not add up.
        BatchTooLarge: it decompresses to more than `decompressed_bytes_max`.
    """
    return list(iterate_records(batch, position, decompressed_bytes_max=decompressed_bytes_max))


def iterate_records(
    batch: b.Buffer,
    position: int = 0,
    *,
    from_offset: int = EVERY_OFFSET,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Record]:
    """Yield the records of the batch at `position` one by one, so that only one of them is in memory.

    A small record takes a hundred times its bytes in memory, so all records of a large batch may not fit there.

    Args:
        from_offset: records below this offset are passed over by their lengths alone.

    Raises:
        CorruptBatch, InvalidRecords, BatchTooLarge: as `decode_records`, but InvalidRecords perhaps after some records.
    """
    header = b.read_header(batch, position)
    end = position + header.size_bytes
    if end > len(batch):
        raise CorruptBatch(f"a batch of {header.size_bytes} bytes has only {len(batch) - position}")
    payload = memoryview(batch)[position + b.RECORDS : end]
    data = bytes(decompress(header.codec, payload, decompressed_bytes_max) if header.codec else payload)
    appended_ms = header.max_timestamp_ms if header.is_log_append_time else None
    first_delta = from_offset - header.base_offset
    at = passed = 0
    if first_delta > 0 and header.last_offset == header.base_offset + header.records_count - 1:
        # No offset is missing, so the lengths alone say where a record is.
        passed = min(first_delta, header.records_count)
        at = _behind(data, passed)
    for _ in range(header.records_count - passed):
        record, at = _decode_record(data, at, header, appended_ms)
        if record.offset >= from_offset:
            yield record
    if at != len(data):
        raise InvalidRecords(
            f"{len(data) - at} bytes are left after the last of {header.records_count} records"
        )


def _behind(data: bytes, count: int) -> int:
    """Return the position behind the first records of a batch's uncompressed records.

    Raises:
        InvalidRecords: they are not there.
    """
    at, end = 0, len(data)
    for _ in range(count):
        if at >= end:
            raise InvalidRecords(f"the batch has less than {count} records")
        length = data[at]
        if length < 0x80 and not length & 1:  # a varint of one byte: most records that are many are small
            at += 1 + (length >> 1)
            continue
        length, at = read_varint(data, at)
        if length < 0:
            raise InvalidRecords(f"a record length of {length} bytes does not fit its batch")
        at += length
    if at > end:
        raise InvalidRecords("the last record does not fit its batch")
    return at


def decode_one(data: bytes, at: int, header: b.BatchHeader) -> Record:
    """The record at `at` of a batch's uncompressed records.

    Raises:
        InvalidRecords: its fields do not add up.
    """
    return _decode_record(data, at, header, header.max_timestamp_ms if header.is_log_append_time else None)[0]


def _decode_record(
    data: bytes, at: int, header: b.BatchHeader, appended_ms: int | None
) -> tuple[Record, int]:
    length, at = read_varint(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise InvalidRecords(f"a record length of {length} bytes does not fit its batch")
    timestamp_delta_ms, at = read_varlong(data, at + 1)
    offset_delta, at = read_varint(data, at)
    key, at = _read_bytes(data, at)
    value, at = _read_bytes(data, at)
    count, at = read_varint(data, at)
    headers = []
    if not 0 <= count <= end - at:
        raise InvalidRecords(f"a headers count of {count} does not fit its record")
    for _ in range(count):
        name, at = _read_bytes(data, at)
        content, at = _read_bytes(data, at)
        if name is None:
            raise InvalidRecords("a record header has no name")
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    if at != end:
        raise InvalidRecords(f"a record's fields end {end - at} bytes away from its declared end")
    timestamp_ms = header.base_timestamp_ms + timestamp_delta_ms if appended_ms is None else appended_ms
    return Record(value, key, tuple(headers), timestamp_ms, header.base_offset + offset_delta), at


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length < 0:
        if length == -1:
            return None, at
        raise InvalidRecords(f"a field length of {length} bytes has no meaning")
    if at + length > len(data):
        raise InvalidRecords(f"a field of {length} bytes does not fit its record")
    return data[at : at + length], at + length


def _write_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        write_varint(out, -1)
    else:
        write_varint(out, len(content))
        out += content
