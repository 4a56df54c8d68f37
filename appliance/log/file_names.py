"""Names of the files in a log directory, as Kafka names them.

    <log dir>/
        meta.properties  .lock  .kafka_cleanshutdown
        recovery-point-offset-checkpoint  log-start-offset-checkpoint  replication-offset-checkpoint
        <topic>-<partition>/                       a partition
            00000000000000000000.log               segment: its base offset in twenty digits
            00000000000000000000.index  .timeindex  .txnindex
            00000000000000000010.snapshot          producer state up to, not including, offset 10
            leader-epoch-checkpoint  partition.metadata
            handed-over                            (ours) what the slot's other process is left, where
                                                   shared memory has no room for it
            moves-to                               (ours) the name of its copy in another directory, on the way
            .state                                 how far readers off the disk may read (ours)
            .readers/                              their leases (ours)
            recovered/                             what a recovery cut (ours; Kafka does not look into it)
        <topic>-<partition>.<uuid hex>-delete/     a partition that waits for its removal
        <topic>-<partition>.<uuid hex>-future/     a copy of one in another directory, whose place it will take
            moved-here                             (ours) it has: where both are called the same, this one may count

A segment's file may carry one more suffix: `.deleted` (waits for its removal), `.cleaned` (a cleaner's output,
unfinished), `.swap` (finished, being put in place). Source: `LogFileUtils.java`, `LocalLog.java`.
"""

from __future__ import annotations

from uuid import uuid4

from appliance.cluster import TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
PRODUCER_SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

DIRECTORY_DELETED = "-delete"
DIRECTORY_STRAY = "-stray"
DIRECTORY_FUTURE = "-future"

MOVED_HERE = "moved-here"
MOVES_TO = "moves-to"

_DIGITS = 20
_NAME_LENGTH_MAX = 255


def segment_file_name(base_offset: int, suffix: str) -> str:
    """`00000000000000000042.log` for (42, ".log")."""
    return f"{base_offset:020d}{suffix}"


def parse_segment_file_name(name: str) -> tuple[int, str] | None:
    """(offset, everything after the digits), or None for a file that is no part of a segment."""
    digits = name[:_DIGITS]
    if len(name) <= _DIGITS or name[_DIGITS] != "." or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits), name[_DIGITS:]


def partition_directory_name(partition: TopicPartition) -> str:
    """`topic-3`."""
    return str(partition)


def parse_partition_directory_name(name: str) -> TopicPartition | None:
    """The partition that lives in a directory of this name; None for any other directory."""
    topic, dash, number = name.rpartition("-")
    if not topic or not dash or not (number.isascii() and number.isdigit()):
        return None
    return TopicPartition(topic, int(number))


def marked_directory_name(partition: TopicPartition, mark: str) -> str:
    """`topic-3.<uuid hex>-delete`: a name nobody has, cut so that the file system takes it."""
    suffix = f"-{partition.partition}.{uuid4().hex}{mark}"
    return partition.topic[: _NAME_LENGTH_MAX - len(suffix)] + suffix


def future_directory_name(partition: TopicPartition) -> str | None:
    """`topic-3.<uuid hex>-future`; None where the name would be too long, as in Kafka (KAFKA-4893)."""
    name = f"{partition}.{uuid4().hex}{DIRECTORY_FUTURE}"
    return name if len(name.encode()) <= _NAME_LENGTH_MAX else None


def parse_future_directory_name(name: str) -> TopicPartition | None:
    """The partition whose copy lives in a directory of this name; None for any other directory."""
    if not name.endswith(DIRECTORY_FUTURE):
        return None
    partition, dot, unique = name.removesuffix(DIRECTORY_FUTURE).rpartition(".")
    return parse_partition_directory_name(partition) if dot and unique else None
