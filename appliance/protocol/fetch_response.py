"""The response of Fetch (1), served in versions 4-18: a codec of our own, because records leave by `sendfile`.

    body                      versions   note
    throttle       int32      all        ms
    error          int16      7+         of the session
    session id     int32      7+         0 for none (KIP-227)
    topics         array      all        name (4-12) or id (13+), partitions
    endpoints      tagged 0   16+        where the leaders listen that partitions name

    partition                 versions   note
    index          int32      all
    error          int16      all
    high watermark int64      all
    last stable    int64      all
    log start      int64      5+
    aborted        array      all        producer id, first offset; null for who reads uncommitted
    preferred      int32      11+        replica to read from, -1 for none
    records        bytes      all
    diverging      tagged 0   12+        epoch, end offset (KIP-320)
    leader         tagged 1   12+        id, epoch

From v12 on all is flexible. A response is made of pieces: bytes, and slots where the records of a partition
go, whose length must be known before the first byte leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from appliance.protocol.fetch_request import FIRST_FLEXIBLE, FIRST_WITH_SESSIONS
from appliance.protocol.node_endpoint import (
    CurrentLeader,
    NodeEndpoint,
    current_leader_field,
    node_endpoints_field,
)
from appliance.protocol.primitives import INT32, compact_string_bytes, string_bytes, uvarint_bytes


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
_new: Final = tuple.__new__  # half the price of calling the class, which pays for its argument names

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
