"""Which topics are audited, and how."""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.channels.metadata_image import ImageReader
from appliance.clock import Clock
from appliance.cluster import MESSAGE_AUDIT, MESSAGE_AUDIT_STATE, OBSERVATIONS, TopicImage
from appliance.config import Settings
from appliance.partition_access.places import LogPlace
from appliance.services.followed_topics import (
    HOUR_MS,
    OBSERVATIONS_LAYOUT,
    STATE_LAYOUT,
    FollowedTopics,
    number_of,
)
from appliance.services.internal_topics import is_enabled

_LAYOUTS: Final = {
    MESSAGE_AUDIT: {
        "retention.ms": 7 * 24 * HOUR_MS,
        "retention.bytes": 512 << 20,
        "segment.bytes": 64 << 20,
    },
    MESSAGE_AUDIT_STATE: STATE_LAYOUT,
    OBSERVATIONS: OBSERVATIONS_LAYOUT,
}


class Audited(NamedTuple):
    """An audited partition."""

    topic: str
    partition: int
    place: LogPlace | None
    bucket_ms: int
    by_headers: bool


class AuditTopics(FollowedTopics[Audited]):
    """Topics with `audit.enable`."""

    __slots__ = ()

    def __init__(self, settings: Settings, reader: ImageReader, clock: Clock) -> None:
        super().__init__(
            settings,
            reader,
            clock,
            setting="audit.enable",
            results=MESSAGE_AUDIT,
            state=MESSAGE_AUDIT_STATE,
            layouts=_LAYOUTS,
        )

    def follow(self, topic: TopicImage, partition: int, place: LogPlace | None) -> Audited:
        """Return what is followed of one partition."""
        return Audited(
            topic.name,
            partition,
            place,
            number_of(topic, "audit.bucket.ms"),
            is_enabled(topic, "audit.headers"),
        )
