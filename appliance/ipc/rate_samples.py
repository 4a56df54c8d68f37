"""Amounts by second that several processes add up: what a budget counts that they share.

The region has one part for each process, which it alone writes. A part is a table of rows, one for each budget in use:

    part    0        8        16                 256
            ┌────────┬────────┬─ ─ ─ ─ ─ ─ ─ ─ ─┬────────┬────────┬───
            │ placed │ evicted│ zeros           │ row 0  │ row 1  │ …        8 rows to a bucket
            └────────┴────────┴─ ─ ─ ─ ─ ─ ─ ─ ─┴────────┴────────┴───

    row     0        8        16       24       32       40                        224    256
            ┌────────┬────────┬────────┬────────┬────────┬────────┬─ ─ ─ ─ ─ ─ ─ ─ ─┬──────┐
            │ key    │ key    │ used_s │ zeros  │ second │ amount │ 11 pairs more   │ zeros│
            └────────┴────────┴────────┴────────┴────────┴────────┴─ ─ ─ ─ ─ ─ ─ ─ ─┴──────┘

Words are signed 64-bit. The amount of second s is in pair s % 12. A budget is known by a key of 128 bits, which says
the bucket of its row: so every process finds the row that another one has placed, and no row names its owner. The sum
of a budget is that of its rows in all parts.

- CPython has no compare-and-swap, so no word has two writers. A part is written by the process whose part it is.
- A writer that begins a second writes its amount before the second. A reader takes the pairs whose second is in the
  window. The second that a new one overwrites has left the window before, so a half-written pair counts as nothing.
- A row may be placed again once its last use is WINDOW_S ago: nothing in it counts any more. Nobody sweeps. Where a
  bucket has no such row, the one that was used longest ago is lost (`evicted` counts them).
- A reader looks at a row's key before and after: a row that is placed meanwhile does not count.
- A process that died leaves amounts, which leave the window. Its next life goes on with the same part.

Running time: `add` a few words; `total` one row of each process.
"""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 11
"""Seconds that count: the current one and those before it."""

ROW_BYTES: Final = 256
HEAD_BYTES: Final = 256
ROWS: Final = 4096
"""Rows of a part: budgets of the last WINDOW_S that one process can tell apart."""
WAYS: Final = 8
PAIRS: Final = 12

_WORD: Final = 8
_ROW: Final = ROW_BYTES // _WORD
_HEAD: Final = HEAD_BYTES // _WORD
_PART: Final = _HEAD + ROWS * _ROW
_BUCKETS: Final = ROWS // WAYS

_PLACED: Final = 0
_EVICTED: Final = 1

_KEY: Final = 0
_MORE_KEY: Final = 1
_USED_S: Final = 2
_FIRST_PAIR: Final = 4
_END_PAIR: Final = _FIRST_PAIR + 2 * PAIRS

Key = tuple[int, int]
"""Two signed 64-bit words; the first is not 0."""


def samples_size_bytes(parts: int) -> int:
    """The bytes that a region of so many parts needs. Pages that no budget uses are never touched."""
    return parts * _PART * _WORD


def key_of(digest: bytes) -> Key:
    """Return the key in the first 16 bytes of a digest, which must be of a keyed hash: clients choose the names."""
    first = int.from_bytes(digest[:8], "little", signed=True)
    return first or 1, int.from_bytes(digest[8:16], "little", signed=True)


class RateSamples:
    """The samples of all processes, seen by the process of `part`.

    Args:
        view: the region, of `samples_size_bytes`.
        part: the part that this process writes.
    """

    __slots__ = ("_bases", "_own", "cells")

    def __init__(self, view: memoryview, part: int) -> None:
        self.cells = view.cast("B").cast("q")
        self._bases = list(range(0, len(self.cells), _PART))
        self._own = self._bases[part]

    def sampled(self, key: Key) -> SampledRate:
        """Return the sum of one budget. Nothing is placed before something is added."""
        others = [base for base in self._bases if base != self._own]
        return SampledRate(self, key, self._own, others)

    def find(self, base: int, key: Key) -> int:
        """Return where the row of a key begins in the part at `base`, -1 where it has none."""
        cells, first = self.cells, _bucket(base, key)
        for row in range(first, first + WAYS * _ROW, _ROW):
            if cells[row] == key[0] and cells[row + _MORE_KEY] == key[1]:
                return row
        return -1

    def place(self, key: Key, now_s: int) -> int:
        """Return where the row of a key begins in our own part; place it where it has none."""
        cells, first = self.cells, _bucket(self._own, key)
        chosen, oldest_s = first, now_s + 1
        for row in range(first, first + WAYS * _ROW, _ROW):
            if cells[row] == key[0] and cells[row + _MORE_KEY] == key[1]:
                return row
            used_s = cells[row + _USED_S] if cells[row] else -1
            if used_s < oldest_s:
                chosen, oldest_s = row, used_s
        if oldest_s >= 0 and oldest_s > now_s - WINDOW_S:
            cells[self._own + _EVICTED] += 1
        cells[chosen] = 0
        for word in range(chosen + _FIRST_PAIR, chosen + _END_PAIR):
            cells[word] = 0
        cells[chosen + _USED_S] = now_s
        cells[chosen + _MORE_KEY] = key[1]
        cells[chosen] = key[0]
        cells[self._own + _PLACED] += 1
        return chosen

    @property
    def evicted(self) -> int:
        """How many rows were lost before their amounts had left the window."""
        return self.cells[self._own + _EVICTED]

    def check(self) -> None:
        """Each row of our own part is in its bucket, and none is there twice."""
        cells, seen = self.cells, set()
        for row in range(self._own + _HEAD, self._own + _PART, _ROW):
            if cells[row]:
                key = (cells[row], cells[row + _MORE_KEY])
                first = _bucket(self._own, key)
                assert first <= row < first + WAYS * _ROW
                assert key not in seen
                seen.add(key)


class SampledRate:
    """The amounts of one budget."""

    __slots__ = ("_key", "_looked", "_other_rows", "_others", "_own", "_part", "_samples")

    def __init__(self, samples: RateSamples, key: Key, part: int, others: list[int]) -> None:
        self._samples = samples
        self._key = key
        self._part = part
        self._own = -1
        self._others = others
        self._other_rows = [-1] * len(others)
        self._looked = [-1] * len(others)  # how many rows the part had placed when we looked in vain

    def add(self, amount: int, now_s: int) -> None:
        """Add to what this process has counted in the second `now_s`, which never goes back."""
        cells, row = self._samples.cells, self._own
        if row < 0 or cells[row] != self._key[0] or cells[row + _MORE_KEY] != self._key[1]:
            row = self._own = self._samples.place(self._key, now_s)
        pair = row + _FIRST_PAIR + 2 * (now_s % PAIRS)
        cells[row + _USED_S] = now_s
        if cells[pair] == now_s:
            cells[pair + 1] += amount
        else:
            cells[pair + 1] = amount
            cells[pair] = now_s

    def total(self, now_s: int) -> int:
        """Return what all processes have counted in the WINDOW_S up to `now_s`."""
        cells, key = self._samples.cells, self._key
        if self._own < 0:
            self._own = self._samples.find(self._part, key)  # of an earlier life of this process
        total = 0 if self._own < 0 else self._counted(self._own, now_s)
        for index, part in enumerate(self._others):
            row = self._other_rows[index]
            if row < 0 or cells[row] != key[0] or cells[row + _MORE_KEY] != key[1]:
                placed = cells[part + _PLACED]
                if placed == self._looked[index]:
                    continue
                row = self._other_rows[index] = self._samples.find(part, key)
                self._looked[index] = placed
                if row < 0:
                    continue
            total += self._counted(row, now_s)
        return total

    def _counted(self, row: int, now_s: int) -> int:
        cells, key = self._samples.cells, self._key
        words = cells[row + _FIRST_PAIR : row + _END_PAIR].tolist()
        if cells[row] != key[0] or cells[row + _MORE_KEY] != key[1]:
            return 0
        first_s = now_s - WINDOW_S
        return sum(words[at + 1] for at in range(0, 2 * PAIRS, 2) if first_s < words[at] <= now_s)


def _bucket(base: int, key: Key) -> int:
    return base + _HEAD + key[0] % _BUCKETS * WAYS * _ROW
