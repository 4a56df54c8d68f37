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
from typing import Final, NamedTuple, Protocol

from appliance.delivery.due import MARK, Due, InvalidDelivery, due_of
from appliance.delivery.waiting import OVERHEAD_BYTES, Origin, Waiting
from appliance.errors import ApplianceError
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec, compress, decompress
from appliance.protocol.records.errors import BatchFault
from appliance.protocol.records.record import Record, decode_one, frame_batch
from appliance.protocol.records.varint import read_varint, read_varlong
from appliance.protocol.records.walk import check_records

RECORD_BYTES_MAX: Final = 1 << 20
"""The largest delayed record."""
DELAYED_MAX: Final = 10_000
"""The most delayed records of a batch; they take about 0.2 s, in which the network process serves nobody else."""

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


class Redirected(Protocol):
    """A delayed record that is delivered elsewhere than to the partition to which it was produced."""

    @property
    def is_dead(self) -> bool:
        """Whether it goes to a dead-letter topic."""
        ...

    def waiting(self, partition: int, offset: int) -> Waiting:
        """Return it as it waits; it was produced to `partition`, and was answered `offset`."""
        ...


class Division(NamedTuple):
    """`kept` is the batch to append now. `delayed`: (offset delta, due, record) of each delayed record, in order.

    `redirected`: one for each delayed record, or none.
    """

    kept: bytes
    delayed: list[tuple[int, Due, Record]]
    origin: Origin
    is_transactional: bool
    redirected: tuple[Redirected, ...] = ()


def divide(batch: memoryview, rules: Rules, *, now_ms: int) -> Division | None:
    """Divide a batch as a client sent it; None if none of its records is delayed.

    None also if it is no sound batch: the worker refuses it.

    Raises:
        RefusedDelay: a delayed record breaks a rule, or one beside it has no possible timestamp.
    """
    found = sound(batch, rules)
    if found is None:
        return None
    header, data = found
    delayed: list[tuple[int, Due, Record]] = []
    kept: list[bytes] = []
    at, kept_max_ms, beyond = 0, b.NO_TIMESTAMP, -1
    for index in range(header.records_count):
        length, body = read_varint(data, at)
        end = body + length
        due = None
        timestamp_ms = header.base_timestamp_ms + read_varlong(data, body + 1)[0]
        if not -_TIMESTAMP_MAX <= timestamp_ms <= _TIMESTAMP_MAX and beyond < 0:
            beyond = index
        if data.find(MARK, body, end) >= 0:
            record = decode_one(data, at, header)
            due = _due(record, index, header, rules, now_ms=now_ms, length_bytes=length)
            if due is not None:
                if len(delayed) == DELAYED_MAX:
                    raise RefusedDelay(
                        index,
                        ErrorCode.MESSAGE_TOO_LARGE,
                        f"the batch has over {DELAYED_MAX} delayed records",
                    )
                delayed.append((index, due, record))
        if due is None:
            kept.append(data[at:end])
            kept_max_ms = max(kept_max_ms, timestamp_ms)
        at = end
    if not delayed:
        return None
    if beyond >= 0:
        raise RefusedDelay(beyond, ErrorCode.INVALID_TIMESTAMP, "a timestamp does not fit into 64 bits")
    return Division(
        kept_batch(header, kept, max_timestamp_ms=kept_max_ms, now_ms=now_ms),
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


def _due(
    record: Record, index: int, header: b.BatchHeader, rules: Rules, *, now_ms: int, length_bytes: int
) -> Due | None:
    try:
        due = due_of(
            record.headers,
            timestamp_ms=record.timestamp_ms,
            now_ms=now_ms,
            delay_ms_max=rules.delay_ms_max,
        )
    except InvalidDelivery as fault:
        raise RefusedDelay(index, ErrorCode.INVALID_RECORD, str(fault)) from None
    if due is None:
        return None
    if rules.is_compacted and record.key is None and not due.is_cancel:
        raise RefusedDelay(index, ErrorCode.INVALID_RECORD, "a record on a compacted topic must have a key")
    if length_bytes + OVERHEAD_BYTES + b.HEADER_BYTES > min(RECORD_BYTES_MAX, rules.message_bytes_max):
        raise RefusedDelay(
            index,
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the delayed record has {length_bytes} bytes; the limit is 1 MiB, and max.message.bytes of the topic",
        )
    return due


def kept_batch(header: b.BatchHeader, kept: list[bytes], *, max_timestamp_ms: int, now_ms: int) -> bytes:
    """Return the batch to append now: these encoded records, with the offsets and sequence numbers of the whole one."""
    codec = Codec(header.codec) if kept else Codec.NONE
    return frame_batch(
        compress(codec, b"".join(kept)),
        count=len(kept),
        last_offset_delta=header.last_offset_delta,
        attributes=header.attributes & ~b.CODEC_MASK | codec,
        base_timestamp_ms=header.base_timestamp_ms if kept else now_ms,
        max_timestamp_ms=max_timestamp_ms if kept else now_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
