"""Every topic setting of Apache Kafka 4.3, and the settings that only the appliance has, each declared once.

Names, types, defaults, ranges and the order of synonyms: Kafka's `LogConfig.java`, `TopicConfig.java` and
`ServerTopicConfigSynonyms.java`. Remote storage is declared so that tools find what they look for, and can
only stay off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.config.declaration import (
    INT64_MAX,
    BrokerSynonym,
    ConfigType,
    Declaration,
    Effect,
    Value,
    text_of,
)

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

_NOW = Effect.AT_ONCE
_NONE = Effect.NONE


def _topic(
    name: str,
    declared_type: ConfigType,
    default: Value,
    doc: str,
    *,
    broker: str | tuple[BrokerSynonym, ...] = (),
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    special: tuple[int, ...] = (),
    effect: Effect = _NONE,
) -> Declaration:
    """A topic setting; `broker` is its broker-wide name, or all of them where Kafka has several."""
    if isinstance(broker, str):
        broker = (BrokerSynonym(broker, text_of(default), unit),)
    return Declaration(
        name=name,
        type=declared_type,
        default=default,
        doc=doc,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        special=special,
        effect=effect,
        synonyms=broker,
    )


BOOLEAN, DOUBLE, INT, LIST, LONG, STRING = (
    ConfigType.BOOLEAN,
    ConfigType.DOUBLE,
    ConfigType.INT,
    ConfigType.LIST,
    ConfigType.LONG,
    ConfigType.STRING,
)

_DECLARATIONS: Final = (
    _topic(
        "audit.bucket.ms",
        LONG,
        60_000,
        "Length of a time bucket of the message audit. Kafka has no such setting.",
        unit="ms",
        minimum=1_000,
        maximum=_DAY_MS,
        effect=_NOW,
    ),
    _topic(
        "audit.enable",
        BOOLEAN,
        False,
        "Whether the message audit counts the produced and consumed records of the topic, by client, group "
        "and time bucket. The setting needs services.processes. See docs/message-audit.md. Kafka has no "
        "such setting.",
        effect=_NOW,
    ),
    _topic(
        "audit.headers",
        BOOLEAN,
        False,
        "Whether the message audit reads the headers `audit.id` and `audit.time` of each record. With "
        "these headers, the audit finds missing and repeated records. Without this setting, the audit "
        "reads only the headers of batches, which needs less processor time. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "cleanup.policy",
        LIST,
        ("delete",),
        "What the broker does with old segments. `delete` deletes segments by age and size. `compact` "
        "keeps the last value of each key. You can set both values.",
        broker="log.cleanup.policy",
        choices=("compact", "delete"),
        effect=_NOW,
    ),
    _topic(
        "compression.gzip.level",
        INT,
        -1,
        "Level for batches that the broker itself compresses with gzip. -1 means the default of gzip.",
        broker="compression.gzip.level",
        minimum=1,
        maximum=9,
        special=(-1,),
        effect=_NOW,
    ),
    _topic(
        "compression.lz4.level",
        INT,
        9,
        "Level for batches that the broker itself compresses with lz4.",
        broker="compression.lz4.level",
        minimum=1,
        maximum=17,
        effect=_NOW,
    ),
    _topic(
        "compression.type",
        STRING,
        "producer",
        "Codec of stored batches. With `producer`, the broker stores each batch as the producer has"
        " compressed it, which costs nothing. With any other value the broker compresses batches "
        "again.",
        broker="compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        effect=_NOW,
    ),
    _topic(
        "compression.zstd.level",
        INT,
        3,
        "Level for batches that the broker itself compresses with zstd.",
        broker="compression.zstd.level",
        minimum=-131072,
        maximum=22,
        effect=_NOW,
    ),
    _topic(
        "dead.letter.retry.topic",
        STRING,
        "",
        "The retry topic whose dead letters the broker appends to this topic. The retry topic must name "
        "this topic in retry.dead.letter.topic. See docs/retries.md. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "decompressed.ratio.max",
        INT,
        32,
        "Maximum size of a batch after decompression, as a multiple of max.message.bytes. If a "
        "batch is larger, the producer gets MESSAGE_TOO_LARGE. Kafka has neither this setting nor "
        "this limit.",
        broker="log.decompressed.ratio.max",
        minimum=1,
        maximum=1000,
        effect=_NOW,
    ),
    _topic(
        "delete.retention.ms",
        LONG,
        _DAY_MS,
        "Time for which a compacted log keeps the tombstone of a deleted key.",
        broker="log.cleaner.delete.retention.ms",
        unit="ms",
        minimum=0,
        effect=_NOW,
    ),
    _topic(
        "delivery.delay.enable",
        BOOLEAN,
        False,
        "Whether the broker delays records with a header `delivery.delay` or `delivery.at`. The setting "
        "needs services.processes. See docs/delayed-delivery.md. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "delivery.delay.mode",
        STRING,
        "levels",
        "How exactly the broker delivers delayed records. With `levels`, the broker raises each delay to "
        "the next level. With `exact`, the broker delivers a record when it is due. Kafka has no such "
        "setting.",
        choices=("levels", "exact"),
        effect=_NOW,
    ),
    _topic(
        "durability",
        STRING,
        "page-cache",
        "When a record counts as written. With `page-cache`, a record is written when it is in the page "
        "cache, which survives the death of every process but not a power cut. With `fsync`, a record is "
        "written when fdatasync has written it to the disk. Kafka has no such setting. Kafka's most "
        "similar setting is flush.messages=1.",
        broker="durability",
        choices=("page-cache", "fsync"),
        effect=_NOW,
    ),
    _topic(
        "file.delete.delay.ms",
        LONG,
        60_000,
        "Time for which the file of a deleted segment stays on the disk. Its name then ends with `.deleted`.",
        broker="log.segment.delete.delay.ms",
        unit="ms",
        minimum=0,
        effect=_NOW,
    ),
    _topic(
        "flush.messages",
        LONG,
        INT64_MAX,
        "Number of records after which the broker flushes the log to the disk. By default the kernel "
        "decides when to write to the disk.",
        broker="log.flush.interval.messages",
        unit="records",
        minimum=1,
    ),
    _topic(
        "flush.ms",
        LONG,
        INT64_MAX,
        "Time after which the broker flushes the log to the disk. By default the kernel decides when to "
        "write to the disk.",
        broker=(
            BrokerSynonym("log.flush.interval.ms", None, "ms"),
            BrokerSynonym("log.flush.scheduler.interval.ms", str(INT64_MAX), "ms"),
        ),
        unit="ms",
        minimum=0,
    ),
    _topic(
        "follower.replication.throttled.replicas",
        LIST,
        (),
        "Followers whose replication is throttled, as `partition:broker` pairs. `*` means all followers.",
        effect=_NOW,
    ),
    _topic(
        "index.interval.bytes",
        INT,
        4096,
        "Number of bytes of the log between two entries of the offset index.",
        broker="log.index.interval.bytes",
        unit="bytes",
        minimum=0,
        effect=_NOW,
    ),
    _topic(
        "leader.replication.throttled.replicas",
        LIST,
        (),
        "Leaders whose replication is throttled, as `partition:broker` pairs. `*` means all leaders.",
        effect=_NOW,
    ),
    _topic(
        "local.retention.bytes",
        LONG,
        -2,
        "Size to keep on the local disk if remote storage is used. -2 means the value of "
        "retention.bytes. The appliance has no remote storage.",
        broker="log.local.retention.bytes",
        unit="bytes",
        minimum=-2,
    ),
    _topic(
        "local.retention.ms",
        LONG,
        -2,
        "Time to keep records on the local disk if remote storage is used. -2 means the value of "
        "retention.ms. The appliance has no remote storage.",
        broker="log.local.retention.ms",
        unit="ms",
        minimum=-2,
    ),
    _topic(
        "max.compaction.lag.ms",
        LONG,
        INT64_MAX,
        "Maximum time before a record becomes available for compaction.",
        broker="log.cleaner.max.compaction.lag.ms",
        unit="ms",
        minimum=1,
        effect=_NOW,
    ),
    _topic(
        "max.message.bytes",
        INT,
        1_048_588,
        "Maximum size of a record batch from a producer, as it is stored in the log.",
        broker="message.max.bytes",
        unit="bytes",
        minimum=0,
        effect=_NOW,
    ),
    _topic(
        "message.timestamp.after.max.ms",
        LONG,
        _HOUR_MS,
        "Time by which a record's timestamp may be ahead of the broker's clock.",
        broker="log.message.timestamp.after.max.ms",
        unit="ms",
        minimum=0,
        effect=_NOW,
    ),
    _topic(
        "message.timestamp.before.max.ms",
        LONG,
        INT64_MAX,
        "Time by which a record's timestamp may be behind the broker's clock.",
        broker="log.message.timestamp.before.max.ms",
        unit="ms",
        minimum=0,
        effect=_NOW,
    ),
    _topic(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Which time the broker stores with a record. `CreateTime` is the time of the producer, and "
        "`LogAppendTime` is the time of the append.",
        broker="log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
        effect=_NOW,
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        0.5,
        "Share of a log that must be uncompacted before the cleaner compacts the log.",
        broker="log.cleaner.min.cleanable.ratio",
        minimum=0,
        maximum=1,
        effect=_NOW,
    ),
    _topic(
        "min.compaction.lag.ms",
        LONG,
        0,
        "Minimum time before a record becomes available for compaction.",
        broker="log.cleaner.min.compaction.lag.ms",
        unit="ms",
        minimum=0,
        effect=_NOW,
    ),
    _topic(
        "min.insync.replicas",
        INT,
        1,
        "Number of replicas that must be in sync before the broker accepts a produce request with acks=all.",
        broker="min.insync.replicas",
        unit="replicas",
        minimum=1,
        effect=_NOW,
    ),
    _topic(
        "preallocate",
        BOOLEAN,
        False,
        "Whether the broker allocates the full size of a segment at once. The setting has no "
        "effect, because the broker always allocates space in steps.",
        broker="log.preallocate",
    ),
    _topic(
        "remote.log.copy.disable",
        BOOLEAN,
        False,
        "Whether copying to remote storage pauses. The appliance has no remote storage.",
    ),
    _topic(
        "remote.log.delete.on.disable",
        BOOLEAN,
        False,
        "Whether switching off remote storage deletes its files. The appliance has no remote storage.",
    ),
    _topic(
        "remote.storage.enable",
        BOOLEAN,
        False,
        "Whether remote storage is used. The appliance has no remote storage, so it accepts only `false`.",
    ),
    _topic(
        "retention.bytes",
        LONG,
        -1,
        "Maximum size of a partition. Above this size the broker deletes the oldest segments. -1 "
        "means no limit.",
        broker="log.retention.bytes",
        unit="bytes",
        effect=_NOW,
    ),
    _topic(
        "retention.ms",
        LONG,
        7 * _DAY_MS,
        "Age above which the broker deletes a segment. -1 means no limit.",
        broker=(
            BrokerSynonym("log.retention.ms", None, "ms"),
            BrokerSynonym("log.retention.minutes", None, "minutes", 60_000),
            BrokerSynonym("log.retention.hours", "168", "hours", _HOUR_MS),
        ),
        unit="ms",
        minimum=-1,
        effect=_NOW,
    ),
    _topic(
        "retry.dead.letter.topic",
        STRING,
        "",
        "The topic to which the broker appends records that were handed back too often, or were rejected. "
        "The dead-letter topic must name this topic in dead.letter.retry.topic. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "retry.enable",
        BOOLEAN,
        True,
        "Whether consumers may hand records back to this retry topic. With `false`, the broker rejects "
        "hand-backs. The broker still delivers records that already wait. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "retry.group",
        STRING,
        "",
        "The consumer group to which this retry topic belongs. `appliance retries enable` sets this value. "
        "The broker delivers the records of a topic with this setting again after a delay. The setting "
        "needs delivery.delay.enable. See docs/retries.md. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "retry.levels",
        LIST,
        ("10s", "30s", "1m", "2m", "5m", "10m"),
        "Delays after the first hand-back of a record, the second hand-back, and so on. The last delay "
        "applies to all further hand-backs. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "retry.max",
        INT,
        16,
        "Maximum number of times that the broker delivers a record again. After one more hand-back, the "
        "record becomes a dead letter. Kafka has no such setting.",
        unit="deliveries",
        minimum=0,
        maximum=10_000,
        effect=_NOW,
    ),
    _topic(
        "retry.ordered",
        BOOLEAN,
        False,
        "Whether later records wait for a failed record. Consumers then keep a failed record, and hand "
        "back only dead letters. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "retry.ordered.by.key",
        BOOLEAN,
        False,
        "With `retry.ordered`: whether only the later records of the same partition with the same key wait "
        "for a failed record. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "retry.topic",
        STRING,
        "",
        "The topic to which this retry topic belongs. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "segment.bytes",
        INT,
        1_073_741_824,
        "Size at which the broker closes a segment and creates the next one.",
        broker="log.segment.bytes",
        unit="bytes",
        minimum=1_048_576,
        effect=_NOW,
    ),
    _topic(
        "segment.index.bytes",
        INT,
        10_485_760,
        "Maximum size of a segment's offset index. When the index is full, the broker closes the segment.",
        broker="log.index.size.max.bytes",
        unit="bytes",
        minimum=4,
        effect=_NOW,
    ),
    _topic(
        "segment.jitter.ms",
        LONG,
        0,
        "Maximum random time that the broker subtracts from segment.ms, so that segments do not all"
        " close at the same time.",
        broker=(
            BrokerSynonym("log.roll.jitter.ms", None, "ms"),
            BrokerSynonym("log.roll.jitter.hours", "0", "hours", _HOUR_MS),
        ),
        unit="ms",
        minimum=0,
        effect=_NOW,
    ),
    _topic(
        "segment.ms",
        LONG,
        7 * _DAY_MS,
        "Age at which the broker closes a segment, even if the segment is not full.",
        broker=(
            BrokerSynonym("log.roll.ms", None, "ms"),
            BrokerSynonym("log.roll.hours", "168", "hours", _HOUR_MS),
        ),
        unit="ms",
        minimum=1,
        effect=_NOW,
    ),
    _topic(
        "trace.enable",
        BOOLEAN,
        False,
        "Whether the broker traces records with a header `traceparent` that has the flag `sampled`. The "
        "setting needs services.processes. See docs/trace.md. Kafka has no such setting.",
        effect=_NOW,
    ),
    _topic(
        "trace.sample",
        INT,
        0,
        "With trace.enable, the broker also traces the records of one in this number of keys, and one in "
        "this number of records without a key. 0 means that the broker traces only records with the header "
        "`traceparent`. Kafka has no such setting.",
        minimum=0,
        maximum=1_000_000_000,
        effect=_NOW,
    ),
    _topic(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Whether a replica outside the ISR may become leader if there is no in-sync replica. "
        "Acknowledged records can then be lost.",
        broker="unclean.leader.election.enable",
        effect=_NOW,
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, Declaration]] = {one.name: one for one in _DECLARATIONS}


def topic_config_declarations() -> tuple[Declaration, ...]:
    """Every topic setting, sorted by name."""
    return _DECLARATIONS
