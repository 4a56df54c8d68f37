"""Delayed records with exact delays, found by the index of due times instead of by reading all that waits.

    index files ─→ offsets ─→ these records are read from the topics ─→ compared with the state records ─→ shown
    behind the files, and on other levels ─→ everything is read  ─↗

The index only says where to look. What is shown was read with the rights of the reader, and waited by the state record
that was read last. So a file that is old shows nothing wrong. A record that
goes from one level to the next meanwhile is shown once, where it was found.

`index` is handed in, because a view reads no file. Where it knows nothing, everything is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from appliance.cluster import DELAYED_PREFIX, DELAYED_STATE
from appliance.delivery.levels import EXACT
from appliance.delivery.waiting import delay_partition
from appliance.services.due_keys import NOTHING, Key, fingerprint_of
from appliance.views.delayed import (
    Cancelled,
    DelayedView,
    Delivered,
    Identity,
    Soonest,
    WaitingView,
    is_cancelled,
)
from appliance.views.topic_access import Place, PlacedRecord, TopicReader

if TYPE_CHECKING:
    from appliance.services.due_files import DueFiles

CHUNK_MIN: Final = 20
CHUNK_MAX: Final = 500
READ_MAX: Final = 2_000
"""Entries that a list reads to find its records, beside twenty for each of them. Then it reads everything instead."""
CANCELLED_MAX: Final = 500
"""Cancelled records that are read to count the others."""


class OffsetReader(TopicReader, Protocol):
    """A reader that can also read single records."""

    def records_at(self, offsets: Mapping[Place, Sequence[int]]) -> Iterator[PlacedRecord]:
        """Yield the committed records at these ascending offsets; those that are not there are left out."""


class WaitingIndex(Protocol):
    """What is known of records that wait for exact delays."""

    def of(self, level: str, topic_id: UUID, partition: int, position: int) -> DueFiles | None:
        """Return what is known of the log of an exact level from a position on; None if that is nothing."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The records that are due first.

    `count`: how many wait. `is_exact`: False if some of these are cancelled, but too many to look at.
    """

    records: list[WaitingView]
    count: int
    is_exact: bool = True


@dataclass(slots=True)
class _Sources:
    """Where to look: in files, and from start to end of logs."""

    delivered: Delivered
    wanted: set[UUID]
    files: dict[Place, DueFiles] = field(default_factory=dict)
    starts: dict[Place, int] = field(default_factory=dict)
    ends: dict[Place, int] = field(default_factory=dict)
    seen: set[Identity] = field(default_factory=set)

    def frontier(self, place: Place) -> Key:
        """Return the entry up to which all is delivered."""
        found = self.delivered.frontiers.get(place)
        return NOTHING if found is None else (found.due_ms, found.offset)


class DelayedLookup:
    """Looks up delayed records by an index.

    Args:
        view: of the same reader. It is used where the index does not help.

    `unindexed`: records of exact levels that the last look-up has read because no file has them.
    """

    def __init__(self, view: DelayedView, reader: OffsetReader, index: WaitingIndex) -> None:
        self._view = view
        self._reader = reader
        self._index = index
        self.unindexed = 0
        self.has_read_all = False
        """Whether the last list has read everything, because too many records of the index are due later there."""

    def with_id(self, topic: str, name: bytes) -> list[WaitingView]:
        """Return the records of a topic with an id, in due order.

        Raises:
            NotShown: there is no such topic, or the internal topics cannot be read.
        """
        sources = self._sources(topic)
        if sources is None:
            return []
        offsets = {
            place: files.find(self._fingerprints(topic, place[1], name), sources.frontier(place))
            for place, files in sources.files.items()
        }
        found = [view for view in self._read(sources, offsets) if view.waiting.delivery_id == name]
        return sorted(self._waits_still(topic, found), key=lambda each: each.waiting.due_ms)

    def soonest(self, topic: str | None, limit: int) -> Listing:
        """Return the records that are due first, of a topic or of all, and how many wait.

        Raises:
            NotShown: as of `with_id`.
        """
        self.has_read_all = False
        sources = self._sources(topic)
        if sources is None:
            return Listing([], 0)
        cancelled = self._view.cancelled(topic)
        first = self._first(sources, limit, cancelled)
        if first is None:
            return self._all(topic, limit)
        known, is_exact = self._known(sources, cancelled)
        found = self._waits_still(topic, first.first())
        return Listing(found, max(first.count + known, len(found)), is_exact)

    def _all(self, topic: str | None, limit: int) -> Listing:
        self.has_read_all = True
        soonest = Soonest(limit)
        soonest.take(self._view.waiting(topic))
        return Listing(soonest.first(), soonest.count)

    # Where to look

    def _sources(self, topic: str | None) -> _Sources | None:
        """Return where to look; None if nothing waits anywhere. The order of the steps counts: a record that leaves a
        log meanwhile is delivered, or is in another one that is looked at later.
        """
        view, reader = self._view, self._reader
        numbers, wanted = view.numbers_of(topic), view.wanted(topic)
        topics = reader.topics()
        if DELAYED_STATE not in topics:
            return None
        sources = _Sources(view.delivered(numbers), wanted)
        places = view.wait_places(numbers)
        starts = view.wait_starts(places, sources.delivered)
        for place in places:
            level = place[0].removeprefix(DELAYED_PREFIX)
            if not level.startswith(EXACT) or place not in starts:
                continue
            files = self._index.of(level, view.topic_id(place[0]), place[1], starts[place])
            if files is not None and files.end > starts[place]:
                sources.files[place] = files
        sources.ends = reader.ends(places, read_committed=True)
        for place, start in starts.items():
            files = sources.files.get(place)
            sources.starts[place] = start if files is None else max(files.end, start)
        self.unindexed = sum(
            max(sources.ends.get(place, 0) - start, 0)
            for place, start in sources.starts.items()
            if place[0].startswith(f"{DELAYED_PREFIX}{EXACT}")
        )
        return sources

    def _fingerprints(self, topic: str, number: int, name: bytes) -> list[int]:
        """Return those of the partitions of a topic that use a partition of the internal topics."""
        topic_id, count = self._view.topic_id(topic), self._reader.topics()[DELAYED_STATE]
        return [
            fingerprint_of(topic_id, partition, name)
            for partition in range(self._view.partitions(topic))
            if delay_partition(topic_id, partition, count) == number
        ]

    # What is there

    def _read(self, sources: _Sources, offsets: Mapping[Place, Sequence[int]]) -> Iterator[WaitingView]:
        def records() -> Iterator[PlacedRecord]:
            yield from self._reader.records_at({place: some for place, some in offsets.items() if some})
            yield from self._reader.records(sources.starts, sources.ends)

        return self._view.views(records(), sources.delivered, sources.wanted, seen=sources.seen)

    def _waits_still(self, topic: str | None, found: list[WaitingView]) -> list[WaitingView]:
        """Return what was neither delivered nor cancelled meanwhile. What has gone to another level waits there."""
        if not found:
            return []
        delivered, cancelled = (
            self._view.delivered({each.number for each in found}),
            self._view.cancelled(topic),
        )
        written_ms = delivered.written_ms
        return [
            each
            for each in found
            if not (delivered.has(each) and each.waiting.due_ms <= written_ms.get(each.number, 0))
            and not is_cancelled(each.waiting, cancelled)
        ]

    def _first(self, sources: _Sources, limit: int, cancelled: Cancelled) -> Soonest | None:
        """Return the records that are due first, and the number of those that no file has; None if that takes too long.

        An entry of the index is never due later than its record: what is left of a long delay begins behind it.
        """
        soonest, count = Soonest(limit), 0
        for view in self._read(sources, {}):
            if not is_cancelled(view.waiting, cancelled):
                soonest.add(view)
                count += 1
        entries = merge(*(_entries(sources, place) for place in sources.files))
        chunk = min(max(limit, CHUNK_MIN), CHUNK_MAX)
        read = 0
        while some := list(islice(entries, chunk)):
            latest_ms = soonest.latest_ms
            if latest_ms is not None and some[0][0] >= latest_ms:
                break
            read += len(some)
            if read > 20 * limit + READ_MAX:
                return None
            offsets: dict[Place, list[int]] = {}
            for _, place, offset in some:
                offsets.setdefault(place, []).append(offset)
            records = self._reader.records_at({place: sorted(each) for place, each in offsets.items()})
            for view in self._view.views(records, sources.delivered, sources.wanted, seen=sources.seen):
                if not is_cancelled(view.waiting, cancelled):
                    soonest.add(view)
        soonest.count = count
        return soonest

    def _known(self, sources: _Sources, cancelled: Cancelled) -> tuple[int, bool]:
        """Return how many records wait by the files, and whether those that are cancelled are left out."""
        count = 0
        for place, files in sources.files.items():
            found = files.counts(sources.frontier(place))
            count += sum(each for topic_id, each in found.items() if topic_id in sources.wanted)
        partitions = self._reader.topics()[DELAYED_STATE]
        fingerprints: dict[int, list[int]] = {}
        for topic_id, partition, name in cancelled:
            number = delay_partition(topic_id, partition, partitions)
            fingerprints.setdefault(number, []).append(fingerprint_of(topic_id, partition, name))
        offsets = {
            place: files.find(fingerprints[place[1]], sources.frontier(place))
            for place, files in sources.files.items()
            if place[1] in fingerprints
        }
        if sum(map(len, offsets.values())) > CANCELLED_MAX:
            return count, False
        records = self._reader.records_at({place: some for place, some in offsets.items() if some})
        views = self._view.views(records, sources.delivered, sources.wanted, seen=set())
        return count - sum(is_cancelled(view.waiting, cancelled) for view in views), True


def _entries(sources: _Sources, place: Place) -> Iterator[tuple[int, Place, int]]:
    """Yield (when it is due at the earliest, place, offset) of each entry."""
    found = sources.delivered.frontiers.get(place)
    correction_ms = max((by_ms for _, by_ms in found.corrections), default=0) if found is not None else 0
    frontier = sources.frontier(place)
    for due_ms, offset in sources.files[place].soonest(sources.wanted, frontier):
        # A record that was stored after its time is at the frontier in the index.
        yield due_ms - correction_ms if due_ms > frontier[0] else NOTHING[0], place, offset
