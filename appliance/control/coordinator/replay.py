"""The records of chunks of an internal log, into the book of offsets: what a replay does, quickly.

Nearly all of them are offsets, and of those nearly all in a topic of whose group there was one before. So keys are not
parsed: partitions are read out of the ends of all of them at once, and what stands before leads to its place in the
book by one look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from appliance.control.coordinator.offsets.offset_book import Replay
from appliance.control.coordinator.offsets.offset_records import PARTITION_BYTES
from appliance.log.chunks import Chunk
from appliance.log.groups import Group, gather

OFFSET_KEYS: Final = (b"\0\0", b"\0\1")
"""What keys of offsets begin with, of the two versions that there are."""
KEY_TYPE_BYTES: Final = 2


def replay_chunk(
    chunk: Chunk,
    replay: Replay,
    other: Callable[[bytes, bytes | None], None],
    *,
    path: Path,
    from_offset: int,
    decompressed_bytes_max: int,
) -> None:
    """Takes in every record of the chunk's batches that end at `from_offset` or after it, in log order.

    `other` gets those that are no offsets. Records whose key has no type, and control records, say nothing here.

    Raises:
        CorruptFile: a batch does not decompress, its records do not add up, or a key does not parse.
    """
    batches = [batch for batch in chunk.batches if batch.last_offset >= from_offset and not batch.is_control]
    if not batches:
        return
    for group in gather(chunk.data, batches, path=path, decompressed_bytes_max=decompressed_bytes_max):
        if len(group.starts):
            _replay_group(group, replay, other)


def _replay_group(group: Group, replay: Replay, other: Callable[[bytes, bytes | None], None]) -> None:
    data, places = group.data, replay.places
    octets = np.frombuffer(data, np.uint8)
    for _, columns in group.columns():
        keys_at = columns.keys_at
        cuts = keys_at + columns.key_lengths - PARTITION_BYTES
        values_at = columns.values_at
        partitions = np.zeros(len(cuts), np.int64)
        for place in range(PARTITION_BYTES):
            # A key of no such length leads to no place, whatever is read for it.
            partitions = (partitions << 8) + octets.take(cuts + place, mode="clip")
        for key, cut, partition, value, value_end in zip(
            keys_at.tolist(),
            cuts.tolist(),
            partitions.astype(np.int32).tolist(),
            values_at.tolist(),
            (values_at + columns.value_lengths).tolist(),
            strict=True,
        ):
            offsets = places.get(data[key:cut])
            if offsets is not None:
                if value_end >= value:
                    offsets[partition] = data[value:value_end]
                else:
                    offsets.pop(partition, None)
                continue
            whole = data[key : cut + PARTITION_BYTES]
            content = data[value:value_end] if value_end >= value else None
            if whole[:2] in OFFSET_KEYS:
                replay.put(whole, content)
            elif len(whole) >= KEY_TYPE_BYTES:
                other(whole, content)
