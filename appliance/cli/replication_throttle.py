"""The throttle of a reassignment (KIP-73), as Kafka's tool sets it.

A rate on every slot that takes part, and on the topic the copies that it is meant for: leaders are those that hold a
partition already, followers those that come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from appliance.cli.cluster_view import ClusterView, PartitionView, refusal_of
from appliance.cli.connecting import BrokerError
from appliance.cli.request import request
from appliance.config.dynamic import FOLLOWER_RATE, LEADER_RATE
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_configs import ResourceType
from appliance.protocol.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    ConfigOperation,
    IncrementalAlterConfigsRequest,
)

ALTER_VERSION: Final = 1
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"


def throttle(address: str, places: Mapping[PartitionView, tuple[int, ...]], rate: int) -> None:
    """Before partitions go to their `places`: no more than `rate` bytes a second to a slot, or from it.

    Raises:
        BrokerError: a slot or a topic refuses.
    """
    slots = {slot for partition, target in places.items() for slot in (*partition.replicas, *target)}
    rates = {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
    resources = [_resource(ResourceType.BROKER, str(slot), rates) for slot in sorted(slots)]
    for topic in sorted({partition.topic for partition in places}):
        of_topic = {each: target for each, target in places.items() if each.topic == topic}
        leaders = [f"{each.partition}:{slot}" for each in of_topic for slot in each.replicas]
        followers = [
            f"{each.partition}:{slot}"
            for each, target in of_topic.items()
            for slot in target
            if slot not in each.replicas
        ]
        named = {LEADERS: ",".join(leaders), FOLLOWERS: ",".join(followers)}
        resources.append(_resource(ResourceType.TOPIC, topic, named))
    _alter(address, resources)


def unthrottle(address: str, view: ClusterView) -> None:
    """Takes every rate and every list of throttled copies away.

    Raises:
        BrokerError: a slot or a topic refuses.
    """
    nothing = {LEADER_RATE: None, FOLLOWER_RATE: None}
    resources = [_resource(ResourceType.BROKER, str(each.slot), nothing) for each in view.slots]
    for topic in sorted({each.topic for each in view.partitions}):
        resources.append(_resource(ResourceType.TOPIC, topic, {LEADERS: None, FOLLOWERS: None}))
    _alter(address, resources)


def _resource(kind: ResourceType, name: str, values: Mapping[str, str | None]) -> AlterConfigsResource:
    return AlterConfigsResource(
        int(kind),
        name,
        tuple(
            AlterableConfig(
                setting, int(ConfigOperation.DELETE if text is None else ConfigOperation.SET), text
            )
            for setting, text in values.items()
        ),
    )


def _alter(address: str, resources: Iterable[AlterConfigsResource]) -> None:
    body = IncrementalAlterConfigsRequest(tuple(resources))
    for result in request(address, ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER_VERSION, body, oldest=0).responses:
        if result.error_code:
            raise BrokerError(refusal_of(result.error_code, result.error_message))
