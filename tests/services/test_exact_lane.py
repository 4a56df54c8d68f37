from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest

from appliance.delivery.due import AT, DELAY
from appliance.delivery.waiting import Origin, Waiting
from appliance.protocol.records.record import Record
from appliance.services.clock_steps import TOLERANCE_MS
from appliance.services.due_index import CATCH_UP_MAX, SUFFIX, DueIndex
from appliance.services.exact_lane import ExactLane
from appliance.services.progress import Frontier
from tests.services.stored_records import as_stored

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def stored(
    offset: int,
    due_in_ms: int,
    *,
    sequence: int = -1,
    value: bytes = b"v",
    at_ms: int = NOW_MS,
    header: str = AT,
) -> Record:
    due_ms = at_ms + due_in_ms
    asked = (header, b"%d" % (due_ms if header == AT else due_in_ms))
    origin = Origin(min(sequence, 1), 0, sequence)
    made = Waiting(UUID(int=1), 0, 100 + offset, due_ms, origin, Record(value, headers=(asked,)))
    record = made.to_record(at_ms)
    return Record(record.value, record.key, record.headers, at_ms, offset)


class House:
    """A lane, its log, and what a state record has said last."""

    def __init__(self, directory: Path, *, value: bytes = b"v") -> None:
        self.directory = directory
        self.log: list[Record] = []
        self.value = value
        self.written = Frontier()
        self.position = 0
        self.lane = self.open()

    def open(self, *, set_back_ms: int = 0, now_ms: int = NOW_MS) -> ExactLane:
        """Begin with what is in files, the log, and the last state record."""
        index = DueIndex(self.directory, "x")
        self.lane = ExactLane(
            "exact_1h",
            HOUR_MS,
            position=self.position,
            index=index,
            frontier=self.written,
            uptime_ms=now_ms,
        )
        if set_back_ms:
            self.lane.set_back(set_back_ms)
        self.lane.catch_up_to = max(self.lane.catch_up_to, len(self.log))
        self.read(now_ms)
        assert self.lane.has_caught_up
        return self.lane

    def store(self, *dues_in_ms: int, at_ms: int = NOW_MS, header: str = AT) -> None:
        for due_in_ms in dues_in_ms:
            self.log.append(stored(len(self.log), due_in_ms, value=self.value, at_ms=at_ms, header=header))

    def read(self, now_ms: int = NOW_MS) -> None:
        lane = self.lane
        if lane.read_to < len(self.log):
            lane.take(
                as_stored(self.log[lane.read_to :]),
                next_offset=len(self.log),
                now_ms=now_ms,
                uptime_ms=now_ms,
            )
        lane.check()

    def load(self) -> None:
        while offsets := self.lane.to_load():
            self.lane.loaded(as_stored([self.log[each] for each in offsets]))
            self.lane.check()

    def first_due(self, now_ms: int) -> int | None:
        self.load()
        return self.lane.first_due(now_ms)

    def pop(self, now_ms: int) -> int | None:
        """Return the offset of the next record that is due; None if none is."""
        due_ms = self.first_due(now_ms)
        return None if due_ms is None or due_ms > now_ms else self.lane.pop().offset

    def pop_all(self, now_ms: int) -> list[int]:
        found = []
        while (offset := self.pop(now_ms)) is not None:
            found.append(offset)
        return found

    def write(self) -> None:
        self.lane.settle()
        self.position, self.written = self.lane.position, self.lane.progress()
        self.lane.written(self.written, uptime_ms=NOW_MS)

    def step(self, rng: random.Random, steps_ms: tuple[int, ...]) -> int:
        """Set the clock in one of five cases, and let the lane see it; return by how much."""
        step_ms = rng.choice(steps_ms) if rng.random() < 0.2 else 0
        if step_ms < 0:
            self.lane.set_back(-step_ms)
        return step_ms


def test_records_are_due_one_by_one_whatever_came_first(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(5_000, 17, 900, 17)
    house.read()
    assert house.lane.first_due(NOW_MS) == NOW_MS + 17
    assert house.pop_all(NOW_MS + 16) == []
    assert house.pop_all(NOW_MS + 17) == [1, 3]
    assert house.pop_all(NOW_MS + HOUR_MS) == [2, 0]


def test_a_buffer_holds_a_part_and_the_log_is_read_again_for_the_others(tmp_path: Path) -> None:
    house = House(tmp_path, value=bytes(10_000))
    house.store(*(each * 7_919 % 1_000 for each in range(1_000)))
    house.read()
    assert house.lane.buffered_bytes < 1 << 20
    expected = sorted(range(1_000), key=lambda each: (each * 7_919 % 1_000, each))
    assert house.pop_all(NOW_MS + 10_000) == expected


def test_a_record_that_comes_after_its_time_is_delivered_once(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(10, 20, 1_000)
    house.read()
    assert house.pop_all(NOW_MS + 20) == [0, 1]
    house.store(1, 2_000, 5)
    house.read()
    house.write()
    assert house.written.read_to == 3  # not behind the late ones
    assert house.pop(NOW_MS + 20) == 3
    house.write()
    house.open()
    assert house.pop_all(NOW_MS + 20) == [5]
    house.write()
    assert house.written.read_to == 6
    house.open()
    assert house.pop_all(NOW_MS + HOUR_MS) == [2, 4]


def test_a_longer_delay_ends_on_the_level_and_the_rest_is_left(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(HOUR_MS + 400, header=DELAY)
    house.read()
    assert house.lane.first_due(NOW_MS) == NOW_MS + HOUR_MS
    now_ms = NOW_MS + HOUR_MS + 1
    assert house.lane.due_now(house.lane.pop(), now_ms) == NOW_MS + HOUR_MS + 400


def test_a_clock_that_is_set_back_prolongs_no_delay_and_brings_nothing_early(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(1_000, header=DELAY)
    house.store(1_000)
    house.read()
    house.lane.set_back(HOUR_MS)
    now_ms = NOW_MS + 500 - HOUR_MS  # after half a second
    house.store(100, at_ms=now_ms, header=DELAY)
    house.read()
    house.write()
    house.open()
    assert house.pop_all(now_ms + 99) == []
    assert house.pop_all(now_ms + 499) == [2]
    now_ms += 500
    lefts = []
    for _ in range(2):
        due_ms = house.lane.first_due(now_ms)
        assert due_ms is not None
        assert due_ms <= now_ms
        entry = house.lane.pop()
        lefts.append((entry.offset, house.lane.due_now(entry, now_ms) - now_ms))
    assert lefts == [(0, 0), (1, HOUR_MS)]


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_stored_before_a_step_of_the_clock_and_read_after_it_waits_no_longer(
    tmp_path: Path, is_killed: bool
) -> None:
    house = House(tmp_path)
    house.lane.set_back(HOUR_MS)  # an earlier step
    early_ms = NOW_MS - HOUR_MS
    house.store(1_000, at_ms=early_ms, header=DELAY)
    house.read(early_ms)
    house.store(1_000, at_ms=early_ms, header=DELAY)  # stored, and not read: its leader is dead
    house.lane.set_back(4 * HOUR_MS)
    now_ms = early_ms - 4 * HOUR_MS + 100
    house.store(1_000, at_ms=now_ms, header=DELAY)
    house.store(2_000, at_ms=early_ms + 50, header=DELAY)  # its append was sent again
    house.store(3_000, at_ms=now_ms, header=DELAY)
    house.read(now_ms)
    house.write()
    if is_killed:
        house.open()
        house.lane.check()
    assert house.pop_all(now_ms + 899) == []
    assert house.pop_all(now_ms + 900) == [0, 1]
    assert house.pop_all(now_ms + 999) == []
    assert house.pop_all(now_ms + 1_000) == [2]
    assert house.pop_all(now_ms + 1_949) == []
    assert house.pop_all(now_ms + 1_950) == [3]
    assert house.pop_all(now_ms + 2_999) == []
    assert house.pop_all(now_ms + 3_000) == [4]


def test_a_step_of_the_clock_between_two_lives_prolongs_no_delay(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(1_000, 2_000, header=DELAY)
    house.read()
    house.write()  # and no run file: the next life reads the log again
    house.open(set_back_ms=4 * HOUR_MS)
    now_ms = NOW_MS - 4 * HOUR_MS + 100
    for offset, left_ms in ((0, 900), (1, 1_900)):
        house.load()
        due_ms = house.lane.first_due(now_ms)
        assert due_ms == now_ms + left_ms
        entry = house.lane.pop()
        assert (entry.offset, house.lane.due_now(entry, due_ms)) == (offset, due_ms)


def test_what_was_stored_by_a_clock_that_was_ahead_unseen_counts_from_its_reading(tmp_path: Path) -> None:
    """No state record was written while the clock was ahead, so the next life knows nothing of its step."""
    house = House(tmp_path)
    house.store(1_000, header=DELAY)
    house.read()
    house.write()
    ahead_ms = NOW_MS + 4 * HOUR_MS
    for late_ms in (100, 150, 9_000):
        house.store(1_000, at_ms=ahead_ms + late_ms, header=DELAY)
    house.store(1_000, at_ms=ahead_ms + HOUR_MS, header=DELAY)  # a step, or an hour without a record
    house.store(1_000, at_ms=NOW_MS, header=DELAY)
    house.open(now_ms=NOW_MS)
    dues = {}
    while (due_ms := house.first_due(NOW_MS)) is not None:
        entry = house.lane.pop()
        dues[entry.offset] = due_ms - NOW_MS
        assert house.lane.due_now(entry, due_ms) == due_ms
    longest_ms = 1_000 + TOLERANCE_MS
    assert dues.keys() == {0, 1, 2, 3, 4, 5}
    assert dues[0] == dues[5] == 1_000
    assert 1_000 <= dues[3] <= longest_ms
    assert 1_000 <= dues[4] <= longest_ms
    # They keep their distances. The clock shows no less than when the last of them was stored.
    assert (dues[3] - dues[2], dues[2] - dues[1]) == (8_850, 50)


def test_a_time_that_a_clock_ahead_has_come_to_is_waited_for_again(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(1_000, at_ms=NOW_MS + 4 * HOUR_MS, header=AT)
    house.read()
    due_ms = house.first_due(NOW_MS)
    assert due_ms is not None
    assert due_ms <= NOW_MS + 1_000 + TOLERANCE_MS
    assert house.lane.due_now(house.lane.pop(), due_ms) == NOW_MS + 4 * HOUR_MS + 1_000


def test_a_clock_ahead_unseen_is_known_from_the_next_state_record_on(tmp_path: Path) -> None:
    house = House(tmp_path)
    for second in range(3_000):
        house.store(60_000, at_ms=NOW_MS + 4 * HOUR_MS + 1_000 * second, header=DELAY)
    house.read()
    house.write()
    assert len(house.written.corrections) <= 3_000 // 10 + 1
    house.open(now_ms=NOW_MS + 30_000)
    first = house.first_due(NOW_MS + 30_000)
    assert len(house.pop_all(NOW_MS + 60_000 + TOLERANCE_MS)) == 3_000
    assert first is not None
    assert NOW_MS + 50_000 <= first <= NOW_MS + 60_000 + TOLERANCE_MS


def test_a_correction_that_lacks_the_time_without_a_process_makes_no_record_early(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(1_000, header=DELAY)
    house.read()
    house.lane.set_back(4 * HOUR_MS)
    early_ms = NOW_MS - 4 * HOUR_MS
    house.read(early_ms)
    house.write()
    # The next life begins 2 s later. A record was stored 100 ms ago, and then the clock was set back again.
    house.store(1_000, at_ms=early_ms + 1_900, header=DELAY)
    now_ms = early_ms - 5 * HOUR_MS + 2_000
    house.open(set_back_ms=5 * HOUR_MS - 2_000, now_ms=now_ms)
    assert house.pop_all(now_ms + 899) == []
    assert house.pop_all(now_ms + 1_000 + TOLERANCE_MS) == [0, 1]


def test_what_is_delivered_stays_so_when_the_index_is_lost_and_its_corrections_are_forgotten(
    tmp_path: Path,
) -> None:
    house = House(tmp_path)
    house.store(1_000, at_ms=NOW_MS + HOUR_MS, header=DELAY)
    house.read()
    assert house.pop_all(NOW_MS + 1_000 + TOLERANCE_MS) == [0]
    house.write()
    house.store(1_000, at_ms=NOW_MS + HOUR_MS, header=DELAY)
    house.read(NOW_MS + 5_000)
    assert [first for first, _ in house.lane.corrections] == [1, 2]
    house.write()
    house.open(now_ms=NOW_MS + 5_000)  # there is no run file, so the log is read from its start
    assert house.pop_all(NOW_MS + 2 * HOUR_MS) == [1]


def test_records_at_offsets_of_lost_ones_count_by_the_clock_of_now(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(1_000, 1_000, header=DELAY)
    house.lane.set_back(HOUR_MS)
    now_ms = NOW_MS - HOUR_MS + 100
    house.read(now_ms)
    del house.log[1:]
    house.lane.end_at(1)
    house.store(1_000, at_ms=now_ms, header=DELAY)
    house.read(now_ms)
    assert house.pop_all(now_ms + 999) == [0]
    assert house.pop_all(now_ms + 1_000) == [1]


def test_the_log_can_be_forgotten_below_what_waits(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(10, 5_000, 20, 30)
    house.read()
    house.pop_all(NOW_MS + 30)
    assert house.lane.may_forget(NOW_MS) == 1
    house.pop_all(NOW_MS + 5_000)
    assert house.lane.may_forget(NOW_MS) == 4


def test_a_batch_that_is_sent_again_is_known_after_a_restart_without_its_log(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.log = [stored(0, 50, sequence=3), stored(1, 60, sequence=7)]
    house.read()
    house.lane.write()
    house.write()
    house.open()
    again = stored(0, 50, sequence=3)
    house.log.append(Record(again.value, again.key, again.headers, again.timestamp_ms, 2))
    house.read()
    assert house.lane.repeated == 1
    assert house.pop_all(NOW_MS + 100) == [0, 1]


def test_offsets_that_a_power_cut_has_taken_come_again(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(10, 20, 20, 20)
    house.read()
    assert house.pop_all(NOW_MS + 20) == [0, 1, 2, 3]
    house.write()
    del house.log[2:]
    house.lane = ExactLane(
        "exact_1h",
        HOUR_MS,
        position=house.position,
        index=DueIndex(tmp_path, "x"),
        frontier=house.written,
        uptime_ms=NOW_MS,
    )
    assert house.lane.known_end == 4
    house.lane.end_at(2)
    house.store(20, 5, 30)
    house.lane.catch_up_to = 5
    house.read()
    assert house.pop_all(NOW_MS + 40) == [2, 3, 4]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("keeps_files", [True, False], ids=["files", "no-files"])
@pytest.mark.parametrize("steps_ms", [(0,), (-HOUR_MS, -700, 700, HOUR_MS)], ids=["", "clock-steps"])
def test_each_record_comes_once_whatever_is_killed(
    tmp_path: Path, seed: int, keeps_files: bool, steps_ms: tuple[int, ...]
) -> None:
    """Random records, deliveries, files, deaths and steps of the clock. A step that comes with a death is not seen.

    What is popped counts with the next state record.
    """
    rng = random.Random(seed)
    house = House(tmp_path, value=bytes(rng.choice((1, 30_000))))
    now_ms = NOW_MS
    delivered: list[int] = []
    popped: list[int] = []
    for _ in range(400):
        what = rng.random()
        if what < 0.35:
            house.store(*(rng.choice((1, 30, 400, 3_000)) for _ in range(rng.randrange(1, 12))), at_ms=now_ms)
        elif what < 0.6:
            house.read(now_ms)
        elif what < 0.8:
            for _ in range(rng.randrange(20)):
                if (offset := house.pop(now_ms)) is not None:
                    popped.append(offset)
            house.lane.check()
        elif what < 0.88:
            house.write()
            delivered += popped
            popped.clear()
        elif what < 0.93 and house.lane.index.read_to > house.lane.index.first:
            house.lane.write()
        elif what < 0.95:
            popped.clear()
            if not keeps_files:
                for path in tmp_path.glob(f"*{SUFFIX}"):
                    path.unlink()
            now_ms += rng.choice(steps_ms)
            house.open(now_ms=now_ms)
        else:
            now_ms += rng.randrange(300) + house.step(rng, steps_ms)
        assert len(set(delivered + popped)) == len(delivered) + len(popped)
    house.read(now_ms)
    delivered += popped + house.pop_all(now_ms + 100 * HOUR_MS)
    assert sorted(delivered) == list(range(len(house.log)))


def test_large_records_behind_small_ones_are_loaded_a_few_at_a_time(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.store(*range(3_000))  # a load of small records takes hundreds
    house.value = bytes(500_000)
    house.store(*range(5_000, 5_030))
    house.value = b"v"
    house.store(*range(5_030, 5_100))
    house.read()
    found, most_bytes = [], 0
    while True:
        for offset in house.lane.to_load():  # each read finds one batch, which may have one record
            house.lane.loaded(as_stored([house.log[offset]]))
            most_bytes = max(most_bytes, house.lane.buffered_bytes)
        due_ms = house.lane.first_due(NOW_MS + HOUR_MS)
        if due_ms is not None:
            found.append(house.lane.pop().offset)
        elif not house.lane.to_load():
            break
    assert found == list(range(3_100))
    assert most_bytes < 4 << 20


def test_the_end_of_a_log_that_is_lost_during_a_load_doubles_no_record(tmp_path: Path) -> None:
    house = House(tmp_path, value=bytes(10_000))
    house.store(*range(300))
    house.read()
    house.lane.write()
    house.write()
    lane = house.open()
    offsets = lane.to_load()
    lane.loaded(as_stored([house.log[each] for each in offsets[::2]]))  # half of the answers have come
    del house.log[290:]
    lane.end_at(290)
    house.read()
    lane.loaded(as_stored([house.log[each] for each in offsets[1::2] if each < 290]))  # of before
    assert house.pop_all(NOW_MS + HOUR_MS) == list(range(290))


def test_a_start_without_room_on_the_disk_reads_a_bounded_number_of_records(tmp_path: Path) -> None:
    house = House(tmp_path)
    lane = house.lane
    lane.catch_up_to = CATCH_UP_MAX + 1
    numbers = list(range(CATCH_UP_MAX))
    lane.index.add(
        CATCH_UP_MAX - 1, numbers[:-1], numbers[:-1], [], topics=numbers[:-1], newest_ms=NOW_MS, batches={}
    )
    assert lane.has_room
    lane.index.add(CATCH_UP_MAX, [NOW_MS], [CATCH_UP_MAX - 1], [], topics=[0], newest_ms=NOW_MS, batches={})
    assert not lane.has_room
