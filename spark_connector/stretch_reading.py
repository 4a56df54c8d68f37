"""One stretch of a file: opened under its name or as deleted, read below its planned byte, and checked on the way.

What it is part of, and what its end is proved by: `scan`, which also knows what to do when the file is gone.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from appliance.log.file_names import DELETED, DIRECTORY_DELETED
from appliance.log.transaction_index import AbortedTransaction
from appliance.protocol.columns.batch_headers import Batches, Stop, Walk, walk_headers
from appliance.protocol.columns.chunk import Corruption
from appliance.protocol.columns.memory import take
from appliance.protocol.records.batch import (
    ATTRIBUTES,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
)
from appliance.protocol.records.crc32c import checksum
from spark_connector.directory import Isolation
from spark_connector.errors import CorruptSegment, UnsupportedFormat
from spark_connector.header_hops import hop_headers, worth_hopping
from spark_connector.indexes import offset_entries
from spark_connector.planning import ScanRange, Stretch
from spark_connector.storage import LocalFile, OpenFile, directory_of, is_address, open_file

BATCH_BYTES_MAX: Final = 1 << 30
ANY_FILE: Final = -1
_NO_BYTES: Final = np.empty(0, np.uint8)


class Gone(Exception):
    """The file is not there, is not the one that was planned, or ends too early."""


class Window:
    """Batches that were read in one go."""

    __slots__ = ("batches", "corrupt", "data", "file_position", "path", "skips", "start")

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        batches: Batches,
        *,
        path: str,
        file_position: int,
        start: int,
        skips: bool,
        corrupt: list[Corruption] | None,
    ) -> None:
        self.data = data
        self.batches = batches
        self.path = path
        self.file_position = file_position
        self.start = start
        self.skips = skips
        self.corrupt = corrupt

    def wanted(self, task: ScanRange, *, check: bool) -> Batches:
        """Those that a task asks for; where they are to be checked, those that hold."""
        batches = self.batches
        attributes = batches["attributes"]
        keep = (
            (batches["last_offset"] >= self.start)
            & (batches["base_offset"] < task.end)
            & (attributes & CONTROL == 0)
        )
        if task.isolation is Isolation.READ_COMMITTED:
            keep &= batches["aborted"] == 0
        earliest_ms, until_ms = task.timestamps_ms
        if earliest_ms is not None:
            keep &= batches["max_timestamp_ms"] >= earliest_ms
        if until_ms is not None:
            keep &= (attributes & LOG_APPEND_TIME == 0) | (batches["max_timestamp_ms"] < until_ms)
        if not keep.all():
            batches = batches[keep]
        return self._sound(batches) if check else batches

    def _sound(self, batches: Batches) -> Batches:
        view = self.data.data
        bad = []
        for number, (position, length_bytes, crc) in enumerate(
            zip(
                batches["position"].tolist(),
                batches["length_bytes"].tolist(),
                batches["crc"].tolist(),
                strict=True,
            )
        ):
            if checksum(view[position + ATTRIBUTES : position + length_bytes]) != crc:
                at = int(batches["file_position"][number])
                reason = f"the batch of offset {int(batches['base_offset'][number])} fails its checksum"
                if not self.skips:
                    raise CorruptSegment(self.path, at, reason)
                bad.append(number)
                if self.corrupt is not None:
                    self.corrupt.append((self.path, at, reason))
        return np.delete(batches, bad) if bad else batches


class StretchReader:
    """Reads stretches one after another, into one buffer. At the last of `attempts`, what is cut is cut for good.

    Attributes:
        reached: the offset up to which all batches were handed out.
        attempt: how many were made since the last batch.
        lies_in: the directory of the file that was opened last.
    """

    __slots__ = (
        "_attempts",
        "_buffer",
        "_buffer_bytes",
        "_corrupt",
        "_headers_only",
        "_hops",
        "_skips",
        "attempt",
        "lies_in",
        "reached",
    )

    def __init__(
        self,
        buffer_bytes: int,
        skips: bool,
        corrupt: list[Corruption] | None,
        *,
        attempts: int,
        reached: int,
        lies_in: str,
        headers_only: bool,
    ) -> None:
        self.reached = reached
        self.attempt = 0
        self.lies_in = lies_in
        self._attempts = attempts
        self._buffer_bytes = buffer_bytes
        self._buffer = np.empty(0, np.uint8)
        self._skips = skips
        self._corrupt = corrupt
        self._headers_only = headers_only
        self._hops = headers_only

    def windows(self, stretch: Stretch, aborted: tuple[AbortedTransaction, ...]) -> Iterator[Window]:
        """The stretch's batches; ends when its end is proved.

        Raises:
            Gone: it has to be looked for again.
            CorruptSegment, UnsupportedFormat, OSError: see `scan`.
        """
        file, path = open_planned(stretch)
        self.lies_in = directory_of(path)
        try:
            yield from self._read(stretch, aborted, file, path)
        finally:
            file.close()
        self.reached = stretch.end

    def _read(
        self, stretch: Stretch, aborted: tuple[AbortedTransaction, ...], file: OpenFile, path: str
    ) -> Iterator[Window]:
        position, byte_end = self._trusted(stretch, file), stretch.byte_end
        next_offset = stretch.base_offset
        while True:
            if position >= byte_end:
                if stretch.ends_with_batch and position == byte_end:
                    return
                size_bytes = file.size_bytes()
                if position >= size_bytes:
                    raise Gone(f"{path} ends at {position}, before offset {stretch.end}")
                byte_end = size_bytes  # where to stop looking was a hint
            data, walk = self._walk(file, position, byte_end)
            if walk is None:
                raise Gone(f"{path} ends at {position}, before offset {stretch.end}")
            batches, fault = _rising(stretch, walk, next_offset)
            if len(batches):
                _mark(batches, stretch, aborted)
                next_offset = int(batches["last_offset"][-1]) + 1
                yield Window(
                    data,
                    batches,
                    path=path,
                    file_position=position,
                    start=stretch.start,
                    skips=self._skips,
                    corrupt=self._corrupt,
                )
                if next_offset > self.reached:
                    self.reached = min(next_offset, stretch.end)
                    self.attempt = 0
                if next_offset >= stretch.end or next_offset == stretch.next_base:
                    return
            position += walk.position
            if fault is None:
                fault = self._fault(file, path, position, walk)
            if walk.stop is Stop.CUT:
                byte_end = max(byte_end, position + walk.needed_bytes)
            if fault is not None:
                further = self._skip(stretch, file, *fault)
                if further is None:
                    return
                position = further

    def _fault(self, file: OpenFile, path: str, position: int, walk: Walk) -> tuple[int, str] | None:
        """What is wrong with the batch at `position`, before which the walk ended; None: nothing, read on."""
        if walk.stop is Stop.END:
            return None
        if walk.stop is Stop.ZEROS:
            raise Gone(f"{path} holds zeros at {position}")
        if walk.stop is Stop.BAD_MAGIC:
            return position, _old_format(file, path, position)
        if walk.stop is Stop.BAD_LENGTH:
            return position, "a batch that is shorter than its header"
        if walk.needed_bytes > BATCH_BYTES_MAX:
            return position, f"a batch claims {walk.needed_bytes} bytes"
        size_bytes = file.size_bytes()
        if position + walk.needed_bytes > size_bytes:
            # Whoever sees another host's files late sees more of it soon; else it is for good.
            if self.attempt < self._attempts:
                raise Gone(f"{path} ends at {size_bytes}, inside of the batch at {position}")
            return (
                position,
                f"a batch of {walk.needed_bytes} bytes, of which {size_bytes - position} are there",
            )
        if walk.needed_bytes > len(self._buffer):
            self._buffer = take(walk.needed_bytes)
        return None

    def _walk(
        self, file: OpenFile, position: int, byte_end: int
    ) -> tuple[npt.NDArray[np.uint8], Walk | None]:
        """The batches from `position` on, and the bytes they lie in, if anyone asks for more than headers."""
        if self._hops and isinstance(file, LocalFile):
            walk = hop_headers(file, position, byte_end)
            self._hops = worth_hopping(walk)
            nothing = walk.stop is Stop.END and not len(walk.batches)
            return _NO_BYTES, None if nothing else walk
        data = self._fill(file, position, byte_end)
        if not len(data):
            return data, None
        walk = walk_headers(data.data, file_position=position)
        self._hops = self._headers_only and worth_hopping(walk)
        return data, walk

    def _fill(self, file: OpenFile, position: int, byte_end: int) -> npt.NDArray[np.uint8]:
        if not len(self._buffer):
            self._buffer = take(max(self._buffer_bytes, 1 << 12))
        wanted = min(len(self._buffer), byte_end - position)
        view = self._buffer.data[:wanted]
        filled = 0
        while filled < wanted:
            count = file.read_into(view[filled:], position + filled)
            if not count:
                break
            filled += count
        return self._buffer[:filled]

    def _trusted(self, stretch: Stretch, file: OpenFile) -> int:
        """Where to begin: at the planned byte if a batch of the segment begins there, else at the file's first."""
        position = stretch.byte_start
        header = file.read(HEADER_BYTES, position)
        if position == 0 or walk_headers(header).stop not in (Stop.CUT, Stop.END):
            return 0
        base_offset = int.from_bytes(header[:8], "big")
        return position if stretch.base_offset <= base_offset <= stretch.start else 0

    def _skip(self, stretch: Stretch, file: OpenFile, position: int, reason: str) -> int | None:
        """Refuses what lies at `position`, or finds where to read on behind it; None: nowhere in this stretch."""
        if not self._skips:
            raise CorruptSegment(stretch.path, position, reason)
        if self._corrupt is not None:
            self._corrupt.append((stretch.path, position, reason))
        entries = offset_entries(
            directory_of(stretch.path),
            stretch.base_offset,
            size_bytes=file.size_bytes(),
            suffix=DELETED if stretch.path.endswith(DELETED) else "",
        )
        later = entries.positions[entries.positions > position]
        return int(later[0]) if len(later) and later[0] < stretch.byte_end else None


def _old_format(file: OpenFile, path: str, position: int) -> str:
    """What is wrong with a batch that is not of format v2."""
    magic = file.read(1, position + MAGIC)
    if magic in (b"\0", b"\1"):
        raise UnsupportedFormat(path, position, f"a message of format v{magic[0]}; only v2 is read")
    return f"no batch begins here: its format would be {magic.hex() or 'cut'}"


def _rising(stretch: Stretch, walk: Walk, next_offset: int) -> tuple[Batches, tuple[int, str] | None]:
    """The batches up to the first that cannot be, and where that lies and what is wrong with it.

    The checksum does not cover a batch's base offset. Where offsets fall after a gap, it is the batch behind the gap
    that is wrong.
    """
    batches = walk.batches
    if not len(batches):
        return batches, None
    base, last = batches["base_offset"], batches["last_offset"]
    floor = np.empty(len(batches), np.int64)
    floor[0] = next_offset
    floor[1:] = last[:-1] + 1
    wrong = (base < floor) | (last < base)
    if stretch.limit >= 0:
        wrong |= (last >= stretch.limit) & (batches["file_position"] < stretch.byte_end)
    if not wrong.any():
        return batches, None
    first = int(np.flatnonzero(wrong)[0])
    if base[first] < floor[first] and first and base[first - 1] > floor[first - 1] <= base[first]:
        first -= 1
    reason = f"offsets {int(base[first])} to {int(last[first])} come after {int(floor[first]) - 1}"
    return batches[:first], (int(batches["file_position"][first]), reason)


def _mark(batches: Batches, stretch: Stretch, aborted: tuple[AbortedTransaction, ...]) -> None:
    """Fills in what headers do not say."""
    batches["segment_base_offset"] = stretch.base_offset
    transactional = batches["attributes"] & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL
    if not aborted or not transactional.any():
        return
    low, high = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
    for entry in aborted:
        if entry.first_offset <= high and entry.last_offset >= low:
            batches["aborted"] |= (
                transactional
                & (batches["producer_id"] == entry.producer_id)
                & (batches["base_offset"] >= entry.first_offset)
                & (batches["last_offset"] <= entry.last_offset)
            )


def open_planned(stretch: Stretch) -> tuple[OpenFile, str]:
    """The planned file, under its name, as deleted, or in the directory of a topic that was deleted; and its path.

    Raises:
        Gone: there is none. OSError: it cannot be opened.
    """
    if is_address(stretch.path):
        try:
            return open_file(stretch.path), stretch.path
        except FileNotFoundError as gone:
            raise Gone(str(gone)) from gone
    path = Path(stretch.path.removesuffix(DELETED))
    for each in (path, path.with_name(path.name + DELETED)):
        if (file := _planned(stretch, each)) is not None:
            return file, str(each)
    for marked in path.parent.parent.glob(f"{glob.escape(path.parent.name)}.*{DIRECTORY_DELETED}"):
        for each in (marked / path.name, marked / (path.name + DELETED)):
            if (file := _planned(stretch, each)) is not None:
                return file, str(each)
    raise Gone(f"{stretch.path} is not there, or is another file")


def _planned(stretch: Stretch, path: Path) -> OpenFile | None:
    """The file `path`, if that is the one that was planned."""
    try:
        file = open_file(str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stretch.inode == ANY_FILE or file.identity == (stretch.device, stretch.inode):
        return file
    file.close()
    return None
