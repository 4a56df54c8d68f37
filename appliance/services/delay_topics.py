"""Where the internal topics of delayed delivery, and the topics to deliver to, are led; creates the internal ones.

Everything comes from the metadata image. The internal topics are created when a topic has `delivery.delay.enable`, or
when one of them is there already, because a level may have been added.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from appliance.channels.control_channel import CreateTopics, NewTopic
from appliance.channels.controller_link import ControllerLink
from appliance.channels.metadata_image import ImageReader
from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import DELAYED_STATE, ClusterImage, TopicImage
from appliance.config import Settings
from appliance.delivery.levels import Levels
from appliance.partition_access.places import LogPlace, batch_bytes_max, log_place, log_places

CREATE_MS: Final = 5_000
REPLICAS_MAX: Final = 3
BATCH_BYTES_MAX: Final = 4 << 20
SEGMENT_BYTES: Final = 64 << 20
STATE_SEGMENT_BYTES: Final = 4 << 20
_ENABLE: Final = "delivery.delay.enable"

Places = tuple[LogPlace | None, ...]


class DelayTopics:
    """The internal topics, as of the current image."""

    __slots__ = (
        "_asked_ns",
        "_by_id",
        "_clock",
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
        self._clock = clock
        self._image: ClusterImage | None = None
        self._asked_ns: int | None = None
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
        if len(missing) == len(wanted) and not any(_is_enabled(topic) for topic in image.topics.values()):
            return False
        now_ns = self._clock.monotonic_ns()
        if self._asked_ns is None or now_ns - self._asked_ns >= CREATE_MS * NS_PER_MS:
            self._asked_ns = now_ns
            partitions = next(
                (len(image.topics[name].partitions) for name in wanted if name in image.topics),
                self._settings.services.delay_partitions,
            )
            controller.ask(CreateTopics(tuple(self._new_topic(name, partitions) for name in missing)))
        return True

    def _new_topic(self, name: str, partitions: int) -> NewTopic:
        replicas = min(REPLICAS_MAX, self._settings.slots)
        is_state = name == DELAYED_STATE
        return NewTopic(
            name,
            partitions,
            replicas,
            configs={
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "max.message.bytes": str(BATCH_BYTES_MAX),
                "message.timestamp.type": "CreateTime",
                "min.insync.replicas": str(min(2, replicas)),
                "retention.bytes": "-1",
                "retention.ms": "-1",
                "segment.bytes": str(STATE_SEGMENT_BYTES if is_state else SEGMENT_BYTES),
                "unclean.leader.election.enable": "false",
            },
        )

    def state_place(self, partition: int) -> LogPlace | None:
        """Return where a partition of `__delayed_state` is led; None if nobody leads it."""
        return self._state[partition] if partition < len(self._state) else None

    def wait_place(self, level: str, partition: int) -> LogPlace | None:
        """Return where a partition of a level is led; None if nobody leads it."""
        places = self._waits[level]
        return places[partition] if partition < len(places) else None

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


def _is_enabled(topic: TopicImage) -> bool:
    return topic.configs.get(_ENABLE, "").strip().lower() == "true"
