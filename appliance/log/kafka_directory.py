"""A log directory as Apache Kafka left it: who owned it, which partitions lie in it, and whether they are whole.

Nothing here writes. A directory is *held* while it is read, by both kinds of lock: Kafka takes a POSIX lock on
`.lock`, we an flock, and the two do not see each other. Every batch header is read, no record: that finds torn
tails, holes, message formats before v2, the last leader epoch and the largest producer id, at the price of a
page or so for each batch.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from appliance.cluster import TopicPartition, topic_name_fault
from appliance.errors import CorruptFile, DataDirectoryInUse, OperatorFault
from appliance.log.checkpoint import read_offsets
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    CLEAN_SHUTDOWN,
    DIRECTORY_DELETED,
    DIRECTORY_FUTURE,
    DIRECTORY_STRAY,
    HIGH_WATERMARKS,
    LOCK,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    parse_partition_directory_name,
    parse_segment_file_name,
)
from appliance.log.kraft_metadata import METADATA_DIRECTORY, KraftMetadata, read_kraft_metadata
from appliance.log.leader_epochs import LeaderEpochs
from appliance.log.lock_file import holders_named
from appliance.log.meta_properties import read_properties
from appliance.log.partition_metadata import read_topic_id
from appliance.log.producer_state import ProducerEntry, Producers
from appliance.log.segment_file import Header
from appliance.log.snapshots import Snapshots
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    H_PARTITION_LEADER_EPOCH,
    H_PRODUCER_ID,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC_V2,
)

CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
_CHUNK_BYTES: Final = 64 * 1024
_SMALL_BATCH_BYTES: Final = 16 * 1024
_SIZE: Final = slice(8, 12)  # in every message format, as is
_MAGIC_AT: Final = 16
_NOT_SERVED: Final = {
    "__cluster_metadata": "Kafka's own metadata; read for settings, and left where it is",
    "__remote_log_metadata": "belongs to tiered storage; left where it is",
}


@dataclass(frozen=True, slots=True)
class KafkaPartition:
    """One partition directory. `fault` says why it cannot be served, `torn_bytes` what a recovery will cut.

    `leader_epoch` and `producer_id_max` are the largest that were met, -1 without any. Segments whose base offset
    is below `settled_below` are not written any more, by nobody.
    """

    name: TopicPartition
    directory: Path
    topic_id: UUID | None
    log_start_offset: int
    log_end_offset: int
    size_bytes: int
    segments: int
    batches: int
    torn_bytes: int
    leader_epoch: int
    producer_id_max: int
    open_transactions: int
    settled_below: int
    fault: str | None


@dataclass(frozen=True, slots=True)
class KafkaDirectory:
    """One log directory. `aside` names the directories in it that are no partitions to serve, and why."""

    path: Path
    cluster_id: str | None
    node_id: str
    is_clean: bool
    partitions: tuple[KafkaPartition, ...]
    aside: Mapping[str, str]
    checkpoints: Mapping[str, Mapping[TopicPartition, int]]
    metadata: KraftMetadata | None


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keeps every broker, Kafka's or ours, out of a log directory.

    Raises:
        OperatorFault: it is no log directory of Kafka's.
        DataDirectoryInUse: a broker runs on it.
        StorageFault: it cannot be read.
    """
    if not (path / META_PROPERTIES).is_file():
        raise OperatorFault(f"{path} is not a log directory of Apache Kafka: it has no {META_PROPERTIES}")
    with storage_faults(path / LOCK):
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataDirectoryInUse(
                f"{path} is in use by {holders_named(lock)}: stop the broker that runs on it first"
            ) from None
        yield
    finally:
        os.close(lock)


def survey(path: Path) -> KafkaDirectory:
    """Reads a log directory, which is held.

    Raises:
        OperatorFault: meta.properties is of an unknown version.
        StorageFault: something cannot be read.
        CorruptFile: a checkpoint, an id or the metadata log does not parse.
    """
    properties = read_properties(path / META_PROPERTIES)
    if properties.get("version") not in ("0", "1"):
        raise OperatorFault(f"{path / META_PROPERTIES} is of version {properties.get('version')!r}")
    is_clean = (path / CLEAN_SHUTDOWN).exists()
    checkpoints = {
        name: read_offsets(path / name)
        for name in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
    }
    with storage_faults(path):
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
    partitions: list[KafkaPartition] = []
    aside: dict[str, str] = {}
    for name in names:
        partition = parse_partition_directory_name(name)
        if name.endswith((DIRECTORY_DELETED, DIRECTORY_STRAY)):
            aside[name] = "Kafka was about to remove it; left where it is"
        elif name.endswith(DIRECTORY_FUTURE):
            aside[name] = "a copy that Kafka had not finished; left where it is"
        elif partition is None or topic_name_fault(partition.topic):
            aside[name] = "no partition; left where it is"
        elif partition.topic in _NOT_SERVED:
            aside[name] = _NOT_SERVED[partition.topic]
        else:
            partitions.append(
                survey_partition(
                    path / name,
                    partition,
                    recovery_point=None if is_clean else checkpoints[RECOVERY_POINTS].get(partition, 0),
                    log_start=checkpoints[LOG_STARTS].get(partition, 0),
                )
            )
    return KafkaDirectory(
        path=path,
        cluster_id=properties.get("cluster.id"),
        node_id=properties.get("node.id", properties.get("broker.id", "")),
        is_clean=is_clean,
        partitions=tuple(partitions),
        aside=aside,
        checkpoints=checkpoints,
        metadata=read_kraft_metadata(path) if METADATA_DIRECTORY in names else None,
    )


def survey_partition(
    directory: Path, name: TopicPartition, *, recovery_point: int | None, log_start: int
) -> KafkaPartition:
    """Reads every batch header of a partition. `recovery_point` is None after a clean stop.

    Raises:
        StorageFault, CorruptFile: as `survey`.
    """
    with storage_faults(directory):
        parsed = [parse_segment_file_name(entry) for entry in os.listdir(directory)]
    bases = sorted(found[0] for found in parsed if found is not None and found[1] == LOG)
    settled_below = bases[-1] if bases else 0
    if recovery_point is not None:
        settled_below = max((base for base in bases if base <= recovery_point), default=0)
    walk = _Walk(next_offset=bases[0] if bases else 0)
    for number, base in enumerate(bases):
        path = directory / f"{base:020d}{LOG}"
        rest = walk.through(path, base)
        may_be_torn = number + 1 == len(bases) or base >= settled_below
        if walk.fault is None and rest and not may_be_torn:
            walk.fault = (
                f"{path.name} is damaged: {rest} bytes before offset {bases[number + 1]} are no batch"
            )
        if walk.fault is not None:
            break
        walk.torn_bytes += rest
    try:
        epoch = LeaderEpochs.load(directory).latest
    except CorruptFile:
        epoch = -1  # read from the batches
    entries = _newest_producers(directory)
    return KafkaPartition(
        name=name,
        directory=directory,
        topic_id=read_topic_id(directory),
        log_start_offset=max(log_start, bases[0] if bases else 0),
        log_end_offset=walk.next_offset,
        size_bytes=walk.size_bytes,
        segments=len(bases),
        batches=walk.batches,
        torn_bytes=walk.torn_bytes,
        leader_epoch=max(epoch, walk.leader_epoch),
        producer_id_max=max([walk.producer_id_max, *(entry.producer_id for entry in entries)]),
        open_transactions=sum(entry.transaction_first_offset >= 0 for entry in entries),
        settled_below=settled_below,
        fault=walk.fault,
    )


def _newest_producers(directory: Path) -> list[ProducerEntry]:
    snapshots = Snapshots(directory)
    for offset in reversed(snapshots.offsets()):
        path = snapshots.path(offset)
        try:
            with storage_faults(path):
                return list(Producers.decode_snapshot(path.read_bytes(), path).entries())
        except CorruptFile:
            continue  # as a broker would; the batches are read instead
    return []


class _Walk:
    """What was met on the way through the segments of one partition."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.size_bytes = 0
        self.batches = 0
        self.torn_bytes = 0
        self.leader_epoch = -1
        self.producer_id_max = -1
        self.fault: str | None = None

    def through(self, path: Path, base_offset: int) -> int:
        """Walks one segment; how many bytes after its last whole batch are not zeros."""
        with storage_faults(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size_bytes = os.fstat(descriptor).st_size
                end = 0
                for position, header in _headers(descriptor, size_bytes):
                    if header[H_BASE_OFFSET] < max(self.next_offset, base_offset):
                        self.fault = (
                            f"{path.name}: offset {header[H_BASE_OFFSET]} follows {self.next_offset - 1}"
                        )
                        return 0
                    end = position + header[H_BATCH_LENGTH] + LOG_OVERHEAD
                    self.next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
                    self.batches += 1
                    self.leader_epoch = max(self.leader_epoch, header[H_PARTITION_LEADER_EPOCH])
                    self.producer_id_max = max(self.producer_id_max, header[H_PRODUCER_ID])
                self.size_bytes += end
                rest = _rest(descriptor, end, size_bytes)
                head = os.pread(descriptor, _MAGIC_AT + 1, end)
            finally:
                os.close(descriptor)
        # A size before the magic byte: zeros there are a tail that was torn, and no old message.
        if end == 0 and len(head) > _MAGIC_AT and head[_MAGIC_AT] < MAGIC_V2 and any(head[_SIZE]):
            self.fault = (
                f"{path.name} is in message format v{head[_MAGIC_AT]}, which is not served: copy the topic into"
                " a new one with Kafka's tools, or leave it out"
            )
        return rest


def _headers(descriptor: int, size_bytes: int) -> Iterator[tuple[int, Header]]:
    """(position, header) of each whole batch from the start of a file on."""
    position = 0
    chunk, chunk_at = b"", 0
    read_bytes = _CHUNK_BYTES
    while size_bytes - position >= HEADER_BYTES:
        if position - chunk_at + HEADER_BYTES > len(chunk):
            chunk, chunk_at = os.pread(descriptor, read_bytes, position), position
        header: Header = HEADER.unpack_from(chunk, position - chunk_at)
        length_bytes = header[H_BATCH_LENGTH] + LOG_OVERHEAD
        if header[H_MAGIC] != MAGIC_V2 or length_bytes < HEADER_BYTES or position + length_bytes > size_bytes:
            return
        yield position, header
        position += length_bytes
        read_bytes = _CHUNK_BYTES if length_bytes < _SMALL_BATCH_BYTES else HEADER_BYTES


def _rest(descriptor: int, position: int, size_bytes: int) -> int:
    """How far from `position` the last byte lies that is not zero."""
    found = 0
    at = position
    while at < size_bytes:
        piece = os.pread(descriptor, 1 << 20, at)
        if not piece:
            break
        stripped = len(piece.rstrip(b"\0"))
        if stripped:
            found = at + stripped - position
        at += len(piece)
    return found
