"""Records as an internal topic has them."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.delivery.stored import Stored, read_stored
from appliance.protocol.records.record import Record, encode_batch


def as_stored(records: Iterable[Record]) -> list[Stored]:
    """Return what is read of records with these offsets; one that is no delayed record is left out."""
    found: list[Stored] = []
    for record in records:
        found += read_stored(memoryview(encode_batch([record], base_offset=record.offset)))[0]
    return found
