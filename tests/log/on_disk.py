"""What lies in a log directory, whatever its owner believes."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

from appliance.cluster import TopicPartition
from appliance.log.file_names import parse_partition_directory_name
from appliance.log.partition_metadata import read_topic_id


def partitions_on_disk(directory: Path) -> dict[TopicPartition, UUID | None]:
    """The partitions that have a directory, with their topic ids; None where none is kept."""
    found = {}
    for entry in os.scandir(directory):
        partition = parse_partition_directory_name(entry.name) if entry.is_dir() else None
        if partition is not None:
            found[partition] = read_topic_id(Path(entry.path))
    return found
