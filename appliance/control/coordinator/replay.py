"""The records of chunks of an internal log: what a replay reads, quickly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from appliance.log.chunks import Chunk, gather


def replayed_records(
    chunk: Chunk, *, path: Path, from_offset: int, decompressed_bytes_max: int
) -> Iterator[tuple[bytes, bytes | None]]:
    """(key, value) of every record of the chunk's batches that end at `from_offset` or after it, in log order.

    Records without a key, and control records, say nothing here and are left out.

    Raises:
        CorruptFile: a batch does not decompress, or its records do not add up.
    """
    batches = [batch for batch in chunk.batches if batch.last_offset >= from_offset and not batch.is_control]
    if not batches:
        return
    for group in gather(chunk.data, batches, path=path, decompressed_bytes_max=decompressed_bytes_max):
        if not len(group.starts):
            continue
        data = group.data
        for _, columns in group.columns():
            keys_at = columns.keys_at
            values_at = columns.values_at
            for key, key_end, value, value_end in zip(
                keys_at.tolist(),
                (keys_at + columns.key_lengths).tolist(),
                values_at.tolist(),
                (values_at + columns.value_lengths).tolist(),
                strict=True,
            ):
                if key_end > key:
                    yield data[key:key_end], data[value:value_end] if value_end >= value else None
