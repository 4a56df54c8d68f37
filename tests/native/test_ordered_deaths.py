"""Which record kills its consumers in a group that keeps the order of a partition: no broker, no clock."""

from __future__ import annotations

import pytest

from appliance_client import Consumer
from appliance_client.consumer_core import ConsumerCore
from appliance_client.deaths import ALONE_MAX, TOGETHER_MAX, Mark, mark_of
from appliance_client.ordered import Ordered, Rules
from appliance_client.values import ConsumerRecord, OffsetAndMetadata, TopicPartition

PLACE = TopicPartition("t", 0)
RULES = Rules((600.0,), 5)
COUNT = 12


class Group:
    """Consumers, one after the other, of a partition. One record kills, some fail a few times before.

    Args:
        kills: the offset, and after how many failures it kills.
        fails: offsets, and how often each one fails.
        commits: whether the commits of the interval come before each poll, or none comes before a consumer dies.
    """

    def __init__(self, kills: tuple[int, int], fails: dict[int, int], *, commits: bool) -> None:
        self.kills = kills
        self.fails = {**fails, kills[0]: kills[1]}
        self.commits = commits
        self.committed = OffsetAndMetadata(0)
        self.processed: list[int] = []
        self.dead: list[int] = []
        self.failed = dict.fromkeys(range(COUNT), 0)

    def live(self) -> bool:
        """One life; return whether it came to the end."""
        consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", retry_topics=True)
        try:
            with consumer._lock:
                return self._live(consumer._consumer)
        finally:
            consumer.close(0)

    def _live(self, core: ConsumerCore) -> bool:
        assert core.ordered is not None
        assert core.deaths is not None
        core.ordered.rules["t"] = RULES
        core.fetching.assign([PLACE])
        reading = core.fetching.readings[PLACE]
        reading.seek(self.committed.offset)
        core.deaths.found(PLACE, self.committed)
        core._begin_in_order(PLACE, self.committed, core.ordered)
        while True:
            assert reading.position is not None
            if self.commits or reading.not_before_s:  # a record waits for longer than the interval
                self.committed = core.positions([PLACE])[PLACE]
            if reading.position >= COUNT:
                self.committed = core.positions([PLACE])[PLACE]
                return True
            reading.ready, reading.ready_at = [record(at) for at in range(reading.position, COUNT)], 0
            reading.not_before_s = 0.0
            plan = core.plan(core.take(500))
            assert plan is not None
            self.committed = plan.marks.get(PLACE, self.committed)
            self.dead += [each.offset for each in plan.dead]
            for each in plan.given.get(PLACE, ()):
                if not self._process(core, each):
                    return False

    def _process(self, core: ConsumerCore, each: ConsumerRecord) -> bool:
        offset = each.offset
        assert int(dict(each.headers).get("retry.attempts") or 0) == self.failed[offset]
        if self.failed[offset] < self.fails.get(offset, 0):
            self.failed[offset] += 1
            marks = core.keep(each)
            assert marks is not None
            self.committed = marks[PLACE]
        elif offset == self.kills[0]:
            return False
        else:
            self.processed.append(offset)
        return True


def record(offset: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, 0, 0, None, b"v", (), 0)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kills", [(0, 0), (7, 0), (7, 1), (7, 3), (COUNT - 1, 0)])
@pytest.mark.parametrize("fails", [{}, {6: 2}, {0: 1, 3: 1}])
def test_a_record_that_kills_each_consumer_is_found_and_what_follows_it_waits(
    kills: tuple[int, int], fails: dict[int, int], commits: bool
) -> None:
    group = Group(kills, fails, commits=commits)
    deaths = 0
    while not group.live():
        deaths += 1
        assert deaths <= 1 + TOGETHER_MAX + ALONE_MAX
        assert max(group.processed, default=0) <= kills[0]
    assert group.dead == [kills[0]]
    assert list(dict.fromkeys(group.processed)) == [at for at in range(COUNT) if at != kills[0]]
    assert (group.committed.offset, group.committed.metadata) == (COUNT, "")


def test_a_mark_of_failures_and_one_of_deaths_stand_beside_each_other() -> None:
    kept = Ordered()
    kept.rules["t"] = RULES
    kept.failed(record(7))
    committed = kept.beside(PLACE, Mark(True, 7, 2).committed())
    assert committed == OffsetAndMetadata(7, "again:7:1 alone:7:2")
    assert mark_of(committed.metadata) == Mark(True, 7, 2)
    following = Ordered()
    following.rules["t"] = RULES
    assert following.found(PLACE, committed) == RULES.wait_s(1)
    assert following.text(PLACE, 7) == "again:7:1"
