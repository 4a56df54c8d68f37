"""Which records wait in a log that is not in due order: sorted runs, the old ones in files.

    log      … ───────── run file ─────────┼───────── run file ─────────┼── runs in memory ──┤ read to
                (due, offset) of RUN_RECORDS, sorted                       merged as they grow

An entry is the due time of a record and its offset. Entries are delivered in this order, so what is delivered is named
by one entry, the frontier: all entries up to it are delivered, all behind it wait. A run is never changed. `next`
merges the runs: it takes a small piece behind the frontier of each, and sorts the pieces.

Beside its entries, a run has the ids of its records (`delivery.id`), sorted, as fingerprints of 64 bits. So the records
with one id are found with a binary search in each run. And it has the batches of producers from which its records came,
so that a batch that is sent again is recognized after a restart without reading the log again.

An entry also has the number of the topic to which its record goes, so that `appliance delayed list` finds the first
records of one topic, and counts them (`due_files.py`).

    file = header · CRC-32C · due[n] · offset[n] · fingerprint[m] · its due[m] · its offset[m]
           · number of the topic[n], 32 bits each, filled up to 64 · topic ids[t] · batches as JSON

The files are a cache: the log has all that they say. A file that does not fit is removed, and made from the log. A
*tail file* has what is in memory, without batches: it serves look-ups only, and is replaced now and then.
Memory: RUN_RECORDS entries; of run files the pages that are looked at, which the kernel takes back when it needs them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.delivery.waiting import Origin
from appliance.protocol.records.crc32c import checksum
from appliance.services.due_keys import EVERYTHING, Batches, Key
from appliance.services.lane import REMEMBERED_MS

RUN_RECORDS: Final = 65_536
"""The records of a run file: 20 bytes each, 44 with an id."""
MEMORY_MAX: Final = 4 * RUN_RECORDS
"""So many entries are kept in memory at most, while the disk is full."""
CATCH_UP_MAX: Final = 16 * MEMORY_MAX
"""The same before anything is delivered: a start must know all entries, and can wait for the disk with fewer only."""
PIECE_MIN: Final = 64
SUFFIX: Final = ".run"
TAIL_SUFFIX: Final = ".tail"
TAIL_RECORDS: Final = 2_048
"""A tail file is written for so many records that no file has."""
UNFINISHED: Final = ".new"
"""A file with this suffix is being written, or its writer has died."""
_HEADER: Final = struct.Struct("<8sIQQqIII")
_MAGIC: Final = b"duerun02"
_CRC: Final = struct.Struct("<I")
_WORD: Final = 8
_TOPIC_ID_BYTES: Final = 16

Longs = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]


class _Batch(msgspec.Struct, array_like=True):
    topic: UUID
    partition: int
    origin: tuple[int, int, int]
    offset: int


class Entries(NamedTuple):
    """Entries in order: when each is due, and its offset."""

    dues: Longs
    offsets: Longs


class Ids(NamedTuple):
    """Fingerprints of ids, sorted, with the entries of their records."""

    fingerprints: npt.NDArray[np.uint64]
    dues: Longs
    offsets: Longs


class Topics(NamedTuple):
    """To which topic each entry's record goes: its place in `table`."""

    numbers: Numbers
    table: Sequence[UUID]


class Run:
    """Entries of the records with offsets from `first` to before `end`, sorted.

    `newest_ms`: when the last of them was read, in ms of the monotonic clock. If the host was rebooted since, this
    is as long ago as it seems, or longer.
    """

    __slots__ = ("batches", "dues", "end", "first", "ids", "newest_ms", "offsets", "path", "topics")

    def __init__(
        self,
        first: int,
        end: int,
        entries: Entries,
        ids: Ids,
        *,
        topics: Topics,
        newest_ms: int,
        batches: Batches,
        path: Path | None = None,
    ) -> None:
        self.first = first
        self.end = end
        self.dues, self.offsets = entries
        self.ids = ids
        self.topics = topics
        self.newest_ms = newest_ms
        self.batches = batches
        self.path = path

    def __len__(self) -> int:
        return len(self.dues)

    def after(self, key: Key) -> int:
        """Return the index of the first entry behind `key`. Time: logarithmic."""
        due, offset = key
        at = int(self.dues.searchsorted(due, "left"))
        to = int(self.dues.searchsorted(due, "right"))
        return at if at == to else at + int(self.offsets[at:to].searchsorted(offset, "right"))

    def find(self, wanted: npt.NDArray[np.uint64]) -> Iterator[tuple[int, Key]]:
        """Yield (which fingerprint, entry) of each record with such an id. Time: logarithmic for each fingerprint."""
        ids = self.ids
        starts = ids.fingerprints.searchsorted(wanted, "left")
        stops = ids.fingerprints.searchsorted(wanted, "right")
        for which in np.flatnonzero(stops > starts):
            for at in range(int(starts[which]), int(stops[which])):
                yield int(which), (int(ids.dues[at]), int(ids.offsets[at]))


class DueIndex:
    """The entries of one log.

    Args:
        directory: of run files; None: keep all in memory.
        name: begins the names of its files.
    """

    __slots__ = (
        "_directory",
        "_memory",
        "_name",
        "_numbers",
        "_runs",
        "_tail_to",
        "_topics",
        "first",
        "read_to",
    )

    def __init__(self, directory: Path | None, name: str) -> None:
        self._directory = directory
        self._name = name
        self._runs: list[Run] = []
        self._memory: list[Run] = []
        self._topics: list[UUID] = []
        self._numbers: dict[UUID, int] = {}
        self._tail_to = 0
        self.first = 0
        """The index has the records from this offset on."""
        self.read_to = 0

    def __len__(self) -> int:
        """Return the number of entries, delivered or not."""
        return sum(map(len, self._all()))

    def _all(self) -> list[Run]:
        return [*self._runs, *self._memory]

    @property
    def memory_entries(self) -> int:
        return sum(map(len, self._memory))

    # Loading

    def load(self, position: int, end: int, *, uptime_ms: int) -> Iterator[Batches]:
        """Take the run files that follow one another and end at `end` at most; remove others.

        Yield the batches of those whose records were read in the last REMEMBERED_MS, as of the last record.

        Args:
            position: the files must cover the records from there on; otherwise none is taken.
            uptime_ms: of the monotonic clock. A file with a later time is of a time before the host was started.
        """
        self._runs, self._memory = [], []
        self.first = self.read_to = 0
        found: list[Run] = []
        for path in (*self._paths(UNFINISHED), *self._paths(TAIL_SUFFIX)):
            _remove(path)
        self._tail_to = 0
        for path in self._paths():
            run = read_run(path)
            fits = run is not None and run.end <= end and (not found or run.first == found[-1].end)
            if run is not None and fits:
                found.append(run)
            else:
                _remove(path)
        if found and found[0].first <= position <= found[-1].end:
            self._runs = found
            self.first, self.read_to = found[0].first, found[-1].end
            # One run file after the other: there can be as many batches as records.
            last_ms = found[-1].newest_ms
            for run in found:
                if run.newest_ms >= last_ms - REMEMBERED_MS:
                    yield _batches_in(run)
                run.newest_ms = min(run.newest_ms, uptime_ms)
        else:
            for run in found:
                assert run.path is not None
                _remove(run.path)

    def _paths(self, suffix: str = SUFFIX) -> list[Path]:
        return [] if self._directory is None else sorted(self._directory.glob(f"{self._name}-*{suffix}"))

    @property
    def newest_ms(self) -> list[tuple[int, int]]:
        """Return (first offset, newest_ms) of each run file."""
        return [(run.first, run.newest_ms) for run in self._runs]

    # Adding

    def number_of(self, topic_id: UUID) -> int:
        """Return the number by which `add` knows a topic."""
        number = self._numbers.get(topic_id)
        if number is None:
            number = self._numbers[topic_id] = len(self._topics)
            self._topics.append(topic_id)
        return number

    def begin_at(self, offset: int) -> None:
        """The log begins at `offset`, behind all that was read."""
        self._remove_tail()
        for run in self._runs:
            assert run.path is not None
            _remove(run.path)
        self._runs, self._memory = [], []
        self.first = self.read_to = offset

    def cut(self, end: int) -> None:
        """The log has lost its records from `end` on. Files that reach behind it are made again from the log."""
        self._remove_tail()
        kept = [run for run in self._runs if run.end <= end]
        for run in self._runs[len(kept) :]:
            assert run.path is not None
            _remove(run.path)
        self._runs, self._memory = kept, []
        self.read_to = kept[-1].end if kept else min(self.first, end)

    def add(
        self,
        end: int,
        dues: list[int],
        offsets: list[int],
        ids: list[tuple[int, int, int]],
        *,
        topics: list[int],
        newest_ms: int,
        batches: Batches,
    ) -> None:
        """Take what was read: records up to before `end`.

        Args:
            ids: (fingerprint, due, offset) of each record with an id.
            topics: the number of each record's topic.
        """
        run = _sorted(
            self.read_to,
            end,
            Entries(np.array(dues, np.int64), np.array(offsets, np.int64)),
            Ids(
                np.array([each[0] for each in ids], np.uint64),
                np.array([each[1] for each in ids], np.int64),
                np.array([each[2] for each in ids], np.int64),
            ),
            topics=Topics(np.array(topics, np.int32), self._topics),
            newest_ms=newest_ms,
            batches=batches,
        )
        self.read_to = end
        memory = self._memory
        memory.append(run)
        # Runs of about the same size are merged, so there are few, and each entry is sorted a few times.
        while len(memory) > 1 and len(memory[-1]) * 2 >= len(memory[-2]):
            last = memory.pop()
            memory[-1] = _merged([memory[-1], last])

    @property
    def has_room(self) -> bool:
        """Whether more may be read. If not, the files cannot be written."""
        return self.memory_entries < MEMORY_MAX

    @property
    def may_catch_up(self) -> bool:
        """Whether more may be read before the first delivery."""
        return self.memory_entries < CATCH_UP_MAX

    @property
    def is_full(self) -> bool:
        """Whether what is in memory should be written to a file."""
        return self._directory is not None and sum(run.end - run.first for run in self._memory) >= RUN_RECORDS

    def write(self, frontier: Key) -> None:
        """Write what is in memory to a run file, without entries up to `frontier`.

        Raises:
            OSError: it could not be written, and stays in memory.
        """
        assert self._directory is not None
        if not self._memory:
            return
        run = _behind(_merged(self._memory), frontier)
        self._memory = [run]  # smaller at least, if it cannot be written
        path = self._path(run, SUFFIX)
        _write(run, path, batches=run.batches)
        written = read_run(path, is_checked=False)
        if written is None:
            raise OSError(f"{path} cannot be read")
        self._runs.append(written)
        self._memory = []
        self._remove_tail()

    @property
    def wants_tail(self) -> bool:
        """Whether many records are in no file."""
        written = max(self._tail_to, self._runs[-1].end if self._runs else self.first)
        return self._directory is not None and self.read_to - written >= TAIL_RECORDS

    def write_tail(self, frontier: Key) -> None:
        """Write what is in memory to the tail file, without entries up to `frontier`. Raises OSError."""
        run = _behind(_merged(self._memory), frontier)
        self._memory = [run]
        _write(run, self._path(run, TAIL_SUFFIX), batches={})
        self._remove_tail(but=self._path(run, TAIL_SUFFIX))
        self._tail_to = run.end

    def _path(self, run: Run, suffix: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{self._name}-{run.first:020}-{run.end:020}{suffix}"

    def _remove_tail(self, *, but: Path | None = None) -> None:
        for path in self._paths(TAIL_SUFFIX):
            if path != but:
                _remove(path)
        self._tail_to = 0

    # Looking

    def next(self, key: Key, count: int) -> Entries:
        """Return at most `count` entries behind `key`, in order; at least one if there is one.

        Time: proportional to count and the number of runs.
        """
        heads = [(run, at) for run in self._all() if (at := run.after(key)) < len(run)]
        if not heads:
            return Entries(np.empty(0, np.int64), np.empty(0, np.int64))
        piece = max(4 * count // len(heads), PIECE_MIN)
        # Behind the last entry of a piece, others of its run could come: only entries up to there are complete.
        bound = min(
            (int(run.dues[at + piece - 1]) for run, at in heads if at + piece < len(run)),
            default=EVERYTHING[0],
        )
        dues = np.concatenate([run.dues[at : at + piece] for run, at in heads])
        offsets = np.concatenate([run.offsets[at : at + piece] for run, at in heads])
        order = np.lexsort((offsets, dues))
        dues, offsets = dues[order], offsets[order]
        complete = int(dues.searchsorted(bound, "left"))
        if not complete:
            # All of a piece are due at one time: take all entries of this time, in the order of their offsets.
            return self._at(key, bound, count)
        return Entries(dues[: min(complete, count)], offsets[: min(complete, count)])

    def _at(self, key: Key, due: int, count: int) -> Entries:
        pieces = []
        for run in self._all():
            at, to = run.after(key), int(run.dues.searchsorted(due, "right"))
            pieces.append(run.offsets[at : min(to, at + count)] if at < to else run.offsets[:0])
        offsets = np.sort(np.concatenate(pieces))[:count]
        return Entries(np.full(len(offsets), due, np.int64), offsets)

    def waiting(self, frontier: Key) -> int:
        """Return how many entries are behind the frontier."""
        return sum(len(run) - run.after(frontier) for run in self._all())

    def oldest(self, frontier: Key, *, precisely: bool = False) -> int:
        """Return an offset below which no record waits; `precisely`: the highest one, which takes longer."""
        for run in self._all():
            at = run.after(frontier)
            if at < len(run):
                return int(run.offsets[at:].min()) if precisely else run.first
        return self.read_to

    def find(self, fingerprints: list[int], frontier: Key) -> list[tuple[int, Key]]:
        """Return (which fingerprint, entry) of the records behind the frontier that may have one of these ids.

        Time: logarithmic for each fingerprint and run.
        """
        wanted = np.array(fingerprints, np.uint64)
        return [each for run in self._all() for each in run.find(wanted) if each[1] > frontier]

    # Forgetting

    def forget(self, frontier: Key, *, before_ms: int) -> None:
        """Remove the oldest run files of which nothing waits, and whose records were read before `before_ms`."""
        while self._runs:
            first = self._runs[0]
            if first.after(frontier) < len(first) or first.newest_ms >= before_ms:
                return
            assert first.path is not None
            _remove(first.path)
            del self._runs[0]
            self.first = first.end

    def check(self) -> None:
        """Raise AssertionError if what is kept contradicts itself."""
        at = self.first
        for run in self._all():
            assert run.first == at <= run.end
            at = run.end
            keys = list(zip(run.dues.tolist(), run.offsets.tolist(), strict=True))
            assert keys == sorted(keys)
            assert all(run.first <= offset < run.end for offset in run.offsets)
        assert at == self.read_to


def _sorted(
    first: int, end: int, entries: Entries, ids: Ids, *, topics: Topics, newest_ms: int, batches: Batches
) -> Run:
    order = np.lexsort((entries.offsets, entries.dues))
    by_id = np.argsort(ids.fingerprints, kind="stable")
    entries = Entries(entries.dues[order], entries.offsets[order])
    topics = Topics(topics.numbers[order], topics.table)
    ids = Ids(ids.fingerprints[by_id], ids.dues[by_id], ids.offsets[by_id])
    return Run(first, end, entries, ids, topics=topics, newest_ms=newest_ms, batches=batches)


def _merged(runs: list[Run]) -> Run:
    batches: Batches = {}
    newest_ms = max(run.newest_ms for run in runs)
    for run in runs:
        if run.newest_ms >= newest_ms - REMEMBERED_MS:
            _merge_batches(batches, run.batches)
    return _sorted(
        runs[0].first,
        runs[-1].end,
        Entries(
            np.concatenate([run.dues for run in runs]),
            np.concatenate([run.offsets for run in runs]),
        ),
        Ids(
            np.concatenate([run.ids.fingerprints for run in runs]),
            np.concatenate([run.ids.dues for run in runs]),
            np.concatenate([run.ids.offsets for run in runs]),
        ),
        topics=Topics(np.concatenate([run.topics.numbers for run in runs]), runs[0].topics.table),
        newest_ms=newest_ms,
        batches=batches,
    )


def _merge_batches(into: Batches, others: Mapping[tuple[UUID, int, Origin], int]) -> None:
    for key, offset in others.items():
        known = into.pop(key, -1)  # the order is that of the last record
        into[key] = max(known, offset)


def _behind(run: Run, frontier: Key) -> Run:
    at = run.after(frontier)
    if not at:
        return run
    ids, (due, offset) = run.ids, frontier
    kept = (ids.dues > due) | ((ids.dues == due) & (ids.offsets > offset))
    return Run(
        run.first,
        run.end,
        Entries(run.dues[at:], run.offsets[at:]),
        Ids(ids.fingerprints[kept], ids.dues[kept], ids.offsets[kept]),
        topics=Topics(run.topics.numbers[at:], run.topics.table),
        newest_ms=run.newest_ms,
        batches=run.batches,
    )


def _write(run: Run, path: Path, *, batches: Batches) -> None:
    used, numbers = np.unique(run.topics.numbers, return_inverse=True)
    told = msgspec.json.encode(
        [
            _Batch(
                topic_id, partition, (origin.producer_id, origin.producer_epoch, origin.base_sequence), offset
            )
            for (topic_id, partition, origin), offset in batches.items()
        ]
    )
    header = _HEADER.pack(
        _MAGIC, len(run), run.first, run.end, run.newest_ms, len(run.ids.offsets), len(used), len(told)
    )
    columns = (run.dues, run.offsets, *run.ids, np.resize(numbers.astype(np.int32), _even(len(run))))
    content = b"".join(each.tobytes() for each in columns)
    content += b"".join(run.topics.table[number].bytes for number in used) + told
    whole = header + _CRC.pack(checksum(header + content)) + content
    temporary = path.with_suffix(UNFINISHED)
    try:
        with open(temporary, "wb") as file:
            file.write(whole)
        os.rename(temporary, path)
    except OSError:
        _remove(temporary)
        raise


def _even(count: int) -> int:
    return count + count % 2


def read_run(path: Path, *, is_checked: bool = True) -> Run | None:
    """Return the run in a file, without its batches; None if the file is damaged, cut, or of another version."""
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER.size)
            magic, count, first, end, newest_ms, ids, topics, batches_bytes = _HEADER.unpack(header)
            (crc,) = _CRC.unpack(file.read(_CRC.size))
            start = _HEADER.size + _CRC.size
            length = 2 * count + 3 * ids + _even(count) // 2
            topics_at = start + _WORD * length
            size_bytes = topics_at + _TOPIC_ID_BYTES * topics + batches_bytes
            if magic != _MAGIC or os.fstat(file.fileno()).st_size != size_bytes:
                return None
            if is_checked and checksum(header + file.read()) != crc:
                return None
            file.seek(topics_at)
            table = [UUID(bytes=file.read(_TOPIC_ID_BYTES)) for _ in range(topics)]
        words = np.memmap(path, np.int64, "r", start, (length,)) if length else np.empty(0, np.int64)
    except (OSError, ValueError, struct.error):
        return None
    columns = np.split(words, np.cumsum((count, count, ids, ids, ids)))
    return Run(
        first,
        end,
        Entries(columns[0], columns[1]),
        Ids(columns[2].view(np.uint64), columns[3], columns[4]),
        topics=Topics(columns[5].view(np.int32)[:count], table),
        newest_ms=newest_ms,
        batches={},
        path=path,
    )


def _batches_in(run: Run) -> Batches:
    """Return the batches in the file of a run; none if it cannot be read any more."""
    assert run.path is not None
    try:
        with open(run.path, "rb") as file:
            *_, batches_bytes = _HEADER.unpack(file.read(_HEADER.size))
            file.seek(-batches_bytes, os.SEEK_END)
            found = msgspec.json.decode(file.read(), type=list[_Batch])
    except (OSError, struct.error, msgspec.MsgspecError):
        return {}
    return {(each.topic, each.partition, Origin(*each.origin)): each.offset for each in found}


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
