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

The mark is `keys:END:LIST` or `keys:END:LIST:LIVES`. LIST is base64 (RFC 4648, with - and _) of two unsigned LEB128
numbers for each open record: how far it is behind the one before (the first: behind the committed offset), and how
often it has failed, times 8, plus its *deaths*. A record that has failed may be at END or behind it; then only its
second number counts.

**A record that kills each consumer** hands nothing back (`deaths` explains the normal mode). Here it is found by two
counts, which are committed before records are given:

    LIVES    so many consumers in turn began at this commit, and died before they committed that more is done
    deaths   so many consumers died that had this record: 1, 2 with others of its poll, then 3, 4 with this record alone

LIVES finds a record that did not fail before: after two lives that ended at the same commit, the next consumer gives
records one at a time, each after its own mark. A record that has failed, or has deaths, counts on its own, because it
waits, and the consumer commits other keys meanwhile. So each poll that has such a record in it begins with a mark, and
the next poll takes the deaths of what is done away before it gives more. A record that was the only one in the hands of
two consumers that died is handed back for good. A record that fails has no deaths any more: its consumer lived.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.protocol import retry_names as names
from appliance_client.deaths import ALONE_MAX, ALONE_S, TOGETHER_MAX
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
DEATHS_MAX: Final = TOGETHER_MAX + ALONE_MAX
"""A record with so many deaths is not given again."""
_MARK: Final = re.compile(r"keys:([0-9]{1,18}):([A-Za-z0-9_-]*={0,2})(?::([0-9]{1,6}))?")
_DEATHS_BITS: Final = 3
_NO_DEATHS: Final[Mapping[int, int]] = MappingProxyType({})
_MORE: Final = 0x80
"""The bit of a byte that says that the number goes on."""
_TIMES_MAX: Final = 1_000_000
_OFFSET_MAX: Final = (1 << 63) - 1


class Mark(NamedTuple):
    """What a commit says: everything below `end` is done, but for the `open` ones (offset to failures).

    `deaths`: of open ones. `lives`: so many consumers began here. See the top of the file.
    """

    end: int
    open: dict[int, int]
    deaths: Mapping[int, int] = _NO_DEATHS
    lives: int = 0

    def committed(self) -> OffsetAndMetadata:
        """Return the commit that carries it. If it is too long, its end is nearer, and more is given again."""
        end, offsets = self.end, sorted(self.open)
        lives = f":{self.lives}" if self.lives else ""
        while True:
            first = offsets[0] if offsets and offsets[0] < end else end
            if not offsets and not lives:
                return OffsetAndMetadata(end)
            text = f"keys:{end}:{_listed(first, self._numbers_of(offsets))}{lives}"
            if len(text) <= MARK_LENGTH_MAX and len(offsets) <= OPEN_MAX:
                return OffsetAndMetadata(first, text)
            kept = min(OPEN_MAX, len(offsets) * 3 // 4)
            end, offsets = min(end, offsets[kept]), offsets[:kept]

    def _numbers_of(self, offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
        for offset in offsets:
            yield offset, self.open[offset] << _DEATHS_BITS | min(self.deaths.get(offset, 0), DEATHS_MAX)


def mark_of(committed: OffsetAndMetadata | None) -> Mark | None:
    """Return the mark beside a committed offset; None if there is none that belongs to it."""
    found = _MARK.fullmatch((committed.metadata or "") if committed is not None else "")
    if committed is None or found is None:
        return None
    end, offset = int(found[1]), committed.offset
    read: dict[int, int] = {}
    deaths: dict[int, int] = {}
    try:
        numbers = _numbers(urlsafe_b64decode(found[2]))
        for distance, number in zip(numbers, numbers, strict=True):
            offset += distance
            times, died = number >> _DEATHS_BITS, number & ((1 << _DEATHS_BITS) - 1)
            if offset > _OFFSET_MAX or times > _TIMES_MAX or died > DEATHS_MAX or len(read) == OPEN_MAX:
                return None
            read[offset] = times
            if died:
                deaths[offset] = died
    except ValueError:
        return None
    first = min(read, default=end)
    mark = Mark(end, read, deaths, int(found[3] or 0))
    return mark if committed.offset == min(first, end) else None


def _listed(first: int, each: Iterable[tuple[int, int]]) -> str:
    out = bytearray()
    before = first
    for offset, counts in each:
        for number in (offset - before, counts):
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
    """A record that is not done.

    `due_s`: before this time it is not given. `deaths`: of consumers before this one. `charge`: what a mark says of its
    deaths while the application has it, because this consumer may die of it.
    """

    __slots__ = ("charge", "deaths", "due_s", "key", "record", "size_bytes", "times")

    def __init__(self, record: ConsumerRecord, times: int, due_s: float, deaths: int = 0) -> None:
        self.record = record
        self.times = times
        self.due_s = due_s
        self.deaths = self.charge = deaths
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
        finds_deaths: find records that kill consumers. Only for a consumer that commits by itself.

    `_waiting`: by offset, what was read and not given; `_lanes`: the same by key, each in the order of offsets.
    `_given`: what the application has since the last poll. `_late`: what it got before that, below END, and has not
    committed. `_unread`: failures and deaths of open ones of the mark that were not read yet. `_read_to`: the next
    offset to be read, at least. `_lives_before`: of the mark. `_lives`: what a commit says now.
    """

    __slots__ = (
        "_alone_until_s",
        "_begins",
        "_busy",
        "_end",
        "_finds_deaths",
        "_given",
        "_has_begun",
        "_has_suspects",
        "_is_alone",
        "_is_mark_due",
        "_lanes",
        "_late",
        "_lives",
        "_lives_before",
        "_read_to",
        "_rules",
        "_skip_below",
        "_unread",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(
        self, rules: Rules, committed: OffsetAndMetadata | None = None, *, finds_deaths: bool = False
    ) -> None:
        mark = mark_of(committed)
        self._rules = rules
        self._end = self._read_to = -1 if committed is None else committed.offset
        self._skip_below = -1
        self._unread: dict[int, tuple[int, int]] = {}
        self._finds_deaths = finds_deaths
        self._lives = self._lives_before = 0
        self._has_suspects = False
        if mark is not None:
            self._end = self._skip_below = mark.end
            deaths = mark.deaths if finds_deaths else _NO_DEATHS
            self._unread = {offset: (times, deaths.get(offset, 0)) for offset, times in mark.open.items()}
            self._lives = self._lives_before = mark.lives if finds_deaths else 0
            self._has_suspects = any(died >= TOGETHER_MAX for died in deaths.values())
        self._has_begun = self._begins = self._is_mark_due = False
        self._is_alone = self._lives_before >= TOGETHER_MAX
        self._alone_until_s: float | None = None
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
        # Behind END, what the application has and never commits holds nothing up: it is read again after a death.
        held = len(self._waiting) + sum(1 for at in self._late if at < self._end)
        if held and (self._waiting_bytes >= OPEN_BYTES or position - self._first() >= SPAN):
            return 0
        return max(0, OPEN_MAX - held)

    def _first(self) -> int:
        return min((*self._waiting, *(at for at in self._late if at < self._end)))

    def polls(self, *, is_done: bool) -> None:
        """The application polls. `is_done`: so it has processed what it was given; else a commit says so later."""
        self._busy.clear()
        self._begins = False
        if any(each.charge for each in self._given.values()):
            self._is_mark_due = self._finds_deaths  # they have killed nobody
        if is_done:
            self._late.clear()
        else:
            self._late.update(
                (offset, each.times)
                for offset, each in self._given.items()
                if offset < self._end or each.times
            )
            for at in sorted(at for at in self._late if at >= self._end)[:-OPEN_MAX]:
                del self._late[at]  # only how often it has failed
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
            self._goes_back(high_watermark)
        if read:
            self._read(read, now_s)
        if not self._waiting or self._is_alone:
            return []
        given: list[ConsumerRecord] = []
        for offset in self._ready(now_s):
            if len(given) == most:
                break
            each = self._waiting[offset]
            if each.deaths >= TOGETHER_MAX:
                continue  # it gets a poll of its own
            if self._finds_deaths and (each.times or each.deaths):
                each.charge = each.deaths + 1
                self._is_mark_due = True
            given.append(self._give(offset))
        if given and self._finds_deaths and not self._has_begun:
            self._has_begun = self._begins = self._is_mark_due = True
            self._lives = self._lives_before + 1
        return given

    def _read(self, read: Sequence[ConsumerRecord], now_s: float) -> None:
        if read[0].offset < self._read_to:
            self._goes_back(read[0].offset)
        if self._end < 0:
            self._end = read[0].offset
        for record in read:
            offset = record.offset
            said = self._unread.pop(offset, None)
            is_done = said is None and offset < self._skip_below
            if is_done or offset in self._waiting or offset in self._given:
                continue
            times, deaths = said or (0, 0)
            wait_s = self._rules.wait_s(times) if times else 0.0
            self._wait(_Open(record, times, now_s + wait_s, deaths))
        self._read_to = read[-1].offset + 1
        if self._unread:  # the log has lost those before it: deleted, or compacted
            self._unread = {at: said for at, said in self._unread.items() if at >= self._read_to}

    def _ready(self, now_s: float) -> list[int]:
        heads = sorted(lane[0] for key, lane in self._lanes.items() if key not in self._busy)
        return [offset for offset in heads if self._waiting[offset].due_s <= now_s]

    def _goes_back(self, offset: int) -> None:
        """The log was shorter than what is known of it: what it has from `offset` on is new."""
        for at in [waiting for waiting in self._waiting if waiting >= offset]:
            each = self._waiting.pop(at)
            self._waiting_bytes -= each.size_bytes
            self._lanes[each.key].remove(at)
            if not self._lanes[each.key]:
                del self._lanes[each.key]
        for known in (self._given, self._late, self._unread):
            for at in [some for some in known if some >= offset]:
                del known[at]
        self._end = min(self._end, offset)
        self._skip_below = min(self._skip_below, offset)
        self._read_to = min(self._read_to, offset)

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
        self._is_mark_due = self._finds_deaths
        if self._begins:
            self._has_begun = self._begins = False
        for each in [some for some in self._given.values() if some.offset >= offset]:
            del self._given[each.offset]
            self._busy.discard(each.key)
            each.charge = each.deaths
            self._wait(each)

    # ── records that kill ────────────────────────────────────────────────────────────────────────────────

    def exchange_alone(self, now_s: float) -> ConsumerRecord | None:
        """Return the record that the application gets now and no other one of any partition; None if there is none.

        If `is_deadly` says so of it, it is to be handed back for good, and is not given.
        """
        if not self._is_alone and not self._has_suspects:
            return None
        if self._is_alone and self._alone_until_s is not None and now_s >= self._alone_until_s:
            self._is_alone = False
        ready = self._ready(now_s)
        suspects = [offset for offset in ready if self._waiting[offset].deaths >= TOGETHER_MAX]
        if not suspects and not self._is_alone:
            self._has_suspects = bool(self._unread) or any(
                each.deaths >= TOGETHER_MAX for each in self._waiting.values()
            )
        first = suspects or (ready if self._is_alone else [])
        if not first:
            return None
        each = self._waiting[first[0]]
        each.charge = max(each.deaths, TOGETHER_MAX) + 1
        if each.charge > DEATHS_MAX:
            self._is_alone = False
        elif self._is_alone:
            self._has_begun = True
            if self._alone_until_s is None:
                self._alone_until_s = now_s + ALONE_S
        self._is_mark_due = True
        return self._give(first[0])

    def is_deadly(self, offset: int) -> bool:
        """Return whether so many consumers have died of what is given at `offset` that it is to be handed back."""
        each = self._given.get(offset)
        return each is not None and each.charge > DEATHS_MAX

    def mark(self, position: int | None) -> OffsetAndMetadata | None:
        """Return what is to be committed before the application gets what is given; None if nothing is.

        Args:
            position: of the next record to read.
        """
        if not self._is_mark_due or position is None:
            return None
        self._is_mark_due = False
        if not self._begins and self._has_begun:
            self._lives = 0  # it says that more is done
        self._end = max(self._end, position)
        return self._committed()

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
        if position < self._read_to:
            self._goes_back(position)
        self._late.clear()
        self._lives = 0
        self._unread = {at: said for at, said in self._unread.items() if at >= position}
        done = [offset for offset in self._given if not_given_from is None or offset < not_given_from]
        for offset in done:
            del self._given[offset]
        self._end = max(self._end, position)
        return self._committed()

    def done_below(self, offset: int) -> OffsetAndMetadata:
        """What was given below `offset` is done. Return the commit that says so."""
        self._late = {at: times for at, times in self._late.items() if at >= offset}
        self._lives = 0
        for at in [given for given in self._given if given < offset]:
            del self._given[at]
        self._end = max(self._end, offset)
        return self._committed()

    def _committed(self) -> OffsetAndMetadata:
        end = max(self._end, 0)
        said = {offset: (times, 0) for offset, times in self._late.items()} | self._unread
        for each in (*self._waiting.values(), *self._given.values()):
            said[each.offset] = each.times, each.charge
        said = {at: (times, deaths) for at, (times, deaths) in said.items() if at < end or times}
        return Mark(
            end,
            {at: times for at, (times, _) in said.items()},
            {at: deaths for at, (_, deaths) in said.items() if deaths},
            self._lives,
        ).committed()

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
