"""The record walk: proves that a batch holds the records it declares, and makes a value of none of them.

What is proved of [position, end): it is exactly `count` records; the lengths inside of every record add up to
that record's own length; offset deltas are 0, 1, 2, …. Learnt on the way: the smallest and largest timestamp
delta, and whether some record has no key. A reader of the log may then trust the batch.

    fields     one record after the other, field by field (`walk_fields`): about 1 µs a record, compiled 0.02 to 0.05
    together   many records by numpy (`walk_together`): about 25 µs a batch, and 0.05 µs a record where all have one
               size; where sizes vary 0.25, compiled as above. A process loads it with its first such batch
               (decision 0053)

Which way is shorter is another question once this is compiled (decision 0072).
"""

from __future__ import annotations

from typing import Final, TypeAlias

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.varint import Buffer
from appliance.protocol.records.walk_fields import IS_COMPILED, walk_fields

FEW: Final = 20
SHORT_BYTES: Final = 512 * 1024 if IS_COMPILED else 0
SMALL_BYTES: Final = 128 if IS_COMPILED else 0
"""A batch of at most `SHORT_BYTES`, and records of `SMALL_BYTES` on the average, are walked field by field, too."""

RecordsSummary: TypeAlias = tuple[int, int, bool]
"""What the walk learnt: smallest and largest timestamp delta, in ms against the batch's base timestamp, and whether
some record has no key. A plain tuple: compiled, it is made of nothing, where one with names costs as much as the walk
of a record."""


def check_records(data: Buffer, position: int, end: int, count: int) -> RecordsSummary:
    """Walks the `count` > 0 uncompressed records in `data[position:end]`. Linear in bytes at worst.

    Raises:
        InvalidRecords: the records do not add up.
    """
    # Seven bytes are the least a record takes: a lying count is found before anything is made for it.
    if count * 7 > end - position:
        raise InvalidRecords(f"{count} records do not fit in {end - position} bytes")
    length_bytes = end - position
    if count <= FEW or length_bytes <= SHORT_BYTES or length_bytes <= count * SMALL_BYTES:
        walked = walk_fields(data, position, end, count, 0)
    else:
        from appliance.protocol.records.walk_together import walk_together

        walked = walk_together(data, position, end, count)
    if walked[0] != end:
        raise InvalidRecords(f"{end - walked[0]} bytes are left after the last of {count} records")
    return walked[2], walked[3], walked[4]
