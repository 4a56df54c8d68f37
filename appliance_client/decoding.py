"""Fetched batches to records, one batch at a time, without those that are not for the application.

Control batches are stepped over, and with read_committed the records of aborted transactions: a transaction is aborted
from the offset that the broker lists until its abort marker.
"""

from __future__ import annotations

from typing import Any

from appliance.errors import ClientFault
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from appliance.protocol.records.control import ControlType, control_type
from appliance_client.errors import CorruptRecordsError, RecordDeserializationError
from appliance_client.kernel import ConsumerRecord, decode_records
from appliance_client.options import ConsumerOptions
from appliance_client.reading import Chunk, Reading
from appliance_client.values import TopicPartition


def take_from(reading: Reading, records_max: int, options: ConsumerOptions) -> list[ConsumerRecord]:
    """Up to so many records of a partition; its position goes behind them.

    Raises:
        CorruptRecordsError: a batch does not hold. The position stands before it.
        RecordDeserializationError: the application's deserializer raised. The position stands at the record.
    """
    found: list[ConsumerRecord] = []
    while len(found) < records_max:
        if reading.ready_at >= len(reading.ready):
            if found and not reading.chunks:
                break
            try:
                if not _decode_next(reading, options):
                    break
            except Exception:
                if found:
                    break  # these were taken out: the error comes with the next call
                raise
            continue
        stop = min(len(reading.ready), reading.ready_at + records_max - len(found))
        if reading.ready_at == 0 and stop == len(reading.ready) and not found:
            found = reading.ready
        else:
            found += reading.ready[reading.ready_at : stop]
        if stop == len(reading.ready):
            reading.ready = []
            reading.ready_at = 0
            reading.position = reading.next_after_ready
        else:
            reading.ready_at = stop
            reading.position = found[-1].offset + 1
        reading.position_epoch = found[-1].leader_epoch
    return found


def _decode_next(reading: Reading, options: ConsumerOptions) -> bool:
    """Decode the next batch that has records for us; False where no chunk is left."""
    while reading.chunks:
        chunk = reading.chunks[0]
        if chunk.at >= chunk.end:
            reading.chunks.popleft()
            continue
        header = b.BatchHeader(*b.HEADER.unpack_from(chunk.records, chunk.at))
        start, stop = chunk.at, chunk.at + header.size_bytes
        records: list[ConsumerRecord] = []
        next_offset = header.next_offset
        if not is_hidden(chunk, header, options.isolation):
            records = _decode(reading, chunk, chunk.records[start:stop], header, options)
            refused = _deserialize(records, options)
            if refused is not None:
                next_offset = refused  # the batch is decoded again from there, and the error comes then
        if next_offset == header.next_offset:
            chunk.at = stop
        chunk.before = start
        if records:
            reading.ready = records
            reading.ready_at = 0
            reading.next_after_ready = next_offset
            return True
        if reading.position is None or header.next_offset > reading.position:
            reading.position = header.next_offset
    return False


def is_hidden(chunk: Chunk, header: b.BatchHeader, isolation: int) -> bool:
    """Whether no record of the batch is for the application."""
    if isolation:
        while chunk.aborted and chunk.aborted[0][1] <= header.last_offset:
            chunk.aborting.add(chunk.aborted.popleft()[0])
    if header.is_control:
        if isolation and header.producer_id in chunk.aborting:
            start = chunk.at + b.HEADER_BYTES
            raw = bytes(chunk.records[start : chunk.at + header.size_bytes])
            try:
                kinds = decode_records(raw, header.records_count, "", 0, 0, 0, -1, 0, 0)
                if kinds and control_type(kinds[0].key) == ControlType.ABORT:
                    chunk.aborting.discard(header.producer_id)
            except ClientFault as error:
                raise CorruptRecordsError(str(error)) from None
        return True
    return bool(isolation and header.is_transactional and header.producer_id in chunk.aborting)


def _decode(
    reading: Reading, chunk: Chunk, batch: memoryview, header: b.BatchHeader, options: ConsumerOptions
) -> list[ConsumerRecord]:
    place = reading.place
    try:
        if options.check_crcs and not (chunk.is_checked or b.crc_holds(batch)):
            raise CorruptRecordsError(f"{place.topic}-{place.partition}@{header.base_offset}: checksum fails")
        payload: Any = batch[b.RECORDS :]
        if header.codec:
            payload = decompress(header.codec, payload, DECOMPRESSED_BYTES_MAX)
        records = decode_records(
            bytes(payload),
            header.records_count,
            place.topic,
            place.partition,
            header.base_offset,
            header.base_timestamp_ms,
            header.max_timestamp_ms if header.is_log_append_time else -1,
            reading.position or 0,
            header.partition_leader_epoch,
        )
    except ClientFault as error:
        raise CorruptRecordsError(f"{place.topic}-{place.partition}@{header.base_offset}: {error}") from None
    return records


def _deserialize(records: list[ConsumerRecord], options: ConsumerOptions) -> int | None:
    """Put the application's objects in the place of bytes; where a record is refused, cut it off and all behind it.

    Returns its offset then, and None otherwise.

    Raises:
        RecordDeserializationError: the first record is refused.
    """
    key_of, value_of = options.key_deserializer, options.value_deserializer
    if not records or (key_of is None and value_of is None):
        return None
    if options.retry_topics:
        for record in records:
            record.raw = record.key, record.value
    raw = records[0].key, records[0].value
    refused: int | None = None
    record = records[0]
    try:
        if key_of is not None:
            for record in records:
                if record.key is not None:
                    record.key = key_of(record.key)
    except Exception as error:
        refused = _cut_off(records, record, raw, "key", error)
    try:
        if value_of is not None:
            for record in records:
                if record.value is not None:
                    record.value = value_of(record.value)
    except Exception as error:
        refused = _cut_off(records, record, raw, "value", error)
    return refused


def _cut_off(
    records: list[ConsumerRecord],
    refused: ConsumerRecord,
    raw: tuple[Any, Any],
    origin: str,
    error: Exception,
) -> int:
    if refused is records[0]:
        refused.key, refused.value = raw
        place = TopicPartition(refused.topic, refused.partition)
        raise RecordDeserializationError(place, refused, origin=origin, error=error) from error
    del records[records.index(refused) :]
    return refused.offset


def sound_bytes(records: memoryview) -> int:
    """How many bytes of whole batches come before the first one whose checksum fails."""
    at = 0
    while len(records) - at >= b.HEADER_BYTES:
        stop = at + b.OFFSET_AND_LENGTH.unpack_from(records, at)[1] + b.LOG_OVERHEAD
        if stop > len(records) or not b.crc_holds(records[at:stop]):
            break
        at = stop
    return at
