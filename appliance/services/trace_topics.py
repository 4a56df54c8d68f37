"""Which topics are traced, and how."""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.channels.metadata_image import ImageReader
from appliance.clock import Clock
from appliance.cluster import OBSERVATIONS, TRACE, TRACE_STATE, TopicImage
from appliance.config import Settings
from appliance.partition_access.places import LogPlace
from appliance.services.followed_topics import (
    HOUR_MS,
    OBSERVATIONS_LAYOUT,
    STATE_LAYOUT,
    FollowedTopics,
    number_of,
)

_LAYOUTS: Final = {
    TRACE: {"retention.ms": 3 * 24 * HOUR_MS, "retention.bytes": 256 << 20, "segment.bytes": 32 << 20},
    TRACE_STATE: STATE_LAYOUT,
    OBSERVATIONS: OBSERVATIONS_LAYOUT,
}


class TracedPartition(NamedTuple):
    """A partition with traced records. `sample`: one in so many keys, 0: none."""

    topic: str
    partition: int
    place: LogPlace | None
    sample: int


class TraceTopics(FollowedTopics[TracedPartition]):
    """Topics with `trace.enable`."""

    __slots__ = ()

    def __init__(self, settings: Settings, reader: ImageReader, clock: Clock) -> None:
        super().__init__(
            settings,
            reader,
            clock,
            setting="trace.enable",
            results=TRACE,
            state=TRACE_STATE,
            layouts=_LAYOUTS,
        )

    def follow(self, topic: TopicImage, partition: int, place: LogPlace | None) -> TracedPartition:
        """Return what is followed of one partition."""
        return TracedPartition(topic.name, partition, place, number_of(topic, "trace.sample"))
