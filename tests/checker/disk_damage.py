"""What is done to the files of a slot's copies while nothing runs: torn ends, flipped bits, lost pages.

Two fields are spared, because nothing in Kafka's format covers them: the leader epoch of a batch, and its base offset
where a topic is compacted and its offsets have holes. The checksum begins behind them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from appliance.log.checkpoint import read_offsets
from appliance.log.file_names import CLEANER_OFFSETS, LOG, RECOVERY_POINTS, parse_partition_directory_name
from appliance.protocol.records.batch import BATCH_LENGTH, MAGIC, PARTITION_LEADER_EPOCH, BatchHeader, batches

PAGE_BYTES: Final = 4096
TORN_BATCHES_MAX: Final = 30
DAMAGED_SHARE: Final = 0.7
"""Of a slot's copies, those that are hit."""

Damage = Callable[[Path, random.Random], None]


def copies_in(slot_directory: Path) -> list[Path]:
    """The partition directories of a slot."""
    found = (each for each in sorted(slot_directory.iterdir()) if each.is_dir())
    return [each for each in found if parse_partition_directory_name(each.name) is not None]


def recovery_point(copy: Path) -> int:
    """Below it everything was forced to the disk: by a flush, or by the cleaner, which forces what it writes."""
    partition = parse_partition_directory_name(copy.name)
    if partition is None:
        return 0
    names = (RECOVERY_POINTS, CLEANER_OFFSETS)
    return max(read_offsets(copy.parent / name).get(partition, 0) for name in names)


def tear(copy: Path, chance: random.Random) -> None:
    """Cuts the newest segment: some batches, and maybe a part of one more."""
    segment, found = next(_segments(copy, newest_first=True), (None, []))
    if segment is None:
        return
    count = min(chance.randint(1, TORN_BATCHES_MAX), len(found))
    position, header = found[-count]
    keep = position + chance.choice((0, chance.randrange(header.size_bytes)))
    with segment.open("r+b") as file:
        file.truncate(keep)


def flip_a_bit(copy: Path, chance: random.Random, *, is_compacted: bool, beyond: int = 0) -> bool:
    """Flips a bit of a batch that ends at offset `beyond` or later, in any segment; whether there was one."""
    found = [
        (segment, position, header)
        for segment, in_it in _segments(copy)
        for position, header in in_it
        if header.last_offset >= beyond
    ]
    if not found:
        return False
    segment, position, header = chance.choice(found)
    covered = [
        at
        for at in range(BATCH_LENGTH if is_compacted else 0, header.size_bytes)
        if not PARTITION_LEADER_EPOCH <= at < MAGIC
    ]
    at = position + chance.choice(covered)
    with segment.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << chance.randrange(8))]))
    return True


def drop_page_cache(copy: Path, chance: random.Random) -> None:
    """Takes away what was not forced to the disk: from the recovery point on, all pages or some, and small files.

    More than a power cut takes under `durability = "fsync"`, whose flushes reach further than the recovery point.
    """
    point = recovery_point(copy)
    how = chance.choice(("cut", "zeros", "some pages"))
    for segment, found in list(_segments(copy)):
        lost = [position for position, header in found if header.last_offset >= point]
        if not lost:
            continue
        data = bytearray(segment.read_bytes())
        start = lost[0]
        if how == "cut":
            data = data[:start]
        for page in range(start // PAGE_BYTES, -(-len(data) // PAGE_BYTES)):
            if how == "zeros" or chance.random() < 0.5:
                first, last = max(page * PAGE_BYTES, start), min((page + 1) * PAGE_BYTES, len(data))
                data[first:last] = bytes(last - first)
        if how == "cut" and not data and chance.random() < 0.5:
            segment.unlink()
        else:
            segment.write_bytes(data)
        for suffix in (".index", ".timeindex", ".txnindex"):
            if chance.random() < 0.5:
                segment.with_suffix(suffix).unlink(missing_ok=True)


def _segments(
    copy: Path, *, newest_first: bool = False
) -> Iterator[tuple[Path, list[tuple[int, BatchHeader]]]]:
    """Those with batches, and where the batches lie."""
    for segment in sorted(copy.glob(f"*{LOG}"), reverse=newest_first):
        found = list(_whole_batches(segment))
        if found:
            yield segment, found


def _whole_batches(segment: Path) -> Iterator[tuple[int, BatchHeader]]:
    try:
        yield from batches(segment.read_bytes())
    except ValueError:
        return
