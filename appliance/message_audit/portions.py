"""Divides what a round writes into batches that its topic takes.

    usual                     one batch: all results and all positions
    more than `bytes_max`     batches of partitions: the results of some partitions with the positions of these
                              the last batch: results of no partition's position; `commits` and `observed`

A death between two of these batches counts nothing twice, because what is read again is below the positions that are
written. There is one exception: if the results of one partition, or those of the last batch, are more than a batch
takes, then some of them come before their position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from appliance.message_audit.positions import UNCHANGED, PartitionKey, PartitionPosition, Positions, encode

RECORD_BYTES: Final = 40
"""What a record has beside its key and its value, at most."""


class Result(NamedTuple):
    """A record to write. `partition`: whose position covers it; None: `observed` does."""

    key: str
    value: bytes
    partition: PartitionKey | None = None

    @property
    def size_bytes(self) -> int:
        return 4 * len(self.key) + len(self.value) + RECORD_BYTES


Portion = tuple[list[Result], Positions]


def portions(results: Sequence[Result], changed: Positions, *, bytes_max: int) -> Iterator[Portion]:
    """Yield results and positions of each batch, in the order in which they are to be written; at least one."""
    if sum(each.size_bytes for each in results) + len(encode(changed)) <= bytes_max:
        yield list(results), changed
        return
    of: dict[PartitionKey, list[Result]] = {key: [] for key in changed.partitions}
    others: list[Result] = []
    for each in results:
        (others if each.partition is None else of.get(each.partition, others)).append(each)
    taken: list[Result] = []
    positions: dict[PartitionKey, PartitionPosition] = {}
    size_bytes = 0
    for key, position in changed.partitions.items():
        own_bytes = len(encode(Positions({key: position}, observed=UNCHANGED)))
        for part in _chunks(of[key], bytes_max=bytes_max - own_bytes):
            part_bytes = sum(each.size_bytes for each in part)
            if size_bytes and size_bytes + part_bytes + own_bytes > bytes_max:
                yield taken, Positions(positions, observed=UNCHANGED)
                taken, positions, size_bytes = [], {}, 0
            taken += part
            size_bytes += part_bytes
        positions[key] = position
        size_bytes += own_bytes
    if taken or positions:
        yield taken, Positions(positions, observed=UNCHANGED)
    last = Positions(commits=changed.commits, observed=changed.observed)
    *before, rest = _chunks(others, bytes_max=bytes_max - len(encode(last)))
    for part in before:
        yield part, Positions(observed=UNCHANGED)
    yield rest, last


def _chunks(results: Iterable[Result], *, bytes_max: int) -> list[list[Result]]:
    """Return lists of at most `bytes_max`, or one result; at least one list."""
    chunks: list[list[Result]] = [[]]
    size_bytes = 0
    for each in results:
        if chunks[-1] and size_bytes + each.size_bytes > bytes_max:
            chunks.append([])
            size_bytes = 0
        chunks[-1].append(each)
        size_bytes += each.size_bytes
    return chunks
