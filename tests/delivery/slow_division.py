"""How delayed records were divided and stored with a `Record` for each: what the quick way must agree with."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from appliance.delivery.division import (
    DELAYED_MAX,
    RECORD_BYTES_MAX,
    RefusedDelay,
    Rules,
    kept_batch,
    sound,
)
from appliance.delivery.due import MARK, Due, InvalidDelivery, due_of
from appliance.delivery.waiting import OVERHEAD_BYTES, Origin, Waiting
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.record import Record, decode_one
from appliance.protocol.records.varint import read_varint, read_varlong

_TIMESTAMP_MAX = (1 << 63) - 1


class SlowDivision(NamedTuple):
    kept: bytes
    delayed: list[tuple[int, Due, Record]]
    origin: Origin
    is_transactional: bool

    def records(self, topic_id: UUID, partition: int, base_offset: int, now_ms: int) -> list[Record]:
        """Return the records for the internal topics, in order."""
        return [
            Waiting(topic_id, partition, base_offset + delta, due.at_ms, self.origin, record).to_record(
                now_ms
            )
            for delta, due, record in self.delayed
        ]


def divide_slowly(batch: memoryview, rules: Rules, *, now_ms: int) -> SlowDivision | None:
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
    return SlowDivision(
        kept_batch(header, kept, len(kept), max_timestamp_ms=kept_max_ms, now_ms=now_ms),
        delayed,
        Origin(header.producer_id, header.producer_epoch, header.base_sequence),
        header.is_transactional,
    )


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
