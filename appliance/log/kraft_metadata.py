"""What Kafka's own metadata log says of its topics: read from `__cluster_metadata-0` in a log directory.

    00000000000000000123-0000000002.checkpoint    a snapshot of everything below offset 123, in batches
    00000000000000000000.log …                    every change, in batches

The newest snapshot is read and then the changes from its offset on. The end of the log is taken as committed,
which it is on a stopped node that was the only controller. Source: KIP-630, KIP-631; `Snapshots.java`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from appliance.errors import CorruptFile, MalformedFrame, RejectedRequest
from appliance.log.faults import storage_faults
from appliance.log.file_names import LOG, parse_segment_file_name
from appliance.protocol.records.batch import batches
from appliance.protocol.records.errors import BatchFault
from appliance.protocol.records.metadata_record import (
    LeaderChanged,
    MetadataRecord,
    PartitionCreated,
    ProducerIdsTaken,
    TopicConfigured,
    TopicCreated,
    TopicRemoved,
    decode_metadata_record,
)
from appliance.protocol.records.record import decode_records

METADATA_DIRECTORY: Final = "__cluster_metadata-0"
_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


@dataclass(slots=True)
class KraftTopic:
    """One topic: leader epochs by partition number, and what was set for it."""

    name: str
    topic_id: UUID
    leader_epochs: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class KraftMetadata:
    """Topics by id, their settings by name, and the first producer id that was given to nobody."""

    topics: dict[UUID, KraftTopic] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0

    def apply(self, record: MetadataRecord) -> None:
        """Takes one record in."""
        match record:
            case TopicCreated(name, topic_id):
                self.topics[topic_id] = KraftTopic(name, topic_id)
            case TopicRemoved(topic_id):
                gone = self.topics.pop(topic_id, None)
                if gone is not None:
                    self.configs.pop(gone.name, None)
            case PartitionCreated(topic_id, partition, epoch) if topic_id in self.topics:
                self.topics[topic_id].leader_epochs[partition] = epoch
            case LeaderChanged(topic_id, partition) if topic_id in self.topics:
                epochs = self.topics[topic_id].leader_epochs
                epochs[partition] = epochs.get(partition, 0) + 1
            case TopicConfigured(topic, name, value):
                configs = self.configs.setdefault(topic, {})
                if value is None:
                    configs.pop(name, None)
                else:
                    configs[name] = value
            case ProducerIdsTaken(next_id):
                self.next_producer_id = max(self.next_producer_id, next_id)


def read_kraft_metadata(log_directory: Path) -> KraftMetadata | None:
    """The metadata that lies in a log directory of Kafka's; None where it has none.

    Raises:
        StorageFault: it cannot be read.
        CorruptFile: it does not parse.
    """
    directory = log_directory / METADATA_DIRECTORY
    if not directory.is_dir():
        return None
    with storage_faults(directory):
        paths = sorted(directory.iterdir())
    snapshots = [(int(found[1]), path) for path in paths if (found := _SNAPSHOT.fullmatch(path.name))]
    logs = [
        (parsed[0], path)
        for path in paths
        if (parsed := parse_segment_file_name(path.name)) and parsed[1] == LOG
    ]
    metadata = KraftMetadata()
    start = 0
    if snapshots:
        start, newest = snapshots[-1]
        for _, record in _records(newest):
            metadata.apply(record)
    for number, (_, path) in enumerate(logs):
        if number + 1 < len(logs) and logs[number + 1][0] <= start:
            continue
        for offset, record in _records(path):
            if offset >= start:
                metadata.apply(record)
    return metadata


def _records(path: Path) -> Iterator[tuple[int, MetadataRecord]]:
    with storage_faults(path):
        content = path.read_bytes()
    try:
        for position, header in batches(content):
            if header.is_control:
                continue
            for record in decode_records(content, position):
                decoded = decode_metadata_record(record.value or b"")
                if decoded is not None:
                    yield record.offset, decoded
    except (BatchFault, RejectedRequest, MalformedFrame) as fault:
        raise CorruptFile(f"{path}: {fault}") from fault
