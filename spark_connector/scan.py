"""Reading a task's stretches: `pread` into one buffer, every batch checked, and the end proved.

    open      the file that was planned, under its name or as `.deleted`; another one in its place: planned anew, from
              the offset that was reached
    read      only below the planned byte, and never by a mapping (a file that is cut under a mapping kills the process)
    check     format, length, checksum, offsets that rise
    drop      what lies outside of the bounds, control batches, aborted transactions
    prove     that the stretch was read to its end

**The end check.** A stretch [start, end) is read to its end when one of these was seen; a file that ends earlier, shows
zeros, is missing or is another one is looked for again, after a pause: planned anew by offset if compaction has been
there since or the partition lies in another directory only, and else the very bytes that were planned; when no attempt
helps the scan fails. It never ends early without saying so: that one rule catches a network file system's stale sizes,
truncation, zeros that were allocated ahead, wrong bounds and wrong indexes.

| seen | proves the end because |
|---|---|
| a batch that ends with `end - 1` or later | everything before it lies before it in the file |
| a batch that begins with `end` or later | so did everything that is not there any more (compaction) |
| a batch that ends where the next segment begins | nothing can lie between |
| the byte where a batch began, or the file ended, when it was planned | what lay before it was compacted away |

After the last byte the partition's state is looked at once more: where the log lost records meanwhile (another
incarnation) or the topic was made anew, what was read may be neither the old log nor the new one.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from appliance.errors import ApplianceError
from appliance.log.file_names import DELETED, DIRECTORY_DELETED
from appliance.log.partition_state import read_state
from appliance.log.transaction_index import AbortedTransaction
from appliance.protocol.records.batch import (
    ATTRIBUTES,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
)
from appliance.protocol.records.crc32c import checksum
from spark_connector.batch_headers import Batches, Stop, Walk, walk_headers
from spark_connector.chunk import Chunk
from spark_connector.directory import Directories, Isolation, PartitionView
from spark_connector.epochs import holds
from spark_connector.errors import (
    CorruptSegment,
    DataLost,
    LeaseRevoked,
    NotALogDirectory,
    NotReadable,
    ShortRead,
    UnknownTopic,
    UnsupportedFormat,
)
from spark_connector.header_hops import hop_headers, worth_hopping
from spark_connector.indexes import offset_entries
from spark_connector.lease import is_revoked, renew, take_lease
from spark_connector.memory import take
from spark_connector.planning import OffsetRange, ScanRange, Stretch, plan
from spark_connector.storage import LocalFile, OpenFile, directory_of, is_address, open_file

BUFFER_BYTES: Final = 4 << 20
BATCH_BYTES_MAX: Final = 1 << 30
PAUSES_S: Final = (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
ANY_FILE: Final = -1
NOBODY_SAID: Final = 0
"""The incarnation of a log whose owner writes no state."""
_NO_BYTES: Final = np.empty(0, np.uint8)
OnCorrupt = Literal["fail", "skip"]
Corruption = tuple[str, int, str]
"""(file, position, what does not hold) of something that was skipped."""


class _Gone(Exception):
    """The file is not there, is not the one that was planned, or ends too early."""


def scan(
    task: ScanRange,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    on_corrupt: OnCorrupt = "fail",
    corrupt: list[Corruption] | None = None,
) -> Iterator[Chunk]:
    """The batches of a task in order. Ends normally only when its end was proved.

    Args:
        buffer_bytes: of the one buffer; it grows for a batch that is larger.
        on_corrupt: "skip" leaves out batches that do not hold, and reads on where the next one is found.
        corrupt: gets what was skipped.

    Raises:
        CorruptSegment: a batch does not hold. UnsupportedFormat: a message of format v0 or v1.
        ShortRead: the end could not be reached.
        DataLost, LeaseRevoked: what was planned does not exist any more.
        StorageFault, OSError: a file cannot be read.
    """
    reading = _Reading(task, buffer_bytes, on_corrupt == "skip", corrupt)
    for window in reading.windows():
        batches = window.wanted(task, check=True)
        if len(batches):
            yield Chunk(window.data, batches, task.start, task.end, window.path, window.file_position)


def headers(
    task: ScanRange,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    on_corrupt: OnCorrupt = "fail",
    corrupt: list[Corruption] | None = None,
) -> Iterator[Batches]:
    """The headers of a task's batches, in order: control batches and aborted ones too. No checksum is looked at.

    Where batches are large, nothing but the headers is read.
    The first and the last batch may reach beyond the task's bounds.

    Raises:
        As `scan`.
    """
    reading = _Reading(task, buffer_bytes, on_corrupt == "skip", corrupt, headers_only=True)
    for window in reading.windows():
        batches = window.batches
        inside = (batches["last_offset"] >= window.start) & (batches["base_offset"] < task.end)
        batches = batches[inside]
        if len(batches):
            yield batches


class _Window:
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


class _Reading:
    """Goes through a task's stretches, and plans anew what has changed under it."""

    __slots__ = (
        "_attempt",
        "_buffer",
        "_buffer_bytes",
        "_corrupt",
        "_headers_only",
        "_hops",
        "_lies_in",
        "_reached",
        "_skips",
        "_task",
    )

    def __init__(
        self,
        task: ScanRange,
        buffer_bytes: int,
        skips: bool,
        corrupt: list[Corruption] | None,
        *,
        headers_only: bool = False,
    ) -> None:
        self._task = task
        self._buffer_bytes = buffer_bytes
        self._buffer = np.empty(0, np.uint8)
        self._skips = skips
        self._corrupt = corrupt
        self._reached = task.start
        self._attempt = 0
        self._headers_only = headers_only
        self._hops = headers_only
        self._lies_in = task.directory

    def windows(self) -> Iterator[_Window]:
        """All batches, until the end is proved."""
        if self._task.lease is not None:
            renew(self._task.lease, self._task.homes, self._task.name)
        tasks = [self._task]
        while tasks:
            task = tasks[0]
            try:
                for stretch in task.stretches:
                    if stretch.end > self._reached:
                        yield from self._stretch(task, stretch)
                        self._reached = stretch.end
                tasks.pop(0)
            except _Gone as gone:
                tasks = self._anew(tasks, str(gone))
            except OSError as fault:
                tasks = self._elsewhere(fault)
        self._still_the_same()

    def _anew(self, tasks: list[ScanRange], reason: str) -> list[ScanRange]:
        """What is left, as the directory holds it now; by offset where compaction has been there since."""
        task = self._task
        while True:
            if self._attempt == len(PAUSES_S):
                self._ask_lease(reason)
                raise ShortRead(f"{task.name}: offsets {self._reached} to {task.end - 1}: {reason}")
            time.sleep(PAUSES_S[self._attempt])
            self._attempt += 1
            try:
                view = _homes(task).partition(task.topic, task.partition, prefer=task.directory)
                if view.directory != task.directory:
                    return self._in_another_directory(view)
                self._check(view)
                if view.clean_generation != task.clean_generation or (
                    view.active_bytes < 0 and view.is_compacted
                ):
                    wanted = OffsetRange(task.topic, task.partition, self._reached, task.end)
                    still = replace(view, log_start_offset=min(view.log_start_offset, self._reached))
                    return plan([still], [wanted], isolation=task.isolation, timestamps_ms=task.timestamps_ms)
            except UnknownTopic as gone:
                self._ask_lease(reason)
                raise DataLost(f"{task.name}: its directory is gone: {reason}") from gone
            except DataLost:
                self._ask_lease(reason)
                raise
            except (ApplianceError, OSError) as fault:
                reason = str(fault)
                continue
            return tasks  # the same bytes lie at the same place

    def _elsewhere(self, fault: OSError) -> list[ScanRange]:
        """What is left, in another copy than the one that cannot be read.

        Raises `fault` where there is none.
        """
        task = self._task
        if self._attempt == len(PAUSES_S):
            raise fault
        self._attempt += 1
        try:
            view = _homes(task).partition(task.topic, task.partition, avoid=task.directory)
            return self._in_another_directory(view)
        except (ApplianceError, OSError):
            raise fault from None

    def _in_another_directory(self, view: PartitionView) -> list[ScanRange]:
        """What is left, where the partition moved to or another slot has a copy: by offset, for each copy has segments
        of its own.

        Raises:
            NotReadable: it has not come to know yet that it has all of it. DataLost: another log, or it begins later.
        """
        task = self._task
        if view.topic_id != task.topic_id:
            raise DataLost(f"topic {task.topic} was deleted and made anew: it has another id")
        if not holds(view, task.end, epoch=task.leader_epoch):
            raise NotReadable(f"{view.directory} is not known to hold the same records up to {task.end}")
        self._move_to(view)
        wanted = OffsetRange(task.topic, task.partition, self._reached, task.end)
        return plan([view], [wanted], isolation=task.isolation, timestamps_ms=task.timestamps_ms)

    def _move_to(self, view: PartitionView) -> None:
        """Reads in another directory from now on, under the lease, of which none was there.

        It holds all of the partition: other tasks of the query may come to it too.
        """
        self._task = replace(
            self._task,
            directory=view.directory,
            incarnation=view.incarnation,
            clean_generation=view.clean_generation,
        )
        lease = self._task.lease
        if lease is not None:
            wanted = [(view, view.log_start_offset)]
            take_lease(wanted, owner=f"process {os.getpid()}", ttl_ms=lease.ttl_ms, id=lease.id)

    def _check(self, view: PartitionView) -> None:
        task = self._task
        if view.topic_id != task.topic_id:
            raise DataLost(f"topic {task.topic} was deleted and made anew: it has another id")
        if NOBODY_SAID != task.incarnation != view.incarnation:
            raise DataLost(f"{task.name}: the log was cut below what readers could see")
        if view.log_start_offset > self._reached and not _lies_there(task, self._reached):
            raise DataLost(
                f"{task.name}: offsets {self._reached} to {view.log_start_offset - 1} were deleted while they"
                " were read"
            )

    def _ask_lease(self, reason: str) -> None:
        lease, task = self._task.lease, self._task
        if lease is not None and is_revoked(lease, task.homes, task.name):
            raise LeaseRevoked(
                f"{task.name}: the broker revoked lease {lease.id}, which had reached the cap of what readers may"
                f" hold (reader.lease.max.bytes, reader.lease.max.ms): {reason}"
            )

    def _still_the_same(self) -> None:
        task = self._task
        if task.incarnation == NOBODY_SAID:
            return
        try:
            # A copy that was deleted has a directory of another name; under this one there may be a later copy.
            state = read_state(Path(self._lies_in))
        except ApplianceError:
            return  # being written, or gone by now: all that was read was read from the files that were planned
        if state is None:
            return
        if state.topic_id == task.topic_id and state.incarnation != task.incarnation:
            raise DataLost(f"{task.name}: the log was cut below what readers could see while it was read")

    # One stretch

    def _stretch(self, task: ScanRange, stretch: Stretch) -> Iterator[_Window]:
        file, path = _open(stretch)
        self._lies_in = directory_of(path)
        try:
            yield from self._read(task, stretch, file, path)
        finally:
            file.close()

    def _read(self, task: ScanRange, stretch: Stretch, file: OpenFile, path: str) -> Iterator[_Window]:
        """The stretch's batches; returns when its end is proved."""
        position, byte_end = self._trusted(stretch, file), stretch.byte_end
        next_offset = stretch.base_offset
        while True:
            if position >= byte_end:
                if stretch.ends_with_batch and position == byte_end:
                    return
                size_bytes = file.size_bytes()
                if position >= size_bytes:
                    raise _Gone(f"{path} ends at {position}, before offset {stretch.end}")
                byte_end = size_bytes  # where to stop looking was a hint
            data, walk = self._walk(file, position, byte_end)
            if walk is None:
                raise _Gone(f"{path} ends at {position}, before offset {stretch.end}")
            batches, fault = _rising(stretch, walk, next_offset)
            if len(batches):
                _mark(batches, stretch, task.aborted)
                next_offset = int(batches["last_offset"][-1]) + 1
                yield _Window(
                    data,
                    batches,
                    path=path,
                    file_position=position,
                    start=stretch.start,
                    skips=self._skips,
                    corrupt=self._corrupt,
                )
                if next_offset > self._reached:
                    self._reached = min(next_offset, stretch.end)
                    self._attempt = 0
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
            raise _Gone(f"{path} holds zeros at {position}")
        if walk.stop is Stop.BAD_MAGIC:
            return position, _old_format(file, path, position)
        if walk.stop is Stop.BAD_LENGTH:
            return position, "a batch that is shorter than its header"
        if walk.needed_bytes > BATCH_BYTES_MAX:
            return position, f"a batch claims {walk.needed_bytes} bytes"
        size_bytes = file.size_bytes()
        if position + walk.needed_bytes > size_bytes:
            # Whoever sees another host's files late sees more of it soon; else it is for good.
            if self._attempt < len(PAUSES_S):
                raise _Gone(f"{path} ends at {size_bytes}, inside of the batch at {position}")
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


def _homes(task: ScanRange) -> Directories:
    """Those of the log directories that are there still.

    Raises:
        NotALogDirectory: none is.
    """
    there = []
    for home in task.homes:
        with suppress(NotALogDirectory):
            Directories([home])
            there.append(home)
    return Directories(there or task.homes)


def _lies_there(task: ScanRange, offset: int) -> bool:
    """Whether the file that holds `offset` can still be opened."""
    for stretch in task.stretches:
        if stretch.end > offset:
            try:
                _open(stretch)[0].close()
            except _Gone:
                return False
            return True
    return True


def _open(stretch: Stretch) -> tuple[OpenFile, str]:
    """The planned file, under its name, as deleted, or in the directory of a topic that was deleted; and its path."""
    if is_address(stretch.path):
        try:
            return open_file(stretch.path), stretch.path
        except FileNotFoundError as gone:
            raise _Gone(str(gone)) from gone
    path = Path(stretch.path.removesuffix(DELETED))
    for each in (path, path.with_name(path.name + DELETED)):
        if (file := _planned(stretch, each)) is not None:
            return file, str(each)
    for marked in path.parent.parent.glob(f"{glob.escape(path.parent.name)}.*{DIRECTORY_DELETED}"):
        for each in (marked / path.name, marked / (path.name + DELETED)):
            if (file := _planned(stretch, each)) is not None:
                return file, str(each)
    raise _Gone(f"{stretch.path} is not there, or is another file")


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
