"""Which partition of `__consumer_offsets` holds a group: Java's hash of its id, as Kafka takes it.

Source: `java.lang.String.hashCode` (UTF-16 code units), `Utils.abs` (the lowest int counts as 0),
`GroupCoordinatorService`.
"""

from __future__ import annotations

from functools import lru_cache

_INT_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
_LONG_CHARACTERS = 128
_DIGEST_BYTES = 16
_REMEMBERED = 131_072


def java_hash(text: str) -> int:
    """`String.hashCode` of `text`: -2^31 to 2^31 - 1."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & _INT_MASK
    return value - (1 << 32) if value & _SIGN else value


def group_partition(group_id: str, partitions: int) -> int:
    """The partition of `group_id` among `partitions`."""
    value = _absolute_of_short(group_id) if len(group_id) <= _LONG_CHARACTERS else _absolute_of_long(group_id)
    return value % partitions


def _absolute(group_id: str) -> int:
    value = java_hash(group_id)
    return 0 if value == -_SIGN else abs(value)


_absolute_of_short = lru_cache(maxsize=_REMEMBERED)(_absolute)
_of_long: dict[bytes, int] = {}


def _absolute_of_long(group_id: str) -> int:
    """Remembered by a digest: made up ids of 32 KiB would fill the memory, and hashing one takes 10 ms."""
    from hashlib import blake2b  # brings OpenSSL, and hardly anybody has such ids

    digest = blake2b(group_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    value = _of_long.get(digest)
    if value is None:
        if len(_of_long) >= _REMEMBERED:
            _of_long.clear()
        value = _of_long[digest] = _absolute(group_id)
    return value
