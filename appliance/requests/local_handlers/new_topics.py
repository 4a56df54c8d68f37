"""Topics created because somebody asks for them: the usual ones, and internal ones with settings of their own."""

from __future__ import annotations

from appliance.channels.control_channel import NewTopic
from appliance.cluster import CONSUMER_OFFSETS, TRANSACTION_STATE, is_internal
from appliance.config import Settings


def new_topic(name: str, settings: Settings) -> NewTopic | None:
    """How `name` is to be created; None for an internal topic that is its coordinator's, who is not there yet.

    Source: Kafka's `AutoTopicCreationManager`, `GroupCoordinatorConfig`, `TransactionCoordinator`.
    """
    if not is_internal(name):
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
    options = settings.transaction
    replicas = options.state_log_replication_factor or min(3, settings.slots)
    return NewTopic(
        TRANSACTION_STATE,
        options.state_log_num_partitions,
        replicas,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(options.state_log_min_isr, replicas)),
            "segment.bytes": str(options.state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )
