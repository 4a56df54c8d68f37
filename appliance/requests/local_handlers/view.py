"""What a local handler sees.

Handlers decide; they never wait. One whose work may be long, or that needs the controller's word, is a generator
(`requests.steps`): it yields between pieces, and the questions that it has.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from appliance.channels.partition_table import PartitionTable
from appliance.cluster import BrokerSlot, ClusterImage, PartitionImage
from appliance.config import BrokerConfigs, Settings
from appliance.requests.topic_routes import TopicRoutes

# Without an authorizer every operation is allowed (KIP-430 bit fields, `AclEntry.supportedOperations`).
TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


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
    """The settings, the current metadata image, and the slot whose port the client spoke to.

    `told_host`: what this client is told as the host of every broker; None for what the image says.
    """

    settings: Settings
    routes: TopicRoutes
    slot: int
    producer_ids: ProducerIds
    partitions: PartitionTable
    told_host: str | None = None

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
        """Yield the brokers with the addresses that this client is told."""
        host = self.told_host
        for slot in self.image.slots:
            yield slot if host is None else msgspec.structs.replace(slot, host=host)


EMPTY_IMAGE = ClusterImage(
    version=0, cluster_id="", controller_id=-1, controller_epoch=-1, slots=(), topics={}
)
