"""Where the internal topics of delayed delivery, and the topics to deliver to, are led; creates the internal ones.

Everything comes from the metadata image. The internal topics are created when a topic has `delivery.delay.enable`, or
when one of them is there already, because a level may have been added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

from appliance.channels.control_channel import NewTopic
from appliance.channels.controller_link import ControllerLink
from appliance.channels.metadata_image import ImageReader
from appliance.clock import Clock
from appliance.cluster import DELAYED_PREFIX, DELAYED_STATE, ClusterImage, TopicImage
from appliance.config import Settings
from appliance.config.sections.services import INDEX_DIRECTORY
from appliance.delivery.levels import Levels
from appliance.partition_access.places import LogPlace, batch_bytes_max, log_place, log_places
from appliance.services.due_keys import index_name
from appliance.services.internal_topics import Creation, is_enabled, new_topic

SEGMENT_BYTES: Final = 64 << 20
STATE_SEGMENT_BYTES: Final = 4 << 20
_ENABLE: Final = "delivery.delay.enable"

Places = tuple[LogPlace | None, ...]


class DelayTopics:
    """The internal topics, as of the current image."""

    __slots__ = (
        "_by_id",
        "_creation",
        "_image",
        "_limits",
        "_reader",
        "_settings",
        "_state",
        "_waits",
        "levels",
    )

    def __init__(self, settings: Settings, reader: ImageReader, clock: Clock) -> None:
        self._settings = settings
        self._reader = reader
        self._creation = Creation(clock)
        self._image: ClusterImage | None = None
        self._by_id: dict[UUID, TopicImage] = {}
        self._limits: dict[tuple[str, int], int] = {}
        self.levels = Levels(settings.services.delay_levels, settings.services.delay_exact_levels)
        self._waits: dict[str, Places] = {}
        self._state: Places = ()

    def follow_image(self) -> bool:
        """Look at the current image; return whether there is another one."""
        image = self._reader.current()
        if image is self._image:
            return False
        self._image = image
        workers = self._settings.io.workers
        self._waits = {
            level: log_places(image, topic, workers=workers)
            for level, topic in zip(self.levels.names, self.levels.topics, strict=True)
        }
        self._state = log_places(image, DELAYED_STATE, workers=workers)
        self._by_id = {} if image is None else {topic.topic_id: topic for topic in image.topics.values()}
        self._limits.clear()
        return True

    @property
    def has_image(self) -> bool:
        """Whether the controller has published an image."""
        return self._image is not None

    @property
    def partitions(self) -> int:
        """How many partitions of each level are used; 0 until all internal topics are there."""
        counts = [len(self._state), *map(len, self._waits.values())]
        return min(counts) if len(set(counts)) == 1 else 0

    def create_missing(self, controller: ControllerLink) -> bool:
        """Have the controller create the internal topics, if they are wanted; return whether one is missing."""
        image = self._image
        if image is None:
            return False
        wanted = [*self.levels.topics, DELAYED_STATE]
        missing = [name for name in wanted if name not in image.topics]
        if not missing:
            return False
        if len(missing) == len(wanted) and not any(
            is_enabled(topic, _ENABLE) for topic in image.topics.values()
        ):
            return False
        partitions = next(
            (len(image.topics[name].partitions) for name in wanted if name in image.topics),
            self._settings.services.delay_partitions,
        )
        self._creation.ask(controller, tuple(self._new_topic(name, partitions) for name in missing))
        return True

    def _new_topic(self, name: str, partitions: int) -> NewTopic:
        segment_bytes = STATE_SEGMENT_BYTES if name == DELAYED_STATE else SEGMENT_BYTES
        bounds = {"retention.bytes": -1, "retention.ms": -1, "segment.bytes": segment_bytes}
        return new_topic(name, partitions, slots=self._settings.slots, bounds=bounds)

    def state_place(self, partition: int) -> LogPlace | None:
        """Return where a partition of `__delayed_state` is led; None if nobody leads it."""
        return self._state[partition] if partition < len(self._state) else None

    def wait_place(self, level: str, partition: int) -> LogPlace | None:
        """Return where a partition of a level is led; None if nobody leads it."""
        places = self._waits[level]
        return places[partition] if partition < len(places) else None

    @property
    def index_directory(self) -> Path:
        """Return the directory of the indexes of exact levels."""
        return self._settings.data_dir / INDEX_DIRECTORY

    def index_name(self, level: str, partition: int) -> str:
        """Return the name of the index of one log."""
        topic = None if self._image is None else self._image.topics.get(f"{DELAYED_PREFIX}{level}")
        return index_name(level, partition, None if topic is None else topic.topic_id)

    # Where to deliver to

    def topic(self, topic_id: UUID) -> TopicImage | None:
        """Return a topic; None if it was deleted."""
        return self._by_id.get(topic_id)

    def place(self, topic: TopicImage, partition: int) -> LogPlace | None:
        """Return where a partition is led; None if nobody leads it."""
        return log_place(topic, topic.partitions[partition], workers=self._settings.io.workers)

    def batch_bytes_max(self, place: LogPlace) -> int:
        """Return the largest batch that the partition takes."""
        key = place.topic, place.leader
        limit = self._limits.get(key)
        if limit is None:
            limit = self._limits[key] = batch_bytes_max(
                self._image, place.topic, self._settings, slot=place.leader
            )
        return limit

    def level_topic(self, level: int) -> TopicImage | None:
        """Return the internal topic of a level."""
        return None if self._image is None else self._image.topics.get(self.levels.topics[level])
