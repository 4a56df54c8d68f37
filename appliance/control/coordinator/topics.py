"""What the coordinator sees of the metadata image: topics by name and by id, and where the internal topic lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from appliance.channels.metadata_image import ImageReader
from appliance.channels.roles import Role, owner_of
from appliance.cluster import CONSUMER_OFFSETS, NO_LEADER, ClusterImage
from appliance.config import BrokerConfigs, Settings, effective_topic_configs
from appliance.control.coordinator.group.effects import Topic

MAX_MESSAGE_BYTES: Final = "max.message.bytes"


class LogPlace(NamedTuple):
    """Where one partition of the internal topic is led."""

    partition: int
    row: int
    incarnation: int
    leader: int
    leader_epoch: int
    worker: Role


class ImageTopics:
    """The newest image, as `group.effects.Topics` wants it. `refresh` looks whether there is a newer one."""

    __slots__ = ("_by_id", "_image", "_known", "_reader", "_version", "_workers")

    def __init__(self, reader: ImageReader, *, workers: int = 1) -> None:
        """`workers`: how many each slot has."""
        self._reader = reader
        self._workers = workers
        self._version = -1
        self._image: ClusterImage | None = None
        self._known: dict[str, Topic] = {}
        self._by_id: dict[UUID, str] | None = None

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

    def batch_bytes_max(self, settings: Settings, slot: int) -> int:
        """The largest batch that `__consumer_offsets` takes where `slot` leads: max.message.bytes."""
        image = self._image
        topic = image.topics.get(CONSUMER_OFFSETS) if image is not None else None
        if image is None or topic is None:
            return 0
        broker = BrokerConfigs.of(image.broker_configs, slot)
        return int(effective_topic_configs(settings, topic.configs, broker)[MAX_MESSAGE_BYTES])

    def ids(self) -> dict[str, UUID]:
        """Name → id of every topic."""
        topics = self._image.topics if self._image is not None else {}
        return {name: topic.topic_id for name, topic in topics.items()}

    def log_places(self) -> tuple[LogPlace | None, ...]:
        """Where each partition of `__consumer_offsets` is led, None where nowhere; empty without that topic."""
        topic = self._image.topics.get(CONSUMER_OFFSETS) if self._image is not None else None
        if topic is None:
            return ()
        return tuple(
            None
            if p.leader == NO_LEADER
            else LogPlace(
                p.partition,
                p.row,
                p.incarnation,
                p.leader,
                p.leader_epoch,
                owner_of(p.leader, topic.topic_id, p.partition, workers=self._workers),
            )
            for p in topic.partitions
        )
