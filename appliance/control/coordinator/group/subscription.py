"""What a classic consumer says to the others of its group: the embedded consumer protocol.

    subscription   int16 version · array of topic (string) · user data (nullable bytes)
                   v1: array of owned {topic, array of int32} · v2: generation int32 · v3: rack (nullable string)
    assignment     int16 version · array of {topic, array of int32} · user data (nullable bytes)

Every version begins as version 0, so an unknown one is read as the newest that is known. Source: Kafka's
`ConsumerProtocolSubscription.json`, `ConsumerProtocolAssignment.json`.
"""

from __future__ import annotations

import msgspec

from appliance.errors import MalformedFrame
from appliance.protocol.primitives import ELEMENTS_MAX, INT16, INT32, Cursor, octets_bytes, string_bytes

PROTOCOL_TYPE = "consumer"
"""The protocol type under which members speak it."""

_VERSION_MAX = 3
_STRING_BYTES_MIN = 2
_OWNED_BYTES_MIN = 6
_INT32_BYTES = 4


class Subscription(msgspec.Struct, frozen=True):
    """`owned` is topic name → partitions; `generation_id` -1 where the member does not say."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    generation_id: int = -1
    rack_id: str | None = None


def read_subscription(metadata: bytes) -> Subscription:
    """The subscription in a member's metadata.

    Raises:
        MalformedFrame: the bytes are no subscription.
    """
    cursor = Cursor(memoryview(metadata), 0, len(metadata))
    version = cursor.int16()
    if version < 0:
        raise MalformedFrame(f"a subscription of version {version}")
    topics = tuple([cursor.string() for _ in range(_count(cursor, _STRING_BYTES_MIN))])
    user_data = cursor.nullable_octets()
    owned = _topic_partitions(cursor) if version >= 1 else ()
    generation_id = cursor.int32() if version >= 2 else -1
    rack_id = cursor.nullable_string() if version >= 3 else None
    return Subscription(topics, user_data, owned=owned, generation_id=generation_id, rack_id=rack_id)


def subscribed_topics(metadata: bytes, *, names_max: int = ELEMENTS_MAX) -> list[str]:
    """The topics alone: what stands first in every version.

    Raises:
        MalformedFrame: the bytes are no subscription, or it names more than `names_max` topics.
    """
    cursor = Cursor(memoryview(metadata), 0, len(metadata))
    if cursor.int16() < 0:
        raise MalformedFrame("a subscription of a negative version")
    count = _count(cursor, _STRING_BYTES_MIN)
    if count > names_max:
        raise MalformedFrame(f"a subscription to {count} topics")
    return [cursor.string() for _ in range(count)]


def read_assignment(assignment: bytes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(topic, partitions) of an assignment; nothing of an empty one.

    Raises:
        MalformedFrame: the bytes are no assignment.
    """
    if not assignment:
        return ()
    cursor = Cursor(memoryview(assignment), 0, len(assignment))
    if cursor.int16() < 0:
        raise MalformedFrame("an assignment of a negative version")
    return _topic_partitions(cursor)


def encode_assignment(version: int, assignment: tuple[tuple[str, tuple[int, ...]], ...]) -> bytes:
    """An assignment, (topic, partitions), without user data; every version up to 3 has the same fields."""
    out = INT16.pack(min(max(version, 0), _VERSION_MAX)) + INT32.pack(len(assignment))
    for topic, partitions in assignment:
        out += string_bytes(topic) + INT32.pack(len(partitions))
        out += b"".join(INT32.pack(partition) for partition in partitions)
    return out + octets_bytes(None)


def _topic_partitions(cursor: Cursor) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple([_one_topic(cursor) for _ in range(_count(cursor, _OWNED_BYTES_MIN))])


def _one_topic(cursor: Cursor) -> tuple[str, tuple[int, ...]]:
    topic = cursor.string()
    return topic, tuple([cursor.int32() for _ in range(_count(cursor, _INT32_BYTES))])


def _count(cursor: Cursor, element_bytes_min: int) -> int:
    return max(0, cursor.array_count(element_bytes_min))
