"""The records of `__transaction_state`, byte for byte as Apache Kafka writes them.

    key      int16 0 · transactional id string
    value    int16 version ·
      0      producer id int64 · epoch int16 · timeout ms int32 · status int8 · partitions [] {topic string,
             partition ids [] int32} · last update ms int64 · start ms int64
      1      the same with compact strings and arrays, and tagged fields: 0 previous producer id int64,
             1 next producer id int64, 2 the client's transaction version int16

The partitions are null in state Empty. A tag at its default (-1, -1, 0) is not written. A null value is a tombstone:
the id is forgotten. Version 1 is written from `transaction.version` 1 on. Tag 3 is reserved for two-phase commit
(KIP-939); Kafka 4.3 does not write it, and it is passed over.

Source: `TransactionLogKey.json`, `TransactionLogValue.json`, `TransactionLog.java` of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import Final

from appliance.cluster import TopicPartition
from appliance.control.coordinator.runtime.effects import Record
from appliance.control.coordinator.transaction.transaction import NO_PRODUCER_ID, Transaction
from appliance.control.coordinator.transaction.transaction_state import TransactionState
from appliance.errors import MalformedFrame
from appliance.protocol.primitives import (
    INT16,
    INT32,
    INT64,
    Cursor,
    compact_string_bytes,
    string_bytes,
    uvarint_bytes,
)

TRANSACTION: Final = 0
"""The type of a key that names a transactional id."""
PREVIOUS_PRODUCER_ID_TAG: Final = 0
NEXT_PRODUCER_ID_TAG: Final = 1
CLIENT_VERSION_TAG: Final = 2

_KEY_TYPE: Final = INT16.pack(TRANSACTION)
_HEAD: Final = Struct(">hqhib")  # version, producer id, epoch, timeout, status
_TIMES: Final = Struct(">qq")
_NULL_ARRAY: Final = (INT32.pack(-1), b"\x00")
_TOPIC_BYTES_MIN: Final = (6, 3)
_PARTITION_BYTES: Final = 4


def transaction_record(transactional_id: str, transaction: Transaction, *, server_version: int) -> Record:
    """Return the record that stands for this state of the id.

    `server_version` is this broker's `transaction.version`; below 1 the older value is written.
    """
    return Record(_key(transactional_id), _value(transaction, 1 if server_version >= 1 else 0))


def tombstone(transactional_id: str) -> Record:
    """Return the record that makes the log forget the id."""
    return Record(_key(transactional_id), None)


def read_transaction_record(key: bytes, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """Return (transactional id, its state, or None for a tombstone); None for a key of another type.

    Raises:
        MalformedFrame: the bytes are no record that Kafka writes.
    """
    cursor = Cursor(memoryview(key), 0, len(key))
    if cursor.int16() != TRANSACTION:
        return None
    transactional_id = cursor.string()
    return transactional_id, None if value is None else _read_value(value)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────


def _key(transactional_id: str) -> bytes:
    return _KEY_TYPE + string_bytes(transactional_id)


def _value(transaction: Transaction, version: int) -> bytes:
    parts = [
        _HEAD.pack(
            version,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.state,
        ),
        _partitions_bytes(transaction, version),
        _TIMES.pack(transaction.updated_ms, transaction.started_ms),
    ]
    if version >= 1:
        parts.append(_tags_bytes(transaction))
    return b"".join(parts)


def _partitions_bytes(transaction: Transaction, version: int) -> bytes:
    if transaction.state is TransactionState.EMPTY:
        return _NULL_ARRAY[version]
    string, count = (string_bytes, INT32.pack) if version == 0 else (compact_string_bytes, _compact_count)
    topics = [
        (topic, [each.partition for each in partitions])
        for topic, partitions in groupby(sorted(transaction.partitions), attrgetter("topic"))
    ]
    parts = [count(len(topics))]
    for topic, partitions in topics:
        parts += (string(topic), count(len(partitions)), *map(INT32.pack, partitions))
        if version >= 1:
            parts.append(b"\x00")
    return b"".join(parts)


def _compact_count(count: int) -> bytes:
    return uvarint_bytes(count + 1)


def _tags_bytes(transaction: Transaction) -> bytes:
    tags: list[tuple[int, bytes]] = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags.append((PREVIOUS_PRODUCER_ID_TAG, INT64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags.append((NEXT_PRODUCER_ID_TAG, INT64.pack(transaction.next_producer_id)))
    if transaction.client_version != 0:
        tags.append((CLIENT_VERSION_TAG, INT16.pack(transaction.client_version)))
    fields = (uvarint_bytes(tag) + uvarint_bytes(len(field)) + field for tag, field in tags)
    return uvarint_bytes(len(tags)) + b"".join(fields)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────


def _read_value(value: bytes) -> Transaction:
    cursor = Cursor(memoryview(value), 0, len(value))
    version = cursor.int16()
    if version not in (0, 1):
        raise MalformedFrame(f"a transaction record of version {version}")
    producer_id, epoch, timeout_ms, status = cursor.int64(), cursor.int16(), cursor.int32(), cursor.int8()
    try:
        state = TransactionState(status)
    except ValueError as fault:
        raise MalformedFrame(f"a transaction record with status {status}") from fault
    partitions = _read_partitions(cursor, version)
    updated_ms, started_ms = cursor.int64(), cursor.int64()
    tags = _read_tags(cursor) if version >= 1 else {}
    return Transaction(
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        started_ms=started_ms,
        updated_ms=updated_ms,
        previous_producer_id=tags.get(PREVIOUS_PRODUCER_ID_TAG, NO_PRODUCER_ID),
        next_producer_id=tags.get(NEXT_PRODUCER_ID_TAG, NO_PRODUCER_ID),
        client_version=tags.get(CLIENT_VERSION_TAG, 0),
    )


def _read_partitions(cursor: Cursor, version: int) -> frozenset[TopicPartition]:
    is_flexible = version >= 1
    string = cursor.compact_string if is_flexible else cursor.string
    count: Callable[[int], int] = cursor.compact_array_count if is_flexible else cursor.array_count
    partitions: set[TopicPartition] = set()
    for _ in range(count(_TOPIC_BYTES_MIN[version])):
        topic = string()
        partitions.update(TopicPartition(topic, cursor.int32()) for _ in range(count(_PARTITION_BYTES)))
        if is_flexible:
            _read_tags(cursor)
    return frozenset(partitions)


_TAG_READERS: Final[dict[int, Callable[[Cursor], int]]] = {
    PREVIOUS_PRODUCER_ID_TAG: Cursor.int64,
    NEXT_PRODUCER_ID_TAG: Cursor.int64,
    CLIENT_VERSION_TAG: Cursor.int16,
}


def _read_tags(cursor: Cursor) -> dict[int, int]:
    """Read tagged fields; those of an unknown tag are skipped (KIP-482)."""
    tags: dict[int, int] = {}
    for _ in range(cursor.tagged_field_count()):
        tag, size = cursor.uvarint(), cursor.tagged_field_size()
        start = cursor.position
        reader = _TAG_READERS.get(tag)
        if reader is not None:
            tags[tag] = reader(cursor)
        cursor.position = start
        cursor.skip(size)
    return tags
