"""Produce and Fetch as a client writes and reads them; every other API goes through `appliance.protocol.messages`.

The layouts stand in `appliance.protocol.produce`, `fetch_request` and `fetch_response`, for the broker's side. Records
are never copied here: a request is a list of buffers, an answer holds views of its frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.framing import SIZE, SIZE_BYTES
from appliance.protocol.headers import REQUEST_START
from appliance.protocol.node_endpoint import CurrentLeader, NodeEndpoint
from appliance.protocol.primitives import (
    INT32,
    NO_UUID,
    Cursor,
    compact_string_bytes,
    skip_tagged_fields,
    string_bytes,
    uuid_bytes,
    uvarint_bytes,
)
from appliance.protocol.records import batch as b
from appliance.protocol.records.batch import Buffer
from appliance.protocol.records.crc32c import checksum

PRODUCE_FLEXIBLE: Final = ApiKey.PRODUCE.first_flexible
PRODUCE_BY_ID: Final = 13
PRODUCE_ADDS_PARTITIONS: Final = 12
"""From this version on the broker adds the partition to the transaction (KIP-890)."""
FETCH_FLEXIBLE: Final = ApiKey.FETCH.first_flexible
FETCH_BY_ID: Final = 13

_ACKS_TIMEOUT: Final = Struct(">hi")
_INDEX_LENGTH: Final = Struct(">ii")
_FETCH_HEAD_V4: Final = Struct(">iiiib")
_FETCH_HEAD_V15: Final = Struct(">iiib")
_FETCH_SESSION: Final = Struct(">ii")
_FETCH_PARTITION_V4: Final = Struct(">iqi")
_FETCH_PARTITION_V5: Final = Struct(">iqqi")
_FETCH_PARTITION_V9: Final = Struct(">iiqqi")
_FETCH_PARTITION_V12: Final = Struct(">iiqiqi")


class TopicKey(NamedTuple):
    """How a topic is named: by its id where the version has ids."""

    name: str
    topic_id: UUID | None


class ProduceAnswer(NamedTuple):
    """One partition's answer; `topic` is a name, or an id from v13 on."""

    topic: str | UUID
    partition: int
    error_code: int
    base_offset: int
    append_time_ms: int
    log_start_offset: int
    message: str | None
    leader: CurrentLeader | None


class FetchWish(NamedTuple):
    """What is wanted of one partition. `last_epoch` is that of the record before `offset`, -1 where it is not to be
    compared with the leader's log."""

    topic: TopicKey
    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int
    last_epoch: int = -1


class FetchAnswer(NamedTuple):
    """One partition's answer. `aborted` is None for who reads uncommitted; `records` is a view of the frame.

    `diverging` is set where the leader's log has not what was read: the last epoch that both may have, and where that
    ends in the leader's log.
    """

    topic: str | UUID
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None
    records: memoryview
    leader: CurrentLeader | None
    diverging: tuple[int, int] | None = None


def request_start(api: ApiKey, version: int, correlation_id: int, client_id: bytes) -> bytearray:
    """The room for the size and the header of a request."""
    out = bytearray(SIZE_BYTES)
    out += REQUEST_START.pack(int(api), version, correlation_id, len(client_id))
    out += client_id
    if version >= api.first_flexible:
        out += b"\0"
    return out


def batch_header(
    payload: Buffer,
    *,
    count: int,
    attributes: int,
    first_ms: int,
    max_ms: int,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
) -> bytearray:
    """The header of a batch whose encoded records are `payload`, which is not copied. Times are of its records."""
    header = bytearray(b.HEADER_BYTES)
    b.HEADER.pack_into(
        header,
        0,
        0,
        b.HEADER_BYTES + len(payload) - b.LOG_OVERHEAD,
        b.NO_LEADER_EPOCH,
        b.MAGIC_V2,
        0,
        attributes,
        count - 1,
        first_ms,
        max_ms,
        producer_id,
        producer_epoch,
        sequence,
        count,
    )
    crc = checksum(payload, checksum(header[b.ATTRIBUTES :]))
    header[b.CRC : b.ATTRIBUTES] = crc.to_bytes(4, "big")
    return header


def produce_request(
    version: int,
    correlation_id: int,
    client_id: bytes,
    *,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[TopicKey, int, Sequence[Buffer]]],
) -> list[Buffer]:
    """A produce request as buffers. `batches`: topic, partition and pieces of a batch, those of a topic together."""
    flexible = version >= PRODUCE_FLEXIBLE
    head = request_start(ApiKey.PRODUCE, version, correlation_id, client_id)
    head += compact_string_bytes(transactional_id) if flexible else string_bytes(transactional_id)
    head += _ACKS_TIMEOUT.pack(acks, timeout_ms)
    groups: list[tuple[TopicKey, list[tuple[int, Sequence[Buffer]]]]] = []
    for topic, partition, batch in batches:
        if not groups or groups[-1][0] != topic:
            groups.append((topic, []))
        groups[-1][1].append((partition, batch))
    pieces: list[Buffer] = []
    out = head
    out += uvarint_bytes(len(groups) + 1) if flexible else INT32.pack(len(groups))
    for topic, parts in groups:
        out += _topic_bytes(topic, version, PRODUCE_BY_ID, flexible=flexible)
        out += uvarint_bytes(len(parts) + 1) if flexible else INT32.pack(len(parts))
        for partition, batch in parts:
            size_bytes = sum(map(len, batch))
            if flexible:
                out += INT32.pack(partition) + uvarint_bytes(size_bytes + 1)
            else:
                out += _INDEX_LENGTH.pack(partition, size_bytes)
            pieces += (out, *batch)
            out = bytearray(b"\0" if flexible else b"")
        if flexible:
            out += b"\0"
    if flexible:
        out += b"\0"
    pieces.append(out)
    SIZE.pack_into(head, 0, sum(map(len, pieces)) - SIZE_BYTES)
    return pieces


def parse_produce_answer(
    version: int, cursor: Cursor
) -> tuple[list[ProduceAnswer], int, tuple[NodeEndpoint, ...]]:
    """(answers, throttle in ms, where the new leaders listen) of a produce response's body."""
    flexible = version >= PRODUCE_FLEXIBLE
    count = cursor.compact_array_count if flexible else cursor.array_count
    answers = []
    for _ in range(count(1)):
        topic = _read_topic(cursor, version, PRODUCE_BY_ID, flexible=flexible)
        for _ in range(count(22)):
            partition, error, offset = cursor.int32(), cursor.int16(), cursor.int64()
            time_ms = cursor.int64()
            start = cursor.int64() if version >= 5 else -1
            message = None
            leader = None
            if version >= 8:
                for _ in range(count(5)):
                    cursor.int32()
                    said = cursor.compact_nullable_string() if flexible else cursor.nullable_string()
                    message = message or said
                    if flexible:
                        _skip_tags(cursor)
                whole = cursor.compact_nullable_string() if flexible else cursor.nullable_string()
                message = whole or message
            if flexible:
                leader = _tagged_leader(cursor, 0)
            answers.append(ProduceAnswer(topic, partition, error, offset, time_ms, start, message, leader))
        if flexible:
            _skip_tags(cursor)
    throttle_ms = cursor.int32()
    return answers, throttle_ms, _tagged_endpoints(cursor) if flexible else ()


def fetch_request(  # noqa: PLR0912 - a branch for each version that added a field
    version: int,
    correlation_id: int,
    client_id: bytes,
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation: int,
    rack: str,
    wishes: Sequence[FetchWish],
) -> bytes:
    """A full fetch (no session). `wishes`: those of a topic together."""
    flexible = version >= FETCH_FLEXIBLE
    out = request_start(ApiKey.FETCH, version, correlation_id, client_id)
    if version >= 15:
        out += _FETCH_HEAD_V15.pack(max_wait_ms, min_bytes, max_bytes, isolation)
    else:
        out += _FETCH_HEAD_V4.pack(-1, max_wait_ms, min_bytes, max_bytes, isolation)
    if version >= 7:
        out += _FETCH_SESSION.pack(0, -1)
    groups: list[tuple[TopicKey, list[FetchWish]]] = []
    for wish in wishes:
        if not groups or groups[-1][0] != wish.topic:
            groups.append((wish.topic, []))
        groups[-1][1].append(wish)
    out += uvarint_bytes(len(groups) + 1) if flexible else INT32.pack(len(groups))
    for topic, wanted in groups:
        out += _topic_bytes(topic, version, FETCH_BY_ID, flexible=flexible)
        out += uvarint_bytes(len(wanted) + 1) if flexible else INT32.pack(len(wanted))
        for one in wanted:
            if flexible:
                out += _FETCH_PARTITION_V12.pack(
                    one.partition, one.leader_epoch, one.offset, one.last_epoch, -1, one.max_bytes
                )
                out += b"\0"
            elif version >= 9:
                out += _FETCH_PARTITION_V9.pack(
                    one.partition, one.leader_epoch, one.offset, -1, one.max_bytes
                )
            elif version >= 5:
                out += _FETCH_PARTITION_V5.pack(one.partition, one.offset, -1, one.max_bytes)
            else:
                out += _FETCH_PARTITION_V4.pack(one.partition, one.offset, one.max_bytes)
        if flexible:
            out += b"\0"
    if version >= 7:
        out += b"\x01" if flexible else INT32.pack(0)
    if version >= 11:
        out += compact_string_bytes(rack) if flexible else string_bytes(rack)
    if flexible:
        out += b"\0"
    SIZE.pack_into(out, 0, len(out) - SIZE_BYTES)
    return bytes(out)


def parse_fetch_answer(
    version: int, cursor: Cursor
) -> tuple[int, int, list[FetchAnswer], tuple[NodeEndpoint, ...]]:
    """(error, throttle in ms, answers, where the leaders listen) of a fetch response's body."""
    flexible = version >= FETCH_FLEXIBLE
    count = cursor.compact_array_count if flexible else cursor.array_count
    throttle_ms = cursor.int32()
    error = 0
    if version >= 7:
        error = cursor.int16()
        cursor.int32()
    answers = []
    for _ in range(count(1)):
        topic = _read_topic(cursor, version, FETCH_BY_ID, flexible=flexible)
        for _ in range(count(22)):
            partition, code = cursor.int32(), cursor.int16()
            high, stable = cursor.int64(), cursor.int64()
            start = cursor.int64() if version >= 5 else -1
            aborted: list[tuple[int, int]] | None = None
            listed = count(16)
            if listed >= 0:
                aborted = []
                for _ in range(listed):
                    aborted.append((cursor.int64(), cursor.int64()))
                    if flexible:
                        _skip_tags(cursor)
            if version >= 11:
                cursor.int32()
            length = max(0, cursor.uvarint() - 1 if flexible else cursor.int32())
            at = cursor.skip(length)
            records = cursor.buffer[at : at + length]
            leader, diverging = _tagged_fetch_fields(cursor) if flexible else (None, None)
            answers.append(
                FetchAnswer(topic, partition, code, high, stable, start, aborted, records, leader, diverging)
            )
        if flexible:
            _skip_tags(cursor)
    return error, throttle_ms, answers, _tagged_endpoints(cursor) if flexible else ()


def _topic_bytes(topic: TopicKey, version: int, by_id: int, *, flexible: bool) -> bytes:
    if version >= by_id:
        return uuid_bytes(topic.topic_id)
    return compact_string_bytes(topic.name) if flexible else string_bytes(topic.name)


def _read_topic(cursor: Cursor, version: int, by_id: int, *, flexible: bool) -> str | UUID:
    if version >= by_id:
        return cursor.uuid() or NO_UUID
    return cursor.compact_string() if flexible else cursor.string()


def _skip_tags(cursor: Cursor) -> None:
    cursor.position = skip_tagged_fields(cursor.buffer, cursor.position, cursor.end)


def _tagged_leader(cursor: Cursor, tag: int) -> CurrentLeader | None:
    """The tagged fields of a partition, of which only the leader under `tag` is looked at."""
    leader = None
    for _ in range(cursor.tagged_field_count()):
        number = cursor.uvarint()
        size = cursor.tagged_field_size()
        end = cursor.position + size
        if number == tag:
            leader = CurrentLeader(cursor.int32(), cursor.int32())
        cursor.position = end
    return leader


def _tagged_fetch_fields(cursor: Cursor) -> tuple[CurrentLeader | None, tuple[int, int] | None]:
    """The leader, and the diverging epoch and its end, of a fetched partition's tagged fields."""
    leader, diverging = None, None
    for _ in range(cursor.tagged_field_count()):
        number = cursor.uvarint()
        size = cursor.tagged_field_size()
        end = cursor.position + size
        if number == 0:
            diverging = cursor.int32(), cursor.int64()
        elif number == 1:
            leader = CurrentLeader(cursor.int32(), cursor.int32())
        cursor.position = end
    return leader, diverging


def _tagged_endpoints(cursor: Cursor) -> tuple[NodeEndpoint, ...]:
    endpoints: list[NodeEndpoint] = []
    for _ in range(cursor.tagged_field_count()):
        number = cursor.uvarint()
        size = cursor.tagged_field_size()
        end = cursor.position + size
        if number == 0:
            for _ in range(cursor.compact_array_count(8)):
                node_id, host, port = cursor.int32(), cursor.compact_string(), cursor.int32()
                rack = cursor.compact_nullable_string()
                _skip_tags(cursor)
                endpoints.append(NodeEndpoint(node_id, host, port, rack))
        if cursor.position > end:
            raise MalformedFrame("a tagged field is longer than it says")
        cursor.position = end
    return tuple(endpoints)
