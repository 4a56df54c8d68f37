"""The order of keys when records fail, through deaths and rebalances: no broker, no clock."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance_client.key_order import (
    MARK_LENGTH_MAX,
    OPEN_BYTES,
    OPEN_MAX,
    SPAN,
    KeyOrder,
    Mark,
    mark_of,
)
from appliance_client.ordered import Rules
from appliance_client.values import ConsumerRecord, OffsetAndMetadata

RULES = Rules((1.0, 2.0), 3, is_by_key=True)


def record(offset: int, key: bytes | None = None, size: int = 1) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, 0, 0, key, b"v" * size, (), 0)


def log(*keys: bytes | None) -> list[ConsumerRecord]:
    return [record(offset, key) for offset, key in enumerate(keys)]


def offsets(records: list[ConsumerRecord]) -> list[int]:
    return [each.offset for each in records]


def test_what_follows_a_failed_record_with_its_key_waits_and_the_others_go_on() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    first = order.exchange(log(b"a", b"b", b"a", b"c", None, None), 500, 0.0)
    assert offsets(first) == [0, 1, 3, 4, 5], "at most one of a key at a time"
    assert order.keep(first[0], 0.0) == 1.0
    order.polls(is_done=True)
    assert order.exchange([record(6, b"b"), record(7, b"a")], 500, 0.5)[0].offset == 6
    order.polls(is_done=True)
    assert order.exchange([], 500, 0.9) == []
    (again,) = order.exchange([], 500, 1.0)
    assert (again.offset, dict(again.headers)["retry.attempts"]) == (0, b"1")
    for offset in (2, 7):
        order.polls(is_done=True)
        assert offsets(order.exchange([], 500, 1.0)) == [offset]
    order.polls(is_done=True)
    assert order.all_given(8) == OffsetAndMetadata(8), "all is done: an ordinary commit"
    order.check()


def test_a_key_waits_until_the_application_polls() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    assert offsets(order.exchange(log(b"a", b"a"), 500, 0.0)) == [0]
    assert order.exchange([], 500, 0.0) == []
    order.polls(is_done=True)
    assert offsets(order.exchange([], 500, 0.0)) == [1]


def test_the_next_consumer_knows_what_is_done_and_how_often_what_is_not_has_failed() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    all_records = log(b"a", b"b", b"a", b"c", b"b")
    first = order.exchange(all_records, 500, 0.0)
    order.keep(first[0], 0.0)
    order.polls(is_done=True)
    order.exchange([], 500, 0.0)
    order.polls(is_done=True)
    committed = order.all_given(5)
    assert committed is not None
    assert mark_of(committed) == Mark(5, {0: 1, 2: 0})
    assert committed.offset == 0
    following = KeyOrder(RULES, committed)
    assert following.room(0) == 5
    assert following.exchange([*all_records, record(5, b"a"), record(6, b"b")], 500, 10.0)[0].offset == 6
    following.polls(is_done=True)
    for expected in (0, 2, 5):
        assert offsets(following.exchange([], 500, 11.0)) == [expected]
        following.polls(is_done=True)


def test_a_record_that_has_failed_too_often_is_to_be_handed_back_and_its_followers_come() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    now_s = 0.0
    (found,) = order.exchange(log(b"a", b"a"), 500, now_s)
    waits = []
    for _ in range(3):
        wait_s = order.keep(found, now_s)
        assert wait_s is not None
        waits.append(wait_s)
        now_s += wait_s
        order.polls(is_done=True)
        (found,) = order.exchange([], 500, now_s)
    assert waits == [1.0, 2.0, 2.0]
    assert order.keep(found, now_s) is None
    assert order.failures().offset == 0, "until the next poll it is not done: the hand-back may be refused"
    order.polls(is_done=True)
    assert offsets(order.exchange([], 500, now_s)) == [1]


def test_without_auto_commit_only_a_commit_says_what_is_done() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    first = order.exchange(log(b"a", b"b", b"a", b"c"), 500, 0.0)
    order.keep(first[0], 0.0)
    assert mark_of(order.failures()) == Mark(0, {0: 1}), "b and c may be in process"
    order.polls(is_done=False)
    assert mark_of(order.failures()) == Mark(0, {0: 1})
    assert mark_of(order.done_below(2)) == Mark(2, {0: 1})
    assert mark_of(order.done_below(4)) == Mark(4, {0: 1, 2: 0})
    assert offsets(order.exchange([], 500, 1.0)) == [0]
    order.polls(is_done=False)
    assert offsets(order.exchange([], 500, 1.0)) == [2]
    assert mark_of(order.failures()) == Mark(4, {0: 1, 2: 0}), (
        "given behind what is committed, and not committed"
    )
    assert mark_of(order.done_below(1)) == Mark(4, {2: 0})
    assert order.done_below(3) == OffsetAndMetadata(4)


def test_what_the_iterator_has_not_given_is_not_done() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    order.exchange(log(b"a", b"b", b"c"), 500, 0.0)
    assert mark_of(order.all_given(3, not_given_from=1)) == Mark(3, {1: 0, 2: 0})
    order.give_back(1)
    assert mark_of(order.all_given(3)) == Mark(3, {1: 0, 2: 0})
    order.check()


def test_a_partition_stops_when_too_much_waits_and_goes_on_later() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    order.keep(order.exchange([record(0, b"a")], 500, 0.0)[0], 0.0)
    order.polls(is_done=True)
    position = 1
    while order.room(position):
        read = [record(position + each, b"a") for each in range(min(order.room(position), 100))]
        assert order.exchange(read, 500, 0.0) == []
        position += len(read)
    assert order.statistics()["waiting"] == OPEN_MAX
    committed = order.all_given(position)
    assert committed is not None
    assert len(committed.metadata or "") <= MARK_LENGTH_MAX
    order.exchange([], 500, 1.0)
    order.polls(is_done=True)
    assert order.room(position) == 1


def test_a_program_that_commits_elsewhere_is_not_stopped_by_records_that_failed_once() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    now_s, position = 0.0, 0
    for _ in range(2 * OPEN_MAX):
        assert order.room(position)
        (found,) = order.exchange([record(position, b"a")], 500, now_s)
        position += SPAN // 100
        order.keep(found, now_s)
        now_s += 1.0
        order.polls(is_done=False)
        assert order.exchange([], 500, now_s)
        order.polls(is_done=False)
    assert order.statistics()["given"] <= OPEN_MAX
    committed = order.failures()
    assert committed.offset == 0, "nothing is said to be done"


def test_large_records_and_far_offsets_stop_a_partition_too() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    order.keep(order.exchange([record(0, b"a")], 500, 0.0)[0], 0.0)
    assert order.room(SPAN - 1)
    assert not order.room(SPAN)
    order.polls(is_done=True)
    order.exchange([record(1, b"a", OPEN_BYTES)], 500, 0.0)
    assert not order.room(2)


def test_a_log_that_is_shorter_than_the_mark_has_new_records_there() -> None:
    mark = Mark(10, {3: 1}).committed()
    order = KeyOrder(RULES, mark)
    read = [record(offset, b"%d" % offset) for offset in range(3, 8)]
    assert offsets(order.exchange(read, 500, 0.0, high_watermark=5)) == [5, 6, 7]


def test_what_a_shorter_log_does_not_have_yet_is_not_committed() -> None:
    order = KeyOrder(RULES, Mark(10, {3: 1}).committed())
    order.exchange([record(offset, b"%d" % offset) for offset in range(3, 8)], 500, 0.0, high_watermark=5)
    order.polls(is_done=True)
    assert mark_of(order.all_given(8)) == Mark(8, {3: 1}), "8 and 9 come later, and are new"


@pytest.mark.parametrize("committed", [OffsetAndMetadata(10), Mark(30, {10: 1, 20: 0}).committed()])
def test_a_log_that_begins_again_is_read_and_committed_from_there(committed: OffsetAndMetadata) -> None:
    """auto.offset.reset has moved the position back: the committed offset is behind the end of the log."""
    order = KeyOrder(RULES, committed)
    assert order.all_given(0) == OffsetAndMetadata(0)
    order = KeyOrder(RULES, committed)
    read = [record(offset, b"%d" % offset) for offset in range(4)]
    assert offsets(order.exchange(read, 500, 0.0, high_watermark=4)) == [0, 1, 2, 3]
    order.polls(is_done=True)
    assert order.all_given(4) == OffsetAndMetadata(4)
    order.check()


def test_what_was_read_of_a_log_that_was_cut_since_is_forgotten() -> None:
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    (first,) = order.exchange([record(offset, b"a") for offset in range(9)], 500, 0.0)
    order.keep(first, 0.0)
    order.polls(is_done=True)
    assert offsets(order.exchange([record(5, b"z"), record(6, b"a")], 500, 0.0)) == [5]
    order.check()
    given = []
    for _ in range(9):
        order.polls(is_done=True)
        given += offsets(order.exchange([], 500, 2.0))
    assert given == [0, 1, 2, 3, 4, 6]


def test_records_of_the_mark_that_the_log_has_lost_hold_nothing_up() -> None:
    order = KeyOrder(RULES, Mark(10, {3: 1, 5: 0, 9: 0}).committed())
    assert offsets(order.exchange([record(9, b"z"), record(10, b"y")], 500, 0.0)) == [9, 10]
    order.polls(is_done=True)
    assert order.all_given(11) == OffsetAndMetadata(11)


@pytest.mark.parametrize(
    "committed",
    [
        None,
        OffsetAndMetadata(3),
        OffsetAndMetadata(3, "mine"),
        OffsetAndMetadata(3, "keys:9:"),
        OffsetAndMetadata(3, "keys:9:AA"),
        OffsetAndMetadata(3, "keys:9:gICA"),
        OffsetAndMetadata(4, (Mark(9, {3: 1}).committed().metadata or "").replace("AAg", "AQg")),
        OffsetAndMetadata(3, "keys:9:" + "_" * 100),
    ],
)
def test_what_is_no_mark_of_this_offset_does_not_count(committed: OffsetAndMetadata | None) -> None:
    assert mark_of(committed) is None


@given(
    st.integers(0, 1 << 40),
    st.dictionaries(st.integers(0, 1 << 41), st.integers(0, 10_000), max_size=700),
)
def test_a_mark_reads_as_it_was_written_or_says_less(end: int, there: dict[int, int]) -> None:
    open_ones = {at: times for at, times in there.items() if at < end or times}
    committed = Mark(end, open_ones).committed()
    assert len(committed.metadata or "") <= MARK_LENGTH_MAX
    read = mark_of(committed) or Mark(committed.offset, {})
    assert read.end <= end
    assert all(open_ones[at] == times for at, times in read.open.items())
    assert {at for at in open_ones if at < read.end} <= read.open.keys()
    if len(open_ones) <= 300 and all(at < 1 << 20 for at in open_ones):
        assert (read.end, read.open) == (end, open_ones)


class Group:
    """Consumers, one after the other, of a partition that grows. Checks each record that is processed."""

    def __init__(self, chance: random.Random, *, commits_by_itself: bool) -> None:
        self.chance = chance
        self.commits_by_itself = commits_by_itself
        self.log: list[ConsumerRecord] = []
        self.next_offset = 0
        self.done: set[int] = set()
        self.dead: set[int] = set()
        self.times = Counter[int]()
        self.before: dict[int, list[int]] = {}
        self.by_key: dict[bytes, list[int]] = defaultdict(list)
        self.committed: OffsetAndMetadata | None = None
        self.now_s = 0.0
        self.not_before_s: dict[int, float] = {}

    def produce(self) -> None:
        for _ in range(self.chance.randrange(12)):
            self.next_offset += self.chance.choice((1, 1, 1, 2, 30))  # compacted, or markers of transactions
            key = self.chance.choice((None, *(b"%d" % each for each in range(5))))
            if key is not None:
                self.before[self.next_offset] = list(self.by_key[key])
                self.by_key[key].append(self.next_offset)
            self.log.append(record(self.next_offset, key))

    def live(self, polls: int, *, is_last: bool = False) -> None:
        """One life of a consumer. The last one reads until all is done."""
        order = KeyOrder(RULES, self.committed)
        position = 0 if self.committed is None else self.committed.offset
        idle = 0
        while polls or is_last:
            polls -= 1
            if not is_last:
                self.produce()
            self.now_s += self.chance.choice((0.0, 0.1, 1.0))
            order.polls(is_done=self.commits_by_itself)
            if self.commits_by_itself and self.chance.random() < 0.5:
                self.committed = order.all_given(position) or self.committed
            room = order.room(position)
            read = [each for each in self.log if each.offset >= position][: min(room, 20)]
            # Each life reads records of its own, as from the network.
            read = [record(each.offset, each.key) for each in read]
            position = read[-1].offset + 1 if read else position
            given = order.exchange(
                read, self.chance.choice((1, 5, 500)), self.now_s, high_watermark=self.next_offset + 1
            )
            order.check()
            statistics = order.statistics()
            assert statistics["waiting"] + statistics["given"] <= OPEN_MAX
            assert len({each.key for each in given if each.key is not None}) == len(
                [each for each in given if each.key is not None]
            )
            for each in given:
                if not is_last and self.chance.random() < 0.03:
                    return  # killed
                self._process(order, each)
                if not self.commits_by_itself and self.chance.random() < 0.3:
                    self.committed = order.done_below(each.offset + 1)
            if not self.commits_by_itself and self.chance.random() < 0.3:
                self.committed = order.all_given(position)
            idle = 0 if given or read else idle + 1
            if is_last and idle > 200:
                break
        self.committed = order.all_given(position) or self.committed

    def _process(self, order: KeyOrder, each: ConsumerRecord) -> None:
        offset = each.offset
        earlier = [before for before in self.before.get(offset, ()) if before not in self.done | self.dead]
        assert not earlier, f"{offset} was given before {earlier}"
        assert self.now_s >= self.not_before_s.get(offset, 0.0), "before its time"
        if offset in self.done | self.dead:
            return  # given again after a death, as by any consumer
        if self.chance.random() < 0.3:
            wait_s = order.keep(each, self.now_s)
            self.times[offset] += 1
            if wait_s is None:
                self.dead.add(offset)
            else:
                assert self.times[offset] <= RULES.retries_max
                self.not_before_s[offset] = self.now_s + wait_s
                self.committed = order.failures()
        else:
            self.done.add(offset)


@pytest.mark.parametrize("commits_by_itself", [True, False])
@given(seed=st.integers(0, 1 << 32))
def test_nothing_is_lost_or_out_of_order_whatever_fails_and_dies(seed: int, commits_by_itself: bool) -> None:
    group = Group(random.Random(seed), commits_by_itself=commits_by_itself)
    for _ in range(4):
        group.live(group.chance.randrange(1, 15))
    group.live(0, is_last=True)
    assert group.done | group.dead == {each.offset for each in group.log}
    assert not group.done & group.dead
    assert group.committed is None or mark_of(group.committed) is None, "all is done"


@pytest.mark.parametrize("at", [1, 7, 100])
def test_a_clean_end_repeats_nothing(at: int) -> None:
    """Unlike a death: what was processed behind a record that waits is in the mark."""
    everything = [record(offset, b"%d" % (offset % 9)) for offset in range(200)]
    order = KeyOrder(RULES, OffsetAndMetadata(0))
    processed = Counter[int]()
    position = 0
    while position < at:
        order.polls(is_done=True)
        read = everything[position : position + 10]
        position += len(read)
        for each in order.exchange(read, 500, 0.0):
            if each.key == b"4":
                order.keep(each, 0.0)
            else:
                processed[each.offset] += 1
    committed = order.all_given(position)
    assert committed is not None
    order = KeyOrder(RULES, committed)
    position, now_s = committed.offset, 1.0
    for _ in range(200):
        now_s += 1.0
        order.polls(is_done=True)
        read = everything[position : position + min(10, order.room(position))]
        position += len(read)
        processed.update(offsets(order.exchange(read, 500, now_s)))
    assert processed == Counter(range(200))
