"""Which topics are audited or traced, where they and the internal topics for that are led; creates the internal ones.

Everything comes from the metadata image. The internal topics are created when a topic has the setting. They have one
partition each, and the first services process alone audits and traces. If they are deleted, they are created again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

from appliance.channels.controller_link import ControllerLink
from appliance.channels.metadata_image import ImageReader
from appliance.clock import Clock
from appliance.cluster import CONSUMER_OFFSETS, ClusterImage, TopicImage
from appliance.config import Settings
from appliance.config.topic_configs import TOPIC_CONFIGS
from appliance.errors import ConfigurationError
from appliance.message_audit.positions import PartitionKey
from appliance.partition_access.places import LogPlace, log_place, log_places
from appliance.services.internal_topics import Creation, is_enabled, new_topic

HOUR_MS: Final = 3_600_000

OBSERVATIONS_LAYOUT: Final = {
    "retention.ms": HOUR_MS,
    "retention.bytes": 64 << 20,
    "segment.bytes": 16 << 20,
}
STATE_LAYOUT: Final = {"retention.ms": -1, "retention.bytes": -1, "segment.bytes": 16 << 20}
"""Snapshots are removed by who writes them, when the next one is there."""


class Followed(Protocol):
    """A partition that is followed. `place` is None while nobody leads it."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def place(self) -> LogPlace | None: ...


F = TypeVar("F", bound=Followed)


class FollowedTopics(Generic[F]):
    """The topics, as of the current image.

    Args:
        setting: switches it on for a topic.
        results, state: names of the internal topics for results and for snapshots of positions.
        layouts: of each internal topic that is wanted, the settings that bound it.
    """

    __slots__ = (
        "_creation",
        "_has_followed",
        "_ids",
        "_image",
        "_layouts",
        "_places",
        "_reader",
        "_setting",
        "_settings",
        "commits",
        "followed",
        "names",
        "results",
        "state",
    )

    def __init__(
        self,
        settings: Settings,
        reader: ImageReader,
        clock: Clock,
        *,
        setting: str,
        results: str,
        state: str,
        layouts: Mapping[str, Mapping[str, int]],
    ) -> None:
        self._setting = setting
        self._layouts = layouts
        self.results = results
        self.state = state
        self._settings = settings
        self._reader = reader
        self._creation = Creation(clock)
        self._image: ClusterImage | None = None
        self._has_followed = False
        self._places: dict[str, LogPlace | None] = {}
        self._ids: frozenset[UUID] = frozenset()
        self.followed: dict[PartitionKey, F] = {}
        self.commits: tuple[LogPlace | None, ...] = ()
        self.names: dict[tuple[str, int], PartitionKey] = {}

    def follow_image(self) -> bool:
        """Look at the current image; return whether there is another one."""
        image = self._reader.current()
        if image is self._image:
            return False
        self._image = image
        workers = self._settings.io.workers
        self._places = {}
        self.followed = {}
        self.names = {}
        if image is None:
            return True
        for name in self._layouts:
            places = log_places(image, name, workers=workers)
            self._places[name] = places[0] if places else None
        self._ids = frozenset(topic.topic_id for topic in image.topics.values())
        self.commits = log_places(image, CONSUMER_OFFSETS, workers=workers)
        for topic in image.topics.values():
            if is_enabled(topic, self._setting):
                self._add(topic, workers=workers)
        self._has_followed = bool(self.followed)
        return True

    def _add(self, topic: TopicImage, *, workers: int) -> None:
        for partition in topic.partitions:
            key = topic.topic_id, partition.partition
            self.followed[key] = self.follow(
                topic, partition.partition, log_place(topic, partition, workers=workers)
            )
            self.names[topic.name, partition.partition] = key

    def follow(self, topic: TopicImage, partition: int, place: LogPlace | None) -> F:
        """Return what is followed of one partition."""
        raise NotImplementedError

    @property
    def has_image(self) -> bool:
        """Whether the controller has published an image."""
        return self._image is not None

    @property
    def is_ready(self) -> bool:
        """Whether something is audited, and all internal topics are led."""
        return self._has_followed and all(self._places.get(name) is not None for name in self._layouts)

    def place(self, name: str) -> LogPlace | None:
        """Return where an internal topic is led; None if nobody leads it."""
        return self._places.get(name)

    def exists(self, key: PartitionKey) -> bool:
        """Return whether the topic of a partition is still there, audited or not."""
        return key[0] in self._ids

    def results_id(self) -> str:
        """Return the topic id of the results as text; empty if there is no such topic."""
        topic = None if self._image is None else self._image.topics.get(self.results)
        return "" if topic is None else str(topic.topic_id)

    def create_missing(self, controller: ControllerLink) -> bool:
        """Have the controller create the internal topics, if they are wanted; return whether one is missing."""
        image = self._image
        if image is None or not self._has_followed:
            return False
        missing = [name for name in self._layouts if name not in image.topics]
        if not missing:
            return False
        slots = self._settings.slots
        topics = tuple(new_topic(name, 1, slots=slots, bounds=self._layouts[name]) for name in missing)
        self._creation.ask(controller, topics)
        return True


def number_of(topic: TopicImage, name: str) -> int:
    declaration = TOPIC_CONFIGS[name]
    text = topic.configs.get(name)
    try:
        value = declaration.default if text is None else declaration.parse(text)
    except ConfigurationError:
        value = declaration.default
    assert isinstance(value, int)
    return value
