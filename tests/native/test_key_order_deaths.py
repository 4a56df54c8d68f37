"""Which record kills its consumers in a group that keeps the order of keys: no broker, no clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance_client import Consumer
from appliance_client.consumer_core import ConsumerCore
from appliance_client.deaths import ALONE_MAX, ALONE_S, REASON, TOGETHER_MAX
from appliance_client.errors import TimedOutError
from appliance_client.key_order import DEATHS_MAX, KeyOrder, Mark, mark_of
from appliance_client.ordered import Rules
from appliance_client.values import ConsumerRecord, OffsetAndMetadata, TopicPartition

RULES = Rules((10.0, 600.0), 5, is_by_key=True)
COMMIT_S = 5.0
PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
DEATHS_AT_MOST = 1 + TOGETHER_MAX + ALONE_MAX
"""The first death may be behind a commit."""


def record(offset: int, key: bytes | None = None, partition: int = 0) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, 0, 0, key, b"v", (), 0)


class Group:
    """Consumers, one after the other, of a partition in which some records kill and some fail for a while.

    Args:
        keys: of the records of the log.
        kills: these offsets kill the consumer that processes them, after so many failures.
        fails: these offsets fail so often before they succeed.
        poll_s: time from one poll to the next.
    """

    def __init__(
        self,
        keys: list[bytes | None],
        kills: dict[int, int],
        fails: dict[int, int] | None = None,
        *,
        at_once: int = 10,
        poll_s: float = 0.1,
    ) -> None:
        self.keys = keys
        self.kills = kills
        self.fails = fails or {}
        self.at_once = at_once
        self.poll_s = poll_s
        self.committed: OffsetAndMetadata | None = OffsetAndMetadata(0)
        self.now_s = 0.0
        self.failed = Counter[int]()
        self.processed: list[int] = []
        self.dead: list[int] = []
        self.deaths = Counter[int]()
        self.marks = 0

    def live(self) -> bool:
        """One life; return whether nothing is left."""
        order = KeyOrder(RULES, self.committed, finds_deaths=True)
        position = 0 if self.committed is None else self.committed.offset
        commit_s = self.now_s + COMMIT_S
        while True:
            order.polls(is_done=True)
            self.now_s += self.poll_s
            if self.now_s >= commit_s:
                commit_s = self.now_s + COMMIT_S
                self.committed = order.all_given(position)
            alone = order.exchange_alone(self.now_s)
            if alone is None:
                read = [
                    record(at, self.keys[at])
                    for at in range(position, min(position + order.room(position), len(self.keys)))
                ]
                position += len(read)
                given = order.exchange(read, self.at_once, self.now_s, high_watermark=len(self.keys))
            else:
                given = [alone]
            order.check()
            if given:
                mark = order.mark(position)
                if mark is not None:
                    self.marks += 1
                    self.committed = mark
            elif not order.statistics()["waiting"] and position == len(self.keys):
                self.committed = order.all_given(position)
                return True
            else:
                self.now_s += 3.0  # nothing is due
            if alone is not None and order.is_deadly(alone.offset):
                self.dead.append(alone.offset)
                continue
            for each in given:
                if not self._process(order, each):
                    return False

    def _process(self, order: KeyOrder, each: ConsumerRecord) -> bool:
        """Return whether the consumer is alive."""
        offset = each.offset
        if offset in self.kills and self.failed[offset] >= self.kills[offset]:
            self.deaths[offset] += 1
            return False
        if self.failed[offset] < max(self.fails.get(offset, 0), self.kills.get(offset, 0)):
            self.failed[offset] += 1
            assert order.keep(each, self.now_s) is not None
            self.committed = order.failures()
        else:
            self.processed.append(offset)
        return True

    def run(self) -> None:
        while not self.live():
            assert self.deaths.total() <= DEATHS_AT_MOST * len(self.kills)

    def check(self) -> None:
        """The records that kill are dead, no others are, and all others were processed in the order of their keys."""
        assert sorted(self.dead) == sorted(self.kills)
        assert set(self.processed) == set(range(len(self.keys))) - set(self.kills)
        assert self.committed == OffsetAndMetadata(len(self.keys)), "nothing is left of the marks"
        first: dict[bytes, list[int]] = defaultdict(list)
        for offset in dict.fromkeys(self.processed):
            key = self.keys[offset]
            if key is not None:
                first[key].append(offset)
        assert all(offsets == sorted(offsets) for offsets in first.values())


def keys(count: int, different: int = 7) -> list[bytes | None]:
    return [b"%d" % (at % different) for at in range(count)]


@pytest.mark.parametrize("poison", [0, 3, 12, 99])
@pytest.mark.parametrize("at_once", [1, 10, 500])
@pytest.mark.parametrize("poll_s", [0.01, 1.0, 6.0])
def test_a_record_that_kills_each_consumer_is_found_after_five_deaths_at_most(
    poison: int, at_once: int, poll_s: float
) -> None:
    group = Group(keys(100), {poison: 0}, at_once=at_once, poll_s=poll_s)
    group.run()
    group.check()


def test_a_record_without_a_key_is_found_too() -> None:
    group = Group([None] * 50, {30: 0})
    group.run()
    group.check()


def test_a_record_that_waits_for_a_failed_one_of_its_key_is_found_though_other_keys_are_committed() -> None:
    """Each life waits ten minutes for the first record, and commits other keys meanwhile."""
    group = Group([b"a", b"a", *keys(4_000)], {1: 0}, {0: 3}, poll_s=1.0, at_once=1)
    group.run()
    group.check()


@pytest.mark.parametrize("failures", [1, 3])
def test_a_record_that_kills_when_it_comes_again_is_found_though_other_keys_are_committed(
    failures: int,
) -> None:
    group = Group([b"a", b"a", *keys(4_000)], {0: failures}, poll_s=1.0, at_once=1)
    group.run()
    group.check()
    assert group.deaths[0] <= TOGETHER_MAX + ALONE_MAX


def test_records_that_fail_beside_one_that_kills_are_no_dead_letters() -> None:
    group = Group(keys(200, 50), {5: 1, 49: 0}, {at: 2 for at in range(0, 200, 3) if at % 50 not in (5, 49)})
    group.run()
    group.check()


@given(
    st.tuples(st.integers(2, 60), st.integers(1, 9)).map(lambda each: keys(*each)),
    st.dictionaries(st.integers(0, 59), st.integers(0, 2), max_size=3),
    st.dictionaries(st.integers(0, 59), st.integers(1, 3), max_size=10),
    st.sampled_from((1, 7, 500)),
    st.sampled_from((0.01, 2.0, 7.0)),
)
def test_what_kills_is_found_and_nothing_else_whatever_fails(
    log: list[bytes | None],
    kills: dict[int, int],
    fails: dict[int, int],
    at_once: int,
    poll_s: float,
) -> None:
    kills = {at: times for at, times in kills.items() if at < len(log)}
    fails = {at: times for at, times in fails.items() if at < len(log) and at not in kills}
    group = Group(log, kills, fails, at_once=at_once, poll_s=poll_s)
    group.run()
    group.check()


def test_without_a_failure_and_a_death_one_mark_is_committed() -> None:
    group = Group(keys(2_000), {})
    assert group.live()
    assert group.marks == 1


def test_one_at_a_time_ends_when_nobody_dies() -> None:
    order = KeyOrder(RULES, Mark(0, {}, lives=TOGETHER_MAX).committed(), finds_deaths=True)
    assert order.exchange([record(at) for at in range(5)], 500, 0.0) == []
    for at, now_s in enumerate((0.0, 1.0, ALONE_S - 1)):
        found = order.exchange_alone(now_s)
        assert found is not None
        assert found.offset == at
        order.polls(is_done=True)
    assert order.exchange_alone(ALONE_S) is None
    assert [each.offset for each in order.exchange([], 500, ALONE_S)] == [3, 4]


def test_a_record_that_fails_after_deaths_begins_with_none() -> None:
    before = Mark(1, {0: 1}, {0: TOGETHER_MAX}).committed()
    order = KeyOrder(RULES, before, finds_deaths=True)
    order.exchange([record(0, b"a")], 500, 0.0)
    found = order.exchange_alone(10.0)
    assert found is not None
    assert mark_of(order.mark(1)) == Mark(1, {0: 1}, {0: TOGETHER_MAX + 1})
    order.keep(found, 10.0)
    assert mark_of(order.failures()) == Mark(1, {0: 2})


def test_a_consumer_that_ends_in_order_charges_nothing_for_what_it_has_not_given() -> None:
    before = Mark(1, {0: 1}, {0: TOGETHER_MAX}).committed()
    order = KeyOrder(RULES, before, finds_deaths=True)
    order.exchange([record(0, b"a")], 500, 0.0)
    assert order.exchange_alone(10.0) is not None
    order.mark(1)
    order.give_back(0)
    assert order.all_given(1) == before


def test_a_consumer_that_does_not_commit_by_itself_counts_no_deaths() -> None:
    committed = Mark(3, {0: 1, 1: 0}, {0: DEATHS_MAX, 1: TOGETHER_MAX}, lives=9).committed()
    order = KeyOrder(RULES, committed)
    assert [each.offset for each in order.exchange([record(0), record(1)], 500, 0.0)] == [1]
    assert order.exchange_alone(10.0) is None
    assert [each.offset for each in order.exchange([], 500, 10.0)] == [0]
    assert order.mark(3) is None


@given(
    st.dictionaries(
        st.integers(0, 5_000), st.tuples(st.integers(0, 100), st.integers(0, DEATHS_MAX)), max_size=300
    ),
    st.integers(0, 999_999),
)
def test_deaths_and_lives_read_as_they_were_written(said: dict[int, tuple[int, int]], lives: int) -> None:
    mark = Mark(
        5_001,
        {at: times for at, (times, _) in said.items()},
        {at: deaths for at, (_, deaths) in said.items() if deaths},
        lives,
    )
    assert (mark_of(mark.committed()) or Mark(5_001, {})) == mark


# ── a consumer: several partitions ──────────────────────────────────────────────────────────────────────────


class _HandingBack:
    """In the place of what hands records back: keeps the reasons, or refuses."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.dead: list[tuple[int, str]] = []

    def give_to(self, records: Iterator[ConsumerRecord]) -> None:
        for each in records:
            each.source = self

    def hand_back(self, each: ConsumerRecord, reason: str, is_dead: bool) -> None:
        if self.error is not None:
            raise self.error
        assert is_dead
        self.dead.append((each.offset, reason))


@contextmanager
def consumer_of(committed: dict[TopicPartition, OffsetAndMetadata], counts: int) -> Iterator[Consumer]:
    """Have a consumer that has read `counts` records of each partition, and no broker."""
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", retry_topics=True)
    try:
        core = consumer._consumer
        with consumer._lock:
            assert core.ordered is not None
            core.ordered.rules["t"] = RULES
            core.fetching.assign(list(committed))
            for place, each in committed.items():
                arrive(core, place, each.offset, counts)
                core._begin_in_order(place, each, core.ordered)
        yield consumer
    finally:
        consumer.close(0)


def arrive(core: ConsumerCore, place: TopicPartition, first: int, count: int) -> None:
    reading = core.fetching.readings[place]
    reading.seek(first)
    reading.ready = [record(at, b"%d" % at, place.partition) for at in range(first, first + count)]
    reading.next_after_ready = first + count


def polled(consumer: Consumer, handing_back: _HandingBack) -> dict[int, list[int]]:
    core = consumer._consumer
    with consumer._lock:
        core.key_orders.polls(is_done=True)
        records = core.take(500)
    given = consumer._for_retry(records, handing_back) if records else {}  # type: ignore[arg-type]
    return {place.partition: [each.offset for each in some] for place, some in given.items()}


def no_commits(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> list[dict[int, Mark | None]]:
    """There is no broker: keep the marks instead of committing them."""
    seen: list[dict[int, Mark | None]] = []

    async def mark(marks: dict[TopicPartition, OffsetAndMetadata]) -> None:
        seen.append({place.partition: mark_of(each) for place, each in marks.items()})

    monkeypatch.setattr(consumer._consumer, "mark", mark)
    return seen


def test_a_record_alone_is_the_only_one_of_all_partitions_and_they_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins = {PLACE: Mark(0, {}, lives=TOGETHER_MAX).committed(), OTHER: OffsetAndMetadata(0)}
    with consumer_of(begins, 3) as consumer:
        seen = no_commits(consumer, monkeypatch)
        polls = [polled(consumer, _HandingBack()) for _ in range(4)]
        assert polls == [{1: [0, 1, 2]}, {0: [0]}, {0: [1]}, {0: [2]}]
        alone = TOGETHER_MAX + 1
        assert seen[1] == {0: Mark(3, {0: 0, 1: 0, 2: 0}, {0: alone})}
        assert seen[2] == {0: Mark(3, {1: 0, 2: 0}, {1: alone})}


def test_a_dead_letter_of_deaths_says_why_and_what_follows_its_key_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins = {PLACE: Mark(1, {0: 2}, {0: DEATHS_MAX}).committed()}
    with consumer_of(begins, 3) as consumer:
        no_commits(consumer, monkeypatch)
        handing_back = _HandingBack()
        assert polled(consumer, handing_back) == {0: [1, 2]}
        (_, order) = consumer._consumer.by_key[PLACE]
        order._waiting[0].due_s = 0.0
        assert polled(consumer, handing_back) == {}
        assert handing_back.dead == [(0, REASON)]
        with consumer._lock:
            consumer._consumer.key_orders.polls(is_done=True)
            assert consumer._consumer.positions([PLACE]) == {PLACE: OffsetAndMetadata(3)}


@pytest.mark.parametrize("error", [TimedOutError("refused"), KeyboardInterrupt()])
def test_a_dead_letter_that_is_refused_is_not_committed_and_comes_again(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = {PLACE: Mark(1, {0: 0}, {0: DEATHS_MAX}).committed()}
    with consumer_of(begins, 1) as consumer:
        no_commits(consumer, monkeypatch)
        for _ in range(2):
            with pytest.raises(type(error)):
                polled(consumer, _HandingBack(error))
            with consumer._lock:
                (at,) = consumer._consumer.positions([PLACE]).values()
            assert mark_of(at) == Mark(1, {0: 0}, {0: DEATHS_MAX})
        handing_back = _HandingBack()
        polled(consumer, handing_back)
        assert handing_back.dead == [(0, REASON)]


# ── a partition that is assigned again, or whose log was cut ────────────────────────────────────────────────


def _listener_seeks(consumer: Consumer) -> None:
    with consumer._lock:
        core = consumer._consumer
        core.fetching.assign([])
        core.fetching.assign([PLACE])
        arrive(core, PLACE, 1, 3)
        core.sought(PLACE)


def test_a_partition_that_comes_again_with_a_known_position_loses_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with consumer_of({PLACE: OffsetAndMetadata(0)}, 1) as consumer:
        no_commits(consumer, monkeypatch)
        assert polled(consumer, _HandingBack()) == {0: [0]}
        _listener_seeks(consumer)
        seen: list[int] = []
        for _ in range(5):
            seen += polled(consumer, _HandingBack()).get(0, [])
        assert seen == [1, 2, 3]


def test_a_record_that_fails_after_a_seek_in_a_listener_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with consumer_of({PLACE: OffsetAndMetadata(0)}, 1) as consumer:
        no_commits(consumer, monkeypatch)
        polled(consumer, _HandingBack())
        _listener_seeks(consumer)
        with consumer._lock:
            core = consumer._consumer
            (found,) = [each for some in core.take(1).values() for each in some]
            marks = core.keep(found)
        found_mark = mark_of((marks or {})[PLACE])
        assert found_mark is not None
        assert found_mark.open == {1: 1}
