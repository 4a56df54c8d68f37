"""Keeps the order of each key when a record fails, for groups with `retry.ordered` and `retry.ordered.by.key`.

A record that fails is not handed back. The consumer keeps it, and holds what follows it with the same key in the same
partition. Records with other keys, and without a key, go on. So a partition is done up to an END but for some *open*
records. What is committed is the first open one, with a *mark* beside it that names END and all open ones:

    offset   40  41  42  43  44  45  46         a at 41 has failed twice, so a at 44 waits. Committed is offset 41
    key      b   a   c   b   a   c   b          with the mark keys:46:… (41 twice, 44)
                 │           │       └ END: from here on nothing is given yet
                 └ fails     └ held

The consumer that gets the partition next reads from 41 on, gives 41 after its delay and then 44, and leaves out what
is done. A partition has at most OPEN_MAX open records of about OPEN_BYTES, within SPAN offsets. If there are more, no
more of it is read until the first ones are done or dead. This file does no I/O and reads no clock.

The mark is `keys:END:LIST`. LIST is base64 (RFC 4648, with - and _) of two unsigned LEB128 numbers for each open
record: how far it is behind the one before (the first: behind the committed offset), and how often it has failed. A
record that has failed may be at END or behind it; then only its number counts.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from appliance.protocol import retry_names as names
from appliance_client.kernel import ConsumerRecord
from appliance_client.ordered import Rules
from appliance_client.values import OffsetAndMetadata

OPEN_MAX: Final = 512
"""Open records of a partition; so many fit into the mark."""
OPEN_BYTES: Final = 8 << 20
SPAN: Final = 100_000
"""Offsets between the first open record and the last one that was read: what the next consumer reads again."""
MARK_LENGTH_MAX: Final = 4_000
"""The broker takes 4,096 bytes beside an offset (`offset.metadata.max.bytes`)."""
RECORD_BYTES: Final = 200
"""What a record takes beside its key and value, about."""
_SKIPPED_AT_ONCE: Final = 500
_MARK: Final = re.compile(r"keys:([0-9]{1,18}):([A-Za-z0-9_-]*={0,2})")
_MORE: Final = 0x80
"""The bit of a byte that says that the number goes on."""
_TIMES_MAX: Final = 1_000_000
_OFFSET_MAX: Final = (1 << 63) - 1


class Mark(NamedTuple):
    """What a commit says: everything below `end` is done, but for the `open` ones (offset to failures)."""

    end: int
    open: dict[int, int]

    def committed(self) -> OffsetAndMetadata:
        """Return the commit that carries it. If it is too long, its end is nearer, and more is given again."""
        end, offsets = self.end, sorted(self.open)
        while True:
            first = offsets[0] if offsets and offsets[0] < end else end
            if not offsets:
                return OffsetAndMetadata(end)
            text = f"keys:{end}:{_listed(first, ((offset, self.open[offset]) for offset in offsets))}"
            if len(text) <= MARK_LENGTH_MAX and len(offsets) <= OPEN_MAX:
                return OffsetAndMetadata(first, text)
            kept = min(OPEN_MAX, len(offsets) * 3 // 4)
            end, offsets = min(end, offsets[kept]), offsets[:kept]


def mark_of(committed: OffsetAndMetadata | None) -> Mark | None:
    """Return the mark beside a committed offset; None if there is none that belongs to it."""
    found = _MARK.fullmatch((committed.metadata or "") if committed is not None else "")
    if committed is None or found is None:
        return None
    end, offset = int(found[1]), committed.offset
    read: dict[int, int] = {}
    try:
        numbers = _numbers(urlsafe_b64decode(found[2]))
        for distance, times in zip(numbers, numbers, strict=True):
            offset += distance
            if offset > _OFFSET_MAX or times > _TIMES_MAX or len(read) == OPEN_MAX:
                return None
            read[offset] = times
    except ValueError:
        return None
    first = min(read, default=end)
    return Mark(end, read) if committed.offset == min(first, end) else None


def _listed(first: int, each: Iterable[tuple[int, int]]) -> str:
    out = bytearray()
    before = first
    for offset, times in each:
        for number in (offset - before, times):
            left = number
            while left >= _MORE:
                out.append(left & ~_MORE & 0xFF | _MORE)
                left >>= 7
            out.append(left)
        before = offset
    return urlsafe_b64encode(out).decode()


def _numbers(content: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in content:
        number |= (byte & ~_MORE) << shift
        shift += 7
        if byte < _MORE:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("the last number is cut off")


class _Open:
    """A record that is not done. `due_s`: before this time it is not given."""

    __slots__ = ("due_s", "key", "record", "size_bytes", "times")

    def __init__(self, record: ConsumerRecord, times: int, due_s: float) -> None:
        self.record = record
        self.times = times
        self.due_s = due_s
        key, value = getattr(record, "raw", (record.key, record.value))
        # Records without a key wait for nothing.
        self.key: Hashable = ("", record.offset) if key is None else key
        self.size_bytes = RECORD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)

    @property
    def offset(self) -> int:
        return self.record.offset


class KeyOrder:
    """One partition in this life of a consumer.

    Args:
        rules: what the retry topic asks.
        committed: what the group has committed of the partition.

    `_waiting`: by offset, what was read and not given; `_lanes`: the same by key, each in the order of offsets.
    `_given`: what the application has since the last poll. `_late`: what it got before that, below END, and has not
    committed. `_unread`: open ones of the mark that were not read yet.
    """

    __slots__ = (
        "_busy",
        "_end",
        "_given",
        "_lanes",
        "_late",
        "_rules",
        "_skip_below",
        "_unread",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(self, rules: Rules, committed: OffsetAndMetadata | None = None) -> None:
        mark = mark_of(committed)
        self._rules = rules
        self._end = -1 if committed is None else committed.offset
        self._skip_below = -1
        self._unread: dict[int, int] = {}
        if mark is not None:
            self._end = self._skip_below = mark.end
            self._unread = dict(mark.open)
        self._waiting: dict[int, _Open] = {}
        self._waiting_bytes = 0
        self._lanes: dict[Hashable, list[int]] = {}
        self._given: dict[int, _Open] = {}
        self._busy: set[Hashable] = set()
        self._late: dict[int, int] = {}

    # ── giving ───────────────────────────────────────────────────────────────────────────────────────────

    def room(self, position: int) -> int:
        """Return how many records may be read now. `position`: the offset of the next one."""
        if position < self._skip_below:  # they add nothing to what is open
            return min(_SKIPPED_AT_ONCE, self._skip_below - position)
        held = len(self._waiting) + len(self._late)
        if held and (self._waiting_bytes >= OPEN_BYTES or position - self._first() >= SPAN):
            return 0
        return max(0, OPEN_MAX - held)

    def _first(self) -> int:
        return min((*self._waiting, *self._late))

    def polls(self, *, is_done: bool) -> None:
        """The application polls. `is_done`: so it has processed what it was given; else a commit says so later."""
        self._busy.clear()
        if is_done:
            self._late.clear()
        else:
            self._late.update(
                (offset, each.times)
                for offset, each in self._given.items()
                if offset < self._end or each.times
            )
        self._given.clear()

    def exchange(
        self, read: Sequence[ConsumerRecord], most: int, now_s: float, *, high_watermark: int = -1
    ) -> list[ConsumerRecord]:
        """Take what was read, and return what the application gets now: at most one record of a key, by offset.

        Args:
            read: the next records of the log.
            most: of so many records.
            high_watermark: of the partition; -1 if it is not known. If the log has lost what the mark says is done,
                what comes there is new.
        """
        if 0 <= high_watermark < self._skip_below:
            self._skip_below = high_watermark
        if read and self._end < 0:
            self._end = read[0].offset
        for record in read:
            offset = record.offset
            times = self._unread.pop(offset, None)
            if (
                offset in self._waiting
                or offset in self._given
                or (times is None and offset < self._skip_below)
            ):
                continue
            wait_s = self._rules.wait_s(times) if times else 0.0
            self._wait(_Open(record, times or 0, now_s + wait_s))
        if read and self._unread:
            last = read[-1].offset  # the log has lost those before it: deleted, or compacted
            self._unread = {offset: times for offset, times in self._unread.items() if offset > last}
        if not self._waiting:
            return []
        ready = sorted(lane[0] for key, lane in self._lanes.items() if key not in self._busy)
        given: list[ConsumerRecord] = []
        for offset in ready:
            if len(given) == most:
                break
            if self._waiting[offset].due_s <= now_s:
                given.append(self._give(offset))
        return given

    def _wait(self, each: _Open) -> None:
        self._waiting[each.offset] = each
        self._waiting_bytes += each.size_bytes
        lane = self._lanes.setdefault(each.key, [])
        if lane and lane[-1] > each.offset:
            insort(lane, each.offset)
        else:
            lane.append(each.offset)

    def _give(self, offset: int) -> ConsumerRecord:
        each = self._waiting.pop(offset)
        self._waiting_bytes -= each.size_bytes
        lane = self._lanes[each.key]
        del lane[0]
        if not lane:
            del self._lanes[each.key]
        self._busy.add(each.key)
        self._given[offset] = each
        if each.times:
            headers = tuple(said for said in each.record.headers if said[0] != names.ATTEMPTS)
            each.record.headers = (*headers, (names.ATTEMPTS, b"%d" % each.times))
        return each.record

    def give_back(self, offset: int) -> None:
        """The application has not got what was given at `offset` and behind it."""
        for each in [some for some in self._given.values() if some.offset >= offset]:
            del self._given[each.offset]
            self._busy.discard(each.key)
            self._wait(each)

    # ── failures ─────────────────────────────────────────────────────────────────────────────────────────

    def keep(self, record: ConsumerRecord, now_s: float) -> float | None:
        """Keep a record that has failed; return how long it waits, in seconds.

        None: it has failed too often, and is to be handed back as a dead letter. 0: it is kept already.
        """
        offset = record.offset
        if offset in self._waiting or offset in self._unread:
            return 0.0
        before = self._given.get(offset)
        times = 1 + (before.times if before is not None else self._late.get(offset, 0))
        if times > self._rules.retries_max:
            return None  # it counts as given until the next poll, so it is not lost if it is refused
        self._given.pop(offset, None)
        self._late.pop(offset, None)
        wait_s = self._rules.wait_s(times)
        self._wait(_Open(record, times, now_s + wait_s))
        return wait_s

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────

    def failures(self) -> OffsetAndMetadata:
        """Return a commit of how often records have failed, which says of nothing more that it is done."""
        return self._committed()

    def all_given(self, position: int | None, not_given_from: int | None = None) -> OffsetAndMetadata | None:
        """What was given is done. Return the commit that says so; None if the position is not known.

        Args:
            position: of the next record to read.
            not_given_from: what was given from this offset on since the last poll has not come to the application.
        """
        if position is None:
            return None
        self._late.clear()
        self._unread = {at: times for at, times in self._unread.items() if at >= position}
        done = [offset for offset in self._given if not_given_from is None or offset < not_given_from]
        for offset in done:
            del self._given[offset]
        self._end = max(self._end, position)
        return self._committed()

    def done_below(self, offset: int) -> OffsetAndMetadata:
        """What was given below `offset` is done. Return the commit that says so."""
        self._late = {at: times for at, times in self._late.items() if at >= offset}
        for at in [given for given in self._given if given < offset]:
            del self._given[at]
        self._end = max(self._end, offset)
        return self._committed()

    def _committed(self) -> OffsetAndMetadata:
        end = max(self._end, 0)
        said = {**self._unread, **self._late}
        for each in (*self._waiting.values(), *self._given.values()):
            said[each.offset] = each.times
        return Mark(end, {at: times for at, times in said.items() if at < end or times}).committed()

    # ── what it is ───────────────────────────────────────────────────────────────────────────────────────

    def statistics(self) -> dict[str, int]:
        """Records that wait and their bytes, keys that wait, records that were given."""
        return {
            "waiting": len(self._waiting),
            "waiting_bytes": self._waiting_bytes,
            "keys": len(self._lanes),
            "given": len(self._given) + len(self._late),
        }

    def check(self) -> None:
        """Raise AssertionError if what is kept contradicts itself."""
        lanes = [offset for lane in self._lanes.values() for offset in lane]
        assert sorted(lanes) == sorted(self._waiting)
        assert all(lane == sorted(lane) and lane for lane in self._lanes.values())
        assert all(self._waiting[offset].key == key for key, lane in self._lanes.items() for offset in lane)
        assert self._waiting_bytes == sum(each.size_bytes for each in self._waiting.values())
        assert not self._waiting.keys() & self._given.keys()
