"""Finds the record that kills each consumer that gets it.

A consumer that dies hands nothing back. So before records are given to the application, a *mark* is committed: the text
that a committed offset has beside it. The broker keeps it, and the next consumer of the partition reads it.

    given:OFFSET:N    records from OFFSET on were given to the N-th consumer in turn that began there
    alone:OFFSET:N    this record alone was given to the N-th consumer in turn

    life 1   given:40:1    dies
    life 2   given:40:2    dies: from now on records are given one at a time, each after its own mark
    life 3   alone:40:1    processed; alone:41:1, …, alone:47:1  dies
    life 4   alone:47:2    dies
    life 5   47 is handed back for good; from 48 on all is as before

While a partition gives records one at a time, a poll has nothing of any other partition: nobody could say which of the
two has killed. Such polls alternate with those of the other partitions.

An ordinary commit has no mark, so what was processed does not count. A mark is committed once for each partition that a
consumer gets, and for each record while records are given one at a time. This file does no I/O and reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from appliance_client.kernel import ConsumerRecord
from appliance_client.values import OffsetAndMetadata, TopicPartition

TOGETHER_MAX: Final = 2
"""So many consumers may die at the same place before records are given one at a time."""
ALONE_MAX: Final = 2
"""So many consumers may die of a record that was given alone."""
ALONE_S: Final = 300.0
"""After this time without a death, records are given together again."""
REASON: Final = f"{ALONE_MAX} consumers died while each had only this record to process"

_MARK: Final = re.compile(r"(?:again:[0-9:]+ )?(given|alone):([0-9]{1,18}):([0-9]{1,6})")


class Mark(NamedTuple):
    """What was given to a consumer: see the top of the file."""

    is_alone: bool
    offset: int
    times: int

    def committed(self) -> OffsetAndMetadata:
        """Return the commit that carries it."""
        kind = "alone" if self.is_alone else "given"
        return OffsetAndMetadata(self.offset, f"{kind}:{self.offset}:{self.times}")


def mark_of(text: str | None) -> Mark | None:
    """Return the mark beside a committed offset; None if there is none. Before it may be a mark of `ordered`."""
    found = _MARK.fullmatch(text or "")
    return None if found is None else Mark(found[1] == "alone", int(found[2]), int(found[3]))


class Plan(NamedTuple):
    """What to do with records that were taken.

    `marks` are to be committed before `given` is given, those of partitions that the consumer still has. `dead` are to
    be handed back for good. `next_offsets`: where partitions go on that were taken further.
    """

    given: dict[TopicPartition, list[ConsumerRecord]]
    marks: dict[TopicPartition, OffsetAndMetadata]
    dead: list[ConsumerRecord]
    next_offsets: dict[TopicPartition, int]


class _Partition:
    """One partition in this life of the consumer. `before`: the mark that it found."""

    __slots__ = ("alone_until_s", "before", "has_begun")

    def __init__(self, before: Mark | None) -> None:
        self.before = before
        self.has_begun = False
        self.alone_until_s: float | None = None


class Deaths:
    """What is known of the consumers that had the partitions before."""

    __slots__ = ("_alone", "_marked", "_partitions")

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._alone: TopicPartition | None = None  # it had the last poll for itself
        self._marked: dict[
            TopicPartition, int
        ] = {}  # records that were given alone, until something else is committed

    def turns(self, places: Collection[TopicPartition], now_s: float) -> list[Collection[TopicPartition]]:
        """Return which partitions may be in one poll, first those whose turn it is; empty: all of them."""
        alone = [place for place in places if self._gives_one_at_a_time(place, now_s)]
        if not alone:
            return []
        alone.sort(key=lambda place: place == self._alone)
        each: list[Collection[TopicPartition]] = [(place,) for place in alone]
        others = [place for place in places if place not in alone]
        return [*each, others] if self._alone is None else [others, *each]

    def left_out(
        self, records: Mapping[TopicPartition, list[ConsumerRecord]], now_s: float
    ) -> set[TopicPartition]:
        """Return of which partitions nothing may be given now, although it was taken."""
        alone = [place for place, each in records.items() if each and self._is_alone(place, each[0], now_s)]
        others = records.keys() - alone
        if not alone or (others and self._alone is not None):
            self._alone = None
            return set(alone)
        self._alone = next((place for place in alone if place != self._alone), alone[0])
        return records.keys() - {self._alone}

    def _gives_one_at_a_time(self, place: TopicPartition, now_s: float) -> bool:
        partition = self._partitions.get(place)
        return partition is not None and now_s < (partition.alone_until_s or 0.0)

    def _is_alone(self, place: TopicPartition, first: ConsumerRecord, now_s: float) -> bool:
        partition = self._partitions.get(place)
        if partition is None or partition.alone_until_s is not None:
            return self._gives_one_at_a_time(place, now_s)
        before = partition.before
        if before is None or partition.has_begun:
            return False
        return before.is_alone or (before.offset == first.offset and before.times >= TOGETHER_MAX)

    def found(self, place: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """This is committed for a partition that the consumer gets."""
        self._marked.pop(place, None)
        self._partitions[place] = _Partition(mark_of(committed.metadata if committed else None))

    def sought(self, place: TopicPartition) -> None:
        """The application reads on at another offset: what it was given says nothing about where it has come to."""
        self._marked.pop(place, None)

    def plan(self, records: Mapping[TopicPartition, list[ConsumerRecord]], now_s: float) -> Plan:
        """Return what to do with records that were taken."""
        plan = Plan({}, {}, [], {})
        for place, each in records.items():
            if each:
                self._plan_one(plan, place, each, now_s)
        for place in [place for place in self._marked if place not in records]:
            # It is processed. Otherwise a consumer that dies of another partition's record would count for it.
            plan.marks[place] = OffsetAndMetadata(self._marked.pop(place) + 1)
        return plan

    def put_back(self, plan: Plan, dead: Sequence[ConsumerRecord], now_s: float) -> None:
        """Nothing of the plan was given, and `dead` were not handed back: plan the same when they are taken again."""
        for place, committed in plan.marks.items():
            mark, partition = mark_of(committed.metadata), self._partitions[place]
            self._marked.pop(place, None)
            if mark is not None:
                partition.before = mark._replace(times=mark.times - 1)
                partition.has_begun = mark.is_alone
        for record in dead:
            partition = self._partitions[TopicPartition(record.topic, record.partition)]
            partition.before = Mark(True, record.offset, ALONE_MAX)
            partition.alone_until_s = now_s + ALONE_S

    def _plan_one(
        self, plan: Plan, place: TopicPartition, records: list[ConsumerRecord], now_s: float
    ) -> None:
        partition = self._partitions.setdefault(place, _Partition(None))
        first = records[0]
        self._marked.pop(place, None)
        before, partition.before = partition.before, None
        if not partition.has_begun:
            partition.has_begun = True
            count = 1
            if before is not None and not before.is_alone and before.offset == first.offset:
                count = before.times + 1
            if count > TOGETHER_MAX or (before is not None and before.is_alone):
                partition.alone_until_s = now_s + ALONE_S
            else:
                plan.marks[place] = Mark(False, first.offset, count).committed()
        if partition.alone_until_s is not None and now_s >= partition.alone_until_s:
            partition.alone_until_s = None
        if partition.alone_until_s is None:
            plan.given[place] = records
            return
        plan.next_offsets[place] = first.offset + 1
        count = before.times + 1 if before is not None and before == (True, first.offset, before.times) else 1
        if count > ALONE_MAX:
            partition.alone_until_s = None
            plan.dead.append(first)
        else:
            plan.given[place] = [first]
            plan.marks[place] = Mark(True, first.offset, count).committed()
            self._marked[place] = first.offset
