"""OffsetCommit (8), served in versions 2-10: a codec of our own, because consumers of many partitions commit all the
time.

    request body, v2-7                             v8-10 (flexible)
    group id           string                      compact string
    generation         int32                       int32
    member id          string                      compact string
    group instance id  v7: nullable string         compact nullable string
    retention ms       v2-4: int64
    topics             array of                    compact array of
      name               string                      compact string, v10: topic id, 16 bytes
      partitions         array of                    compact array of
        index              int32                       int32
        offset             int64                       int64
        leader epoch       v6 on: int32                int32
        metadata           nullable string             compact nullable string, tagged fields
                                                     tagged fields
                                                   tagged fields

The answer holds, by topic and partition, an error: throttle time int32 (v3 on), topics, partitions of index int32 and
error int16. A partition costs about 1 µs where the codec of every other API, with a shape for each, costs 3. That one
knows OffsetCommit as well (`apis/offset_commit.py`); a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final
from uuid import UUID

from appliance.errors import MalformedFrame
from appliance.protocol.headers import response_frame
from appliance.protocol.primitives import (
    ELEMENTS_MAX,
    INT32,
    INT64,
    STRING_BYTES_MAX,
    compact_string_bytes,
    skip_tagged_fields,
    string_bytes,
    uuid_at,
    uuid_bytes,
    uvarint_at,
    uvarint_bytes,
)

FIRST_FLEXIBLE: Final = 8
FIRST_BY_TOPIC_ID: Final = 10
FIRST_WITH_EPOCH: Final = 6
FIRST_WITH_INSTANCE: Final = 7
LAST_WITH_RETENTION: Final = 4
FIRST_WITH_THROTTLE: Final = 3

NO_EPOCH: Final = -1
NO_GENERATION: Final = -1
DEFAULT_RETENTION: Final = -1
_NULL_STRING: Final = 0xFFFF

_WITHOUT_EPOCH: Final = Struct(">iq")
_WITH_EPOCH: Final = Struct(">iqi")
_RESULT: Final = Struct(">ih")
_NO_THROTTLE: Final = INT32.pack(0)
_COUNTS: Final = tuple(INT32.pack(count) for count in range(16))
PIECE: Final = 256
"""Partitions in one piece of the work, some 300 µs."""


CommittedPartition = tuple[int, int, int, bytes]
"""Partition, offset, leader epoch, metadata in UTF-8 (null and empty are one). Plain, for the sake of time."""


CommittedTopic = tuple[str | UUID, Sequence[CommittedPartition]]
"""A topic, by its name up to v9 and by its id in v10, and its partitions."""


class CommitRequest:
    """Topics and partitions in wire order. A generation below 0 without a member is a consumer in no group."""

    __slots__ = ("generation", "group_id", "instance_id", "member_id", "retention_ms", "topics")

    def __init__(
        self,
        group_id: str,
        topics: Sequence[CommittedTopic],
        *,
        generation: int = NO_GENERATION,
        member_id: str = "",
        instance_id: str | None = None,
        retention_ms: int = DEFAULT_RETENTION,
    ) -> None:
        self.group_id = group_id
        self.generation = generation
        self.member_id = member_id
        self.instance_id = instance_id
        self.retention_ms = retention_ms
        self.topics = topics


TopicErrors = tuple[str | UUID, Sequence[tuple[int, int]]]
"""A topic as the request named it, and (partition, error code) of its partitions."""


def parse_offset_commit(view: memoryview, position: int, end: int, version: int) -> CommitRequest:
    """The request whose body is view[position:end]. Bytes after it are ignored.

    Raises:
        MalformedFrame: it does not parse, or declares more than it can hold.
    """
    reader = _Reader(bytes(view[position:end]), flexible=version >= FIRST_FLEXIBLE)
    try:
        return _read_request(reader, version)
    except (struct_error, IndexError):
        raise MalformedFrame("the frame ends inside of an OffsetCommit") from None


def parse_offset_commit_in_pieces(body: bytes, version: int) -> Generator[None, None, CommitRequest]:
    """`parse_offset_commit` as a generator that yields after each piece of the work, and returns the request.

    Raises:
        MalformedFrame: as `parse_offset_commit`.
    """
    reader = _Reader(body, flexible=version >= FIRST_FLEXIBLE)
    with_epoch = version >= FIRST_WITH_EPOCH
    try:
        topics: list[CommittedTopic] = []
        request = _read_head(reader, version, topics)
        done = 0
        for _ in range(reader.count(3)):
            topic = _read_topic(reader, version)
            left = _count_partitions(reader, with_epoch=with_epoch)
            found: list[CommittedPartition] = []
            while left > PIECE:
                _read_partitions(reader, PIECE, found, with_epoch=with_epoch)
                left -= PIECE
                yield None
            _read_partitions(reader, left, found, with_epoch=with_epoch)
            reader.skip_tags()
            topics.append((topic, found))
            done += left + 1
            if done >= PIECE:
                done = 0
                yield None
        reader.skip_tags()
    except (struct_error, IndexError):
        raise MalformedFrame("the frame ends inside of an OffsetCommit") from None
    return request


def encode_offset_commit_response(version: int, correlation_id: int, topics: Sequence[TopicErrors]) -> bytes:
    """The whole frame of the answer."""
    flexible = version >= FIRST_FLEXIBLE
    out = _response_head(version, len(topics))
    tags = b"\x00" if flexible else b""
    pack = _RESULT.pack
    for topic, partitions in topics:
        _add_topic(out, topic, len(partitions), flexible=flexible)
        out += [pack(index, error) + tags for index, error in partitions]
        out.append(tags)
    out.append(tags)
    return response_frame(1 if flexible else 0, correlation_id, b"".join(out))


def encode_offset_commit_response_in_pieces(
    version: int, correlation_id: int, topics: Sequence[TopicErrors], *, failed: int = 0
) -> Generator[None, None, bytes]:
    """`encode_offset_commit_response` as a generator that yields after each piece of the work.

    `failed` is the error of the partitions that have none of their own.
    """
    flexible = version >= FIRST_FLEXIBLE
    out = _response_head(version, len(topics))
    tags = b"\x00" if flexible else b""
    pack = _RESULT.pack
    done = 0
    for topic, partitions in topics:
        _add_topic(out, topic, len(partitions), flexible=flexible)
        for first in range(0, len(partitions), PIECE):
            some = partitions[first : first + PIECE]
            out += [pack(index, error or failed) + tags for index, error in some]
            done += len(some)
            if done >= PIECE:
                done = 0
                yield None
        out.append(tags)
        done += 1
        if done >= PIECE:
            done = 0
            yield None
    out.append(tags)
    return response_frame(1 if flexible else 0, correlation_id, b"".join(out))


def _response_head(version: int, topics: int) -> list[bytes]:
    out: list[bytes] = [_NO_THROTTLE] if version >= FIRST_WITH_THROTTLE else []
    out.append(_count(topics, flexible=version >= FIRST_FLEXIBLE))
    return out


def _add_topic(out: list[bytes], topic: str | UUID, partitions: int, *, flexible: bool) -> None:
    if isinstance(topic, str):
        out.append(compact_string_bytes(topic) if flexible else string_bytes(topic))
    else:
        out.append(uuid_bytes(topic))
    out.append(_count(partitions, flexible=flexible))


def every_partition(request: CommitRequest, error: int) -> list[TopicErrors]:
    """The answer in which every partition has the same error."""
    return [(topic, [(each[0], error) for each in partitions]) for topic, partitions in request.topics]


def every_partition_in_pieces(request: CommitRequest, error: int) -> Generator[None, None, list[TopicErrors]]:
    """`every_partition` as a generator that yields after each piece of the work."""
    answers: list[TopicErrors] = []
    done = 0
    for topic, partitions in request.topics:
        results: list[tuple[int, int]] = []
        for first in range(0, len(partitions), PIECE):
            some = partitions[first : first + PIECE]
            results += [(each[0], error) for each in some]
            done += len(some)
            if done >= PIECE:
                done = 0
                yield None
        answers.append((topic, results))
        done += 1
        if done >= PIECE:
            done = 0
            yield None
    return answers


class _Reader:
    """A body, and where we are in it. What it has no bytes for ends in struct.error or IndexError."""

    __slots__ = ("at", "data", "elements_left", "flexible")

    def __init__(self, data: bytes, *, flexible: bool) -> None:
        self.data = data
        self.at = 0
        self.flexible = flexible
        self.elements_left = ELEMENTS_MAX

    def uvarint(self) -> int:
        value = self.data[self.at]
        if value < 0x80:
            self.at += 1
            return value
        value, self.at = uvarint_at(memoryview(self.data), self.at, len(self.data))
        return value

    def int32(self) -> int:
        value: int = INT32.unpack_from(self.data, self.at)[0]
        self.at += 4
        return value

    def count(self, bytes_min: int) -> int:
        """How many elements of at least `bytes_min` follow."""
        value = self.uvarint() - 1 if self.flexible else self.int32()
        if value < 0 or value * bytes_min > len(self.data) - self.at:
            raise MalformedFrame(
                f"an array of {value} elements where {len(self.data) - self.at} bytes are left"
            )
        self.elements_left -= value
        if self.elements_left < 0:
            raise MalformedFrame(f"more than {ELEMENTS_MAX} elements in one request")
        return value

    def raw(self) -> bytes | None:
        """The bytes of a nullable string."""
        data, at = self.data, self.at
        if self.flexible:
            length = self.uvarint() - 1
            at = self.at
        else:
            length = data[at] << 8 | data[at + 1]
            at += 2
            if length == _NULL_STRING:
                length = -1
        if length == -1:
            self.at = at
            return None
        stop = at + length
        if length > STRING_BYTES_MAX or stop > len(data):
            raise MalformedFrame(f"a string of {length} bytes")
        self.at = stop
        return data[at:stop]

    def nullable_text(self) -> str | None:
        raw = self.raw()
        return None if raw is None else _decoded(raw)

    def text(self) -> str:
        raw = self.raw()
        if raw is None:
            raise MalformedFrame("null where a string must stand")
        return _decoded(raw)

    def skip_tags(self) -> None:
        if self.flexible:
            if self.data[self.at]:
                self.at = skip_tagged_fields(memoryview(self.data), self.at, len(self.data))
            else:
                self.at += 1


def _read_request(reader: _Reader, version: int) -> CommitRequest:
    topics: list[CommittedTopic] = []
    request = _read_head(reader, version, topics)
    with_epoch = version >= FIRST_WITH_EPOCH
    for _ in range(reader.count(3)):
        topic = _read_topic(reader, version)
        partitions: list[CommittedPartition] = []
        count = _count_partitions(reader, with_epoch=with_epoch)
        _read_partitions(reader, count, partitions, with_epoch=with_epoch)
        reader.skip_tags()
        topics.append((topic, partitions))
    reader.skip_tags()
    return request


def _read_head(reader: _Reader, version: int, topics: list[CommittedTopic]) -> CommitRequest:
    """What stands before the topics, which the caller reads into `topics`."""
    group_id = reader.text()
    generation = reader.int32()
    member_id = reader.text()
    instance_id: str | None = None
    if version >= FIRST_WITH_INSTANCE:
        instance_id = reader.nullable_text()
    retention_ms = DEFAULT_RETENTION
    if version <= LAST_WITH_RETENTION:
        (retention_ms,) = INT64.unpack_from(reader.data, reader.at)
        reader.at += 8
    return CommitRequest(
        group_id,
        topics,
        generation=generation,
        member_id=member_id,
        instance_id=instance_id,
        retention_ms=retention_ms,
    )


def _read_topic(reader: _Reader, version: int) -> str | UUID:
    if version < FIRST_BY_TOPIC_ID:
        return reader.text()
    topic = uuid_at(memoryview(reader.data), reader.at)
    reader.at += 16
    return topic


def _count_partitions(reader: _Reader, *, with_epoch: bool) -> int:
    return reader.count((_WITH_EPOCH if with_epoch else _WITHOUT_EPOCH).size + 2)


def _read_partitions(
    reader: _Reader, count: int, found: list[CommittedPartition], *, with_epoch: bool
) -> None:
    """Reads the next `count` partitions into `found`."""
    fixed = _WITH_EPOCH if with_epoch else _WITHOUT_EPOCH
    unpack, size, flexible, data = fixed.unpack_from, fixed.size, reader.flexible, reader.data
    leader_epoch = NO_EPOCH
    for _ in range(count):
        at = reader.at
        if with_epoch:
            index, offset, leader_epoch = unpack(data, at)
        else:
            index, offset = unpack(data, at)
        at += size
        if not data[at + 1] and data[at] < (2 if flexible else 1):
            # No metadata, and no tagged fields: nearly always.
            reader.at = at + 2
            metadata = b""
        else:
            reader.at = at
            metadata = reader.raw() or b""
            _decoded(metadata)
            reader.skip_tags()
        found.append((index, offset, leader_epoch, metadata))


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedFrame("a string is not UTF-8") from None


def _count(count: int, *, flexible: bool) -> bytes:
    if flexible:
        return uvarint_bytes(count + 1)
    return _COUNTS[count] if count < len(_COUNTS) else INT32.pack(count)
