"""Which record kills its consumers, by what each one committed before it died: no broker, no clock."""

from __future__ import annotations

import pytest

from appliance_client.deaths import ALONE_MAX, ALONE_S, TOGETHER_MAX, Deaths, Mark, mark_of
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
