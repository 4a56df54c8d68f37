"""`partition.metadata`: which topic, by id, a partition directory belongs to.

    version: 0
    topic_id: nTqCVGGGT4SBCXmpfcdPjQ

The id is 16 bytes in url-safe base64 without padding. It outlives a topic's name: a topic that is deleted and made
again has another. Source: `PartitionMetadata.java`, `Uuid.java`; KIP-516.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Final
from uuid import UUID

from appliance.errors import CorruptFile
from appliance.log.checkpoint import read_small, replace_file
from appliance.log.faults import storage_faults
from appliance.log.file_names import PARTITION_METADATA

_METADATA_VERSION: Final = "version: 0"
_METADATA_TOPIC_ID: Final = "topic_id: "


def write_topic_id(directory: Path, topic_id: UUID) -> None:
    """Writes `partition.metadata`: a version line and the id as 22 characters (`PartitionMetadata.java`).

    Raises:
        StorageFault: it failed.
    """
    text = urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    replace_file(
        directory / PARTITION_METADATA,
        f"{_METADATA_VERSION}\n{_METADATA_TOPIC_ID}{text}".encode(),
        durable=False,
    )


def read_topic_id(directory: Path) -> UUID | None:
    """The topic id of a partition directory, None if there is no file for it, or an empty one.

    Raises:
        CorruptFile: the file does not parse.
        StorageFault: it cannot be read.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    with storage_faults(path):
        content = read_small(path)
    if not content:
        return None  # or written, and then the power went before the system forced it
    try:
        version, line = content.decode().splitlines()
        if version != _METADATA_VERSION or not line.startswith(_METADATA_TOPIC_ID):
            raise ValueError(version)
        return UUID(bytes=urlsafe_b64decode(line.removeprefix(_METADATA_TOPIC_ID) + "=="))
    except ValueError:
        raise CorruptFile(f"{path} is no partition metadata of version 0") from None
