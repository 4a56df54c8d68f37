"""Which record kills its consumers, by what each one committed before it died: no broker, no clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from appliance_client import Consumer, aio
from appliance_client.consumer_core import ConsumerCore
from appliance_client.deaths import ALONE_MAX, ALONE_S, TOGETHER_MAX, Deaths, Mark, mark_of
from appliance_client.errors import TimedOutError
from appliance_client.values import ConsumerRecord, OffsetAndMetadata, TopicPartition

PLACE = TopicPartition("t", 0)


class Group:
    """Consumers, one after the other, of a partition with records 0 to 99. One kills the consumer that processes it."""

    def __init__(self, poison: int, *, at_once: int = 10) -> None:
        self.poison = poison
        self.at_once = at_once
        self.committed: OffsetAndMetadata | None = OffsetAndMetadata(3)
        self.processed: list[int] = []
        self.dead: list[int] = []
        self.deaths = 0

    def live(self, *, commits: bool = True) -> bool:
        """One life; return whether the consumer has come to the end of the partition."""
        deaths = Deaths()
        deaths.found(PLACE, self.committed)
        at = 0 if self.committed is None else self.committed.offset
        now_s = 0.0
        while at < 100:
            taken = [record(offset) for offset in range(at, min(at + self.at_once, 100))]
            at = taken[-1].offset + 1
            plan = deaths.plan({PLACE: taken}, now_s)
            at = plan.next_offsets.get(PLACE, at)
            self.dead += [each.offset for each in plan.dead]
            self.committed = plan.marks.get(PLACE, self.committed)
            for each in plan.given.get(PLACE, []):
                if each.offset == self.poison:
                    self.deaths += 1
                    return False
                self.processed.append(each.offset)
            if commits:
                self.committed = OffsetAndMetadata(at)
            now_s += 1
        return True


def record(offset: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, 0, 0, None, b"v", (), 0)


@pytest.mark.parametrize("poison", [3, 7, 12, 13, 40, 99])
@pytest.mark.parametrize("at_once", [1, 10, 500])
@pytest.mark.parametrize("commits", [True, False])
def test_a_record_that_kills_each_consumer_is_found_after_five_deaths_at_most(
    poison: int, at_once: int, commits: bool
) -> None:
    group = Group(poison, at_once=at_once)
    while not group.live(commits=commits):
        assert group.deaths <= 1 + TOGETHER_MAX + ALONE_MAX, "the first death may be behind a commit"
    assert group.dead == [poison]
    assert set(group.processed) == set(range(3, 100)) - {poison}


@pytest.mark.parametrize("poison", [5, 6])
def test_a_record_of_another_partition_that_did_not_kill_is_not_dead(poison: int) -> None:
    """The first record of each partition is in the hands of each consumer that dies."""
    committed = {PLACE: OffsetAndMetadata(5), TopicPartition("t", 1): OffsetAndMetadata(5)}
    processed: set[tuple[int, int]] = set()
    dead: list[tuple[int, int]] = []

    def live() -> bool:
        deaths = Deaths()
        at = {place: each.offset for place, each in committed.items()}
        for place, known in committed.items():
            deaths.found(place, known)
        while min(at.values()) < 10:
            taken = {
                place: [
                    ConsumerRecord("t", place.partition, offset, 0, 0, None, b"v", (), 0)
                    for offset in range(begin, 10)
                ]
                for place, begin in at.items()
                if begin < 10
            }
            for place in deaths.left_out(taken, 0.0):
                del taken[place]
            plan = deaths.plan(taken, 0.0)
            at |= dict.fromkeys(taken, 10) | plan.next_offsets
            dead.extend((each.partition, each.offset) for each in plan.dead)
            committed.update(plan.marks)
            given = [each for some in plan.given.values() for each in some]
            for each in given:
                if (each.partition, each.offset) == (1, poison):
                    return False
                processed.add((each.partition, each.offset))
        return True

    died = 0
    while not live():
        died += 1
        assert died <= 1 + TOGETHER_MAX + ALONE_MAX
    assert dead == [(1, poison)]
    assert processed == {(partition, offset) for partition in (0, 1) for offset in range(5, 10)} - {
        (1, poison)
    }


def test_without_a_death_records_are_given_together_after_one_mark() -> None:
    deaths = Deaths()
    deaths.found(PLACE, None)
    first = deaths.plan({PLACE: [record(0), record(1)]}, 0.0)
    assert [each.offset for each in first.given[PLACE]] == [0, 1]
    assert first.marks[PLACE] == OffsetAndMetadata(0, "given:0:1")
    second = deaths.plan({PLACE: [record(2), record(3)]}, 0.1)
    assert second.marks == {}
    assert len(second.given[PLACE]) == 2


def test_one_at_a_time_ends_when_nobody_dies() -> None:
    deaths = Deaths()
    deaths.found(PLACE, Mark(False, 5, TOGETHER_MAX).committed())
    plan = deaths.plan({PLACE: [record(5), record(6)]}, 0.0)
    assert (len(plan.given[PLACE]), plan.next_offsets) == (1, {PLACE: 6})
    assert len(deaths.plan({PLACE: [record(6), record(7)]}, ALONE_S - 1).given[PLACE]) == 1
    assert len(deaths.plan({PLACE: [record(7), record(8)]}, ALONE_S).given[PLACE]) == 2


@pytest.mark.parametrize(
    "text", [None, "", "mine", "given:1", "given:x:1", "alone:1:2:3", "given:-1:1", "x" * 4096]
)
def test_what_an_application_commits_beside_an_offset_is_no_mark(text: str | None) -> None:
    assert mark_of(text) is None


def test_what_was_not_given_is_planned_the_same_again() -> None:
    deaths = Deaths()
    other = TopicPartition("t", 1)
    deaths.found(PLACE, Mark(True, 47, ALONE_MAX).committed())
    deaths.found(other, Mark(False, 5, 1).committed())
    records = {PLACE: [record(47)], other: [ConsumerRecord("t", 1, 5, 0, 0, None, b"v", (), 0)]}
    plan = deaths.plan(records, 0.0)
    assert [each.offset for each in plan.dead] == [47]
    assert plan.marks == {other: Mark(False, 5, 2).committed()}
    deaths.put_back(plan, plan.dead, 1.0)
    assert deaths.plan(records, 1.0) == plan


def test_a_poll_with_one_record_that_may_kill_has_nothing_of_other_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both partitions keep their positions, and take turns."""
    other = TopicPartition("t", 1)
    marks: list[dict[TopicPartition, OffsetAndMetadata]] = []

    async def mark(each: dict[TopicPartition, OffsetAndMetadata]) -> None:
        marks.append(each)

    consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", retry_topics=True)
    try:
        core = consumer._consumer
        monkeypatch.setattr(core, "mark", mark)
        with consumer._lock:
            assert core.deaths is not None
            core.fetching.assign([PLACE, other])
            for place in (PLACE, other):
                core.deaths.found(place, None)
                arrive(core, place, 5)
            core.deaths.found(PLACE, Mark(False, 5, TOGETHER_MAX).committed())

        def polled() -> dict[int, list[int]]:
            with consumer._lock:
                records = core.take(500)
            given = consumer._for_retry(records, _Refusing(TimedOutError("x")))  # type: ignore[arg-type]
            return {place.partition: [each.offset for each in some] for place, some in given.items()}

        assert polled() == {0: [5]}
        with consumer._lock:
            assert _positions(core) == {0: 6, 1: 5}
            arrive(core, PLACE, 6)
            arrive(core, other, 5)
        assert polled() == {1: [5, 6, 7]}
        assert marks[-1] == {PLACE: OffsetAndMetadata(6), other: OffsetAndMetadata(5, "given:5:1")}
        with consumer._lock:
            arrive(core, other, 8)
        assert polled() == {0: [6]}
        with consumer._lock:
            assert _positions(core) == {0: 7, 1: 8}
            assert core.fetching.readings[other].has_records, (
                "they were not taken, so they need not be fetched again"
            )
    finally:
        consumer.close(0)


def arrive(core: ConsumerCore, place: TopicPartition, first: int) -> None:
    """Have three records be there."""
    reading = core.fetching.readings[place]
    reading.seek(first)
    reading.ready = [
        ConsumerRecord("t", place.partition, at, 0, 0, None, b"v", (), 0) for at in range(first, first + 3)
    ]
    reading.next_after_ready = first + 3


class _Refusing:
    """In the place of what hands records back: the broker refuses, or the application gives up waiting."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def give_to(self, records: Iterable[ConsumerRecord]) -> None:
        for each in records:
            each.source = self

    def hand_back(self, _record: ConsumerRecord, _reason: str, _is_dead: bool) -> None:
        raise self.error


def _poisoned(core: ConsumerCore) -> dict[TopicPartition, list[ConsumerRecord]]:
    """Have records of two partitions be taken; the first one is to be handed back for good."""
    other = TopicPartition("t", 1)
    core.fetching.assign([PLACE, other])
    core.fetching.readings[PLACE].seek(48)
    core.fetching.readings[other].seek(7)
    assert core.deaths is not None
    core.deaths.found(PLACE, Mark(True, 47, ALONE_MAX).committed())
    return {
        PLACE: [record(47)],
        other: [ConsumerRecord("t", 1, at, 0, 0, None, b"v", (), 0) for at in (5, 6)],
    }


def _positions(core: ConsumerCore) -> dict[int, int]:
    return {place.partition: each.offset for place, each in core.positions(core.fetching.readings).items()}


@pytest.mark.parametrize("error", [TimedOutError("refused"), KeyboardInterrupt()])
def test_records_that_poll_could_not_give_are_not_committed(error: BaseException) -> None:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", retry_topics=True)
    try:
        with consumer._lock:
            records = _poisoned(consumer._consumer)
        with pytest.raises(type(error)):
            consumer._for_retry(records, _Refusing(error))  # type: ignore[arg-type]
        with consumer._lock:
            assert _positions(consumer._consumer) == {0: 47, 1: 5}
    finally:
        consumer.close(0)


def test_records_of_a_poll_that_was_cancelled_are_not_committed() -> None:
    async def poll() -> dict[int, int]:
        consumer = aio.Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", retry_topics=True)
        try:
            records = _poisoned(consumer._consumer)
            with pytest.raises(asyncio.CancelledError):
                await consumer._for_retry(records, _Refusing(asyncio.CancelledError()))  # type: ignore[arg-type]
            return _positions(consumer._consumer)
        finally:
            await consumer.close(0)

    assert asyncio.run(poll()) == {0: 47, 1: 5}
