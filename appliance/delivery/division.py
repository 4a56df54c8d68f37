"""Divides a produced batch into the records to append now and those that are delayed.

    batch        r0  r1* r2  r3*              * delayed
    kept         r0      r2                   base sequence and last offset delta as before
    delayed          r1      r3               by their offset delta

The kept batch of a transaction is part of it, even without a record: so the transaction is open in the partition to
which the delayed records were produced.

The kept batch has gaps, as a batch has after compaction. So each record keeps the offset and the sequence number that
its producer counts on, and the log recognizes the batch when it is sent again. If all records are delayed, the kept
batch has none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from appliance.delivery.arriving import UNUSUAL, Delayed, Redirected, read_delayed, tail_of
from appliance.delivery.due import MARK, InvalidDelivery, due_of
from appliance.delivery.waiting import OVERHEAD_BYTES, Origin
from appliance.errors import ApplianceError
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec, compress, decompress
from appliance.protocol.records.errors import BatchFault
from appliance.protocol.records.record import decode_one, frame_batch
from appliance.protocol.records.varint import read_varint, read_varlong
from appliance.protocol.records.walk import check_records

if TYPE_CHECKING:
    from mypy_extensions import i64

RECORD_BYTES_MAX: Final = 1 << 20
"""The largest delayed record."""
DELAYED_MAX: Final = 10_000
"""The most delayed records of a batch. The network process serves nobody else while it divides and stores them.

They take about 0.01 s, and 0.1 s where nothing is compiled; those that consumers hand back take longer.
"""

RECORDS_MAX: Final = 20_000
"""The most records of a batch with a delayed one: 100,000 small ones take 0.3 s, delayed or not."""
_ASKS: Final = re.compile(rb"[\x00\x1c]delivery\.delay|[\x00\x16]delivery\.at|[\x00\x1e]delivery\.cancel")
"""A header's name behind the last byte of its length as a varint: without it, a batch has no delayed record."""
_TIMESTAMP_MAX: Final = (1 << 63) - 1


class RefusedDelay(ApplianceError):
    """A record that cannot be delayed, so its batch is refused. `index` is its place in the batch."""

    def __init__(self, index: int, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.index = index
        self.code = code
        self.message = message


class Rules(NamedTuple):
    """What a topic asks of delayed records, and of all batches."""

    message_bytes_max: int
    decompressed_bytes_max: int
    is_compacted: bool
    is_exact: bool
    delay_ms_max: int


class Division(NamedTuple):
    """`kept` is the batch to append now. `delayed`: the delayed records, in order.

    `redirected`: one for each delayed record, or none.
    """

    kept: bytes
    delayed: list[Delayed]
    origin: Origin
    is_transactional: bool
    redirected: tuple[Redirected, ...] = ()


def divide(  # noqa: PLR0912, PLR0915 - a call for each record would cost as much as its step
    batch: memoryview, rules: Rules, *, now_ms: int
) -> Division | None:
    """Divide a batch as a client sent it; None if none of its records is delayed.

    None also if it is no sound batch: the worker refuses it.

    Raises:
        RefusedDelay: a delayed record breaks a rule, or one beside it has no possible timestamp.
    """
    found = sound(batch, rules)
    if found is None:
        return None
    header, data = found
    delayed: list[Delayed] = []
    kept: list[bytes] = []
    kept_count: i64 = 0
    kept_max_ms: i64 = b.NO_TIMESTAMP
    base_ms: i64 = header.base_timestamp_ms
    received_ms: i64 = now_ms
    delay_ms_max: i64 = rules.delay_ms_max
    length_max: i64 = _record_bytes_max(rules)
    needs_key = rules.is_compacted
    beyond: i64 = -1
    begin: i64 = 0
    kept_from: i64 = 0
    mark: i64 = data.find(MARK)
    mark_bytes: i64 = len(MARK)
    count: i64 = header.records_count
    index: i64 = 0
    while index < count:
        length, body = read_varint(data, begin)
        end: i64 = body + length
        delta, at = read_varlong(data, body + 1)
        timestamp_ms: i64
        if delta > 0 and base_ms > _TIMESTAMP_MAX - delta:
            timestamp_ms, is_beyond = _TIMESTAMP_MAX, True
        elif delta <= 0 and base_ms < -_TIMESTAMP_MAX - delta:
            timestamp_ms, is_beyond = -_TIMESTAMP_MAX, True
        else:
            timestamp_ms, is_beyond = base_ms + delta, False
        if is_beyond and beyond < 0:
            beyond = index
        one: Delayed | None = None
        if 0 <= mark < body:
            mark = data.find(MARK, body)
        if mark >= 0 and mark + mark_bytes <= end:
            _, at = read_varint(data, at)
            one = read_delayed(data, at, end, index, timestamp_ms, received_ms, delay_ms_max, needs_key)
            if one is UNUSUAL or (one is not None and length > length_max):
                one = _unusual(data, begin, index, header, rules, timestamp_ms, now_ms, length)
        if one is None:
            kept_count += 1
            if timestamp_ms > kept_max_ms:  # noqa: PLR1730 - compiled, `max` makes objects
                kept_max_ms = timestamp_ms
        else:
            if len(delayed) == DELAYED_MAX:
                raise RefusedDelay(
                    index,
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"the batch has over {DELAYED_MAX} delayed records",
                )
            delayed.append(one)
            if kept_from < begin:
                kept.append(data[kept_from:begin])
            kept_from = end
        begin = end
        index += 1
    if not delayed:
        return None
    if kept_from < begin:
        kept.append(data[kept_from:begin])
    if beyond >= 0:
        raise RefusedDelay(beyond, ErrorCode.INVALID_TIMESTAMP, "a timestamp does not fit into 64 bits")
    return Division(
        kept_batch(header, kept, kept_count, max_timestamp_ms=kept_max_ms, now_ms=now_ms),
        delayed,
        Origin(header.producer_id, header.producer_epoch, header.base_sequence),
        header.is_transactional,
    )


def sound(batch: memoryview, rules: Rules, *, needs_mark: bool = True) -> tuple[b.BatchHeader, bytes] | None:
    """Return the header and the decompressed records; None if there is no mark, or the batch is not sound.

    Args:
        needs_mark: records without a header of delayed delivery do not count.

    Raises:
        RefusedDelay: it has too many records.
    """
    try:
        header = b.read_header(batch)
        if (
            header.size_bytes != len(batch)
            or header.size_bytes > rules.message_bytes_max
            or header.base_offset
            or header.is_control
            or header.is_log_append_time
            or header.records_count <= 0
            or header.last_offset_delta != header.records_count - 1
            or header.base_sequence < 0 <= header.producer_id
            or not b.crc_holds(batch)
        ):
            return None
        records = batch[b.RECORDS :]
        data = bytes(
            decompress(header.codec, records, rules.decompressed_bytes_max) if header.codec else records
        )
        if needs_mark and MARK not in data:
            return None
        if header.records_count > RECORDS_MAX:
            if needs_mark and _ASKS.search(data) is None:
                return None
            raise RefusedDelay(
                0,
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {header.records_count} records; with delayed ones it can have {RECORDS_MAX}",
            )
        check_records(data, 0, len(data), header.records_count)
    except BatchFault:
        return None
    return header, data


def _record_bytes_max(rules: Rules) -> int:
    """Return the largest length of a delayed record."""
    return min(RECORD_BYTES_MAX, rules.message_bytes_max) - OVERHEAD_BYTES - b.HEADER_BYTES


def _unusual(  # noqa: PLR0917 - see `read_delayed`
    data: bytes,
    at: int,
    index: int,
    header: b.BatchHeader,
    rules: Rules,
    timestamp_ms: int,
    now_ms: int,
    length_bytes: int,
) -> Delayed | None:
    """Return a record the slow way; None if it is not delayed."""
    record = decode_one(data, at, header)
    try:
        due = due_of(
            record.headers, timestamp_ms=timestamp_ms, now_ms=now_ms, delay_ms_max=rules.delay_ms_max
        )
    except InvalidDelivery as fault:
        raise RefusedDelay(index, ErrorCode.INVALID_RECORD, str(fault)) from None
    if due is None:
        return None
    if rules.is_compacted and record.key is None and not due.is_cancel:
        raise RefusedDelay(index, ErrorCode.INVALID_RECORD, "a record on a compacted topic must have a key")
    if length_bytes > _record_bytes_max(rules):
        raise RefusedDelay(
            index,
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the delayed record has {length_bytes} bytes; the limit is 1 MiB, and max.message.bytes of the topic",
        )
    return Delayed(index, due.at_ms, due.wait_ms, due.is_cancel, timestamp_ms, tail_of(record))


def kept_batch(
    header: b.BatchHeader, kept: list[bytes], count: int, *, max_timestamp_ms: int, now_ms: int
) -> bytes:
    """Return the batch to append now: `count` encoded records, with the offsets and sequence numbers of the whole one.

    Args:
        kept: their bytes, in pieces.
    """
    codec = Codec(header.codec) if kept else Codec.NONE
    return frame_batch(
        compress(codec, b"".join(kept)),
        count=count,
        last_offset_delta=header.last_offset_delta,
        attributes=header.attributes & ~b.CODEC_MASK | codec,
        base_timestamp_ms=header.base_timestamp_ms if kept else now_ms,
        max_timestamp_ms=max_timestamp_ms if kept else now_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
