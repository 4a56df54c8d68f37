"""What a record holds: its topic, its token, and behind them bytes that nothing else can have before them.

Who reads a value that is not exactly one of these was given a torn record, zeros, or another record's bytes. Sizes come
in phases of some hundred records: an index entry stands for many offsets here and for few there, so what an index
held before its log was cut names places that the log has not come to again.
"""

from __future__ import annotations

import random
from typing import Final
from zlib import crc32

from tests.checker.history import sequence_of

_NOISE: Final = random.Random(0).randbytes(1 << 16)
_PHASE_RECORDS: Final = 600
_LARGEST_BYTES: Final = (60, 600, 3_000)
LONG_BYTES: Final = 5_000


def value_of(topic: str, token: int, *, is_long: bool = False) -> bytes:
    """The value of that record; one that `is_long` has an index entry to itself."""
    mixed = (token * 0x9E3779B1 ^ crc32(topic.encode())) & 0xFFFFFFFF
    if is_long:
        length = LONG_BYTES
    else:
        length = mixed % _LARGEST_BYTES[sequence_of(token) // _PHASE_RECORDS % len(_LARGEST_BYTES)]
    at = (mixed >> 8) % (len(_NOISE) - LONG_BYTES)
    return b"%s %d " % (topic.encode(), token) + _NOISE[at : at + length]


def token_in(topic: str, value: bytes | None) -> int | None:
    """The token of a value; None where it is not, byte for byte, what was sent to that topic under it."""
    _, _, behind = (value or b"").partition(b" ")
    digits, space, _ = behind.partition(b" ")
    if not space or not digits.isdigit() or len(digits) > 18:
        return None
    token = int(digits)
    return token if value in (value_of(topic, token), value_of(topic, token, is_long=True)) else None


def key_of(token: int, *, partitions: int, keys: int) -> int:
    """Of a compacted topic: which of a partition's `keys` that record overwrites."""
    return (sequence_of(token) // partitions) * 40_503 % 65_537 % keys
