"""The records of the batches of a chunk, many batches at a time and as columns: for those who look at all of them.

It takes numpy, which a process loads when it first has such records to look at (decision 0053).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from appliance.errors import CorruptFile
from appliance.log.chunks import Batch
from appliance.protocol.records.batch import CODEC_MASK, H_ATTRIBUTES, H_BASE_OFFSET, H_RECORDS_COUNT, RECORDS
from appliance.protocol.records.columns import Longs, RecordColumns, record_bounds, record_columns
from appliance.protocol.records.compression import decompress
from appliance.protocol.records.errors import BatchFault

GROUP_BYTES: Final = 4 << 20
"""Decompressed bytes of batches that are looked at together; a larger batch is looked at alone."""
PIECE_RECORDS: Final = 1 << 16


class Group(NamedTuple):
    """The records of some batches, all in `data`: batch n has the records first[n] up to first[n + 1]."""

    batches: Sequence[Batch]
    data: bytes
    first: list[int]
    starts: Longs
    stops: Longs

    def only(self, number: int) -> Group:
        """The group with nothing but its batch `number`."""
        records = slice(self.first[number], self.first[number + 1])
        count = records.stop - records.start
        batches = self.batches[number : number + 1]
        return Group(batches, self.data, [0, count], self.starts[records], self.stops[records])

    def numbers(self) -> npt.NDArray[np.intp]:
        """For each record the number of its batch in the group."""
        counts = [after - before for before, after in itertools.pairwise(self.first)]
        return np.repeat(np.arange(len(counts)), counts)

    def bases(self) -> Longs:
        """For each record the base offset of its batch."""
        return np.array([batch.header[H_BASE_OFFSET] for batch in self.batches], np.int64)[self.numbers()]

    def columns(self) -> Iterator[tuple[int, RecordColumns]]:
        """(number of the first record, columns) of at most `PIECE_RECORDS` records at a time.

        Raises:
            InvalidRecords: a record does not add up.
        """
        for at in range(0, len(self.starts), PIECE_RECORDS):
            piece = slice(at, at + PIECE_RECORDS)
            yield at, record_columns(self.data, self.starts[piece], self.stops[piece])


def gather(
    data: bytes, batches: Sequence[Batch], *, path: Path, decompressed_bytes_max: int
) -> Iterator[Group]:
    """The records of batches of one chunk, in groups that hold the memory down.

    Raises:
        CorruptFile: a batch does not decompress, or its records do not add up.
    """
    at = 0
    while at < len(batches):
        group = _Gathering(data)
        try:
            while at < len(batches) and (group.has_room or not group.batches):
                group.add(batches[at], decompressed_bytes_max)
                at += 1
        except BatchFault as fault:
            raise CorruptFile(
                f"{path}: the batch of offset {batches[at].header[H_BASE_OFFSET]}: {fault}"
            ) from fault
        yield group.done()


class _Gathering:
    """A group in the making: compressed batches' records are put behind the chunk's own bytes."""

    __slots__ = ("_added", "_bounds", "_data", "_end", "_first", "batches")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._end = len(data)
        self._added: list[bytes] = []
        self._first = [0]
        self._bounds: list[Longs] = []
        self.batches: list[Batch] = []

    @property
    def has_room(self) -> bool:
        return self._end - len(self._data) < GROUP_BYTES

    def add(self, batch: Batch, decompressed_bytes_max: int) -> None:
        count = batch.header[H_RECORDS_COUNT]
        codec = batch.header[H_ATTRIBUTES] & CODEC_MASK
        if count > 0:
            shift = 0
            source, start, end = self._data, batch.position + RECORDS, batch.end
            if codec:
                # A copy of the compressed bytes, not a view: some decompressors take nothing else.
                source = bytes(decompress(codec, self._data[start:end], decompressed_bytes_max))
                shift, start, end = self._end, 0, len(source)
                self._added.append(source)
                self._end += end
            bounds = record_bounds(source, start, end, count)
            self._bounds.append(bounds + shift if shift else bounds)
        self._first.append(self._first[-1] + max(count, 0))
        self.batches.append(batch)

    def done(self) -> Group:
        data = b"".join((self._data, *self._added)) if self._added else self._data
        none = np.empty(0, np.int64)
        return Group(
            self.batches,
            data,
            self._first,
            np.concatenate([none, *(bounds[:-1] for bounds in self._bounds)]),
            np.concatenate([none, *(bounds[1:] for bounds in self._bounds)]),
        )
