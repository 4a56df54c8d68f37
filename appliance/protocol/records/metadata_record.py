"""Records of Kafka's own metadata log (`__cluster_metadata-0`), as far as topics are concerned.

    value of a record   frame version uvarint (1) · api key uvarint · version uvarint · body (flexible)

| key | record | body as far as it is read |
|---|---|---|
| 2 | TopicRecord | name, topic id |
| 3 | PartitionRecord | partition, topic id, 4 arrays of int32, leader, leader epoch |
| 4 | ConfigRecord | type int8 (2: topic), resource name, name, value (null: removed) |
| 5 | PartitionChangeRecord | partition, topic id, tag 1: a new leader, which raises the leader epoch by one |
| 9 | RemoveTopicRecord | topic id |
| 15 | ProducerIdsRecord | broker, broker epoch, next producer id |

Everything else is passed over. Source: `MetadataRecordSerde.java` and the schemas in Kafka's
`metadata/src/main/resources/common/metadata`, release 4.3; KIP-631.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from appliance.errors import MalformedFrame
from appliance.protocol.primitives import NO_UUID, Cursor

_FRAME_VERSION: Final = 1
_TOPIC_RESOURCE: Final = 2
_LEADER_TAG: Final = 1
_ARRAYS_OF_A_PARTITION: Final = 4


@dataclass(frozen=True, slots=True)
class TopicCreated:
    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PartitionCreated:
    topic_id: UUID
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The leader epoch is one higher from here on."""

    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class TopicConfigured:
    """`value` is None where the setting was taken back."""

    topic: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsTaken:
    """Every producer id below `next_producer_id` may have been given to a producer."""

    next_producer_id: int


MetadataRecord = (
    TopicCreated | TopicRemoved | PartitionCreated | LeaderChanged | TopicConfigured | ProducerIdsTaken
)


def decode_metadata_record(value: bytes) -> MetadataRecord | None:
    """The record in `value`, None for one that says nothing about topics.

    Raises:
        MalformedFrame: it is no record of a metadata log.
    """
    cursor = Cursor(memoryview(value), 0, len(value))
    if cursor.uvarint() != _FRAME_VERSION:
        raise MalformedFrame("a metadata record of an unknown frame version")
    key = cursor.uvarint()
    cursor.uvarint()
    match key:
        case 2:
            return TopicCreated(cursor.compact_string(), _id(cursor))
        case 3:
            partition, topic_id = cursor.int32(), _id(cursor)
            for _ in range(_ARRAYS_OF_A_PARTITION):
                for _ in range(cursor.compact_array_count(4)):
                    cursor.int32()
            cursor.int32()
            return PartitionCreated(topic_id, partition, cursor.int32())
        case 4 if cursor.int8() == _TOPIC_RESOURCE:
            return TopicConfigured(
                cursor.compact_string(), cursor.compact_string(), cursor.compact_nullable_string()
            )
        case 5:
            partition, topic_id = cursor.int32(), _id(cursor)
            for _ in range(cursor.tagged_field_count()):
                if cursor.uvarint() == _LEADER_TAG:
                    return LeaderChanged(topic_id, partition)
                cursor.skip(cursor.tagged_field_size())
            return None
        case 9:
            return TopicRemoved(_id(cursor))
        case 15:
            cursor.int32()
            cursor.int64()
            return ProducerIdsTaken(cursor.int64())
    return None


def _id(cursor: Cursor) -> UUID:
    return cursor.uuid() or NO_UUID
