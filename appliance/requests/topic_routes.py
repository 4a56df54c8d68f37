"""From a topic's name or id to the rows and workers of its partitions, remembered per metadata image.

A look costs one load while the image stands; a new image empties what was remembered, and each partition is resolved
again when it is asked for: of a thousand that a takeover moves, in a dozen images one after the other, few are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from appliance.channels.metadata_image import ImageReader
from appliance.channels.roles import Role, owner_of
from appliance.cluster import NO_LEADER, ClusterImage, TopicImage

NOBODY = -2
DELAY_ENABLE = "delivery.delay.enable"


@dataclass(frozen=True, slots=True)
class PartitionRoute:
    """Where requests for one partition go. `worker` is None while the partition has no leader.

    `written_by_clients_of` is the leader, and of an internal topic nobody: only its coordinator writes there.
    `delays`: the topic takes delayed records.
    """

    topic: str
    topic_id: UUID
    partition: int
    row: int
    incarnation: int
    leader: int
    leader_epoch: int
    worker: Role | None
    written_by_clients_of: int
    delays: bool = False


class TopicRoute:
    """One topic: its image, and the routes of its partitions, made as they are asked for."""

    __slots__ = ("_routes", "_workers", "image")

    def __init__(self, image: TopicImage, *, workers: int) -> None:
        self.image = image
        self._workers = workers
        self._routes: list[PartitionRoute | None] = [None] * len(image.partitions)

    def partition(self, index: int) -> PartitionRoute | None:
        """The route of a partition, None where there is no such; always the same object."""
        routes = self._routes
        if not 0 <= index < len(routes):
            return None
        route = routes[index]
        if route is None:
            route = routes[index] = _route(self.image, index, workers=self._workers)
        return route


class TopicRoutes:
    """Routes by topic name and by topic id, of the current image."""

    __slots__ = ("_by_id", "_by_name", "_ids", "_image", "_on_image", "_reader", "_version", "_workers")

    def __init__(self, reader: ImageReader, *, workers: int) -> None:
        """`workers`: how many each slot has."""
        self._reader = reader
        self._workers = workers
        self._version = -1
        self._image: ClusterImage | None = None
        self._by_name: dict[str, TopicRoute] = {}
        self._by_id: dict[UUID, TopicRoute] = {}
        self._ids: dict[UUID, str] | None = None
        self._on_image: Callable[[ClusterImage], None] | None = None

    def on_image(self, told: Callable[[ClusterImage], None]) -> None:
        """Call `told` with each image as soon as it is looked at. It must not look itself."""
        self._on_image = told

    @property
    def image(self) -> ClusterImage | None:
        """The current image; None before the controller published one."""
        self._refresh()
        return self._image

    @property
    def version(self) -> int:
        self._refresh()
        return self._version

    def look(self) -> None:
        """Look at the current image, as every other method does."""
        self._refresh()

    def by_name(self, topic: str) -> TopicRoute | None:
        """The topic's routes, None when it does not exist."""
        self._refresh()
        route = self._by_name.get(topic)
        if route is None and self._image is not None:
            image = self._image.topics.get(topic)
            if image is None:
                return None
            route = self._by_name[topic] = TopicRoute(image, workers=self._workers)
        return route

    def by_id(self, topic_id: UUID) -> TopicRoute | None:
        """The topic's routes, None when no topic has this id."""
        self._refresh()
        route = self._by_id.get(topic_id)
        if route is None and self._image is not None:
            if self._ids is None:
                self._ids = {topic.topic_id: name for name, topic in self._image.topics.items()}
            name = self._ids.get(topic_id)
            if name is None:
                return None
            route = self.by_name(name)
            if route is not None:
                self._by_id[topic_id] = route
        return route

    def of(self, topic: str | UUID) -> TopicRoute | None:
        """By name or by id, whichever the client said."""
        return self.by_name(topic) if isinstance(topic, str) else self.by_id(topic)

    def _refresh(self) -> None:
        if self._reader.version == self._version:
            return
        self._image = self._reader.current()
        self._version = self._image.version if self._image is not None else self._reader.version
        self._by_name.clear()
        self._by_id.clear()
        self._ids = None
        if self._on_image is not None and self._image is not None:
            self._on_image(self._image)


def _route(topic: TopicImage, index: int, *, workers: int) -> PartitionRoute:
    partition = topic.partitions[index]
    leader = partition.leader
    return PartitionRoute(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=partition.partition,
        row=partition.row,
        incarnation=partition.incarnation,
        leader=leader,
        leader_epoch=partition.leader_epoch,
        worker=None
        if leader == NO_LEADER
        else owner_of(leader, topic.topic_id, partition.partition, workers=workers),
        written_by_clients_of=NOBODY if topic.internal else leader,
        delays=topic.configs.get(DELAY_ENABLE, "").strip().lower() == "true",
    )
