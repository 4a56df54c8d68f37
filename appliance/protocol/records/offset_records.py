"""Records of committed offsets in `__consumer_offsets`, byte for byte as Apache Kafka writes them.

    key     int16 1 · group string · topic string · partition int32                        (0: older, the same fields)
    value   int16 version ·
      0     offset int64 · metadata string · commit time ms int64
      1     offset int64 · metadata string · commit time ms int64 · expiry ms int64
      2     as 0
      3     offset int64 · leader epoch int32 · metadata string · commit time ms int64
      4     offset int64 · leader epoch int32 · metadata compact string · commit time ms int64 · tagged: 0 topic id uuid

Written is version 4, and 1 where the client set a retention of its own (OffsetCommit 2-4). A null value is a tombstone.
Source: `OffsetCommitKey.json`, `OffsetCommitValue.json`, `GroupCoordinatorRecordHelpers.java` of Kafka 4.3.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple
from uuid import UUID

from appliance.errors import CorruptFile, MalformedFrame
from appliance.protocol.primitives import (
    NO_UUID,
    compact_string_bytes,
    string_bytes,
    uvarint_at,
    uvarint_bytes,
)

OFFSET_COMMIT: Final = 1
NO_EXPIRY: Final = -1
OFFSET_KEYS: Final = (b"\0\0", b"\0\1")
"""What keys of offsets begin with, of the two versions that there are."""
KEY_TYPE_BYTES: Final = 2
PARTITION_BYTES: Final = 4

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_KEY_TYPE: Final = _INT16.pack(OFFSET_COMMIT)
_START_4: Final = Struct(">hqi")
_START_1: Final = Struct(">hq")
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"  # one tagged field: tag 0, 16 bytes
_TAGS_BYTES: Final = len(_TOPIC_ID_TAG) + 16
_NO_TAGS: Final = b"\x00"


class CommittedOffset(NamedTuple):
    """A committed offset as its record's value holds it. `expire_ms` -1: as the broker's retention says."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NO_EXPIRY
    topic_id: UUID = NO_UUID


class OffsetKey(NamedTuple):
    """Whose offset a record holds."""

    group: str
    topic: str
    partition: int


def key_prefix(group: str, topic: str) -> bytes:
    """The key of a group's offsets in a topic, without the partition."""
    return _KEY_TYPE + string_bytes(group) + string_bytes(topic)


def offset_key(group: str, topic: str, partition: int) -> bytes:
    """The whole key."""
    return key_prefix(group, topic) + _INT32.pack(partition)


suffix: Final = _INT32.pack
"""Partition → what makes a key of a prefix."""


def parse_key(key: bytes) -> OffsetKey:
    """Whose offset the record of this key holds.

    Raises:
        CorruptFile: the bytes are no key of type 0 or 1.
    """
    try:
        group, at = _string(key, 2)
        topic, at = _string(key, at)
        (partition,) = _INT32.unpack_from(key, at)
    except (struct_error, UnicodeDecodeError) as fault:
        raise CorruptFile(f"an offset record has a key that does not parse: {fault}") from fault
    return OffsetKey(group, topic, partition)


def encode_value(committed: CommittedOffset) -> bytes:
    """The value of the record, in the version that Kafka would write."""
    if committed.expire_ms != NO_EXPIRY:
        return (
            _START_1.pack(1, committed.offset)
            + string_bytes(committed.metadata)
            + _INT64.pack(committed.commit_ms)
            + _INT64.pack(committed.expire_ms)
        )
    tags = _NO_TAGS if committed.topic_id == NO_UUID else _TOPIC_ID_TAG + committed.topic_id.bytes
    return (
        _START_4.pack(4, committed.offset, committed.leader_epoch)
        + compact_string_bytes(committed.metadata)
        + _INT64.pack(committed.commit_ms)
        + tags
    )


class ValueEncoder:
    """Values in version 4 of offsets in one topic, committed at one time: what they end with is put together once."""

    __slots__ = ("_bare", "_tail")

    def __init__(self, commit_ms: int, topic_id: UUID) -> None:
        self._tail = _INT64.pack(commit_ms) + (
            _NO_TAGS if topic_id == NO_UUID else _TOPIC_ID_TAG + topic_id.bytes
        )
        self._bare = b"\x01" + self._tail

    def encode(self, offset: int, leader_epoch: int, metadata: bytes) -> bytes:
        """`metadata` in UTF-8."""
        start: bytes = _START_4.pack(4, offset, leader_epoch)
        if not metadata:
            return start + self._bare
        return start + uvarint_bytes(len(metadata) + 1) + metadata + self._tail


def parse_value(value: bytes) -> CommittedOffset:
    """The committed offset of a record's value, of any version.

    Raises:
        CorruptFile: the bytes are no such value, or of a version that is not known.
    """
    try:
        (version,) = _INT16.unpack_from(value)
        if version == 4:
            return _parse_4(value)
        if not 0 <= version <= 3:
            raise CorruptFile(f"an offset record of version {version} is not known here")
        (offset,) = _INT64.unpack_from(value, 2)
        leader_epoch, at = -1, 10
        if version == 3:
            (leader_epoch,) = _INT32.unpack_from(value, 10)
            at = 14
        metadata, at = _string(value, at)
        (commit_ms,) = _INT64.unpack_from(value, at)
        expire_ms = _INT64.unpack_from(value, at + 8)[0] if version == 1 else NO_EXPIRY
    except (struct_error, IndexError, ValueError, MalformedFrame) as fault:
        raise CorruptFile(f"an offset record has a value that does not parse: {fault}") from fault
    return CommittedOffset(offset, leader_epoch, metadata, commit_ms, expire_ms)


def _parse_4(value: bytes) -> CommittedOffset:
    _, offset, leader_epoch = _START_4.unpack_from(value)
    at = _START_4.size
    length = value[at]
    if length < 0x80:
        at += 1
    else:
        length, at = uvarint_at(memoryview(value), at, len(value))
    end = at + length - 1
    metadata = value[at:end].decode() if length > 1 else ""
    (commit_ms,) = _INT64.unpack_from(value, end)
    tags = value[end + 8 :]
    if len(tags) == _TAGS_BYTES and tags.startswith(_TOPIC_ID_TAG):
        topic_id = _uuid(tags[len(_TOPIC_ID_TAG) :])
    else:
        topic_id = _topic_id_among(tags)
    return CommittedOffset(offset, leader_epoch, metadata, commit_ms, NO_EXPIRY, topic_id)


def _topic_id_among(tags: bytes) -> UUID:
    """The topic id in tagged fields that another Kafka may have written."""
    view = memoryview(tags)
    topic_id = NO_UUID
    count, at = uvarint_at(view, 0, len(tags))
    for _ in range(count):
        tag, at = uvarint_at(view, at, len(tags))
        size, at = uvarint_at(view, at, len(tags))
        if tag == 0 and size == 16:
            topic_id = UUID(bytes=tags[at : at + size])
        at += size
    return topic_id


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(data, at)
    end = at + 2 + length
    if length < 0 or end > len(data):
        raise struct_error(f"a string of {length} bytes")
    return data[at + 2 : end].decode(), end
