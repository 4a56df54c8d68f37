"""What follows from a metadata image alone: computed once for each image, and not for each page.

A broker slot counts what it leads. So a dead slot has no under-replicated partitions; the slots that have taken over
from it have them, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from appliance.cluster import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from appliance.config import BrokerConfigs, Settings

_MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"


class Rows:
    """Rows of the partition table that belong together."""

    __slots__ = ("_pick", "_range", "rows")

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = tuple(rows)
        first = self.rows[0] if self.rows else 0
        # A topic that was created at once has rows one after the other.
        is_range = self.rows == tuple(range(first, first + len(self.rows)))
        self._range = slice(first, first + len(self.rows)) if is_range else None
        self._pick = None if is_range else itemgetter(*self.rows)

    def total(self, column: list[int]) -> int:
        """Return the sum of a column over these rows."""
        if self._range is not None:
            return sum(column[self._range])
        assert self._pick is not None
        return sum(self._pick(column))


class Topic(Rows):
    """A topic that has series of its own."""

    __slots__ = ("in_sync", "name", "partitions", "replicas", "under_replicated")

    def __init__(self, image: TopicImage) -> None:
        super().__init__([each.row for each in image.partitions])
        self.name = image.name
        self.partitions = image.partitions
        self.replicas = sum(len(each.replicas) for each in image.partitions)
        self.in_sync = sum(len(each.isr) for each in image.partitions)
        self.under_replicated = sum(map(is_under_replicated, image.partitions))


def is_under_replicated(partition: PartitionImage) -> bool:
    """Return whether a replica is out of sync.

    Replicas that a reassignment adds do not count before it is done (Kafka's `Partition.isUnderReplicated`).
    """
    return len(partition.isr) < len(partition.replicas) - len(partition.adding)


@dataclass(slots=True)
class Topology:
    """Topics, and how many partitions of each broker slot are in which state; slots are node ids."""

    version: int = 0
    cluster_id: str = ""
    controller_id: int = NO_LEADER
    brokers: dict[int, str] = field(default_factory=dict)
    """Node id → host and port."""
    topics: list[Topic] = field(default_factory=list)
    """Those with series of their own, the oldest first."""
    topic_count: int = 0
    partition_count: int = 0
    rows: int = 0
    """Rows of the partition table up to the last that is in use."""
    expected: list[int] = field(default_factory=list)
    """Row → incarnation; 0 where no partition has the row."""
    led: dict[int, Rows] = field(default_factory=dict)
    """Broker slot → rows of the partitions that it leads."""
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """Row, incarnation and leader of every partition."""
    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)
    under_replicated: Counter[int] = field(default_factory=Counter)
    under_min_isr: Counter[int] = field(default_factory=Counter)
    at_min_isr: Counter[int] = field(default_factory=Counter)
    not_preferred: Counter[int] = field(default_factory=Counter)
    """Partitions led by another replica than the first, by the slot of the first."""
    leaderless: int = 0

    @classmethod
    def of(cls, image: ClusterImage, settings: Settings) -> Topology:
        """Return what follows from an image."""
        found = cls(
            version=image.version,
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            brokers={slot.node_id: f"{slot.host}:{slot.port}" for slot in image.slots},
            topic_count=len(image.topics),
        )
        defaults = BrokerConfigs.of_every(image.broker_configs).topic_defaults(settings)
        default_min = defaults.get(_MIN_INSYNC_REPLICAS, "1")
        for topic in image.topics.values():
            least = int(topic.configs.get(_MIN_INSYNC_REPLICAS, default_min))
            for partition in topic.partitions:
                found._count(partition, min_isr=least)
        found.expected = [0] * found.rows
        led: dict[int, list[int]] = {broker: [] for broker in found.brokers}
        for row, incarnation, leader in found.places:
            found.expected[row] = incarnation
            if leader != NO_LEADER:
                led.setdefault(leader, []).append(row)
        found.led = {broker: Rows(sorted(rows)) for broker, rows in led.items()}
        # Those that were created first have the lowest incarnations. A topic never leaves this list for a newer one.
        oldest = sorted(
            (topic for topic in image.topics.values() if topic.partitions),
            key=lambda topic: topic.partitions[0].incarnation,
        )
        found.topics = [Topic(topic) for topic in oldest[: settings.metrics.topics_max]]
        return found

    def _count(self, partition: PartitionImage, *, min_isr: int) -> None:
        leader, in_sync = partition.leader, len(partition.isr)
        self.partition_count += 1
        self.rows = max(self.rows, partition.row + 1)
        self.places.append((partition.row, partition.incarnation, leader))
        for slot in partition.replicas:
            self.replicas[slot] += 1
        if leader == NO_LEADER:
            self.leaderless += 1
            return
        self.leaders[leader] += 1
        if is_under_replicated(partition):
            self.under_replicated[leader] += 1
        if in_sync < min_isr:
            self.under_min_isr[leader] += 1
        elif in_sync == min_isr:
            self.at_min_isr[leader] += 1
        if partition.replicas and partition.replicas[0] != leader:
            self.not_preferred[partition.replicas[0]] += 1
