"""The request of Fetch (1), served in versions 4-18: a codec of our own, since every consumer asks all the time.

    body                      versions   note
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

From v12 on all is flexible. Left out on purpose: replicas do not fetch over the wire here, so a request with a
replica id of 0 or more is refused.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple
from uuid import UUID

from appliance.errors import MalformedFrame, RejectedRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.primitives import (
    ELEMENTS_MAX,
    INT32,
    TAGGED_BYTES_MAX,
    TAGGED_FIELDS_MAX,
    skip_tagged_fields,
    text_at,
    uuid_at,
    uvarint_at,
)

FIRST_FLEXIBLE: Final = 12
FIRST_BY_TOPIC_ID: Final = 13
FIRST_WITH_SESSIONS: Final = 7

FULL_FETCH_EPOCH: Final = -1


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


def parse_fetch(
    buffer: memoryview, position: int, end: int, version: int, partitions_max: int = ELEMENTS_MAX
) -> FetchRequest:
    """The request whose body lies in `buffer[position:end]`.

    Raises:
        MalformedFrame: the body does not parse, or holds more elements than a request may.
        RejectedRequest: it comes from a replica (CLUSTER_AUTHORIZATION_FAILED), or names more than `partitions_max`
            partitions (INVALID_REQUEST).
    """
    # Reading past the end of this view fails by itself, so most fields need no check of their own.
    view = buffer[:end]
    try:
        if version >= FIRST_FLEXIBLE:
            return _parse_flexible(view, position, end, version, partitions_max)
        return _parse_fixed(view, position, end, version, partitions_max)
    except (IndexError, struct_error) as error:
        raise MalformedFrame("the frame ends inside a fetch request") from error


# Both parsers are one straight path with many short branches on purpose: a call costs more than a branch.
def _parse_fixed(  # noqa: PLR0912, PLR0915
    view: memoryview, position: int, end: int, version: int, partitions_max: int
) -> FetchRequest:
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
    partitions: list[FetchPartition] = []
    for _ in range(topic_count):
        topic, position, count = _fixed_topic(view, position)
        elements_left -= count
        if count < 0 or elements_left < 0 or count * form.size > end - position:
            raise MalformedFrame(f"{count} partitions in a fetch request")
        if len(partitions) + count > partitions_max:
            raise _too_many(partitions_max)
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


def _too_many(partitions_max: int) -> RejectedRequest:
    return RejectedRequest(
        ErrorCode.INVALID_REQUEST, f"more than {partitions_max} partitions in a fetch request"
    )


def _fixed_topic(view: memoryview, position: int) -> tuple[str, int, int]:
    """(name, position after the count, count) of a topic and the array that follows it."""
    length: int = _LENGTH16.unpack_from(view, position)[0]
    if length < 0:
        raise MalformedFrame(f"a topic name of {length} bytes")
    topic, position = text_at(view, position + 2, position + 2 + length)
    return topic, position + 4, INT32.unpack_from(view, position)[0]


def _parse_flexible(  # noqa: PLR0912, PLR0915
    view: memoryview, position: int, end: int, version: int, partitions_max: int
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
    partitions: list[FetchPartition] = []
    for _ in range(topic_count - 1):
        topic, position, count = _flexible_topic(view, position, end, by_id=by_id)
        elements_left -= count
        if count < 0 or elements_left < 0 or count * (_PARTITION_V12.size + 1) > end - position:
            raise MalformedFrame(f"{count} partitions in a fetch request")
        if len(partitions) + count > partitions_max:
            raise _too_many(partitions_max)
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
