"""Topics created because somebody asks for them: the usual ones, and internal ones with settings of their own."""

from __future__ import annotations

from appliance.channels.control_channel import NewTopic
from appliance.cluster import CONSUMER_OFFSETS, INTERNAL_TOPICS, TRANSACTION_STATE
from appliance.config import Settings

TRANSACTION_PARTITIONS = 50
TRANSACTION_REPLICAS = 3
TRANSACTION_MIN_INSYNC_REPLICAS = 2
TRANSACTION_SEGMENT_BYTES = 100 << 20


def new_topic(name: str, settings: Settings) -> NewTopic | None:
    """How `name` is to be created; None for an internal topic that is its coordinator's, who is not there yet.

    Source: Kafka's `AutoTopicCreationManager`, `GroupCoordinatorConfig`, `TransactionCoordinator`.
    """
    if name not in INTERNAL_TOPICS:
        return NewTopic(name)
    if name == TRANSACTION_STATE:
        return _transaction_state(settings)
    if name != CONSUMER_OFFSETS:
        return None
    offsets = settings.offsets
    return NewTopic(
        CONSUMER_OFFSETS,
        offsets.topic_num_partitions,
        offsets.topic_replication_factor or min(3, settings.slots),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(offsets.topic_segment_bytes),
        },
    )


def _transaction_state(settings: Settings) -> NewTopic:
    replicas = min(TRANSACTION_REPLICAS, settings.slots)
    return NewTopic(
        TRANSACTION_STATE,
        TRANSACTION_PARTITIONS,
        replicas,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(TRANSACTION_MIN_INSYNC_REPLICAS, replicas)),
            "segment.bytes": str(TRANSACTION_SEGMENT_BYTES),
            "unclean.leader.election.enable": "false",
        },
    )
