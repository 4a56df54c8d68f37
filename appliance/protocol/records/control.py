"""Control batches: what a transaction coordinator writes into a log instead of a record of a user's.

    key    version int16 (0) · type int16
    value  of an end-of-transaction marker: version int16 (0) · coordinator epoch int32

A marker batch is 61 + 17 = 78 bytes, transactional and control bits set, without a sequence number.
Source: `ControlRecordType.java`, `EndTransactionMarker.java`, `MemoryRecords.java`; KIP-98.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, error

from appliance.protocol.records import batch as b
from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.record import Record, decode_records, encode_batch

_KEY = Struct(">hh")
_MARKER = Struct(">hi")


class ControlType(IntEnum):
    """The types Kafka has assigned; a reader skips any other."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """How a transaction ended, and under which epoch of its coordinator."""

    committed: bool
    coordinator_epoch: int


def encode_marker_batch(
    marker: EndTransactionMarker, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytes:
    """The 78-byte batch that ends a producer's transaction in one partition."""
    record = Record(
        key=_KEY.pack(0, ControlType.COMMIT if marker.committed else ControlType.ABORT),
        value=_MARKER.pack(0, marker.coordinator_epoch),
        timestamp_ms=timestamp_ms,
    )
    return encode_batch(
        [record],
        attributes=b.TRANSACTIONAL | b.CONTROL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def control_type(key: bytes | None) -> int:
    """The type number in a control record's key.

    Raises:
        InvalidRecords: the key is missing or too short.
    """
    try:
        version, number = _KEY.unpack_from(key or b"")
    except error:
        raise InvalidRecords("a control record's key is shorter than four bytes") from None
    if version < 0:
        raise InvalidRecords(f"a control record's key has version {version}")
    return int(number)


def decode_marker(batch: b.Buffer, position: int = 0) -> EndTransactionMarker | None:
    """The marker in a control batch; None if it is emptied or of another type.

    Raises:
        InvalidRecords: a marker whose value does not parse.
    """
    for record in decode_records(batch, position):
        kind = control_type(record.key)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        try:
            _, coordinator_epoch = _MARKER.unpack_from(record.value or b"")
        except error:
            raise InvalidRecords("an end-of-transaction marker is shorter than six bytes") from None
        return EndTransactionMarker(kind == ControlType.COMMIT, coordinator_epoch)
    return None
