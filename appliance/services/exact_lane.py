"""One partition of an exact level: its records wait in the order in which they are due, not in the order of the log.

    due index        all that waits: (due, offset)
       │ next, when the buffer is half empty
       ▼
    buffer           the entries up to `bound`, with their records; at most about BUFFER_BYTES of them
       │ pop
       ▼
    frontier         all entries up to here are delivered, or in an open delivery

A record that arrives with a due time up to `bound` goes to the buffer at once. All others are read from the log again
when their time comes near. If the buffer overflows, its last entries leave it, and `bound` comes back.

A record that arrives with a due time before the frontier is *late*: it counts as due at the frontier. So entries are
always popped in ascending order, and late ones in the order of the log. What a state record says is therefore complete:

    delivered = offset below `read_to`, and (due, offset) up to the frontier

where `read_to` is what was read, or the first late record that waits.

Due times are those of a *steady time*, which is never set back: the wall clock plus a correction. When the clock is set
back, the correction grows, for the records that are read from then on (`corrections`: offset → correction from there
on). So a delay lasts as long as it should. A record with `delivery.at` comes to its end too early by the steady time,
and waits again.

A record can be stored before the step and read after it. Its stamp is then later than now by the steady time, so it has
an earlier correction, and `corrections` keeps its offset as an exception. If no earlier correction fits, the record
counts as stored now, and those that came shortly before it keep their distance. So it is if nobody saw that the clock
was ahead, because the process died before it wrote a state record. If a record was read so late that its stamp has
passed, it waits for longer, by the step at most. No record is early.

This file reads no clock, and no log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final
from uuid import UUID

from appliance.delivery.stored import Stored
from appliance.delivery.waiting import Waiting
from appliance.protocol.records.record import Record
from appliance.services.clock_steps import TOLERANCE_MS
from appliance.services.due_keys import EVERYTHING, NOTHING, Batches, Key, fingerprint_of
from appliance.services.lane import BUFFER_BYTES, ENTRY_BYTES, REMEMBERED_MS, Entry, Lane
from appliance.services.progress import Frontier

if TYPE_CHECKING:
    from appliance.services.due_index import DueIndex

LOAD_RECORDS: Final = 2_000
"""So many records are loaded at once at most."""
LOADED_BYTES_MAX: Final = 2 * BUFFER_BYTES
"""A load that brings more is given up, and a smaller one follows: its records are larger than those before."""
CORRECTIONS_MAX: Final = 1_000
RECENT_MS: Final = 1_000
"""An earlier correction explains a stamp only if the record was stored so shortly ago by it.

The time for which no process ran is missing in a correction, so the right one can seem to be a little too large. The
next smaller one would then make the record older by a whole step, and early.
"""
STRETCH_MS: Final = 10_000
"""Records with rising stamps over no more than this share an exception."""


class ExactLane(Lane):
    """Args as those of Lane, and:

    index: of the same log; run files may be loaded.
    frontier: as the last state record says.
    """

    __slots__ = (
        "_batches",
        "_bound",
        "_buffer",
        "_committed",
        "_correction_ms",
        "_has_news",
        "_is_cut",
        "_late",
        "_load_max",
        "_loading",
        "_loading_to",
        "_record_bytes",
        "_settled_to",
        "_started",
        "catch_up_to",
        "corrections",
        "frontier",
        "index",
    )

    def __init__(
        self,
        level: str,
        delay_ms: int,
        *,
        position: int,
        index: DueIndex,
        frontier: Frontier,
        wanted: Collection[int] = (),
        uptime_ms: int,
    ) -> None:
        super().__init__(level, delay_ms, position=position, wanted=wanted)
        self.index = index
        self.frontier: Key = frontier.due_ms, frontier.offset
        self.corrections = list(frontier.corrections)
        self.catch_up_to = frontier.read_to
        self._started = frontier
        self._settled_to = position  # what is below may be read again, and its corrections are forgotten
        self._committed = self.frontier
        self._correction_ms = self.corrections[-1][1] if self.corrections else 0
        self._buffer: list[tuple[int, int, Entry]] = []
        self._late: deque[int] = deque()
        self._loading: dict[int, int] = {}
        self._loading_to: Key = NOTHING
        self._is_cut = False
        self._has_news = False
        self._record_bytes = ENTRY_BYTES
        self._load_max = LOAD_RECORDS
        for batches in index.load(position, frontier.read_to, uptime_ms=uptime_ms):
            self._remember(batches)
        self.read_to = index.read_to
        self._batches: Batches = {}
        self._bound: Key = self.frontier if index.waiting(self.frontier) else EVERYTHING
        for offset in self.wanted:
            self._loading[offset] = 0

    def _remember(self, batches: Batches) -> None:
        for (topic_id, partition, origin), offset in batches.items():
            self._seen.is_known(Waiting(topic_id, partition, offset, 0, origin, Record(None)))

    # What is read

    @property
    def has_caught_up(self) -> bool:
        """Whether everything is known that the state record and the log had at the start."""
        return self.read_to >= self.catch_up_to and not (self._loading.keys() & self.wanted)

    @property
    def known_end(self) -> int:
        """Return the offset up to which the log is known to have been there."""
        return max(self.read_to, self._started.read_to)

    @property
    def has_room(self) -> bool:
        """Everything is read at once, because what comes last can be due first."""
        return self.index.has_room if self.has_caught_up else self.index.may_catch_up

    def begin_at(self, offset: int) -> None:
        if offset > self.read_to:
            self.index.begin_at(offset)
            self.read_to = offset
            self._late.clear()
        self.position = max(self.position, offset)
        self.catch_up_to = max(self.catch_up_to, offset)

    def end_at(self, offset: int) -> None:
        self._drop_load()  # what it names behind the last run file is read on, too, and must not come twice
        self.index.cut(offset)
        self.read_to = min(self.read_to, self.index.read_to)
        self.catch_up_to = min(self.catch_up_to, offset)
        self.position = min(self.position, offset)
        self._settled_to = min(self._settled_to, offset)
        started = self._started
        # Offsets from here on come a second time.
        self._started = started._replace(
            read_to=min(started.read_to, offset), offset=min(started.offset, offset - 1)
        )
        self.frontier = self.frontier[0], min(self.frontier[1], offset - 1)
        self._committed = self._committed[0], min(self._committed[1], offset - 1)
        self._buffer = [each for each in self._buffer if each[1] < self.read_to]
        heapify(self._buffer)
        self.buffered_bytes = sum(each[2].size_bytes for each in self._buffer)
        self._late = deque(each for each in self._late if each < self.read_to)
        for lost in [each for each in self._loading if each >= offset]:
            del self._loading[lost]
        if self.corrections and self.corrections[-1][0] > offset:
            # Other records come at these offsets now.
            while self.corrections and self.corrections[-1][0] >= offset:
                del self.corrections[-1]
            self.corrections.append((offset, self._correction_ms))

    def take(self, records: list[Stored], *, next_offset: int, now_ms: int, uptime_ms: int) -> None:
        self._uptime_ms = uptime_ms
        dues: list[int] = []
        offsets: list[int] = []
        ids: list[tuple[int, int, int]] = []
        topics: list[int] = []
        topic_id: UUID | None = None
        topic = 0
        batches = self._batches = {}
        latest_ms = now_ms + self._correction_ms + TOLERANCE_MS
        if self.corrections or any(each.stored_ms > latest_ms for each in records):
            self._judge(records, now_ms)
        for stored in records:
            if stored.at < self.read_to:
                continue
            if self._is_repeated(stored):
                self.repeated += 1
                continue
            key = self._key(stored)
            if key is None:
                continue
            dues.append(key[0])
            offsets.append(stored.at)
            if stored.topic_id is not topic_id:
                topic_id = stored.topic_id
                topic = self.index.number_of(topic_id)
            topics.append(topic)
            name = stored.delivery_id
            if name is not None:
                ids.append((fingerprint_of(stored.topic_id, stored.partition, name), key[0], key[1]))
            if key <= self._bound or key <= self._loading_to:
                self._put(key, stored)
        self._know_last()
        if next_offset > self.read_to:
            self.index.add(
                next_offset, dues, offsets, ids, topics=topics, newest_ms=uptime_ms, batches=batches
            )
            self.read_to = next_offset
            self._evict()

    def _is_known(self, stored: Stored) -> bool:
        batch = stored.topic_id, stored.partition, stored.origin
        if self._batches.get(batch, -1) < stored.offset:
            self._batches[batch] = stored.offset
        return super()._is_known(stored)

    def _key(self, stored: Stored) -> Key | None:
        """Return when the record is due here; None if the state record says that it is delivered."""
        at = stored.at
        if at < self._settled_to:
            return None
        due_ms = min(stored.due_ms, stored.stored_ms + self.delay_ms)
        if self.corrections:
            due_ms += self._correction_at(at)
        if at < self._started.read_to and (due_ms, at) <= (self._started.due_ms, self._started.offset):
            return None
        if (due_ms, at) <= self.frontier:
            self._late.append(at)
            return self.frontier[0], at
        return due_ms, at

    def _put(self, key: Key, stored: Stored) -> None:
        size_bytes = ENTRY_BYTES + stored.size_bytes
        self._record_bytes += (size_bytes - self._record_bytes) // 16
        entry = Entry(key[1], key[0], stored, size_bytes)
        heappush(self._buffer, (key[0], key[1], entry))
        self.buffered_bytes += size_bytes

    def _evict(self) -> None:
        """Keep half a buffer of the entries that are due first; the index has the others."""
        if self.buffered_bytes <= BUFFER_BYTES or self._loading:
            return
        ordered = sorted(self._buffer, key=_key_of)
        size_bytes = 0
        for count, each in enumerate(ordered):
            size_bytes += each[2].size_bytes
            if size_bytes > BUFFER_BYTES // 2 and count:
                break
        self._buffer = ordered[: max(count, 1)]
        self.buffered_bytes = sum(each[2].size_bytes for each in self._buffer)
        self._bound = _key_of(self._buffer[-1])
        self._is_cut = True

    # Loading records whose time comes near

    def to_load(self) -> list[int]:
        """Return the offsets of records to read now, in order; none if the buffer is full, or has all."""
        if not self._loading and self._bound != EVERYTHING and self._may_load:
            dues, offsets = self.index.next(self._bound, self._load_records)
            if len(dues):
                self._loading = dict(zip(offsets.tolist(), dues.tolist(), strict=True))
                self._loading_to = int(dues[-1]), int(offsets[-1])
            else:
                self._bound = EVERYTHING
        return sorted(self._loading)

    @property
    def _may_load(self) -> bool:
        """Whether loading would not only bring back what had no room a moment ago."""
        return not self._buffer or (self.buffered_bytes < BUFFER_BYTES // 4 and not self._is_cut)

    @property
    def _load_records(self) -> int:
        """How many records fill half a buffer, as far as the ones before say."""
        return max(min(BUFFER_BYTES // 2 // self._record_bytes, self._load_max), 1)

    def loaded(self, records: list[Stored]) -> None:
        """Take records that `to_load` has named, among others."""
        for stored in records:
            due_ms = self._loading.pop(stored.at, None)
            if due_ms is None:
                continue
            if stored.at in self.wanted:
                self.found[stored.at] = stored
            else:
                self._put((due_ms, stored.at), stored)
        if self.buffered_bytes > LOADED_BYTES_MAX and self._loading_to != NOTHING and self._load_max > 1:
            self._give_up_load()
        self._end_load()

    def lost(self, offset: int) -> None:
        """A record that `to_load` has named is not in the log any more."""
        if self._loading.pop(offset, None) is not None:
            self.unread += 1
        self._end_load()

    def _end_load(self) -> None:
        if not self._loading and self._loading_to != NOTHING:
            self._bound, self._loading_to = max(self._bound, self._loading_to), NOTHING
            self._load_max = min(2 * self._load_max, LOAD_RECORDS)
            self._evict()

    def _give_up_load(self) -> None:
        """Take out what was loaded, and load fewer records next time."""
        self._load_max = max(min(self._load_records, self._load_max) // 4, 1)
        self._drop_load()

    def _drop_load(self) -> None:
        """Keep what the buffer had before; the index has the others."""
        self._loading = dict.fromkeys(self._loading.keys() & self.wanted, 0)
        self._loading_to = NOTHING
        self._buffer = [each for each in self._buffer if _key_of(each) <= self._bound]
        heapify(self._buffer)
        self.buffered_bytes = sum(each[2].size_bytes for each in self._buffer)

    # What is due

    @property
    def first(self) -> Entry:
        return self._buffer[0][2]

    def first_due(self, now_ms: int) -> int | None:
        """Return when the first entry is due, by the clock as it is set now; None if none is in the buffer."""
        if not self._buffer:
            return None
        due_ms, offset, _ = self._buffer[0]
        if (due_ms, offset) > self._bound:
            return None  # others that are due before are being loaded
        return due_ms - self._correction_ms

    @property
    def complete_to_ms(self) -> int:
        """Return up to when all entries are in the buffer, by the clock as it is set now."""
        return self._bound[0] - self._correction_ms

    def pop(self) -> Entry:
        due_ms, offset, entry = heappop(self._buffer)
        self.buffered_bytes -= entry.size_bytes
        self.frontier = due_ms, offset
        self._is_cut = False
        if self._late and self._late[0] == offset:
            self._late.popleft()
        return entry

    def due_now(self, entry: Entry, now_ms: int) -> int:
        """Return when the record is due by the clock as it is set now: a delay has left what it did not wait."""
        due_ms = entry.stored.due_ms
        if entry.stored.delay_ms is None:
            return due_ms
        left_ms = max(due_ms + self._correction_at(entry.offset) - entry.due_ms, 0)
        return min(due_ms, entry.due_ms - self._correction_ms + left_ms)

    def has_waiting(self, fingerprints: list[int]) -> bool:
        """Return whether a record waits that may have one of these ids. Time: logarithmic for each id and run."""
        return bool(self.index.find(fingerprints, self.frontier))

    # The clock

    def _correction_at(self, offset: int) -> int:
        corrections = self.corrections
        if not corrections:
            return 0
        if offset >= corrections[-1][0]:
            return corrections[-1][1]
        at = bisect_right(corrections, offset, key=_offset_of)
        return corrections[at - 1][1] if at else 0

    def _judge(self, records: list[Stored], now_ms: int) -> None:
        """Find exceptions: a stamp that lies behind now belongs to a clock that was set back since."""
        self._forget_corrections()
        steady_ms = now_ms + self._correction_ms
        latest_ms = steady_ms + TOLERANCE_MS
        unexplained: list[Stored] = []
        judged_from = max(self.read_to, self._started.read_to)
        for stored in records:
            at, stamp_ms = stored.at, stored.stored_ms
            if at < judged_from or stamp_ms + self._correction_at(at) <= latest_ms:
                continue
            known = [0, *(each for _, each in self.corrections)]
            fitting = [each for each in known if steady_ms - RECENT_MS <= stamp_ms + each <= latest_ms]
            if fitting:
                self._except(at, max(fitting))
            else:
                unexplained.append(stored)
        while unexplained:
            count = _stretch(unexplained)
            correction_ms = steady_ms - unexplained[count - 1].stored_ms
            for stored in unexplained[:count]:
                self._except(stored.at, correction_ms)
            del unexplained[:count]

    def _except(self, offset: int, correction_ms: int) -> None:
        """Give the record at an offset, and no other, a correction."""
        corrections, after_ms = self.corrections, self._correction_at(offset + 1)
        if len(corrections) >= CORRECTIONS_MAX:
            return  # the record waits for longer
        self._has_news = True
        place = bisect_right(corrections, offset, key=_offset_of)
        if place and corrections[place - 1][0] == offset:
            place -= 1
            del corrections[place]
        if (corrections[place - 1][1] if place else 0) != correction_ms:
            corrections.insert(place, (offset, correction_ms))
            place += 1
        if place == len(corrections) or corrections[place][0] != offset + 1:
            corrections.insert(place, (offset + 1, after_ms))

    def set_back(self, by_ms: int) -> None:
        """The clock was set back: what is read from now on counts by the new time, except as of `_judge`."""
        self._forget_corrections()
        corrections = self.corrections
        self._correction_ms += by_ms
        at = self.known_end  # what a life before has read counts as it did then
        while corrections and corrections[-1][0] > at:
            del corrections[-1]
        if corrections and corrections[-1][0] == at:
            corrections[-1] = at, self._correction_ms
        elif len(corrections) < CORRECTIONS_MAX:
            corrections.append((at, self._correction_ms))
        else:  # the clock does not stand still; older records wait a little longer
            corrections[-1] = corrections[-1][0], self._correction_ms

    def take_news(self) -> bool:
        """Return whether exceptions were found since the last call, so that a state record should say them."""
        news, self._has_news = self._has_news, False
        return news

    def _forget_corrections(self) -> None:
        corrections = self.corrections
        while len(corrections) > 1 and corrections[1][0] <= self.position:
            del corrections[0]

    @property
    def correction_ms(self) -> int:
        return self._correction_ms

    # What a state record says

    def settle(self) -> None:
        self.position = max(self.position, self.index.oldest(self.frontier))  # runs are merged

    def progress(self) -> Frontier:
        """Return what is delivered, or in deliveries that are open."""
        read_to = self._late[0] if self._late else self.read_to
        return Frontier(read_to, *self.frontier, tuple(self.corrections))

    def written(self, frontier: Frontier, *, uptime_ms: int) -> None:
        """A state record with this frontier is committed."""
        self._committed = frontier.due_ms, frontier.offset
        self.index.forget(self._committed, before_ms=uptime_ms - REMEMBERED_MS)

    @property
    def wants_write(self) -> bool:
        return self.index.is_full

    def write(self) -> None:
        """Write a run file. Raises OSError."""
        self.index.write(self._committed)

    def write_tail(self) -> None:
        """Write what no run file has for those who look at it, if it is much. Raises OSError."""
        if self.index.wants_tail:
            self.index.write_tail(self._committed)

    def may_forget(self, uptime_ms: int) -> int:
        self.position = max(self.position, self.index.oldest(self.frontier, precisely=True))
        return super().may_forget(uptime_ms)

    def check(self) -> None:
        """Raise AssertionError if what is kept contradicts itself."""
        self.index.check()
        keys = [_key_of(each) for each in self._buffer]
        assert len(set(keys)) == len(keys)
        assert all(self.frontier < key for key in keys)
        assert self.buffered_bytes == sum(each[2].size_bytes for each in self._buffer)
        assert list(self._late) == sorted(self._late)


def _key_of(item: tuple[int, int, Entry]) -> Key:
    return item[0], item[1]


def _stretch(records: list[Stored]) -> int:
    """Return how many of the first records one clock has stamped, as far as the stamps say."""
    first_ms = last_ms = records[0].stored_ms
    for count, stored in enumerate(records):
        if not last_ms <= stored.stored_ms <= first_ms + STRETCH_MS:
            return count
        last_ms = stored.stored_ms
    return len(records)


def _offset_of(correction: tuple[int, int]) -> int:
    return correction[0]
