"""What an index of due times and those who use it have in common. The index needs numpy; this file does not."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from appliance.delivery.waiting import Origin

Key = tuple[int, int]
"""When a record is due, in ms, and its offset."""
Batches = dict[tuple[UUID, int, Origin], int]
"""(topic id, partition, batch of a producer) → the highest offset in the topic of which a record has come."""

NOTHING: Final[Key] = (-(1 << 62), -1)
"""Before all entries."""
EVERYTHING: Final[Key] = (1 << 62, 1 << 62)
"""Behind all entries."""


def index_name(level: str, partition: int, topic_id: UUID | None) -> str:
    """Return the name of the index of one log. A topic that was deleted and created again has another one."""
    return f"{level}-{partition}-{'' if topic_id is None else topic_id.hex}"


def id_key(topic_id: UUID, partition: int, name: bytes) -> bytes:
    """Return an id with the partition in which it counts."""
    return topic_id.bytes + partition.to_bytes(4, "big") + name


def fingerprint(key: bytes) -> int:
    """Return 64 bits that stand for what `id_key` has returned; another id may have the same."""
    from hashlib import blake2b  # its library is large, and few records have an id

    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def fingerprint_of(topic_id: UUID, partition: int, name: bytes) -> int:
    """Return the fingerprint of an id in a partition."""
    return fingerprint(id_key(topic_id, partition, name))
