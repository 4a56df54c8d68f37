"""What a local handler sees.

Handlers decide; they never wait. One whose work may be long, or that needs the controller's word, is a generator
(`requests.steps`): it yields between pieces, and the questions that it has.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from appliance.channels.control_channel import MutatingClient, TopicOutcomes
from appliance.channels.partition_table import PartitionTable
from appliance.clock import Clock
from appliance.cluster import BrokerSlot, ClusterImage, PartitionImage
from appliance.config import BrokerConfigs, Settings
from appliance.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from appliance.requests.auditing import AuditedRequest
from appliance.requests.client_telemetry import ClientTelemetry
from appliance.requests.meter import Meter
from appliance.requests.rights import Rights
from appliance.requests.session import Session
from appliance.requests.topic_routes import TopicRoutes

_TOPIC_OPERATIONS = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
_CLUSTER_OPERATIONS = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
# Without an authorizer every operation is allowed (KIP-430 bit fields, `AclEntry.supportedOperations`).
TOPIC_OPERATIONS = sum(1 << operation for operation in _TOPIC_OPERATIONS)
CLUSTER_OPERATIONS = sum(1 << operation for operation in _CLUSTER_OPERATIONS)


class ProducerIds:
    """Producer ids this process may hand out: what is left of the controller's last block."""

    __slots__ = ("_next", "_until")

    def __init__(self) -> None:
        self._next = self._until = 0

    def refill(self, first: int, count: int) -> None:
        self._next, self._until = first, first + count

    def take(self) -> int | None:
        """A producer id never handed out before, None when the block is used up."""
        if self._next == self._until:
            return None
        self._next += 1
        return self._next - 1


class LocalView(msgspec.Struct, frozen=True):
    """The settings, the current metadata image, and the session that asks. Made for one request."""

    settings: Settings
    routes: TopicRoutes
    producer_ids: ProducerIds
    partitions: PartitionTable
    clock: Clock
    session: Session
    rights: Rights | None = None
    audited: AuditedRequest | None = None
    meter: Meter | None = None
    version: int = 0
    """Of the request."""
    telemetry: ClientTelemetry | None = None
    """Where clients may push their metrics."""

    def mutating(self, *, is_strict: bool) -> MutatingClient | None:
        """For whom the controller counts what this request creates and deletes; None where nobody is limited."""
        meter = self.meter
        return None if meter is None else meter.mutating_client(self.session, is_strict=is_strict)

    def mutated(self, outcomes: TopicOutcomes) -> None:
        """The controller has answered a question that named the client."""
        if outcomes.throttle_ms and self.meter is not None:
            self.meter.mutated(self.session, outcomes.throttle_ms)

    def may(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do that to the resource of this name."""
        rights = self.rights
        return rights is None or rights.may(self.session, operation, resource_type, name)

    def sees(self, topic: str) -> bool:
        """Whether the client may know of the topic."""
        return self.rights is None or self.may(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)

    def sees_named(self, topic: str) -> bool:
        """`sees`, of a topic that the request names: the audit journal hears of a denial."""
        if self.sees(topic):
            return True
        if self.audited is not None:
            self.audited.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        return False

    def creates(self, topic: str) -> bool:
        """Whether the client may create a topic of this name."""
        create = AclOperation.CREATE
        return self.may(create, ResourceType.CLUSTER, CLUSTER_NAME) or self.may(
            create, ResourceType.TOPIC, topic
        )

    def topic_operations(self, topic: str) -> int:
        """What the client may do to the topic, as a bit field."""
        if self.rights is None:
            return TOPIC_OPERATIONS
        return sum(1 << each for each in _TOPIC_OPERATIONS if self.may(each, ResourceType.TOPIC, topic))

    def cluster_operations(self) -> int:
        """What the client may do to the cluster, as a bit field. Nothing is told to who may not describe it."""
        if self.rights is None:
            return CLUSTER_OPERATIONS
        allowed = [each for each in _CLUSTER_OPERATIONS if self.may(each, ResourceType.CLUSTER, CLUSTER_NAME)]
        return sum(1 << each for each in allowed) if AclOperation.DESCRIBE in allowed else 0

    @property
    def slot(self) -> int:
        """The broker slot whose port the client came to."""
        return self.session.slot

    @property
    def image(self) -> ClusterImage:
        """The current image, an empty one before the controller has published."""
        return self.routes.image or EMPTY_IMAGE

    def offline_replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """The leader's slot, where its storage failed."""
        offline = self.partitions.is_offline(partition.row, partition.incarnation)
        return (partition.leader,) if offline else ()

    def broker_configs(self, slot: int) -> BrokerConfigs:
        """What was set on `slot`, and on all of them, while running."""
        return BrokerConfigs.of(self.image.broker_configs, slot)

    def brokers(self) -> Iterator[BrokerSlot]:
        """Return the brokers with the addresses for this client."""
        return map(self.session.told_of, self.image.slots)


EMPTY_IMAGE = ClusterImage(
    version=0, cluster_id="", controller_id=-1, controller_epoch=-1, slots=(), topics={}
)
