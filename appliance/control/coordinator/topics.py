"""What a coordinator sees of the metadata image: topics by name and by id, and where an internal topic's logs lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from appliance.channels.metadata_image import ImageReader
from appliance.cluster import ClusterImage, TopicPartition
from appliance.config import Settings
from appliance.control.coordinator.group.effects import Topic
from appliance.partition_access.places import LogPlace, batch_bytes_max, log_place, log_places


class ImageTopics:
    """The newest image, as `group.effects.Topics` wants it. `refresh` looks whether there is a newer one."""

    __slots__ = ("_by_id", "_image", "_known", "_places", "_reader", "_version", "_workers")

    def __init__(self, reader: ImageReader, *, workers: int = 1) -> None:
        """`workers`: how many each slot has."""
        self._reader = reader
        self._workers = workers
        self._version = -1
        self._image: ClusterImage | None = None
        self._known: dict[str, Topic] = {}
        self._by_id: dict[UUID, str] | None = None
        self._places: dict[TopicPartition, LogPlace | None] = {}

    def refresh(self) -> bool:
        """Takes the current image over; whether it is another one. One load when it is not."""
        if self._reader.version == self._version:
            return False
        image = self._reader.current()
        if image is None:
            return False
        self._image, self._version = image, image.version
        self._known = {}
        self._by_id = None
        self._places = {}
        return True

    def by_name(self, name: str) -> Topic | None:
        """The topic of that name, if it exists."""
        topic = self._known.get(name)
        if topic is None and self._image is not None:
            found = self._image.topics.get(name)
            if found is not None:
                topic = self._known[name] = Topic(found.name, found.topic_id, len(found.partitions))
        return topic

    def by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of that id, if it exists."""
        if self._by_id is None:
            topics = self._image.topics if self._image is not None else {}
            self._by_id = {topic.topic_id: name for name, topic in topics.items()}
        name = self._by_id.get(topic_id)
        return None if name is None else self.by_name(name)

    def names(self) -> Sequence[str]:
        """All topics, internal ones too."""
        return list(self._image.topics) if self._image is not None else []

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        """What was set on the group."""
        configs = self._image.group_configs if self._image is not None else {}
        return configs.get(group_id, {})

    def batch_bytes_max(self, topic: str, settings: Settings, slot: int) -> int:
        """Return the largest batch that `topic` takes where `slot` leads it."""
        return batch_bytes_max(self._image, topic, settings, slot=slot)

    def ids(self) -> dict[str, UUID]:
        """Name → id of every topic."""
        topics = self._image.topics if self._image is not None else {}
        return {name: topic.topic_id for name, topic in topics.items()}

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the image names the partition."""
        topic = self.by_name(partition.topic)
        return topic is not None and 0 <= partition.partition < topic.partitions

    def log_place(self, partition: TopicPartition) -> LogPlace | None:
        """Return where one partition is led; None where nobody leads it, or it does not exist."""
        try:
            return self._places[partition]
        except KeyError:
            place = self._places[partition] = self._log_place(partition)
            return place

    def _log_place(self, partition: TopicPartition) -> LogPlace | None:
        if self._image is None or not self.has(partition):
            return None
        topic = self._image.topics[partition.topic]
        return log_place(topic, topic.partitions[partition.partition], workers=self._workers)

    def log_places(self, topic: str) -> tuple[LogPlace | None, ...]:
        """Return where each partition of `topic` is led, None where nowhere; empty without that topic."""
        return log_places(self._image, topic, workers=self._workers)
