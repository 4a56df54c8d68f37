"""Rounds of looks for ages: what is looked at again, what a page says between two looks, and what a slice costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from appliance.channels.partition_table import LOG_START
from appliance.channels.roles import RoleKind
from appliance.clock import NS_PER_MS, ManualClock
from appliance.metrics.ages import SLICE_NS, Age, AgeRounds
from appliance.metrics.group_lag import lags
from appliance.metrics.groups import End, Group, ends_of
from appliance.metrics.next_batch import NextBatch
from tests.metrics.test_groups import TOPIC, Host, image
from tests.process.started import Shared

NOW_MS: Final = 1_700_000_000_000
GROUP: Final = "readers"
PLACE: Final = (TOPIC, 0)


class Bench:
    """Rounds over one group, whose looks find a batch for each offset: offset n has the time NOW_MS - 1000 + n."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.clock = ManualClock(NOW_MS)
        self.groups: dict[str, Group] = {}
        self.looked: list[tuple[str, int, int]] = []
        self.shown = True
        self.look_ns = 0
        self.rounds = AgeRounds(
            found=lambda: self.groups,
            image=image,
            table=host.table,
            directories=lambda slot: [Path(f"/slot-{slot}")],
            clock=self.clock,
            look=self.look,
        )

    def look(self, places: Sequence[Path], name: str, offset: int, end: int) -> NextBatch | None:
        assert places == [Path("/slot-0")]
        self.looked.append((name, offset, end))
        self.clock._monotonic_ns += self.look_ns
        return NextBatch(offset, NOW_MS - 1000 + offset) if self.shown else None

    def found(self, *committed: int) -> None:
        """A round of questions ends."""
        group = Group(GROUP, {(TOPIC, number): offset for number, offset in enumerate(committed)})
        group.ends = ends_of(image(), self.host.table, group.committed)
        group.commit_ms = dict.fromkeys(group.committed, NOW_MS - 500)
        self.groups = {GROUP: group}

    def seconds(self) -> tuple[float | None, float | None]:
        """What the page says of partition 0."""
        (lag,) = lags(
            self.host.memory.look(), self.groups.values(), self.rounds.ages, now_ms=self.clock.now_ms()
        )
        return lag.seconds.get(0), lag.stable_seconds.get(0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    shared = Shared(RoleKind.METRICS, tmp_path)
    yield Bench(Host(shared))
    shared.remove()


def test_the_age_of_a_group_that_stands_still_grows_and_costs_one_look(bench: Bench) -> None:
    bench.host.serve(0, high_watermark=100, last_stable_offset=100)
    bench.found(40)
    assert bench.seconds() == (None, None)
    bench.rounds.slice()
    assert bench.looked == [("orders-0", 40, 100)]
    assert bench.seconds() == (0.96, 0.96)
    for _ in range(3):
        bench.clock.advance(1000)
        bench.found(40)
        bench.rounds.slice()
    assert bench.seconds() == (3.96, 3.96)
    assert len(bench.looked) == 1
    bench.clock.set_wall(NOW_MS - 10_000_000)
    assert bench.seconds() == (0, 0), "a clock that was set back makes no negative age"


def test_a_group_that_has_read_everything_has_age_0_without_a_look(bench: Bench) -> None:
    bench.host.serve(0, high_watermark=40, last_stable_offset=40)
    bench.found(40)
    bench.rounds.slice()
    assert bench.seconds() == (0, 0)
    assert bench.looked == []


def test_between_two_looks_the_age_of_a_group_that_moves_does_not_grow(bench: Bench) -> None:
    bench.host.serve(0, high_watermark=100, last_stable_offset=100)
    bench.found(40)
    bench.rounds.slice()
    bench.clock.advance(5000)
    bench.found(90)
    assert bench.seconds() == (0.96, 0.96)
    bench.rounds.slice()
    assert bench.seconds() == (5.91, 5.91)


def test_behind_the_last_stable_offset_a_committed_reader_waits_for_nothing(bench: Bench) -> None:
    bench.host.serve(0, high_watermark=100, last_stable_offset=40)
    bench.found(40)
    bench.rounds.slice()
    assert bench.seconds() == (0.96, 0)


def test_what_retention_has_removed_is_read_from_the_log_start(bench: Bench) -> None:
    bench.host.serve(0, high_watermark=100, last_stable_offset=100)
    bench.host.table.cells[bench.host.table.at(0) + LOG_START] = 70
    bench.found(40)
    bench.rounds.slice()
    assert bench.looked == [("orders-0", 70, 100)]
    assert bench.seconds() == (0.93, 0.93)


def test_what_the_files_did_not_show_is_looked_for_again(bench: Bench) -> None:
    bench.host.serve(0, high_watermark=100, last_stable_offset=100)
    bench.found(40)
    bench.shown = False
    bench.rounds.slice()
    assert bench.seconds() == (None, None)
    bench.found(40)
    bench.shown = True
    bench.rounds.slice()
    assert bench.seconds() == (0.96, 0.96)


def test_an_earlier_topic_of_the_same_name_and_a_group_that_is_gone_leave_nothing(bench: Bench) -> None:
    bench.host.serve(0, high_watermark=100, last_stable_offset=100)
    bench.found(40)
    bench.groups[GROUP].ends[PLACE] = End(77, 100, 100)
    bench.rounds.slice()
    assert bench.looked == []
    bench.found(40)
    bench.rounds.slice()
    assert set(bench.rounds.ages[GROUP]) == {PLACE}
    bench.groups = {}
    bench.rounds.slice()
    assert bench.rounds.ages == {}


def test_a_record_without_a_time_has_no_age() -> None:
    age = Age(5, 1, NextBatch(5, -1), NOW_MS)
    assert age.seconds(committed=5, end=9, incarnation=1, now_ms=NOW_MS) is None
    assert age.seconds(committed=5, end=9, incarnation=2, now_ms=NOW_MS) is None


def test_a_slice_ends_in_time_and_the_next_one_goes_on_where_it_ended(bench: Bench) -> None:
    bench.host.serve(0, high_watermark=100, last_stable_offset=100)
    bench.look_ns = SLICE_NS // 4
    many = {}
    for number in range(20):
        bench.found(number)
        many[f"group-{number}"] = bench.groups[GROUP]
    bench.groups = many
    slices = 0
    while len(bench.looked) < 20:
        before_ns, before = bench.clock.monotonic_ns(), len(bench.looked)
        bench.rounds.slice()
        slices += 1
        assert bench.clock.monotonic_ns() - before_ns <= SLICE_NS + bench.look_ns
        assert len(bench.looked) > before
    assert slices >= 5
    assert [offset for _, offset, _ in bench.looked] == list(range(20)), "each once"
    assert SLICE_NS <= 2 * NS_PER_MS


def test_the_time_of_the_last_commit_is_there_for_each_partition(bench: Bench) -> None:
    bench.host.serve(0, high_watermark=100, last_stable_offset=100)
    bench.found(40)
    (lag,) = lags(bench.host.memory.look(), bench.groups.values(), {}, now_ms=NOW_MS)
    assert lag.commit_seconds == {0: (NOW_MS - 500) / 1000}
