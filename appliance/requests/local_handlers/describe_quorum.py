"""DescribeQuorum 0-2: the metadata as if it were Kafka's `__cluster_metadata`, with the controller as its one voter.

| field | here |
|---|---|
| leader, its epoch | the slot that the image names as controller; the epoch of the controller |
| high watermark, log end offset | the version of the metadata image, which counts its changes |
| voters | the leader alone: the metadata has one owner, and no slot takes part in its election |
| observers | the other slots; they read the same image in shared memory, so none of them lags |
| endpoints | the address of the leader's slot, under the name of the listener that the client came to |

Where we differ: there is no controller listener and no directory id. A partition other than `__cluster_metadata-0` is
UNKNOWN_TOPIC_OR_PARTITION, as is a request that names anything beside it.
Source: `KafkaRaftClient.handleDescribeQuorumRequest`.
"""

from __future__ import annotations

from typing import Final

from appliance.protocol.apis.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    PartitionData,
    QuorumNode,
    QuorumPartition,
    QuorumTopic,
    ReplicaState,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps, in_pieces

METADATA_TOPIC: Final = "__cluster_metadata"
NO_ERROR: Final = ""
"""The message beside no error, as Apache Kafka sends it here: not null."""


def describe_quorum(request: DescribeQuorumRequest, view: LocalView) -> Steps[DescribeQuorumResponse]:
    """Answer from the image."""
    if not _asks_for_the_metadata(request):
        topics: list[QuorumTopic] = []
        for topic in request.topics:
            topics.append(QuorumTopic(topic.topic_name, (yield from in_pieces(_unknown, topic.partitions))))
            yield None
        return DescribeQuorumResponse(tuple(topics), error_message=NO_ERROR)
    image, now_ms = view.image, view.clock.now_ms()
    leader = image.controller_id
    end = image.version
    partition = QuorumPartition(
        0,
        error_message=NO_ERROR,
        leader_id=leader,
        leader_epoch=image.controller_epoch,
        high_watermark=end,
        current_voters=(_state(leader, end, now_ms),),
        observers=tuple(_state(slot.node_id, end, now_ms) for slot in image.slots if slot.node_id != leader),
    )
    listener = view.session.listener
    nodes = tuple(
        QuorumNode(slot.node_id, (Listener(listener, slot.host, slot.port),))
        for slot in view.brokers()
        if slot.node_id == leader
    )
    described = QuorumTopic(METADATA_TOPIC, (partition,))
    return DescribeQuorumResponse((described,), error_message=NO_ERROR, nodes=nodes)


def _asks_for_the_metadata(request: DescribeQuorumRequest) -> bool:
    if len(request.topics) != 1:
        return False
    (topic,) = request.topics
    return topic.topic_name == METADATA_TOPIC and [each.partition_index for each in topic.partitions] == [0]


def _state(node_id: int, end: int, now_ms: int) -> ReplicaState:
    return ReplicaState(node_id, end, last_fetch_timestamp_ms=now_ms, last_caught_up_timestamp_ms=now_ms)


def _unknown(partition: PartitionData) -> QuorumPartition:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return QuorumPartition(partition.partition_index, error, error.message)
