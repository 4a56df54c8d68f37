"""One partition of one level: what was read of its log and is not delivered, in the order of the log.

    log start ... position ... buffer ... read to ... high watermark
                  │            └ entries that wait, at most BUFFER_BYTES of them
                  └ below: delivered, or in an open delivery

All entries of a level wait for the same time, so the first one in the buffer is due first. Reading begins at the log
start, below the position: what was delivered in the last minutes is needed to recognize batches that are sent again,
and records of open deliveries are needed to repeat them. This file does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from appliance.delivery.stored import Stored
from appliance.delivery.waiting import HANDED_BACK, Waiting
from appliance.protocol.records.record import Record
from appliance.services.sent_again import SentAgain

BUFFER_BYTES: Final = 1 << 20
ENTRY_BYTES: Final = 600
"""What an entry takes beside the bytes of its record, about."""
REMEMBERED_MS: Final = 15 * 60_000
"""For so long after this process has read it, a record of a producer with sequence numbers is kept.

It serves to recognize its batch when that is sent again. The time is that of a clock that is never set: a step of hours
must not make a batch old. After a death, all records that are still there are kept for as long again.
"""
_MARK_MS: Final = 10_000
_NO_RECORD: Final = Record(None)


class Entry:
    """A record that waits: its offset in this log, and when it is due here, in ms since the epoch."""

    __slots__ = ("due_ms", "offset", "size_bytes", "stored")

    def __init__(self, offset: int, due_ms: int, stored: Stored, size_bytes: int) -> None:
        self.offset = offset
        self.due_ms = due_ms
        self.stored = stored
        self.size_bytes = size_bytes


class Lane:
    """Args:
    level: the name of the level.
    delay_ms: how long its records wait.
    position: from where on entries are not delivered.
    wanted: offsets below it whose records are needed, for open deliveries.
    """

    __slots__ = (
        "_last_new",
        "_marks",
        "_seen",
        "_uptime_ms",
        "buffer",
        "buffered_bytes",
        "delay_ms",
        "found",
        "level",
        "position",
        "read_to",
        "repeated",
        "unread",
        "wanted",
    )

    def __init__(self, level: str, delay_ms: int, *, position: int, wanted: Collection[int] = ()) -> None:
        self.level = level
        self.position = position
        self.read_to = 0
        self.buffer: deque[Entry] = deque()
        self.buffered_bytes = 0
        self.wanted = frozenset(wanted)
        self.found: dict[int, Stored] = {}
        self.repeated = 0
        self.unread = 0
        self.delay_ms = delay_ms
        self._seen = SentAgain()
        self._last_new: Stored | None = None
        self._marks: deque[tuple[int, int]] = deque()
        self._uptime_ms = 0

    @property
    def has_caught_up(self) -> bool:
        """Whether everything below the position was read."""
        return self.read_to >= self.position

    @property
    def has_room(self) -> bool:
        """Whether more may be read."""
        return self.buffered_bytes < BUFFER_BYTES

    def begin_at(self, offset: int) -> None:
        """The log begins at `offset`."""
        self.read_to = max(self.read_to, offset)
        self.position = max(self.position, offset)

    def end_at(self, offset: int) -> None:
        """The log has lost its records from `offset` on, and the position is behind it: what comes there is new."""
        self.position = offset

    def take(self, records: list[Stored], *, next_offset: int, now_ms: int, uptime_ms: int) -> None:
        """Take the records of one batch; `next_offset` is the one behind it. Those below `read_to` are known.

        `uptime_ms` is the time of a clock that is never set, as of each `uptime_ms` here.
        """
        self._uptime_ms = uptime_ms
        for stored in records:
            if stored.at >= self.read_to:
                self._take_one(stored, now_ms)
        self._know_last()
        self.read_to = max(self.read_to, next_offset)
        self._skip()

    def _is_repeated(self, stored: Stored) -> bool:
        """Return whether the record has come before, and remember it."""
        origin = stored.origin
        if origin.producer_id < 0:
            return False
        # Only what has a producer id can be recognized when it is sent again.
        if not self._marks or self._uptime_ms >= self._marks[-1][1] + _MARK_MS:
            self._marks.append((stored.at, self._uptime_ms))
        last = self._last_new
        if last is not None:
            if (
                stored.offset > last.offset
                and (origin is last.origin or origin == last.origin)
                and stored.partition == last.partition
                and stored.topic_id is last.topic_id
            ):
                self._last_new = stored  # the highest offset of the batch is enough to know
                return False
            self._know_last()
        is_known = self._is_known(stored)
        if not is_known and origin.producer_epoch != HANDED_BACK:
            self._last_new = stored
        return is_known

    def _know_last(self) -> None:
        """Remember the records since the last call of `_is_repeated` that has asked `_seen`."""
        if self._last_new is not None:
            self._is_known(self._last_new)
            self._last_new = None

    def _is_known(self, stored: Stored) -> bool:
        return self._seen.is_known(
            Waiting(
                stored.topic_id, stored.partition, stored.offset, stored.due_ms, stored.origin, _NO_RECORD
            )
        )

    def _take_one(self, stored: Stored, now_ms: int) -> None:
        is_repeated = self._is_repeated(stored)
        if stored.at < self.position:
            if stored.at in self.wanted:
                self.found[stored.at] = stored
            return
        if is_repeated:
            self.repeated += 1
            return
        # A clock that was set back: nothing waits longer than its level from now on.
        due_ms = min(stored.stored_ms, now_ms) + self.delay_ms
        size_bytes = ENTRY_BYTES + stored.size_bytes
        self.buffer.append(Entry(stored.at, due_ms, stored, size_bytes))
        self.buffered_bytes += size_bytes

    def first_due(self, now_ms: int) -> int | None:
        """Return when the first entry is due; None if none waits. A clock that was set back makes it earlier."""
        if not self.buffer:
            return None
        latest_ms = now_ms + self.delay_ms
        if self.buffer[0].due_ms > latest_ms:
            for each in self.buffer:
                each.due_ms = min(each.due_ms, latest_ms)
        return self.buffer[0].due_ms

    @property
    def first(self) -> Entry:
        """The entry that is due first, where `first_due` names a time."""
        return self.buffer[0]

    def due_now(self, entry: Entry, now_ms: int) -> int:
        """Return when the record is due by the clock of now.

        If the clock was set back, no more is left of a delay than what it has not waited on this level.
        """
        due_ms, delay_ms = entry.stored.due_ms, entry.stored.delay_ms
        return due_ms if delay_ms is None else min(due_ms, now_ms + delay_ms - self.delay_ms)

    def pop(self) -> Entry:
        """Take the first entry out, and move the position behind it."""
        entry = self.buffer.popleft()
        self.buffered_bytes -= entry.size_bytes
        self.position = entry.offset + 1
        self._skip()
        return entry

    def _skip(self) -> None:
        """With nothing in the buffer, everything that was read is delivered, or was sent again."""
        if not self.buffer:
            self.position = max(self.position, self.read_to)

    def may_forget(self, uptime_ms: int) -> int:
        """Return the offset below which no record is needed any more."""
        marks = self._marks
        old = uptime_ms - REMEMBERED_MS
        while len(marks) > 1 and marks[1][1] < old:
            marks.popleft()
        if not marks:
            return self.position
        remembered = marks[0][0] if marks[0][1] >= old or len(marks) > 1 else self.read_to
        return min(self.position, remembered)

    def check(self) -> None:
        """Raise AssertionError if what is kept contradicts itself."""
        offsets = [entry.offset for entry in self.buffer]
        assert offsets == sorted(set(offsets))
        assert not offsets or self.position <= offsets[0]
        assert self.buffered_bytes == sum(entry.size_bytes for entry in self.buffer)
