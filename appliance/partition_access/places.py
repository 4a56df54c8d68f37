"""Where the partitions of a topic are led: what `access` needs to append to and read from one of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.channels.roles import Role, owner_of
from appliance.cluster import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from appliance.config import BrokerConfigs, Settings, effective_topic_configs

MAX_MESSAGE_BYTES: Final = "max.message.bytes"


class LogPlace(NamedTuple):
    """Where one partition is led. `incarnation` tells a topic from a later one of the same name in the same row."""

    topic: str
    partition: int
    row: int
    incarnation: int
    leader: int
    leader_epoch: int
    worker: Role


def log_places(image: ClusterImage | None, topic_name: str, *, workers: int) -> tuple[LogPlace | None, ...]:
    """Return the place of each partition, None where nobody leads it; empty where there is no such topic.

    Args:
        workers: how many workers each slot has.
    """
    topic = image.topics.get(topic_name) if image is not None else None
    if topic is None:
        return ()
    return tuple(log_place(topic, partition, workers=workers) for partition in topic.partitions)


def log_place(topic: TopicImage, partition: PartitionImage, *, workers: int) -> LogPlace | None:
    """Return where one partition of the topic is led, None where nobody leads it."""
    if partition.leader == NO_LEADER:
        return None
    return LogPlace(
        topic.name,
        partition.partition,
        partition.row,
        partition.incarnation,
        partition.leader,
        partition.leader_epoch,
        owner_of(partition.leader, topic.topic_id, partition.partition, workers=workers),
    )


def batch_bytes_max(image: ClusterImage | None, topic_name: str, settings: Settings, *, slot: int) -> int:
    """Return the largest batch that the topic takes where `slot` leads, its max.message.bytes; 0 without the topic."""
    topic = image.topics.get(topic_name) if image is not None else None
    if image is None or topic is None:
        return 0
    broker = BrokerConfigs.of(image.broker_configs, slot)
    return int(effective_topic_configs(settings, topic.configs, broker)[MAX_MESSAGE_BYTES])
