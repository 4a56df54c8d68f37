"""How old is what each group reads next: one look at a time, in slices that are bounded.

    committed offsets (groups.py) ─→ partitions that are behind ─→ a look at the log (next_batch.py) ─→ kept

A look takes some 100 µs, and thousands of groups may be behind in thousands of partitions. So the looks go round: a
slice of SLICE_NS every SLICE_EVERY_MS, which is at most 2 % of one core, whatever there is. A look is repeated only
after the group has committed another offset. Until its turn comes again, a partition has the age of its last look,
which does not grow; of a group that stands still it grows with the clock. A group that has read everything has age 0
without a look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from appliance.channels.partition_table import LOG_START, PartitionTable
from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import NO_LEADER, ClusterImage, TopicPartition
from appliance.log.file_names import partition_directory_name
from appliance.metrics.groups import End, Group, Place
from appliance.metrics.next_batch import NextBatch, next_batch

SLICE_NS: Final = 2 * NS_PER_MS
SLICE_EVERY_MS: Final = 100
REST_MS: Final = 500
"""Until the next look for new answers about groups."""
_CHECKED_AT_ONCE: Final = 64
"""Partitions that need no look between two looks at the clock."""

Directories = Callable[[int], Sequence[Path]]
Look = Callable[[Sequence[Path], str, int, int], NextBatch | None]


class Age(NamedTuple):
    """What one look has found, and when."""

    offset: int
    """The committed offset for which the look was."""
    incarnation: int
    next: NextBatch | None
    looked_ms: int

    def seconds(self, *, committed: int, end: int, incarnation: int, now_ms: int) -> float | None:
        """Return how old the next record is; None where that is not known.

        Args:
            committed: the committed offset now.
            end: high watermark or last stable offset.
        """
        if committed >= end:
            return 0.0
        if self.incarnation != incarnation:
            return None
        found = self.next
        is_current = committed == self.offset
        if found is None or found.base_offset >= end:
            # Only markers of transactions are left, or the files did not show the batch.
            return 0.0 if is_current and found is not None else None
        if found.timestamp_ms < 0:
            return None
        return max(0, (now_ms if is_current else self.looked_ms) - found.timestamp_ms) / 1000


Ages = Mapping[str, Mapping[Place, Age]]
"""Group → topic and partition → age."""


class AgeRounds:
    """Goes round the groups of the latest round of questions.

    Args:
        found: the groups, as the last round has found them.
        image: returns the current metadata image.
        directories: the log directories of a slot.
    """

    def __init__(
        self,
        *,
        found: Callable[[], Mapping[str, Group]],
        image: Callable[[], ClusterImage | None],
        table: PartitionTable,
        directories: Directories,
        clock: Clock,
        look: Look = lambda places, name, offset, end: next_batch(places, name, offset=offset, end=end),
    ) -> None:
        self._found = found
        self._image = image
        self._table = table
        self._directories = directories
        self._clock = clock
        self._look = look
        self._steps: Iterator[None] | None = None
        self._seen: Mapping[str, Group] | None = None
        self._kept: dict[str, dict[Place, Age]] = {}
        self.looks = 0
        self.rounds = 0

    @property
    def ages(self) -> Ages:
        """What is known. Groups that are gone are left out when the round ends."""
        return self._kept

    def slice(self) -> None:
        """Go on for SLICE_NS, or to the end of a round. A round begins when there are new answers about groups."""
        until_ns = self._clock.monotonic_ns() + SLICE_NS
        if self._steps is None:
            groups = self._found()
            if groups is self._seen:
                return
            self._seen = groups
            self._steps = self._round(groups)
        for _ in self._steps:
            if self._clock.monotonic_ns() >= until_ns:
                return
        self._steps = None
        self.rounds += 1

    @property
    def is_under_way(self) -> bool:
        """Whether a round is under way."""
        return self._steps is not None

    def _round(self, groups: Mapping[str, Group]) -> Iterator[None]:
        unlooked = 0
        for name, group in list(groups.items()):
            kept = self._kept.setdefault(name, {})
            for place, offset in list(group.committed.items()):
                end = group.ends.get(place)
                if end is None or offset >= end.high_watermark:
                    kept.pop(place, None)
                    needs_look = False
                else:
                    known = kept.get(place)
                    needs_look = (
                        known is None or known.offset != offset or known.incarnation != end.incarnation
                    )
                    # What the files did not show is looked for again.
                    needs_look = needs_look or (known is not None and known.next is None)
                if needs_look and end is not None:
                    self._look_at(kept, place, offset, end)
                    yield None
                else:
                    unlooked += 1
                    if not unlooked % _CHECKED_AT_ONCE:
                        yield None
            for place in [place for place in kept if place not in group.committed]:
                del kept[place]
        for name in [name for name in self._kept if name not in groups]:
            del self._kept[name]

    def _look_at(self, kept: dict[Place, Age], place: Place, offset: int, end: End) -> None:
        image, table = self._image(), self._table
        topic = None if image is None else image.topics.get(place[0])
        partition = (
            topic.partitions[place[1]] if topic is not None and place[1] < len(topic.partitions) else None
        )
        if partition is None or partition.incarnation != end.incarnation or partition.leader == NO_LEADER:
            kept.pop(place, None)
            return
        if not table.serves(partition.row, end.incarnation):
            return
        # Retention may have removed what the group would have read.
        first = max(offset, table.cells[table.at(partition.row) + LOG_START])
        self.looks += 1
        name = partition_directory_name(TopicPartition(*place))
        found = self._look(self._directories(partition.leader), name, first, end.high_watermark)
        kept[place] = Age(offset, end.incarnation, found, self._clock.now_ms())
