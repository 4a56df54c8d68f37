"""The record of a classic group in `__consumer_offsets`: key type 2, values of versions 0 to 3, written as 3.

    key     int16 2 · group (string)
    value   int16 version · protocol type (string) · generation int32 · protocol (nullable) · leader (nullable)
            v2: when the state was entered, ms int64 · array of members
    member  member id · v3: group instance id (nullable) · client id · client host
            v1: rebalance timeout ms int32 · session timeout ms int32 · subscription (bytes) · assignment (bytes)

A tombstone deletes the group. Source: Kafka's `GroupMetadataKey.json`, `GroupMetadataValue.json`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from appliance.control.coordinator.runtime.effects import Record
from appliance.errors import MalformedFrame
from appliance.protocol.primitives import INT16, INT32, INT64, Cursor, octets_bytes, string_bytes

GROUP_METADATA_KEY: Final = 2
_WRITTEN_VERSION: Final = 3
_HIGHEST_VERSION: Final = 3
_MEMBER_BYTES_MIN: Final = 18

UNKNOWN_TIME_MS: Final = -1


class MemberRow(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(msgspec.Struct, frozen=True):
    """A classic group as its log keeps it. `protocol_type` is "" for a group that nobody ever joined."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberRow, ...] = ()


def group_key(group_id: str) -> bytes:
    return INT16.pack(GROUP_METADATA_KEY) + string_bytes(group_id)


def tombstone(group_id: str) -> Record:
    """The record that deletes the group."""
    return Record(group_key(group_id), None)


def record(group_id: str, value: GroupMetadata) -> Record:
    """The record that stands for `value`."""
    out = bytearray(INT16.pack(_WRITTEN_VERSION))
    out += string_bytes(value.protocol_type) + INT32.pack(value.generation_id)
    out += string_bytes(value.protocol_name) + string_bytes(value.leader)
    out += INT64.pack(value.state_timestamp_ms) + INT32.pack(len(value.members))
    for row in value.members:
        out += string_bytes(row.member_id) + string_bytes(row.instance_id)
        out += string_bytes(row.client_id) + string_bytes(row.client_host)
        out += INT32.pack(row.rebalance_timeout_ms) + INT32.pack(row.session_timeout_ms)
        out += octets_bytes(row.subscription) + octets_bytes(row.assignment)
    return Record(group_key(group_id), bytes(out))


def read_value(value: bytes) -> GroupMetadata:
    """What a value says, of any version that Kafka has written.

    Raises:
        MalformedFrame: the bytes are of no known version, or damaged.
    """
    cursor = Cursor(memoryview(value), 0, len(value))
    version = cursor.int16()
    if not 0 <= version <= _HIGHEST_VERSION:
        raise MalformedFrame(f"group metadata of version {version}")
    protocol_type, generation_id = cursor.string(), cursor.int32()
    protocol_name, leader = cursor.nullable_string(), cursor.nullable_string()
    state_timestamp_ms = cursor.int64() if version >= 2 else UNKNOWN_TIME_MS
    count = max(0, cursor.array_count(_MEMBER_BYTES_MIN))
    members = tuple([_member(cursor, version) for _ in range(count)])
    return GroupMetadata(
        protocol_type,
        generation_id,
        protocol_name=protocol_name,
        leader=leader,
        state_timestamp_ms=state_timestamp_ms,
        members=members,
    )


def _member(cursor: Cursor, version: int) -> MemberRow:
    member_id = cursor.string()
    instance_id = cursor.nullable_string() if version >= 3 else None
    client_id, client_host = cursor.string(), cursor.string()
    rebalance_timeout_ms = cursor.int32() if version >= 1 else None
    session_timeout_ms = cursor.int32()
    return MemberRow(
        member_id,
        instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=cursor.octets(),
        assignment=cursor.octets(),
    )
