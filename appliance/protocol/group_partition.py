"""Which partition of `__consumer_offsets` holds a group: Java's hash of its id, as Kafka takes it.

Source: `java.lang.String.hashCode` (UTF-16 code units), `Utils.abs` (the lowest int counts as 0),
`GroupCoordinatorService`.
"""

from __future__ import annotations

from functools import lru_cache

_INT_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000


def java_hash(text: str) -> int:
    """`String.hashCode` of `text`: -2^31 to 2^31 - 1."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & _INT_MASK
    return value - (1 << 32) if value & _SIGN else value


@lru_cache(maxsize=65_536)
def group_partition(group_id: str, partitions: int) -> int:
    """The partition of `group_id` among `partitions`."""
    value = java_hash(group_id)
    return (0 if value == -_SIGN else abs(value)) % partitions
