"""Produce (0), served in versions 3-13: a codec of our own, because payloads must not be copied.

    request body, v3-8                             v9-13 (flexible)
    transactional id   nullable string             compact nullable string
    acks               int16                       int16
    timeout            int32                       int32
    topics             array of                    compact array of
      name               string                      compact string, v13: topic id, 16 bytes
      partitions         array of                    compact array of
        index              int32                       int32
        records            int32 length, bytes         uvarint length + 1, bytes, tagged fields
                                                     tagged fields
                                                   tagged fields

Records are told by position and length in the buffer; nobody here looks at them. v5 adds the log start offset
to the answer, v8 errors by record (KIP-467), v10 the new leader beside NOT_LEADER_OR_FOLLOWER (KIP-951), v13
replaces names by ids (KIP-516). Versions 0-2 are advertised and refused (see `api_versions`).

A producer sends the same bytes over and over between its correlation id and its partition index.
`ProduceMemo` remembers them for a connection, and so reads the usual frame, one topic and one partition,
with one comparison. Left out on purpose: what acks may be, whether partitions repeat and whether records
are there is for the handler, which has an error code for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple
from uuid import UUID

from appliance.errors import MalformedFrame
from appliance.protocol.headers import RequestHeader
from appliance.protocol.node_endpoint import (
    CurrentLeader,
    NodeEndpoint,
    current_leader_field,
    node_endpoints_field,
)
from appliance.protocol.primitives import (
    ELEMENTS_MAX,
    INT32,
    compact_string_bytes,
    skip_tagged_fields,
    string_bytes,
    text_at,
    uuid_at,
    uvarint_at,
    uvarint_bytes,
)

FIRST_FLEXIBLE: Final = 9
FIRST_BY_TOPIC_ID: Final = 13

NULL_RECORDS: Final = -1
"""`records_length` of a partition whose records are null."""


class ProducePartition(NamedTuple):
    """Records for one partition: `records_length` bytes of the buffer from `records_position` on.

    `topic` is a name up to v12 and an id in v13.
    """

    topic: str | UUID
    partition: int
    records_position: int
    records_length: int


class ProduceRequest(NamedTuple):
    """The skeleton of a produce request, its partitions in wire order."""

    version: int
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]


class RecordError(NamedTuple):
    """Why the record at `batch_index` made its whole batch fail."""

    batch_index: int
    message: str | None = None


class ProduceResult(NamedTuple):
    """The answer for one partition; `topic` as in the request. Times and offsets are -1 where not known."""

    topic: str | UUID
    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: tuple[RecordError, ...] = ()
    current_leader: CurrentLeader | None = None


# ── request ──────────────────────────────────────────────────────────────────────────────────────────────

_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_INDEX_AND_LENGTH: Final = Struct(">ii")
_LENGTH16: Final = Struct(">h")

_NO_TAGS_THRICE: Final[bytes] = b"\x00\x00\x00"

_PARTITION_BYTES_MIN: Final = 8
_FLEXIBLE_PARTITION_BYTES_MIN: Final = 6

_new: Final = tuple.__new__  # half the price of calling the class, which pays for its argument names


def parse_produce(buffer: memoryview, position: int, end: int, version: int) -> ProduceRequest:
    """The request whose body lies in `buffer[position:end]`.

    Raises:
        MalformedFrame: the body does not parse, or holds more elements than a request may.
    """
    # Reading past the end of this view fails by itself, so most fields need no check of their own.
    view = buffer[:end]
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_flexible(view, position, end, version)
        return _parse_fixed(view, position, end, version)
    except (IndexError, struct_error) as error:
        raise MalformedFrame("the frame ends inside a produce request") from error


# Both parsers are one straight path with many short branches on purpose: a call costs more than a branch.
def _parse_fixed(view: memoryview, position: int, end: int, version: int) -> ProduceRequest:
    transactional_id: str | None = None
    length: int = _LENGTH16.unpack_from(view, position)[0]
    position += 2
    if length >= 0:
        transactional_id, position = text_at(view, position, position + length)
    elif length != -1:
        raise MalformedFrame(f"a transactional id of {length} bytes")
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(view, position)
    topic_count: int = INT32.unpack_from(view, position + 6)[0]
    position += 10
    elements_left = ELEMENTS_MAX - topic_count
    if topic_count < 0 or elements_left < 0:
        raise MalformedFrame(f"{topic_count} topics in a produce request")
    partitions = []
    for _ in range(topic_count):
        length = _LENGTH16.unpack_from(view, position)[0]
        if length < 0:
            raise MalformedFrame(f"a topic name of {length} bytes")
        topic, position = text_at(view, position + 2, position + 2 + length)
        partition_count: int = INT32.unpack_from(view, position)[0]
        position += 4
        elements_left -= partition_count
        if (
            partition_count < 0
            or elements_left < 0
            or partition_count * _PARTITION_BYTES_MIN > end - position
        ):
            raise MalformedFrame(f"{partition_count} partitions in a produce request")
        for _ in range(partition_count):
            index, length = _INDEX_AND_LENGTH.unpack_from(view, position)
            position += 8
            partitions.append(_new(ProducePartition, (topic, index, position, length)))
            if length > 0:
                position += length
            elif length < NULL_RECORDS:
                raise MalformedFrame(f"records of {length} bytes")
    if position > end:
        raise MalformedFrame("the records are longer than their frame")
    return _new(ProduceRequest, (version, transactional_id, acks, timeout_ms, tuple(partitions)))


def _parse_flexible(  # noqa: PLR0912, PLR0915
    view: memoryview, position: int, end: int, version: int
) -> ProduceRequest:
    transactional_id: str | None = None
    length = view[position]
    position += 1
    if length:
        if length >= 0x80:
            length, position = uvarint_at(view, position - 1, end)
        transactional_id, position = text_at(view, position, position + length - 1)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(view, position)
    topic_count = view[position + 6]
    position += 7
    if topic_count >= 0x80:
        topic_count, position = uvarint_at(view, position - 1, end)
    elements_left = ELEMENTS_MAX - topic_count
    if not topic_count or elements_left < 0:
        raise MalformedFrame(f"{topic_count - 1} topics in a produce request")
    partitions = []
    topic: str | UUID
    for _ in range(topic_count - 1):
        if version >= FIRST_BY_TOPIC_ID:
            topic = uuid_at(view, position)
            position += 16
        else:
            length = view[position]
            position += 1
            if length >= 0x80:
                length, position = uvarint_at(view, position - 1, end)
            if not length:
                raise MalformedFrame("a topic name is null")
            topic, position = text_at(view, position, position + length - 1)
        partition_count = view[position]
        position += 1
        if partition_count >= 0x80:
            partition_count, position = uvarint_at(view, position - 1, end)
        elements_left -= partition_count
        if (
            not partition_count
            or elements_left < 0
            or (partition_count - 1) * _FLEXIBLE_PARTITION_BYTES_MIN > end - position
        ):
            raise MalformedFrame(f"{partition_count - 1} partitions in a produce request")
        for _ in range(partition_count - 1):
            index = INT32.unpack_from(view, position)[0]
            length = view[position + 4]
            position += 5
            if length >= 0x80:
                length, position = uvarint_at(view, position - 1, end)
            partitions.append(_new(ProducePartition, (topic, index, position, length - 1)))
            if length:
                position += length - 1
            if view[position]:
                position = skip_tagged_fields(view, position, end)
            else:
                position += 1
        if view[position]:
            position = skip_tagged_fields(view, position, end)
        else:
            position += 1
    if view[position]:
        skip_tagged_fields(view, position, end)
    return _new(ProduceRequest, (version, transactional_id, acks, timeout_ms, tuple(partitions)))


_NO_REQUEST: Final = ProduceRequest(-1, None, 0, 0, ())
"""Of who has remembered none yet."""


class ProduceMemo:
    """What a connection's last produce request of one partition said before its partition index.

        ┌─────┬─────────┬────────────────┬──────────────────────────────┬───────┬────────┬─────────┬───────┐
        │ key │ version │ correlation id │ client id … partition count  │ index │ length │ records │ 0 0 0 │
        └─────┴─────────┴────────────────┴──────────────────────────────┴───────┴────────┴─────────┴───────┘
                                         └─────── remembered ───────────┘

    If the next frame holds the same bytes there, all that is left to read is index and length. One for each
    connection, kept by its owner; a frame that differs in any way is read the long way, so the memo can be
    wrong about speed only, never about a request.
    """

    __slots__ = ("_flexible", "_index_offset", "_remembered", "_request", "_topic", "_version", "client_id")

    def __init__(self) -> None:
        self._version = -1
        self._remembered = b""
        self._index_offset = 0
        self._flexible = False
        self._topic: str | UUID = ""
        self._request = _NO_REQUEST
        self.client_id: str | None = None

    def parse(self, buffer: memoryview, start: int, end: int, version: int) -> ProduceRequest | None:
        """The request of the frame `buffer[start:end]` (size prefix not included), or None if it is another
        one."""
        if version != self._version:
            return None
        position = start + self._index_offset
        if buffer[start + 8 : position] != self._remembered or end - position < 8:
            return None
        if self._flexible:
            index = INT32.unpack_from(buffer, position)[0]
            length = buffer[position + 4]
            position += 5
            if length >= 0x80:
                length, position = uvarint_at(buffer, position - 1, end)
            length -= 1
            # Three empty runs of tagged fields, of partition, topic and body, must end the frame.
            if length < 0 or position + length + 3 != end or buffer[end - 3 : end] != _NO_TAGS_THRICE:
                return None
        else:
            index, length = _INDEX_AND_LENGTH.unpack_from(buffer, position)
            position += 8
            if length < 0 or position + length != end:
                return None
        _, transactional_id, acks, timeout_ms, _ = self._request
        return _new(
            ProduceRequest,
            (
                version,
                transactional_id,
                acks,
                timeout_ms,
                (_new(ProducePartition, (self._topic, index, position, length)),),
            ),
        )

    def remember(
        self, buffer: memoryview, start: int, *, header: RequestHeader, request: ProduceRequest
    ) -> None:
        """Keep what `request`, read the long way, has in common with the next of its kind."""
        if len(request.partitions) != 1:
            self._version = -1
            return
        position = _index_position(buffer, header.body_position, header.version)
        self._version = header.version
        self._flexible = header.version >= FIRST_FLEXIBLE
        self._index_offset = position - start
        self._remembered = bytes(buffer[start + 8 : position])
        self._topic = request.partitions[0].topic
        self._request = request._replace(partitions=())
        self.client_id = header.client_id


def _index_position(buffer: memoryview, position: int, version: int) -> int:
    """Where the first partition index stands in a body that parsed."""
    end = len(buffer)
    if version < FIRST_FLEXIBLE:
        position += 2 + max(0, _LENGTH16.unpack_from(buffer, position)[0]) + 6 + 4
        name_length: int = _LENGTH16.unpack_from(buffer, position)[0]
        return position + 2 + name_length + 4
    length, position = uvarint_at(buffer, position, end)
    position += max(0, length - 1) + 6
    _, position = uvarint_at(buffer, position, end)
    if version >= FIRST_BY_TOPIC_ID:
        position += 16
    else:
        length, position = uvarint_at(buffer, position, end)
        position += length - 1
    return uvarint_at(buffer, position, end)[1]


# ── response ─────────────────────────────────────────────────────────────────────────────────────────────

# One partition without an error, the answer to nearly every request: two structs with the topic between them.
_HEAD_FIXED: Final = Struct(">iii")  # size, correlation id, 1 topic
_TAIL_V3: Final = Struct(">iihqqi")  # 1 partition, index, error, base offset, append time, throttle
_TAIL_V5: Final = Struct(">iihqqqi")  # … log start offset, throttle
_TAIL_V8: Final = Struct(">iihqqqihi")  # … no record errors, no message, throttle
_HEAD_FLEXIBLE: Final = Struct(">iibb")  # size, correlation id, no tags, 1 topic
_TAIL_FLEXIBLE: Final = Struct(">bihqqqbbbbib")  # … no errors, no message, no tags twice, throttle, no tags

_PARTITION_V3: Final = Struct(">ihqq")
_PARTITION_V5: Final = Struct(">ihqqq")

_topic_of: Final = attrgetter("topic")


def encode_produce_response(
    version: int,
    correlation_id: int,
    results: Sequence[ProduceResult],
    *,
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The whole frame of a produce response.

    Results of one topic should stand together; they are answered in the order given. `node_endpoints` tell
    where the leaders named in the results listen, and are left out before v10.
    """
    if len(results) == 1 and not node_endpoints:
        topic, partition, error, base_offset, append_time_ms, start_offset, message, records, leader = (
            results[0]
        )
        if not error and message is None and not records and leader is None:
            name = _topic_bytes(topic, version)
            if version >= FIRST_FLEXIBLE:
                return (
                    _HEAD_FLEXIBLE.pack(
                        _HEAD_FLEXIBLE.size - 4 + len(name) + _TAIL_FLEXIBLE.size, correlation_id, 0, 2
                    )
                    + name
                    + _TAIL_FLEXIBLE.pack(
                        2, partition, 0, base_offset, append_time_ms, start_offset, 1, 0, 0, 0, throttle_ms, 0
                    )
                )
            if version >= 8:
                tail = _TAIL_V8.pack(
                    1, partition, 0, base_offset, append_time_ms, start_offset, 0, -1, throttle_ms
                )
            elif version >= 5:
                tail = _TAIL_V5.pack(1, partition, 0, base_offset, append_time_ms, start_offset, throttle_ms)
            else:
                tail = _TAIL_V3.pack(1, partition, 0, base_offset, append_time_ms, throttle_ms)
            return (
                _HEAD_FIXED.pack(_HEAD_FIXED.size - 4 + len(name) + len(tail), correlation_id, 1)
                + name
                + tail
            )
    out = bytearray(4)
    out += INT32.pack(correlation_id)
    groups = [(topic, tuple(group)) for topic, group in groupby(results, _topic_of)]
    if version >= FIRST_FLEXIBLE:
        _encode_flexible(out, version, groups)
        out += INT32.pack(throttle_ms)
        out += node_endpoints_field(node_endpoints if version >= 10 else ())
    else:
        _encode_fixed(out, version, groups)
        out += INT32.pack(throttle_ms)
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _encode_fixed(
    out: bytearray, version: int, groups: list[tuple[str | UUID, tuple[ProduceResult, ...]]]
) -> None:
    out += INT32.pack(len(groups))
    for topic, results in groups:
        out += _topic_bytes(topic, version) + INT32.pack(len(results))
        for one in results:
            out += _numbers(one, version)
            if version >= 8:
                out += INT32.pack(len(one.record_errors))
                for record_error in one.record_errors:
                    out += INT32.pack(record_error.batch_index) + string_bytes(record_error.message)
                out += string_bytes(one.error_message)


def _encode_flexible(
    out: bytearray, version: int, groups: list[tuple[str | UUID, tuple[ProduceResult, ...]]]
) -> None:
    out += b"\x00" + uvarint_bytes(len(groups) + 1)
    for topic, results in groups:
        out += _topic_bytes(topic, version) + uvarint_bytes(len(results) + 1)
        for one in results:
            out += _numbers(one, version) + uvarint_bytes(len(one.record_errors) + 1)
            for record_error in one.record_errors:
                out += INT32.pack(record_error.batch_index) + compact_string_bytes(record_error.message)
                out += b"\x00"
            out += compact_string_bytes(one.error_message)
            if one.current_leader is None or version < 10:
                out += b"\x00"
            else:
                out += b"\x01" + current_leader_field(0, one.current_leader)
        out += b"\x00"


def _numbers(one: ProduceResult, version: int) -> bytes:
    if version >= 5:
        return _PARTITION_V5.pack(
            one.partition, one.error_code, one.base_offset, one.log_append_time_ms, one.log_start_offset
        )
    return _PARTITION_V3.pack(one.partition, one.error_code, one.base_offset, one.log_append_time_ms)


def _topic_bytes(topic: str | UUID, version: int) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    if version < FIRST_FLEXIBLE:
        return string_bytes(topic)
    return compact_string_bytes(topic)
