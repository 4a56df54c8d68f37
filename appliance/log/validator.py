"""What a batch must be before it may enter a log: Kafka's `LogValidator` and `ProduceRequest.validateRecords`.

| what is wrong                                                        | answer                        |
|----------------------------------------------------------------------|-------------------------------|
| not exactly one batch; magic other than 2; a base offset other than 0 | INVALID_RECORD               |
| its length contradicts itself or the checksum                        | CORRUPT_MESSAGE               |
| larger than `max.message.bytes`, or once decompressed than `decompressed.ratio.max` times that | MESSAGE_TOO_LARGE |
| larger than a segment                                                | RECORD_LIST_TOO_LARGE         |
| count, last offset delta, lengths or offset deltas that do not agree | INVALID_RECORD                |
| a control batch; a producer id without a sequence                    | INVALID_RECORD                |
| a record without key on a compacted topic                            | INVALID_RECORD                |
| a timestamp too far before or after the broker's; LogAppendTime set by the producer | INVALID_TIMESTAMP |
| a codec that is not assigned                                         | UNSUPPORTED_COMPRESSION_TYPE  |

Where we are stricter than Kafka: a length below -1 is no null; bytes after the batch are refused, not cut; offset
deltas are checked without compression too; a damaged compressed stream is INVALID_RECORD instead of an unknown server
error, and an unassigned codec concerns its own partition only, not the whole request.

Batches are not rewritten, with three exceptions that Kafka makes as well: LogAppendTime sets its attribute and
max timestamp; a max timestamp that is not its records' is corrected, since the time index is built on it; and a
batch in another codec than the topic's `compression.type` is compressed anew, its records unchanged (the bounds on
its size hold for both forms). Control batches keep their codec.

A batch from which the network process has taken the delayed records has gaps, like a compacted one: its offset deltas
rise, and it may have no record at all (`check_with_gaps`). All other rules hold for it.

A coordinator's marker has no limit: a transaction must be able to end after `max.message.bytes` was lowered. Kafka
refuses a marker over the limit, and the transaction then stays open.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from appliance.errors import ApplianceError, RejectedRequest
from appliance.log.config import LogSettings
from appliance.log.producer_state import AppendOrigin
from appliance.log.segment_file import Header
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import (
    ATTRIBUTES,
    CODEC_MASK,
    CONTROL,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_SEQUENCE,
    H_BATCH_LENGTH,
    H_CRC,
    H_MAGIC,
    H_PRODUCER_ID,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_V2,
    NO_TIMESTAMP,
    OFFSET_AND_LENGTH,
    RECORDS,
    Buffer,
    restamp,
)
from appliance.protocol.records.compression import Codec, compress, decompress, room_of_thread
from appliance.protocol.records.crc32c import checksum
from appliance.protocol.records.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRecords,
    InvalidTimestamp,
    MissingKey,
)
from appliance.protocol.records.record import decode_records
from appliance.protocol.records.varint import read_varint, read_varlong
from appliance.protocol.records.walk import check_records

_TIMESTAMP_MAX: Final = 2**63 - 1
_LEGACY_OVERHEAD_BYTES: Final = 14
_VALIDATORS_MAX: Final = 64


class CostlyBatch(ApplianceError):
    """A batch that takes long to check: the caller may let others go first, and append it without a limit then."""


def check_frame(batch: memoryview) -> Header:
    """The header of bytes that are exactly one sound batch of format v2.

    Raises:
        InvalidRecords, CorruptBatch: they are not.
    """
    length_bytes = len(batch)
    if length_bytes < HEADER_BYTES:
        raise _not_one_batch(batch)
    header: Header = HEADER.unpack_from(batch)
    if header[H_MAGIC] != MAGIC_V2 or header[H_BATCH_LENGTH] + LOG_OVERHEAD != length_bytes:
        raise _not_one_batch(batch)
    if checksum(batch[ATTRIBUTES:]) != header[H_CRC] & 0xFFFFFFFF:
        raise CorruptBatch("the record batch fails its checksum")
    return header


def _not_one_batch(batch: memoryview) -> RejectedRequest:
    if len(batch) > MAGIC and batch[MAGIC] != MAGIC_V2:
        return InvalidRecords(
            f"record batches of magic {batch[MAGIC]} are not taken, only of magic {MAGIC_V2}"
        )
    if len(batch) >= LOG_OVERHEAD:
        declared = int.from_bytes(batch[LOG_OVERHEAD - 4 : LOG_OVERHEAD], "big", signed=True)
        if declared < _LEGACY_OVERHEAD_BYTES:
            return CorruptBatch(f"a record batch cannot have a length of {declared} bytes")
        if declared + LOG_OVERHEAD == len(batch):
            return CorruptBatch(f"a record batch of {len(batch)} bytes is shorter than its header")
        if declared + LOG_OVERHEAD < len(batch):
            return InvalidRecords("a produce request must hold exactly one record batch for a partition")
    return InvalidRecords("a produce request must hold one whole record batch for a partition")


def _not_for_clients(header: Header) -> InvalidRecords:
    if header[H_BASE_OFFSET]:
        return InvalidRecords(f"a produced batch begins at offset 0, not at {header[H_BASE_OFFSET]}")
    if header[H_ATTRIBUTES] & CONTROL:
        return InvalidRecords("clients may not write control batches")
    return InvalidRecords(
        f"producer {header[H_PRODUCER_ID]} sent a batch with sequence {header[H_BASE_SEQUENCE]}"
    )


class Validator:
    """The rules with one topic's settings in them. Holds no state; replaced when the settings change."""

    __slots__ = (
        "_compacted",
        "_decompressed_bytes_max",
        "_level",
        "_log_append_time",
        "_message_bytes_max",
        "_segment_bytes",
        "_target_codec",
        "_timestamp_after_max_ms",
        "_timestamp_before_max_ms",
    )

    def __init__(self, settings: LogSettings) -> None:
        self._message_bytes_max = settings.max_message_bytes
        self._segment_bytes = settings.segment_bytes
        self._compacted = settings.is_compacted
        self._log_append_time = settings.is_log_append_time
        self._timestamp_before_max_ms = settings.message_timestamp_before_max_ms
        self._timestamp_after_max_ms = settings.message_timestamp_after_max_ms
        self._decompressed_bytes_max = settings.client_decompressed_bytes_max
        self._target_codec: int = settings.target_codec
        self._level = settings.compression_level

    def check(
        self,
        batch: memoryview,
        header: Header,
        *,
        now_ms: int,
        origin: AppendOrigin,
        cheap_bytes_max: int = 0,
    ) -> tuple[memoryview, int]:
        """(the batch to append, its max timestamp in ms); the batch is the given one unless it was restamped.

        Args:
            header: what `check_frame` returned.
            cheap_bytes_max: how many bytes the batch may grow to when it is decompressed and still be checked now; 0:
                whatever the topic allows.

        Raises:
            RejectedRequest: see the table.
            CostlyBatch: it grows over `cheap_bytes_max`; nothing else was checked.
        """
        _, _, _, _, _, attributes, last_delta, base_ms, max_ms, _, _, _, count = header
        length_bytes = len(batch)
        if (length_bytes > self._message_bytes_max or length_bytes > self._segment_bytes) and not (
            attributes & CONTROL and origin is AppendOrigin.COORDINATOR
        ):
            raise self._too_large(length_bytes)
        if count <= 0 or last_delta != count - 1:
            raise InvalidRecords(f"a batch declares {count} records and a last offset delta of {last_delta}")
        if origin is AppendOrigin.CLIENT and (
            header[H_BASE_OFFSET]
            or attributes & CONTROL
            or header[H_BASE_SEQUENCE] < 0 <= header[H_PRODUCER_ID]
        ):
            raise _not_for_clients(header)
        codec = attributes & CODEC_MASK
        data: Buffer = batch
        if codec:
            # Looked at, perhaps compressed anew, and then of no more use.
            data = self._decompressed(codec, batch[RECORDS:], cheap_bytes_max)
            lowest, highest, keyless = check_records(data, 0, len(data), count)
        else:
            lowest, highest, keyless = check_records(batch, RECORDS, length_bytes, count)
        if keyless and self._compacted:
            raise MissingKey("a record on a compacted topic must have a key")
        if attributes & LOG_APPEND_TIME:
            raise InvalidTimestamp("a producer may not set the timestamp type to LogAppendTime")
        if self._log_append_time:
            attributes |= LOG_APPEND_TIME
            highest = now_ms
        else:
            highest += base_ms
            lowest += base_ms
            if (
                highest > now_ms + self._timestamp_after_max_ms
                or lowest < now_ms - self._timestamp_before_max_ms
                or highest > _TIMESTAMP_MAX
            ):
                self._check_each_timestamp(batch, now_ms, highest)
        target = self._target_codec
        if target >= 0 and target != codec and not attributes & CONTROL:
            records = data if codec else batch[RECORDS:]
            return self._recompressed(batch, records, attributes, max_timestamp_ms=highest), highest
        if highest != max_ms or attributes & LOG_APPEND_TIME:
            return _restamped(batch, attributes, highest), highest
        return batch, max_ms

    def check_with_gaps(
        self, batch: memoryview, header: Header, *, now_ms: int, cheap_bytes_max: int = 0
    ) -> tuple[memoryview, int]:
        """As `check`, for a client's batch from which the network process has taken delayed records.

        Raises:
            CostlyBatch: it grows over `cheap_bytes_max`; nothing else was checked.
            RejectedRequest: see the table.
        """
        _, _, _, _, _, attributes, last_delta, base_ms, max_ms, _, _, _, count = header
        length_bytes = len(batch)
        if length_bytes > self._message_bytes_max or length_bytes > self._segment_bytes:
            raise self._too_large(length_bytes)
        if not 0 <= count <= last_delta + 1:
            raise InvalidRecords(f"a batch declares {count} records and a last offset delta of {last_delta}")
        if (
            header[H_BASE_OFFSET]
            or attributes & CONTROL
            or header[H_BASE_SEQUENCE] < 0 <= header[H_PRODUCER_ID]
        ):
            raise _not_for_clients(header)
        codec = attributes & CODEC_MASK
        data: Buffer = batch[RECORDS:]
        if codec:
            data = self._decompressed(codec, batch[RECORDS:], cheap_bytes_max)
        lowest, highest, keyless = _check_gaps(bytes(data), count, last_delta)
        if keyless and self._compacted:
            raise MissingKey("a record on a compacted topic must have a key")
        if attributes & LOG_APPEND_TIME:
            raise InvalidTimestamp("a producer may not set the timestamp type to LogAppendTime")
        lowest, highest = (lowest + base_ms, highest + base_ms) if count else (base_ms, max_ms)
        if self._log_append_time:
            attributes |= LOG_APPEND_TIME
            highest = now_ms
        elif (
            highest > now_ms + self._timestamp_after_max_ms or lowest < now_ms - self._timestamp_before_max_ms
        ):
            self._check_each_timestamp(batch, now_ms, highest)
        if count and 0 <= self._target_codec != codec:
            return self._recompressed(batch, data, attributes, max_timestamp_ms=highest), highest
        if highest != max_ms or attributes & LOG_APPEND_TIME:
            return _restamped(batch, attributes, highest), highest
        return batch, max_ms

    def _decompressed(self, codec: int, records: memoryview, cheap_bytes_max: int) -> Buffer:
        bytes_max = self._decompressed_bytes_max
        if not cheap_bytes_max or cheap_bytes_max >= bytes_max:
            return decompress(codec, records, bytes_max, room_of_thread())
        try:
            return decompress(codec, records, cheap_bytes_max, room_of_thread())
        except BatchTooLarge:
            raise CostlyBatch(f"the batch decompresses to more than {cheap_bytes_max} bytes") from None

    def _too_large(self, length_bytes: int) -> RejectedRequest:
        if length_bytes > self._message_bytes_max:
            return BatchTooLarge(
                f"a batch of {length_bytes} bytes is over the topic's {self._message_bytes_max}"
            )
        return RejectedRequest(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {length_bytes} bytes is over the topic's segment size of {self._segment_bytes}",
        )

    def _recompressed(
        self, batch: memoryview, records: Buffer, attributes: int, *, max_timestamp_ms: int
    ) -> memoryview:
        """The batch with its (uncompressed) `records` in the topic's codec.

        Raises:
            BatchTooLarge: it grew over the topic's bounds.
        """
        made = bytearray(batch[:RECORDS])
        made += compress(Codec(self._target_codec), records, self._level)
        length_bytes = len(made)
        if length_bytes > self._message_bytes_max or length_bytes > self._segment_bytes:
            raise self._too_large(length_bytes)
        OFFSET_AND_LENGTH.pack_into(made, 0, 0, length_bytes - LOG_OVERHEAD)
        restamp(made, attributes & ~CODEC_MASK | self._target_codec, max_timestamp_ms=max_timestamp_ms)
        return memoryview(made)

    def _check_each_timestamp(self, batch: memoryview, now_ms: int, highest: int) -> None:
        # Out of the common way: the bounds were crossed, though perhaps only by records without a timestamp.
        if highest > _TIMESTAMP_MAX:
            raise InvalidTimestamp("a timestamp does not fit into 64 bits")
        earliest = now_ms - self._timestamp_before_max_ms
        latest = now_ms + self._timestamp_after_max_ms
        for record in decode_records(batch, decompressed_bytes_max=self._decompressed_bytes_max):
            if record.timestamp_ms != NO_TIMESTAMP and not earliest <= record.timestamp_ms <= latest:
                raise InvalidTimestamp(
                    f"timestamp {record.timestamp_ms} of a record is outside of [{earliest}, {latest}]",
                    bounds_ms=(earliest, latest),
                )


def _check_gaps(data: bytes, count: int, last_delta: int) -> tuple[int, int, bool]:
    """As `check_records`, for offset deltas that rise and may be missing. Fields behind the key are not looked at.

    Raises:
        InvalidRecords: the records do not add up.
    """
    at, end, before = 0, len(data), -1
    lowest = highest = 0
    keyless = False
    for number in range(count):
        length, body = read_varint(data, at)
        at = body + length
        timestamp_delta, body = read_varlong(data, body + 1)
        delta, body = read_varint(data, body)
        keyless = read_varint(data, body)[0] < 0 or keyless
        if not before < delta <= last_delta or not body < at <= end:
            raise InvalidRecords(f"record {number} has the offset delta {delta} behind {before}")
        before = delta
        lowest = timestamp_delta if not number else min(lowest, timestamp_delta)
        highest = timestamp_delta if not number else max(highest, timestamp_delta)
    if at != end:
        raise InvalidRecords(f"{end - at} bytes are left after the last of {count} records")
    return lowest, highest, keyless


@lru_cache(maxsize=_VALIDATORS_MAX)
def validator_of(settings: LogSettings) -> Validator:
    """One for all logs of the same settings."""
    return Validator(settings)


def _restamped(batch: memoryview, attributes: int, max_timestamp_ms: int) -> memoryview:
    copy = bytearray(batch)
    restamp(copy, attributes, max_timestamp_ms=max_timestamp_ms)
    return memoryview(copy)
