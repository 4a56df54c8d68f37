"""Members of a consumer group of KIP-848, for scenes, and the scenes they begin in."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from appliance.control.coordinator.group.effects import Topic
from appliance.protocol.apis.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    DescribedConsumerGroup,
)
from appliance.protocol.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from tests.control.coordinator.group.scene import GROUP, Scene

SESSION_MS = 45_000
REBALANCE_MS = 60_000


class Consumer:
    """A member as KIP-848 wants it: takes what it is given, gives up what it must, says what it owns."""

    def __init__(self, scene: Scene, member_id: str, **wishes: Any) -> None:
        self.scene = scene
        self.member_id = member_id
        self.wishes: dict[str, Any] = {"subscribed_topic_names": ("orders",), **wishes}
        self.epoch = 0
        self.owned: dict[UUID, frozenset[int]] = {}
        self.instance_id: str | None = self.wishes.pop("instance_id", None)

    def send(self, version: int = 1, **fields: Any) -> int:
        request = ConsumerGroupHeartbeatRequest(
            GROUP,
            self.member_id,
            **{"member_epoch": self.epoch, "instance_id": self.instance_id, **fields},
        )
        return self.scene.send(request, version=version)

    def ask(self, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        response = self.scene.answers[self.send(version, **fields)]
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    def take(self, response: ConsumerGroupHeartbeatResponse) -> None:
        assert response.error_code == 0, response.error_message
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = {
                one.topic_id: frozenset(one.partitions)
                for one in response.assignment.topic_partitions
                if one.topic_id is not None
            }

    def join(self, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        self.epoch, self.owned = 0, {}
        wishes = {**self.wishes, "rebalance_timeout_ms": REBALANCE_MS, "topic_partitions": (), **fields}
        response = self.ask(**wishes)
        if not response.error_code:
            self.take(response)
        return response

    def said(self) -> tuple[OwnedTopicPartitions, ...]:
        return tuple(OwnedTopicPartitions(topic, tuple(sorted(owned))) for topic, owned in self.owned.items())

    def beat(self, *, says: bool = True) -> ConsumerGroupHeartbeatResponse:
        response = self.ask(topic_partitions=self.said() if says else None)
        if not response.error_code:
            self.take(response)
        return response

    @property
    def count(self) -> int:
        return sum(len(partitions) for partitions in self.owned.values())


def scene_with(partitions: int = 4, **settings: Any) -> Scene:
    scene = Scene(**settings)
    scene.cluster.create("orders", partitions)
    return scene


def grow(scene: Scene, partitions: int) -> None:
    orders = scene.cluster.topics["orders"]
    scene.cluster.topics["orders"] = Topic("orders", orders.topic_id, partitions)
    scene.groups.metadata_changed()


def settle(*consumers: Consumer) -> None:
    for _ in range(6):
        for consumer in consumers:
            consumer.beat()
        consumers[0].scene.groups.check()


def settled_pair(scene: Scene) -> tuple[Consumer, Consumer]:
    """Two consumers who have joined and own what they should."""
    one, two = Consumer(scene, "one"), Consumer(scene, "two")
    one.join()
    two.join()
    settle(one, two)
    return one, two


def described(scene: Scene, version: int = 1) -> DescribedConsumerGroup:
    response = scene.ask(ConsumerGroupDescribeRequest((GROUP,)), version=version)
    group = response.groups[0]
    assert isinstance(group, DescribedConsumerGroup)
    return group
