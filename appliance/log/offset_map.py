"""From a key to the greatest offset it was seen at: what compaction must know of the dirty part of a log.

A key is remembered by 128 bits of hash and never itself, so an entry takes 20 bytes whatever the key:

    first   uint64   hash of the key; 0 marks a free slot
    second  uint64   hash of the key with the last byte of its length before it
    offset  uint32   relative to the first dirty offset

Open addressing with double hashing in a table of prime size, all keys of a call at once: in each round every key looks
at one slot; those that meet themselves or a free slot are done, the rest step on. Of several keys that claim one free
slot in a round the last one has it, the others see so in the next.

    keys      a       b       a'      c          a' is the key of a again, later
    round 1   slot 5  slot 9  slot 5  slot 9     5 is free: a' claims it (a sees its own key there: done)
                                                 9 is free: c claims it; b looks again, meets a stranger
    round 2           slot 2                     free: done

The table begins small and grows by doubling while old and new together keep the bound; its sizes are the bound's two
thirds halved over and over, so that the last doubling uses all of it. The hash is the interpreter's SipHash under
this process's random secret: a key that meets another's hash cannot be made up by who writes to the topic. Without
the secret (PYTHONHASHSEED) it is keyed BLAKE2b.

Source of the idea: `SkimpyOffsetMap.java`, which takes 24 bytes an entry, allocated whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from appliance.errors import ApplianceDefect

Hashes = npt.NDArray[np.uint64]
Longs = npt.NDArray[np.int64]

ENTRY_BYTES: Final = 20
RELATIVE_OFFSET_MAX: Final = 2**32 - 1
_SLOTS_FIRST: Final = 1 << 14
_STEP_MASK: Final = np.uint64(0x1FFF)  # steps are smaller than the smallest table
_ONE: Final = np.uint64(1)
_SECRET: Final = os.urandom(32)


def _keyed_hash(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8, key=_SECRET).digest(), "little", signed=True)


_hash: Callable[[bytes], int] = hash if sys.flags.hash_randomization else _keyed_hash


def hash_keys(data: bytes, starts: Sequence[int], stops: Sequence[int]) -> tuple[Hashes, Hashes]:
    """Both hashes of the keys data[start:stop]. Each key has the last byte of its length varint before it."""
    count = len(starts)
    keys = [data[start:stop] for start, stop in zip(starts, stops, strict=True)]
    first = np.fromiter(map(_hash, keys), np.int64, count).view(np.uint64)
    keys = [data[start - 1 : stop] for start, stop in zip(starts, stops, strict=True)]
    second = np.fromiter(map(_hash, keys), np.int64, count).view(np.uint64)
    # 0 is the mark of a free slot.
    return np.maximum(first, _ONE), second


@dataclass(frozen=True, slots=True)
class OffsetMapStatistics:
    """A map at a glance. `peak_bytes` counts the old table beside the new one while it grew."""

    keys: int
    slots: int
    keys_max: int
    peak_bytes: int


class OffsetMap:
    """Keys' hashes → greatest offset. `latest_offset` is how far the log was read into it (inclusive).

    Args:
        base_offset: no offset is below it, and none above it by more than `RELATIVE_OFFSET_MAX`.
        bytes_max: of all tables that live at once; under half a megabyte it is taken for that.
        load_factor: share of the slots that may be taken.
    """

    __slots__ = (
        "_first",
        "_load_factor",
        "_offsets",
        "_peak_bytes",
        "_second",
        "_sizes",
        "base_offset",
        "keys",
        "latest_offset",
    )

    def __init__(self, base_offset: int, *, bytes_max: int, load_factor: float = 0.9) -> None:
        self.base_offset = base_offset
        self.latest_offset = base_offset - 1
        self.keys = 0
        self._load_factor = load_factor
        self._sizes = _table_sizes(bytes_max)
        self._peak_bytes = 0
        self._allocate(self._sizes.pop())

    def _allocate(self, slots: int) -> None:
        self._first: Hashes = np.zeros(slots, np.uint64)
        self._second: Hashes = np.empty(slots, np.uint64)
        self._offsets: npt.NDArray[np.uint32] = np.zeros(slots, np.uint32)

    @property
    def keys_max(self) -> int:
        """How many keys fit when it has grown as far as it may."""
        return int((self._sizes[0] if self._sizes else len(self._first)) * self._load_factor)

    def fits(self, count: int) -> bool:
        """Whether `count` more keys fit, should none of them be known."""
        return self.keys + count <= self.keys_max

    def put(self, first: Hashes, second: Hashes, offsets: Longs) -> None:
        """Remembers keys that were seen at rising offsets, later than all before. They must fit. O(keys)."""
        while self.keys + len(first) > len(self._first) * self._load_factor:
            if not self._sizes:
                raise ApplianceDefect(f"{len(first)} keys do not fit beside {self.keys}")
            self._grow(self._sizes.pop())
        self._put(first, second, (offsets - self.base_offset).astype(np.uint32))

    def _put(self, first: Hashes, second: Hashes, relative: npt.NDArray[np.uint32]) -> None:
        slots = np.uint64(len(self._first))
        at = first % slots
        steps = (second & _STEP_MASK) + _ONE
        table = self._first
        while len(first):
            there = table[at]
            free = there == 0
            if free.any():
                claimed = at[free]
                table[claimed] = first[free]
                self._second[claimed] = second[free]
                self._offsets[claimed] = relative[free]
                # A slot with several claimants has the last one's offset: exactly one of them sees its own.
                self.keys += int(np.count_nonzero(self._offsets[claimed] == relative[free]))
                there = table[at]
            found = there == first
            found &= self._second[at] == second
            # Of one key seen several times the last assignment stays, which is the greatest offset.
            self._offsets[at[found]] = relative[found]
            left = ~found
            first, second, relative, steps = first[left], second[left], relative[left], steps[left]
            at = (at[left] + steps) % slots

    def _grow(self, slots: int) -> None:
        first, second, offsets = self._first, self._second, self._offsets
        self._peak_bytes = (len(first) + slots) * ENTRY_BYTES
        self._allocate(slots)
        self.keys = 0
        for at in range(0, len(first), _SLOTS_FIRST):
            piece = slice(at, at + _SLOTS_FIRST)
            taken = first[piece] != 0
            self._put(first[piece][taken], second[piece][taken], offsets[piece][taken])

    def get(self, first: Hashes, second: Hashes) -> Longs:
        """The greatest offset of each key; -1 for one that is not known. O(keys)."""
        found_at = np.full(len(first), -1, np.int64)
        slots = np.uint64(len(self._first))
        at = first % slots
        steps = (second & _STEP_MASK) + _ONE
        places = np.arange(len(first))
        table = self._first
        while len(places):
            there = table[at]
            found = there == first
            found &= self._second[at] == second
            found_at[places[found]] = self._offsets[at[found]].astype(np.int64) + self.base_offset
            left = ~found
            left &= there != 0
            first, second, steps, places = first[left], second[left], steps[left], places[left]
            at = (at[left] + steps) % slots
        return found_at

    def check(self) -> None:
        """Raises ApplianceDefect where a key cannot be found again, or the count is wrong."""
        taken = self._first != 0
        if int(np.count_nonzero(taken)) != self.keys:
            raise ApplianceDefect(f"{np.count_nonzero(taken)} slots are taken by {self.keys} keys")
        expected = self._offsets[taken].astype(np.int64) + self.base_offset
        if not (self.get(self._first[taken], self._second[taken]) == expected).all():
            raise ApplianceDefect("a key is not found in its own slot")

    def statistics(self) -> OffsetMapStatistics:
        slots = len(self._first)
        peak_bytes = max(self._peak_bytes, slots * ENTRY_BYTES)
        return OffsetMapStatistics(self.keys, slots, self.keys_max, peak_bytes)


def _table_sizes(bytes_max: int) -> list[int]:
    """Prime table sizes, the largest first: it and the one before it take `bytes_max` together at most."""
    size = max(bytes_max // ENTRY_BYTES * 2 // 3, _SLOTS_FIRST)
    sizes = [_prime_below(size)]
    while size // 2 >= _SLOTS_FIRST:
        size //= 2
        sizes.append(_prime_below(size))
    return sizes


def _prime_below(number: int) -> int:
    """The greatest prime that is not above `number` >= 2."""
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
