"""Which topics are audited, where they and the internal topics of the audit are led; creates the internal ones.

Everything comes from the metadata image. The internal topics are created when a topic has `audit.enable`. They have one
partition each, and the first services process alone audits. If they are deleted, they are created again.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from appliance.channels.control_channel import CreateTopics, NewTopic
from appliance.channels.controller_link import ControllerLink
from appliance.channels.metadata_image import ImageReader
from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import (
    CONSUMER_OFFSETS,
    MESSAGE_AUDIT,
    MESSAGE_AUDIT_STATE,
    OBSERVATIONS,
    ClusterImage,
    TopicImage,
)
from appliance.config import Settings
from appliance.config.topic_configs import TOPIC_CONFIGS
from appliance.errors import ConfigurationError
from appliance.message_audit.positions import PartitionKey
from appliance.partition_access.places import LogPlace, log_place, log_places

CREATE_MS: Final = 5_000
REPLICAS_MAX: Final = 3
BATCH_BYTES_MAX: Final = 4 << 20
AUDIT_ENABLE: Final = "audit.enable"
AUDIT_HEADERS: Final = "audit.headers"
AUDIT_BUCKET_MS: Final = "audit.bucket.ms"
_HOUR_MS: Final = 3_600_000

_LAYOUTS: Final[dict[str, dict[str, int]]] = {
    MESSAGE_AUDIT: {
        "retention.ms": 7 * 24 * _HOUR_MS,
        "retention.bytes": 512 << 20,
        "segment.bytes": 64 << 20,
    },
    MESSAGE_AUDIT_STATE: {"retention.ms": -1, "retention.bytes": -1, "segment.bytes": 16 << 20},
    OBSERVATIONS: {"retention.ms": _HOUR_MS, "retention.bytes": 64 << 20, "segment.bytes": 16 << 20},
}
"""Of each internal topic, the settings that bound it. The snapshots of `__audit_state` are removed by the audit."""


class Audited(NamedTuple):
    """An audited partition. `place` is None while nobody leads it."""

    topic: str
    partition: int
    place: LogPlace | None
    bucket_ms: int
    by_headers: bool


class AuditTopics:
    """The topics, as of the current image."""

    __slots__ = (
        "_asked_ns",
        "_clock",
        "_has_audited",
        "_ids",
        "_image",
        "_places",
        "_reader",
        "_settings",
        "audited",
        "commits",
        "names",
    )

    def __init__(self, settings: Settings, reader: ImageReader, clock: Clock) -> None:
        self._settings = settings
        self._reader = reader
        self._clock = clock
        self._image: ClusterImage | None = None
        self._asked_ns: int | None = None
        self._has_audited = False
        self._places: dict[str, LogPlace | None] = {}
        self._ids: frozenset[UUID] = frozenset()
        self.audited: dict[PartitionKey, Audited] = {}
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
        self.audited = {}
        self.names = {}
        if image is None:
            return True
        for name in _LAYOUTS:
            places = log_places(image, name, workers=workers)
            self._places[name] = places[0] if places else None
        self._ids = frozenset(topic.topic_id for topic in image.topics.values())
        self.commits = log_places(image, CONSUMER_OFFSETS, workers=workers)
        for topic in image.topics.values():
            if is_enabled(topic, AUDIT_ENABLE):
                self._add(topic, workers=workers)
        self._has_audited = bool(self.audited)
        return True

    def _add(self, topic: TopicImage, *, workers: int) -> None:
        bucket_ms = _number(topic, AUDIT_BUCKET_MS)
        by_headers = is_enabled(topic, AUDIT_HEADERS)
        for partition in topic.partitions:
            key = topic.topic_id, partition.partition
            place = log_place(topic, partition, workers=workers)
            self.audited[key] = Audited(topic.name, partition.partition, place, bucket_ms, by_headers)
            self.names[topic.name, partition.partition] = key

    @property
    def has_image(self) -> bool:
        """Whether the controller has published an image."""
        return self._image is not None

    @property
    def is_ready(self) -> bool:
        """Whether something is audited, and all internal topics are led."""
        return self._has_audited and all(self._places.get(name) is not None for name in _LAYOUTS)

    def place(self, name: str) -> LogPlace | None:
        """Return where an internal topic is led; None if nobody leads it."""
        return self._places.get(name)

    def exists(self, key: PartitionKey) -> bool:
        """Return whether the topic of a partition is still there, audited or not."""
        return key[0] in self._ids

    def audit_id(self) -> str:
        """Return the topic id of `__audit` as text; empty if there is no such topic."""
        topic = None if self._image is None else self._image.topics.get(MESSAGE_AUDIT)
        return "" if topic is None else str(topic.topic_id)

    def create_missing(self, controller: ControllerLink) -> bool:
        """Have the controller create the internal topics, if they are wanted; return whether one is missing."""
        image = self._image
        if image is None or not self._has_audited:
            return False
        missing = [name for name in _LAYOUTS if name not in image.topics]
        if not missing:
            return False
        now_ns = self._clock.monotonic_ns()
        if self._asked_ns is None or now_ns - self._asked_ns >= CREATE_MS * NS_PER_MS:
            self._asked_ns = now_ns
            controller.ask(CreateTopics(tuple(map(self._new_topic, missing))))
        return True

    def _new_topic(self, name: str) -> NewTopic:
        replicas = min(REPLICAS_MAX, self._settings.slots)
        return NewTopic(
            name,
            1,
            replicas,
            configs={
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "max.message.bytes": str(BATCH_BYTES_MAX),
                "message.timestamp.type": "CreateTime",
                "min.insync.replicas": str(min(2, replicas)),
                "unclean.leader.election.enable": "false",
                **{setting: str(number) for setting, number in _LAYOUTS[name].items()},
            },
        )


def is_enabled(topic: TopicImage, name: str) -> bool:
    """Return whether a topic has a boolean setting that is off by default."""
    return topic.configs.get(name, "").strip().lower() == "true"


def _number(topic: TopicImage, name: str) -> int:
    declaration = TOPIC_CONFIGS[name]
    text = topic.configs.get(name)
    try:
        value = declaration.default if text is None else declaration.parse(text)
    except ConfigurationError:
        value = declaration.default
    assert isinstance(value, int)
    return value
