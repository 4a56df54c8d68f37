"""Fetch (1), served in versions 4-18: a codec of our own, because records leave by `sendfile`.

    request body              versions   note
    replica id     int32      4-14       -1 for a client; later in tagged field 1
    max wait       int32      all        ms
    min bytes      int32      all
    max bytes      int32      all
    isolation      int8       all        0 uncommitted, 1 committed
    session id     int32      7+         0 for a full fetch (KIP-227)
    session epoch  int32      7+         -1 for a full fetch, 0 to begin a session
    topics         array      all        name (4-12) or id (13+), partitions
    forgotten      array      7+         name or id, partition indexes
    rack           string     11+

    partition                 4    5    9    12   (first version)
    index          int32      ·
    leader epoch   int32                ·
    fetch offset   int64      ·
    last epoch     int32                     ·
    log start      int64           ·
    max bytes      int32      ·

From v12 on all is flexible. A response is made of pieces: bytes, and slots where the records of a partition
go, whose length must be known before the first byte leaves. Left out on purpose: replicas do not fetch over
the wire here, so a request with a replica id of 0 or more is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from appliance.errors import MalformedFrame, RejectedRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.node_endpoint import (
    CurrentLeader,
    NodeEndpoint,
    current_leader_field,
    node_endpoints_field,
)
from appliance.protocol.primitives import (
    ELEMENTS_MAX,
    INT32,
    TAGGED_BYTES_MAX,
    TAGGED_FIELDS_MAX,
    compact_string_bytes,
    skip_tagged_fields,
    string_bytes,
    text_at,
    uuid_at,
    uvarint_at,
    uvarint_bytes,
)

FIRST_FLEXIBLE: Final = 12
FIRST_BY_TOPIC_ID: Final = 13
FIRST_WITH_SESSIONS: Final = 7

FULL_FETCH_EPOCH: Final = -1
NEW_SESSION_EPOCH: Final = 0


class FetchPartition(NamedTuple):
    """What a client wants of one partition; epochs are -1 where it does not say."""

    topic: str | UUID
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class ForgottenPartition(NamedTuple):
    """A partition that leaves the fetch session."""

    topic: str | UUID
    partition: int


class FetchRequest(NamedTuple):
    """A fetch request, its partitions in wire order, which is the order to serve them in."""

    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[ForgottenPartition, ...]
    rack: str


class AbortedTransaction(NamedTuple):
    """A transaction whose records a read_committed client drops, from `first_offset` to its abort marker."""

    producer_id: int
    first_offset: int


class DivergingEpoch(NamedTuple):
    """The largest epoch and its end offset that leader and client agree on (KIP-320)."""

    epoch: int
    end_offset: int


class FetchedPartition(NamedTuple):
    """The answer for one partition. `records_length` bytes of records will be put into its slot.

    `aborted_transactions` is None for a client that reads uncommitted.
    """

    topic: str | UUID
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records_length: int = 0
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: DivergingEpoch | None = None
    current_leader: CurrentLeader | None = None


class RecordsSlot(NamedTuple):
    """The place of the records of the partition that stands at `ordinal` among those given."""

    ordinal: int


Piece: TypeAlias = bytes | RecordsSlot


class FetchFrames(NamedTuple):
    """A response in wire order and the length of the whole frame, prefix and records included.

    Partitions without records have no slot.
    """

    pieces: list[Piece]
    length_bytes: int


# ── request ──────────────────────────────────────────────────────────────────────────────────────────────

_HEAD_V4: Final = Struct(">iiiib")
_HEAD_V7: Final = Struct(">iiiibii")
_HEAD_V15: Final = Struct(">iiibii")

_PARTITION_V4: Final = Struct(">iqi")
_PARTITION_V5: Final = Struct(">iqqi")
_PARTITION_V9: Final = Struct(">iiqqi")
_PARTITION_V12: Final = Struct(">iiqiqi")

_LENGTH16: Final = Struct(">h")
_REPLICA_STATE_TAG: Final = 1

_new: Final = tuple.__new__  # half the price of calling the class, which pays for its argument names


def parse_fetch(buffer: memoryview, position: int, end: int, version: int) -> FetchRequest:
    """The request whose body lies in `buffer[position:end]`.

    Raises:
        MalformedFrame: the body does not parse, or holds more elements than a request may.
        RejectedRequest: it comes from a replica (CLUSTER_AUTHORIZATION_FAILED).
    """
    # Reading past the end of this view fails by itself, so most fields need no check of their own.
    view = buffer[:end]
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_flexible(view, position, end, version)
        return _parse_fixed(view, position, end, version)
    except (IndexError, struct_error) as error:
        raise MalformedFrame("the frame ends inside a fetch request") from error


# Both parsers are one straight path with many short branches on purpose: a call costs more than a branch.
def _parse_fixed(view: memoryview, position: int, end: int, version: int) -> FetchRequest:  # noqa: PLR0912
    session_id, session_epoch = 0, FULL_FETCH_EPOCH
    if version >= FIRST_WITH_SESSIONS:
        (
            replica_id,
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation_level,
            session_id,
            session_epoch,
        ) = _HEAD_V7.unpack_from(view, position)
        position += _HEAD_V7.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD_V4.unpack_from(view, position)
        position += _HEAD_V4.size
    if replica_id >= 0:
        raise _replica_refused(replica_id)
    form = _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4
    elements_left = ELEMENTS_MAX
    topic_count: int = INT32.unpack_from(view, position)[0]
    position += 4
    elements_left -= topic_count
    if topic_count < 0 or elements_left < 0:
        raise MalformedFrame(f"{topic_count} topics in a fetch request")
    partitions = []
    for _ in range(topic_count):
        topic, position, count = _fixed_topic(view, position)
        elements_left -= count
        if count < 0 or elements_left < 0 or count * form.size > end - position:
            raise MalformedFrame(f"{count} partitions in a fetch request")
        for _ in range(count):
            if version >= 9:
                index, epoch, offset, log_start, most = form.unpack_from(view, position)
                values = (topic, index, epoch, offset, -1, log_start, most)
            elif version >= 5:
                index, offset, log_start, most = form.unpack_from(view, position)
                values = (topic, index, -1, offset, -1, log_start, most)
            else:
                index, offset, most = form.unpack_from(view, position)
                values = (topic, index, -1, offset, -1, -1, most)
            position += form.size
            partitions.append(_new(FetchPartition, values))
    forgotten: list[ForgottenPartition] = []
    if version >= FIRST_WITH_SESSIONS:
        topic_count = INT32.unpack_from(view, position)[0]
        position += 4
        elements_left -= topic_count
        if topic_count < 0 or elements_left < 0:
            raise MalformedFrame(f"{topic_count} forgotten topics in a fetch request")
        for _ in range(topic_count):
            topic, position, count = _fixed_topic(view, position)
            forgotten += [ForgottenPartition(topic, index) for index in _indexes(view, position, end, count)]
            position += INT32.size * count
            if len(forgotten) > elements_left:
                raise MalformedFrame(f"more than {ELEMENTS_MAX} elements in a fetch request")
    rack = ""
    if version >= 11:
        length: int = _LENGTH16.unpack_from(view, position)[0]
        if length < 0:
            raise MalformedFrame("the rack is null")
        rack, position = text_at(view, position + 2, position + 2 + length)
    return FetchRequest(
        version,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        tuple(partitions),
        tuple(forgotten),
        rack,
    )


def _fixed_topic(view: memoryview, position: int) -> tuple[str, int, int]:
    """(name, position after the count, count) of a topic and the array that follows it."""
    length: int = _LENGTH16.unpack_from(view, position)[0]
    if length < 0:
        raise MalformedFrame(f"a topic name of {length} bytes")
    topic, position = text_at(view, position + 2, position + 2 + length)
    return topic, position + 4, INT32.unpack_from(view, position)[0]


def _parse_flexible(  # noqa: PLR0912, PLR0915
    view: memoryview, position: int, end: int, version: int
) -> FetchRequest:
    if version >= 15:
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = _HEAD_V15.unpack_from(
            view, position
        )
        position += _HEAD_V15.size
    else:
        (
            replica_id,
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation_level,
            session_id,
            session_epoch,
        ) = _HEAD_V7.unpack_from(view, position)
        position += _HEAD_V7.size
        if replica_id >= 0:
            raise _replica_refused(replica_id)
    by_id = version >= FIRST_BY_TOPIC_ID
    topic_count = view[position]
    position += 1
    if topic_count >= 0x80:
        topic_count, position = uvarint_at(view, position - 1, end)
    elements_left = ELEMENTS_MAX - topic_count
    if not topic_count or elements_left < 0:
        raise MalformedFrame(f"{topic_count - 1} topics in a fetch request")
    partitions = []
    for _ in range(topic_count - 1):
        topic, position, count = _flexible_topic(view, position, end, by_id=by_id)
        elements_left -= count
        if count < 0 or elements_left < 0 or count * (_PARTITION_V12.size + 1) > end - position:
            raise MalformedFrame(f"{count} partitions in a fetch request")
        for _ in range(count):
            partitions.append(_new(FetchPartition, (topic, *_PARTITION_V12.unpack_from(view, position))))
            position += _PARTITION_V12.size
            # Directory id and high watermark are for replicas.
            if view[position]:
                position = skip_tagged_fields(view, position, end)
            else:
                position += 1
        if view[position]:
            position = skip_tagged_fields(view, position, end)
        else:
            position += 1
    forgotten: list[ForgottenPartition] = []
    topic_count = view[position]
    position += 1
    if topic_count != 1:
        if topic_count >= 0x80:
            topic_count, position = uvarint_at(view, position - 1, end)
        elements_left -= topic_count
        if not topic_count or elements_left < 0:
            raise MalformedFrame(f"{topic_count - 1} forgotten topics in a fetch request")
        for _ in range(topic_count - 1):
            topic, position, count = _flexible_topic(view, position, end, by_id=by_id)
            forgotten += [ForgottenPartition(topic, index) for index in _indexes(view, position, end, count)]
            position = skip_tagged_fields(view, position + INT32.size * count, end)
            if len(forgotten) > elements_left:
                raise MalformedFrame(f"more than {ELEMENTS_MAX} elements in a fetch request")
    rack = ""
    length = view[position]
    position += 1
    if length != 1:
        if length >= 0x80:
            length, position = uvarint_at(view, position - 1, end)
        if not length:
            raise MalformedFrame("the rack is null")
        rack, position = text_at(view, position, position + length - 1)
    if view[position]:
        _refuse_replica_state(view, position, end, version)
    return FetchRequest(
        version,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        tuple(partitions),
        tuple(forgotten),
        rack,
    )


def _flexible_topic(view: memoryview, position: int, end: int, *, by_id: bool) -> tuple[str | UUID, int, int]:
    """(name or id, position after the count, count) of a topic and the array that follows it."""
    topic: str | UUID
    if by_id:
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
    count = view[position]
    if count < 0x80:
        return topic, position + 1, count - 1
    count, position = uvarint_at(view, position, end)
    return topic, position, count - 1


def _indexes(view: memoryview, position: int, end: int, count: int) -> tuple[int, ...]:
    """The partition indexes of a forgotten topic."""
    if not 0 <= count <= (end - position) // INT32.size or count > ELEMENTS_MAX:
        raise MalformedFrame(f"{count} forgotten partitions in a fetch request")
    return Struct(f">{count}i").unpack_from(view, position)


def _refuse_replica_state(view: memoryview, position: int, end: int, version: int) -> None:
    """Walk the tagged fields of the body; the only one that matters is a replica's state (v15+)."""
    count, position = uvarint_at(view, position, end)
    if count > TAGGED_FIELDS_MAX:
        raise MalformedFrame(f"{count} tagged fields in one structure")
    for _ in range(count):
        tag, position = uvarint_at(view, position, end)
        size, position = uvarint_at(view, position, end)
        if size > min(TAGGED_BYTES_MAX, end - position):
            raise MalformedFrame(f"a tagged field of {size} bytes")
        if tag == _REPLICA_STATE_TAG and version >= 15:
            replica_id: int = INT32.unpack_from(view, position)[0]
            if replica_id >= 0:
                raise _replica_refused(replica_id)
        position += size


def _replica_refused(replica_id: int) -> RejectedRequest:
    return RejectedRequest(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        f"Replica {replica_id} may not fetch here: replicas of this broker do not use the network.",
    )


# ── response ─────────────────────────────────────────────────────────────────────────────────────────────

# One partition, the usual answer: two structs with the topic between them.
_ONE_HEAD_V4: Final = Struct(">iiii")  # size, correlation id, throttle, 1 topic
_ONE_HEAD_V7: Final = Struct(">iiihii")  # size, correlation id, throttle, error, session id, 1 topic
_ONE_HEAD_V12: Final = Struct(
    ">iibihib"
)  # size, correlation id, no tags, throttle, error, session id, 1 topic
_ONE_V4: Final = Struct(">iihqqii")  # 1 partition, index, error, high watermark, stable, aborted, records
_ONE_V5: Final = Struct(">iihqqqii")  # … log start, aborted, records
_ONE_V11: Final = Struct(">iihqqqiii")  # … aborted, preferred replica, records
_ONE_V12: Final = Struct(">bihqqqbi")  # … aborted, preferred replica

_RESPONSE_V4: Final = Struct(">iii")
_RESPONSE_V7: Final = Struct(">iiihi")
_RESPONSE_V12: Final = Struct(">iibihi")
_NUMBERS_V4: Final = Struct(">ihqq")
_NUMBERS_V5: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_DIVERGING: Final = Struct(">bbiqb")  # tag 0, size, epoch, end offset, no tagged fields of its own

_NO_TAGS_THRICE: Final[bytes] = b"\x00\x00\x00"
_SLOTS: Final = tuple(RecordsSlot(ordinal) for ordinal in range(64))

_topic_of: Final = attrgetter("topic")

_TopicGroup: TypeAlias = tuple[str | UUID, tuple[FetchedPartition, ...]]


def encode_fetch_response(
    version: int,
    correlation_id: int,
    partitions: Sequence[FetchedPartition],
    *,
    throttle_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> FetchFrames:
    """The pieces of a fetch response, in wire order.

    Neighbours of the same topic share its entry, so partitions of a topic should stand together. A top-level
    error needs v7; before it must be told in each partition. `node_endpoints` are left out before v16.
    """
    if len(partitions) == 1 and not node_endpoints:
        one = partitions[0]
        if not one.aborted_transactions and one.diverging_epoch is None and one.current_leader is None:
            return _encode_one(
                version,
                correlation_id,
                one,
                throttle_ms=throttle_ms,
                error_code=error_code,
                session_id=session_id,
            )
    groups = [(topic, tuple(group)) for topic, group in groupby(partitions, _topic_of)]
    if version >= FIRST_FLEXIBLE:
        out = _Pieces(_RESPONSE_V12.pack(0, correlation_id, 0, throttle_ms, error_code, session_id))
        _encode_flexible(out, version, groups)
        out.bytes += node_endpoints_field(node_endpoints if version >= 16 else ())
    else:
        if version >= FIRST_WITH_SESSIONS:
            out = _Pieces(_RESPONSE_V7.pack(0, correlation_id, throttle_ms, error_code, session_id))
        else:
            out = _Pieces(_RESPONSE_V4.pack(0, correlation_id, throttle_ms))
        _encode_fixed(out, version, groups)
    return out.finish()


def _encode_one(
    version: int,
    correlation_id: int,
    one: FetchedPartition,
    *,
    throttle_ms: int,
    error_code: int,
    session_id: int,
) -> FetchFrames:
    topic, index, error, high_watermark, stable, log_start, length, aborted, preferred, _, _ = one
    name = _topic_bytes(topic, version)
    if version >= FIRST_FLEXIBLE:
        no_aborted = 0 if aborted is None else 1
        part = _ONE_V12.pack(2, index, error, high_watermark, stable, log_start, no_aborted, preferred)
        part += uvarint_bytes(length + 1)
        total = _ONE_HEAD_V12.size + len(name) + len(part) + length + len(_NO_TAGS_THRICE)
        head = _ONE_HEAD_V12.pack(total - 4, correlation_id, 0, throttle_ms, error_code, session_id, 2)
        if not length:
            return _new(FetchFrames, ([head + name + part + _NO_TAGS_THRICE], total))
        return _new(FetchFrames, ([head + name + part, _SLOTS[0], _NO_TAGS_THRICE], total))
    no_aborted = -1 if aborted is None else 0
    if version >= 11:
        part = _ONE_V11.pack(
            1, index, error, high_watermark, stable, log_start, no_aborted, preferred, length
        )
    elif version >= 5:
        part = _ONE_V5.pack(1, index, error, high_watermark, stable, log_start, no_aborted, length)
    else:
        part = _ONE_V4.pack(1, index, error, high_watermark, stable, no_aborted, length)
    if version >= FIRST_WITH_SESSIONS:
        total = _ONE_HEAD_V7.size + len(name) + len(part) + length
        head = _ONE_HEAD_V7.pack(total - 4, correlation_id, throttle_ms, error_code, session_id, 1)
    else:
        total = _ONE_HEAD_V4.size + len(name) + len(part) + length
        head = _ONE_HEAD_V4.pack(total - 4, correlation_id, throttle_ms, 1)
    if not length:
        return _new(FetchFrames, ([head + name + part], total))
    return _new(FetchFrames, ([head + name + part, _SLOTS[0]], total))


class _Pieces:
    """Collects bytes and slots, and counts both."""

    __slots__ = ("bytes", "length_bytes", "pieces")

    def __init__(self, head: bytes) -> None:
        self.bytes = bytearray(head)
        self.pieces: list[Piece] = []
        self.length_bytes = 0

    def slot(self, ordinal: int, records_length: int) -> None:
        if records_length:
            self._close()
            self.pieces.append(_SLOTS[ordinal] if ordinal < len(_SLOTS) else RecordsSlot(ordinal))
            self.length_bytes += records_length

    def finish(self) -> FetchFrames:
        self._close()
        first = self.pieces[0]
        size = INT32.pack(self.length_bytes - INT32.size)
        self.pieces[0] = size + bytes(first[INT32.size :])  # never a slot: a frame begins with its size
        return FetchFrames(self.pieces, self.length_bytes)

    def _close(self) -> None:
        if self.bytes:
            self.pieces.append(bytes(self.bytes))
            self.length_bytes += len(self.bytes)
            self.bytes = bytearray()


def _encode_fixed(out: _Pieces, version: int, groups: list[_TopicGroup]) -> None:
    out.bytes += INT32.pack(len(groups))
    ordinal = 0
    for topic, group in groups:
        out.bytes += _topic_bytes(topic, version) + INT32.pack(len(group))
        for one in group:
            out.bytes += _numbers(one, version)
            if one.aborted_transactions is None:
                out.bytes += INT32.pack(-1)
            else:
                out.bytes += INT32.pack(len(one.aborted_transactions))
                for aborted in one.aborted_transactions:
                    out.bytes += _ABORTED.pack(*aborted)
            if version >= 11:
                out.bytes += INT32.pack(one.preferred_read_replica)
            out.bytes += INT32.pack(one.records_length)
            out.slot(ordinal, one.records_length)
            ordinal += 1


def _encode_flexible(out: _Pieces, version: int, groups: list[_TopicGroup]) -> None:
    out.bytes += uvarint_bytes(len(groups) + 1)
    ordinal = 0
    for topic, group in groups:
        out.bytes += _topic_bytes(topic, version) + uvarint_bytes(len(group) + 1)
        for one in group:
            out.bytes += _numbers(one, version)
            if one.aborted_transactions is None:
                out.bytes += b"\x00"
            else:
                out.bytes += uvarint_bytes(len(one.aborted_transactions) + 1)
                for aborted in one.aborted_transactions:
                    out.bytes += _ABORTED.pack(*aborted) + b"\x00"
            out.bytes += INT32.pack(one.preferred_read_replica)
            out.bytes += uvarint_bytes(one.records_length + 1)
            out.slot(ordinal, one.records_length)
            out.bytes += _partition_tags(one)
            ordinal += 1
        out.bytes += b"\x00"


def _partition_tags(one: FetchedPartition) -> bytes:
    tags = []
    if one.diverging_epoch is not None:
        tags.append(_DIVERGING.pack(0, 13, one.diverging_epoch.epoch, one.diverging_epoch.end_offset, 0))
    if one.current_leader is not None:
        tags.append(current_leader_field(1, one.current_leader))
    return uvarint_bytes(len(tags)) + b"".join(tags)


def _numbers(one: FetchedPartition, version: int) -> bytes:
    if version >= 5:
        return _NUMBERS_V5.pack(
            one.partition, one.error_code, one.high_watermark, one.last_stable_offset, one.log_start_offset
        )
    return _NUMBERS_V4.pack(one.partition, one.error_code, one.high_watermark, one.last_stable_offset)


def _topic_bytes(topic: str | UUID, version: int) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    if version < FIRST_FLEXIBLE:
        return string_bytes(topic)
    return compact_string_bytes(topic)
