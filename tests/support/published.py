"""What a test writes in place of the controller and the workers: the metadata image and the partition table.

A process maps these read-only unless its role writes them. A test that plays several roles opens them for writing here.
"""

from __future__ import annotations

from pathlib import Path

from appliance.channels.metadata_image import ImagePublisher
from appliance.channels.partition_table import PartitionTable
from appliance.channels.wiring import IMAGE, Wiring
from appliance.ipc.shared_memory import Region


def publisher_in(memory: Path) -> ImagePublisher:
    """Return the controller's side of the metadata image in a private directory."""
    return ImagePublisher(memory, Region.open(f"{memory}/{IMAGE}").view)


def table_of(wiring: Wiring) -> PartitionTable:
    """Return the partition table, writable."""
    return PartitionTable(Region.open(wiring.partitions_name).view, slots=wiring.settings.slots)
