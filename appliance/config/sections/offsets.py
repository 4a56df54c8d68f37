"""Committed offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class OffsetsSettings:
    """Committed offsets of consumer groups, and the topic they lie in."""

    topic_num_partitions: int = option(
        50,
        "offsets.topic.num.partitions",
        unit="partitions",
        minimum=1,
        doc="Number of partitions of __consumer_offsets when the broker creates this topic. The id of a"
        " group determines the partition of the group.",
    )
    topic_replication_factor: int = option(
        0,
        "offsets.topic.replication.factor",
        type=ConfigType.SHORT,
        unit="replicas",
        minimum=1,
        maximum=32,
        special=(0,),
        doc="Number of replicas of __consumer_offsets when the broker creates this topic. 0 means the "
        "number of slots, but at most 3.",
    )
    topic_segment_bytes: int = option(
        100 * _MIB,
        "offsets.topic.segment.bytes",
        unit="bytes",
        minimum=_MIB,
        doc="Segment size of __consumer_offsets. The cleaner compacts only closed segments. Therefore a"
        " new coordinator must read more records if segments are large.",
    )
    topic_compression_codec: int = option(
        0,
        "offsets.topic.compression.codec",
        unit="codec",
        minimum=0,
        maximum=4,
        doc="Compression of batches in __consumer_offsets. 0 means none, 1 gzip, 2 snappy, 3 lz4, and 4"
        " zstd.",
    )
    metadata_max_bytes: int = option(
        4096,
        "offset.metadata.max.bytes",
        unit="characters",
        minimum=0,
        maximum=32_767,
        doc="Maximum length of the text that a client can store with a committed offset.",
    )
    retention_minutes: int = option(
        10_080,
        "offsets.retention.minutes",
        unit="minutes",
        minimum=1,
        doc="Time for which the coordinator keeps the offsets of a group without members. The coordinator "
        "also keeps offsets for this time if the group no longer consumes their topic.",
    )
    retention_check_interval_ms: int = option(
        600_000,
        "offsets.retention.check.interval.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="Interval at which the coordinator looks for offsets to remove.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
