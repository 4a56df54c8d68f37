"""The records of a consumer group in `__consumer_offsets` (KIP-848), each as a change of the group.

A key is int16 type and its fields in the old encoding, a value int16 version 0 and its fields in the flexible one.

    type  key beside the group   value
    3                            epoch int32 · tag 0: metadata hash int64
    5     member                 instance? · rack? · client id · client host · topic names[] · regex? ·
                                 rebalance timeout ms int32 · assignor? · tag 0: {session timeout ms int32,
                                 protocols[] {name, metadata bytes}} of a member that speaks the classic protocol
    6                            epoch of the target assignment int32
    7     member                 target: [] {topic id, partitions[] int32}
    8     member                 epoch int32 · epoch before int32 · state int8 · assigned [] · to be revoked []
    16    regex                  topic names[] · version of the metadata int64 · when, ms int64

A tombstone takes back what its key names; that of type 3 the group. Type 4 is Kafka's older way to tell the subscribed
topics; it is passed over. Partitions may carry the epochs of their assignment in tag 0 (KIP-1251), which we neither
write nor need. Source: `ConsumerGroup*Key.json`, `ConsumerGroup*Value.json` of Kafka's group coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from appliance.control.coordinator.runtime.effects import Record
from appliance.errors import MalformedFrame
from appliance.protocol.apis.join_group import JoinGroupProtocol
from appliance.protocol.primitives import (
    INT16,
    INT32,
    INT64,
    NO_UUID,
    Cursor,
    compact_octets_bytes,
    compact_string_bytes,
    string_bytes,
    uuid_bytes,
    uvarint_bytes,
)

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Topic id → partitions; no topic without a partition."""

NOTHING: Final[Assignment] = {}

_NO_TAGS: Final = b"\x00"


class RecordType(IntEnum):
    GROUP_METADATA = 3
    PARTITION_METADATA = 4
    MEMBER_METADATA = 5
    TARGET_METADATA = 6
    TARGET_MEMBER = 7
    CURRENT_MEMBER = 8
    REGULAR_EXPRESSION = 16


class MemberState(IntEnum):
    """Where a member is on its way to its target assignment; the number is the log's."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ClassicProtocols(msgspec.Struct, frozen=True):
    """What a member that speaks the classic protocol brought with it into a consumer group."""

    session_timeout_ms: int
    protocols: tuple[JoinGroupProtocol, ...]


class MemberSubscription(msgspec.Struct, frozen=True):
    """What a member has said of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None


class CurrentAssignment(msgspec.Struct, frozen=True):
    """What a member has, in which epoch: `revoking` it was asked to give up and still owns."""

    member_epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = msgspec.field(default_factory=dict)
    revoking: Assignment = msgspec.field(default_factory=dict)


class ResolvedRegex(msgspec.Struct, frozen=True):
    """The topics that matched when they were last looked at."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


# ── changes ───────────────────────────────────────────────────────────────────────────────────────────────


class GroupEpochChange(msgspec.Struct, frozen=True):
    """`epoch` None: the group is gone."""

    epoch: int | None
    metadata_hash: int = 0


class SubscriptionChange(msgspec.Struct, frozen=True):
    member_id: str
    subscription: MemberSubscription | None


class TargetEpochChange(msgspec.Struct, frozen=True):
    epoch: int | None


class TargetChange(msgspec.Struct, frozen=True):
    member_id: str
    target: Assignment | None


class CurrentChange(msgspec.Struct, frozen=True):
    member_id: str
    current: CurrentAssignment | None


class RegexChange(msgspec.Struct, frozen=True):
    regex: str
    resolved: ResolvedRegex | None


Change: TypeAlias = (
    GroupEpochChange | SubscriptionChange | TargetEpochChange | TargetChange | CurrentChange | RegexChange
)


def record_of(group_id: str, change: Change) -> Record:
    """The record that stands for the change."""
    match change:
        case GroupEpochChange(epoch, metadata_hash):
            key = _key(RecordType.GROUP_METADATA, group_id)
            return Record(key, None if epoch is None else _VERSION + INT32.pack(epoch) + _hash(metadata_hash))
        case SubscriptionChange(member_id, subscription):
            key = _key(RecordType.MEMBER_METADATA, group_id, member_id)
            return Record(key, None if subscription is None else _subscription_bytes(subscription))
        case TargetEpochChange(epoch):
            key = _key(RecordType.TARGET_METADATA, group_id)
            return Record(key, None if epoch is None else _VERSION + INT32.pack(epoch) + _NO_TAGS)
        case TargetChange(member_id, target):
            key = _key(RecordType.TARGET_MEMBER, group_id, member_id)
            value = None if target is None else _VERSION + _assignment_bytes(target) + _NO_TAGS
            return Record(key, value)
        case CurrentChange(member_id, current):
            key = _key(RecordType.CURRENT_MEMBER, group_id, member_id)
            return Record(key, None if current is None else _current_bytes(current))
        case RegexChange(regex, resolved):
            key = _key(RecordType.REGULAR_EXPRESSION, group_id, regex)
            return Record(key, None if resolved is None else _regex_bytes(resolved))


def read_change(key: bytes, value: bytes | None) -> tuple[str, Change] | None:
    """(group id, change) of a record; None for one of another kind.

    Raises:
        MalformedFrame: the record is none that Kafka writes.
    """
    cursor = Cursor(memoryview(key), 0, len(key))
    kind = cursor.int16()
    if kind not in _READERS:
        return None
    group_id = cursor.string()
    part = cursor.string() if kind in _PARTED else ""
    return group_id, _READERS[kind](part, None if value is None else _opened(value))


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────

_VERSION: Final = INT16.pack(0)


def _key(kind: RecordType, group_id: str, part: str | None = None) -> bytes:
    return INT16.pack(kind) + string_bytes(group_id) + (b"" if part is None else string_bytes(part))


def _hash(metadata_hash: int) -> bytes:
    """The tagged fields of a group's epoch: its hash unless that is 0."""
    return b"\x01\x00\x08" + INT64.pack(metadata_hash) if metadata_hash else _NO_TAGS


def _array(elements: list[bytes]) -> bytes:
    return uvarint_bytes(len(elements) + 1) + b"".join(elements)


def _assignment_bytes(assignment: Assignment) -> bytes:
    topics = [
        uuid_bytes(topic_id) + _array([INT32.pack(partition) for partition in sorted(partitions)]) + _NO_TAGS
        for topic_id, partitions in assignment.items()
    ]
    return _array(topics)


def _current_bytes(current: CurrentAssignment) -> bytes:
    return (
        _VERSION
        + INT32.pack(current.member_epoch)
        + INT32.pack(current.previous_epoch)
        + current.state.to_bytes(1)
        + _assignment_bytes(current.assigned)
        + _assignment_bytes(current.revoking)
        + _NO_TAGS
    )


def _subscription_bytes(one: MemberSubscription) -> bytes:
    out = _VERSION + compact_string_bytes(one.instance_id) + compact_string_bytes(one.rack_id)
    out += compact_string_bytes(one.client_id) + compact_string_bytes(one.client_host)
    out += _array([compact_string_bytes(name) for name in one.topic_names])
    out += compact_string_bytes(one.regex) + INT32.pack(one.rebalance_timeout_ms)
    out += compact_string_bytes(one.assignor)
    if one.classic is None:
        return out + _NO_TAGS
    # A nullable structure begins with 1; behind it no tagged fields of its own.
    classic = b"\x01" + INT32.pack(one.classic.session_timeout_ms)
    classic += _array(
        [
            compact_string_bytes(protocol.name) + compact_octets_bytes(protocol.metadata) + _NO_TAGS
            for protocol in one.classic.protocols
        ]
    )
    classic += _NO_TAGS
    return out + b"\x01\x00" + uvarint_bytes(len(classic)) + classic


def _regex_bytes(resolved: ResolvedRegex) -> bytes:
    names = _array([compact_string_bytes(name) for name in resolved.topics])
    return _VERSION + names + INT64.pack(resolved.version) + INT64.pack(resolved.timestamp_ms) + _NO_TAGS


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────

_UUID_BYTES: Final = 16
T = TypeVar("T")


def _opened(value: bytes) -> Cursor:
    cursor = Cursor(memoryview(value), 0, len(value))
    version = cursor.int16()
    if version != 0:
        raise MalformedFrame(f"a record of a consumer group of version {version}")
    return cursor


def _many(cursor: Cursor, element: Callable[[Cursor], T], element_bytes_min: int) -> tuple[T, ...]:
    return tuple([element(cursor) for _ in range(max(0, cursor.compact_array_count(element_bytes_min)))])


def _tags(cursor: Cursor) -> dict[int, Cursor]:
    """Tag → a cursor over the bytes of that field."""
    found: dict[int, Cursor] = {}
    for _ in range(cursor.tagged_field_count()):
        tag = cursor.uvarint()
        size = cursor.tagged_field_size()
        start = cursor.skip(size)
        found[tag] = Cursor(cursor.buffer, start, start + size)
    return found


def _read_assignment(cursor: Cursor) -> Assignment:
    assignment = dict(_many(cursor, _read_topic, _UUID_BYTES + 2))
    return {topic_id: partitions for topic_id, partitions in assignment.items() if partitions}


def _read_topic(cursor: Cursor) -> tuple[UUID, frozenset[int]]:
    topic_id = cursor.uuid() or NO_UUID
    partitions = frozenset(_many(cursor, Cursor.int32, 4))
    _tags(cursor)
    return topic_id, partitions


def _read_group(_: str, cursor: Cursor | None) -> Change:
    if cursor is None:
        return GroupEpochChange(None)
    epoch = cursor.int32()
    tags = _tags(cursor)
    return GroupEpochChange(epoch, metadata_hash=tags[0].int64() if 0 in tags else 0)


def _read_subscription(member_id: str, cursor: Cursor | None) -> Change:
    if cursor is None:
        return SubscriptionChange(member_id, None)
    instance_id, rack_id = cursor.compact_nullable_string(), cursor.compact_nullable_string()
    client_id, client_host = cursor.compact_string(), cursor.compact_string()
    topic_names = _many(cursor, Cursor.compact_string, 1)
    regex, rebalance_timeout_ms = cursor.compact_nullable_string(), cursor.int32()
    assignor = cursor.compact_nullable_string()
    tags = _tags(cursor)
    return SubscriptionChange(
        member_id,
        MemberSubscription(
            instance_id,
            rack_id,
            client_id=client_id,
            client_host=client_host,
            topic_names=topic_names,
            regex=regex,
            rebalance_timeout_ms=rebalance_timeout_ms,
            assignor=assignor,
            classic=_read_classic(tags[0]) if 0 in tags else None,
        ),
    )


def _read_classic(cursor: Cursor) -> ClassicProtocols | None:
    if cursor.int8() < 0:
        return None
    session_timeout_ms = cursor.int32()
    return ClassicProtocols(session_timeout_ms, _many(cursor, _read_protocol, 3))


def _read_protocol(cursor: Cursor) -> JoinGroupProtocol:
    protocol = JoinGroupProtocol(cursor.compact_string(), cursor.compact_octets())
    _tags(cursor)
    return protocol


def _read_target_epoch(_: str, cursor: Cursor | None) -> Change:
    return TargetEpochChange(None if cursor is None else cursor.int32())


def _read_target(member_id: str, cursor: Cursor | None) -> Change:
    return TargetChange(member_id, None if cursor is None else _read_assignment(cursor))


def _read_current(member_id: str, cursor: Cursor | None) -> Change:
    if cursor is None:
        return CurrentChange(member_id, None)
    member_epoch, previous_epoch, state = cursor.int32(), cursor.int32(), cursor.int8()
    if state not in tuple(MemberState):
        raise MalformedFrame(f"a member in state {state}")
    current = CurrentAssignment(
        member_epoch,
        previous_epoch,
        state=MemberState(state),
        assigned=_read_assignment(cursor),
        revoking=_read_assignment(cursor),
    )
    return CurrentChange(member_id, current)


def _read_regex(regex: str, cursor: Cursor | None) -> Change:
    if cursor is None:
        return RegexChange(regex, None)
    topics = _many(cursor, Cursor.compact_string, 1)
    return RegexChange(regex, ResolvedRegex(topics, cursor.int64(), timestamp_ms=cursor.int64()))


_READERS: Final[Mapping[int, Callable[[str, Cursor | None], Change]]] = {
    RecordType.GROUP_METADATA: _read_group,
    RecordType.MEMBER_METADATA: _read_subscription,
    RecordType.TARGET_METADATA: _read_target_epoch,
    RecordType.TARGET_MEMBER: _read_target,
    RecordType.CURRENT_MEMBER: _read_current,
    RecordType.REGULAR_EXPRESSION: _read_regex,
}

_PARTED: Final = frozenset(
    (
        RecordType.MEMBER_METADATA,
        RecordType.TARGET_MEMBER,
        RecordType.CURRENT_MEMBER,
        RecordType.REGULAR_EXPRESSION,
    )
)
