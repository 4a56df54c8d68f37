from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from appliance.channels.traffic_table import HISTOGRAM_WORDS
from appliance.clock import NS_PER_MS
from appliance.cluster import DELAYED_CANCELS, DELAYED_PREFIX, DELAYED_STATE
from appliance.config.sections.services import INDEX_DIRECTORY
from appliance.delivery.due import AT, DELAY
from appliance.delivery.levels import CANCELS
from appliance.delivery.waiting import HANDED_BACK, Origin
from appliance.log.config import LogSettings
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import read_header
from appliance.protocol.records.record import decode_records
from appliance.services.cancellations import GROUP_MS, KEPT_MS
from appliance.services.due_index import read_run
from appliance.services.exact_lane import ExactLane
from appliance.services.forwarder import TRANSACTION_LOOK_MS, TRIM_MS, State
from tests.services.delivering import LEVELS, TOPIC, TOPIC_ID, Delivering


@pytest.fixture
def house(tmp_path: Path) -> Delivering:
    return Delivering(tmp_path)


def test_records_are_delivered_in_due_order_and_not_before(house: Delivering) -> None:
    house.store(b"a", b"b")
    house.pass_ms(4_800)
    assert (house.forwarder.state, house.delivered()) == (State.RUNNING, [])
    house.pass_ms(400)
    assert house.delivered() == [b"a", b"b"]


def test_a_forwarder_that_starts_knows_when_its_first_record_is_due(house: Delivering) -> None:
    house.store(b"a")
    house.run()  # until the agent would sleep
    assert house.forwarder.next_look_ms() == 5_000


def test_a_delivery_whose_answer_was_lost_is_repeated_once_by_the_next_process(house: Delivering) -> None:
    house.logs.lost = {TOPIC}
    house.store(b"a", b"b")
    house.pass_ms(6_000)
    house.logs.lost = set()
    house.new_forwarder()
    house.pass_ms(1_000)
    assert house.delivered() == [b"a", b"b"]
    assert (house.counts.delivered, house.counts.dropped) == (2, 0)


def test_a_clock_that_was_set_back_while_nobody_leads_drops_nothing(house: Delivering) -> None:
    house.logs.settings[TOPIC] = LogSettings(message_timestamp_after_max_ms=60_000)
    house.store(b"a", b"b")
    house.pass_ms(4_800)
    house.logs.slow = {(DELAYED_STATE, 0)}  # the round has begun, and is not written down yet
    house.pass_ms(400)
    house.clock.set_wall(house.clock.now_ms() - 3_600_000)
    house.logs.slow = set()
    house.pass_ms(1_000)
    assert house.delivered() == [b"a", b"b"]
    assert house.counts.dropped == 0


def test_no_delivery_begins_that_no_state_record_names(house: Delivering) -> None:
    refused: set[int] = set()
    unnamed: list[int] = []

    def refuse(place: LogPlace, batch: bytes) -> int:
        if place.topic != TOPIC:
            return 0
        producer_id = read_header(batch).producer_id
        if producer_id not in {delivery.producer_id for delivery in house.progress().open}:
            unnamed.append(place.partition)
        if place.partition in refused:
            return 0
        refused.add(place.partition)
        house.logs.slow = {(TOPIC, 1), (DELAYED_STATE, 0)}
        return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    house.logs.refused = refuse
    house.store(b"a", partition=0)
    house.store(b"b", partition=1)
    house.pass_ms(5_000)
    assert refused == {0, 1}
    house.logs.slow = {(DELAYED_STATE, 0)}  # the second refusal arrives while the first one is being written
    house.run()
    house.logs.slow = set()
    house.pass_ms(1_000)
    assert (house.delivered(0), house.delivered(1), unnamed) == ([b"a"], [b"b"], [])


def test_records_beside_one_that_is_refused_keep_their_order(house: Delivering) -> None:
    def refuse(place: LogPlace, batch: bytes) -> int:
        is_bad = place.topic == TOPIC and any(record.value == b"bad" for record in decode_records(batch))
        return int(ErrorCode.INVALID_RECORD) if is_bad else 0

    house.logs.refused = refuse
    values = [b"a", b"bad", b"c", b"d", b"e", b"f"]
    house.store(*values)
    house.pass_ms(7_000)
    assert house.delivered() == [value for value in values if value != b"bad"]
    assert house.counts.dropped == 1
    house.counts.drops.tell(house.lines.append, 0, is_last=True)
    assert house.lines == [
        "partition t-0: 1 delayed records were dropped, because the topic refuses them: INVALID_RECORD"
    ]
    assert house.forwarder.statistics()[0] == 0


def test_records_at_offsets_that_a_power_cut_has_taken_are_delivered(house: Delivering) -> None:
    house.store(b"a", b"b", b"c")
    house.store(b"d", b"e")
    house.pass_ms(6_000)
    house.logs.log(f"{DELAYED_PREFIX}5s").truncate_to(3)
    house.new_forwarder()
    house.pass_ms(1_000)
    assert house.forwarder.state is State.RUNNING
    house.store(b"f")
    house.store(b"g", b"h")
    house.pass_ms(6_000)
    assert house.delivered() == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]
    assert len(house.lines) == 1
    assert "ends at offset 3, but was delivered up to 5" in house.lines[0]


def test_a_record_that_is_due_while_nobody_leads_waits_longer_each_time(tmp_path: Path) -> None:
    house = Delivering(tmp_path, configs={"delivery.delay.mode": "exact"})
    house.logs.leaderless = {(TOPIC, 0)}
    house.store(b"a", level="exact_10s", due_in_ms=10)
    house.pass_ms(30_000)
    assert [len(house.stored(level)) for level in ("exact_10s", "exact_1m", *LEVELS)] == [1, 0, 1, 3]
    house.logs.leaderless = set()
    house.pass_ms(10_200)
    assert house.delivered() == [b"a"]


def test_delayed_records_of_a_transaction_are_delivered_once_when_it_is_committed(house: Delivering) -> None:
    house.store_in_transaction(b"a", producer_id=7)
    house.store_in_transaction(b"b", producer_id=8)
    house.pass_ms(6_000)
    assert house.delivered() == [], "both are open"
    house.end_transaction(producer_id=7, committed=True)
    house.store(b"c", due_in_ms=5_000)
    house.pass_ms(400)
    assert house.delivered() == [b"a"], "it was due already"
    assert house.forwarder.next_look_ms() == TRANSACTION_LOOK_MS, "one is open"
    house.end_transaction(producer_id=8, committed=False)
    house.pass_ms(6_000)
    assert house.delivered() == [b"a", b"c"]
    assert (house.counts.delivered, house.counts.dropped) == (2, 0)
    house.new_forwarder()
    house.pass_ms(1_000)
    assert house.delivered() == [b"a", b"c"]


def test_a_committed_record_that_is_not_due_yet_waits_on_a_level(house: Delivering) -> None:
    house.store_in_transaction(b"a", producer_id=7, due_in_ms=7_000)
    house.end_transaction(producer_id=7, committed=True)
    house.pass_ms(1_000)
    assert [record.value for record in house.stored("10s")] == [b"a"]
    house.pass_ms(8_800)
    assert house.delivered() == []
    house.pass_ms(400)
    assert house.delivered() == [b"a"]


def test_a_kill_between_a_commit_and_a_level_doubles_nothing(house: Delivering) -> None:
    house.store_in_transaction(b"a", b"b", producer_id=7)
    house.store_in_transaction(b"x", producer_id=9)
    house.end_transaction(producer_id=9, committed=False)
    house.end_transaction(producer_id=7, committed=True)
    house.logs.lost = {f"{DELAYED_PREFIX}5s"}
    house.pass_ms(1_000)
    house.logs.lost = set()
    house.new_forwarder()
    house.pass_ms(6_000)
    assert house.delivered() == [b"a", b"b"]
    assert len(house.stored("5s")) == 2


def test_a_record_that_was_cancelled_before_it_is_due_is_not_delivered(house: Delivering) -> None:
    house.store(b"a", b"b", names=(b"1", b"2"))
    house.store(b"c", names=(b"2",), first_offset=20)
    house.pass_ms(4_800)
    house.cancel(b"2", offset=10)
    house.pass_ms(400)
    assert house.delivered() == [b"a", b"c"], "the record at offset 20 came later"
    assert (house.counts.delivered, house.counts.cancelled, house.counts.dropped) == (2, 1, 0)
    house.new_forwarder()
    house.pass_ms(1_000)
    assert house.delivered() == [b"a", b"c"]


def test_a_cancellation_holds_through_steps_and_deaths_until_nothing_can_wait(house: Delivering) -> None:
    house.store(b"long", level="10s", due_in_ms=25_000, names=(b"1",))
    house.pass_ms(2_000)
    house.cancel(b"1", offset=10)
    house.new_forwarder()
    house.pass_ms(11_000)
    assert house.counts.cancelled == 1, "at its first step"
    assert [len(house.stored(level)) for level in ("5s", "10s")] == [0, 1]
    house.pass_ms(GROUP_MS + KEPT_MS + 10_000, step_ms=1_000)
    house.store(b"next")
    house.pass_ms(6_000)
    assert house.delivered() == [b"next"]
    assert len(house.forwarder.cancellations) == 0
    assert house.progress().positions[CANCELS] == 1


def test_an_exact_record_is_cancelled_and_the_cancellation_outlives_it_only(house: Delivering) -> None:
    house.store(b"other", level="exact_1h", due_in_ms=900_000)
    house.store(b"a", level="exact_1h", due_in_ms=190_000, names=(b"n",))
    house.run()
    house.cancel(b"n", offset=5)
    house.cancel(b"none", offset=6)
    house.pass_ms(185_000, step_ms=1_000)
    assert len(house.forwarder.cancellations) == 2  # one waits for the other
    house.new_forwarder()
    house.pass_ms(10_000, step_ms=1_000)
    assert house.delivered() == []
    assert house.counts.cancelled == 1
    house.cancel(b"none", offset=7)
    house.pass_ms(KEPT_MS + 2 * GROUP_MS, step_ms=1_000)
    assert (len(house.forwarder.cancellations), house.delivered()) == (0, [])


def test_no_round_begins_before_what_is_cancelled_was_read(house: Delivering) -> None:
    house.store(b"a", names=(b"1",))
    house.cancel(b"1", offset=10)
    house.logs.leaderless = {(DELAYED_CANCELS, 0)}
    house.pass_ms(6_000)
    assert house.delivered() == []
    house.logs.leaderless = set()
    house.pass_ms(1_000)
    assert (house.delivered(), house.counts.cancelled) == ([], 1)


def test_a_cancellation_of_a_transaction_counts_from_its_commit(house: Delivering) -> None:
    house.store(b"a", b"b", names=(b"1", b"2"))
    house.cancel_in_transaction(b"1", offset=10, producer_id=7)
    house.cancel_in_transaction(b"2", offset=11, producer_id=8)
    house.end_transaction(producer_id=7, committed=True)
    house.end_transaction(producer_id=8, committed=False)
    house.pass_ms(6_000)
    assert house.delivered() == [b"b"]


def test_a_clock_that_was_set_back_prolongs_no_delay_and_delivers_nothing_before_its_time(
    house: Delivering,
) -> None:
    house.store(b"delay", headers=((DELAY, b"5000"),))
    house.store(b"time", headers=((AT, b"%d" % (house.clock.now_ms() + 5_000)),))
    house.pass_ms(1_000)
    house.clock.set_wall(house.clock.now_ms() - 3_600_000)
    house.pass_ms(5_200)
    assert house.delivered() == [b"delay"]
    house.pass_ms(3_600_000, step_ms=1_000)
    house.pass_ms(11_000, step_ms=1_000)
    assert house.delivered() == [b"delay", b"time"]


@pytest.mark.parametrize("dies", [False, True])
def test_a_clock_that_was_set_back_prolongs_no_exact_delay(house: Delivering, dies: bool) -> None:
    house.store(b"delay", level="exact_10s", due_in_ms=7_000, headers=((DELAY, b"7000"),))
    house.store(
        b"time", level="exact_10s", due_in_ms=7_000, headers=((AT, b"%d" % (house.clock.now_ms() + 7_000)),)
    )
    house.pass_ms(4_000)
    house.clock.set_wall(house.clock.now_ms() - 3_600_000)
    if dies:
        house.run()
        house.new_forwarder()
    house.store(b"after", level="exact_10s", due_in_ms=1_000, headers=((DELAY, b"1000"),))
    house.pass_ms(2_800)
    assert house.delivered() == [b"after"]
    house.pass_ms(400)
    assert house.delivered() == [b"after", b"delay"]
    house.pass_ms(3_599_000, step_ms=1_000)
    assert house.delivered() == [b"after", b"delay"]
    house.pass_ms(11_000, step_ms=1_000)
    assert house.delivered() == [b"after", b"delay", b"time"]


def test_a_clock_that_was_ahead_unseen_prolongs_an_exact_delay_once_in_all_lives(house: Delivering) -> None:
    house.run()
    right_ms = house.clock.now_ms()
    house.clock.set_wall(right_ms + 3_600_000)
    house.store(b"v", level="exact_10s", due_in_ms=7_000, headers=((DELAY, b"7000"),))
    house.clock.set_wall(right_ms)
    for _ in range(2):  # no life delivers something, and each has read the record
        house.new_forwarder()
        house.pass_ms(3_000)
    house.new_forwarder()
    house.pass_ms(800)
    assert house.delivered() == []
    house.pass_ms(400)
    assert house.delivered() == [b"v"]


@pytest.mark.parametrize("level", ["5s", "exact_10s"])
def test_a_clock_that_is_set_forward_does_not_make_what_was_handed_back_old(
    house: Delivering, level: str
) -> None:
    origin = Origin(77, HANDED_BACK, 1)
    house.store(b"v", level=level, origin=origin)
    house.pass_ms(6_000)
    house.clock.set_wall(house.clock.now_ms() + 4 * 3_600_000)
    house.pass_ms(2 * TRIM_MS)
    house.new_forwarder()  # which knows what is still in the logs
    house.store(b"v", level=level, origin=origin, first_offset=9)  # by a consumer that has got it once more
    house.pass_ms(12_000)
    assert house.delivered() == [b"v"]


def test_exact_records_are_delivered_when_they_are_due_whatever_came_first(house: Delivering) -> None:
    house.store(b"c", level="exact_1m", due_in_ms=30_000)
    house.store(b"a", level="exact_1m", due_in_ms=700)
    house.run()
    house.store(b"b", level="exact_1m", due_in_ms=10_000)
    house.run()
    assert house.forwarder.next_look_ms() == 700
    house.pass_ms(700, step_ms=100)
    assert house.delivered() == [b"a"]
    house.pass_ms(30_000)
    assert house.delivered() == [b"a", b"b", b"c"]
    assert house.progress().positions["exact_1m"] == 3


def test_exact_records_above_the_memory_come_in_due_order_through_deaths(
    house: Delivering, tmp_path: Path
) -> None:
    count = 600
    for number in range(count):
        due_in_ms = number * 7_919 % count * 10
        house.store(b"%d" % due_in_ms + bytes(5_000), level="exact_1m", due_in_ms=due_in_ms)
    house.run()
    for _ in range(4):
        for lane in house.forwarder.lanes:
            if isinstance(lane, ExactLane):
                lane.write()
                lane.check()
        house.forwarder._state_log.changed()
        house.run()
        house.new_forwarder()
        house.pass_ms(2_000)
    assert list((tmp_path / INDEX_DIRECTORY).glob("exact_1m-0-*.run"))
    values = [int((each or b"").rstrip(b"\0")) for each in house.delivered()]
    assert values == [each * 10 for each in range(count)]


def test_a_kill_between_an_exact_delivery_and_its_answer_doubles_nothing(house: Delivering) -> None:
    for number in range(3):
        house.store(b"%d" % number, level="exact_1m", due_in_ms=1_000 - number)
    house.logs.lost = {TOPIC}
    house.pass_ms(2_000)
    house.logs.lost = set()
    house.store(b"3", level="exact_1m", due_in_ms=1)
    house.new_forwarder()
    house.pass_ms(1_000)
    assert house.delivered() == [b"2", b"1", b"0", b"3"]
    assert house.counts.dropped == 0


@pytest.mark.parametrize("error", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_records_wait_in_order_while_the_disk_of_their_topic_is_full(
    house: Delivering, error: ErrorCode
) -> None:
    is_full = True
    house.logs.refused = lambda place, _batch: int(error) if is_full and place.topic == TOPIC else 0
    house.store(b"a", b"b")
    house.pass_ms(8_000)
    house.store(b"c")
    house.store(b"other", partition=1)
    house.pass_ms(7_000)
    assert (house.delivered(), house.delivered(1)) == ([], [])
    house.new_forwarder()
    house.pass_ms(1_000)
    is_full = False
    house.pass_ms(30_000)
    assert set(house.delivered()) == {b"a", b"b", b"c"}
    assert len(house.delivered()) == 3
    assert house.delivered()[:2] == [b"a", b"b"], "the delivery that was open goes first"
    assert house.delivered(1) == [b"other"]
    assert house.counts.dropped == 0


def test_lateness_counts_what_came_to_its_topic_and_not_what_goes_on_waiting(house: Delivering) -> None:
    house.store(b"a", b"b", due_in_ms=5_000)
    house.store(b"c", due_in_ms=12_000)  # from the level of 5 s it goes on to another one
    house.pass_ms(4_800)
    assert house.forwarder.statistics().waiting == 3
    house.pass_ms(1_000)
    assert house.delivered() == [b"a", b"b"]
    assert house.counts.delivered == 2
    cells = memoryview(array("q", [0] * HISTOGRAM_WORDS))
    house.counts.take_lateness(cells)
    house.counts.take_lateness(cells)
    assert sum(cells[1:]) == 2, "taken once"
    assert 0 <= cells[0] < 2 * 1_000 * NS_PER_MS
    assert house.forwarder.statistics().waiting == 1
    house.pass_ms(11_000)
    assert house.delivered() == [b"a", b"b", b"c"]
    house.counts.take_lateness(cells)
    assert sum(cells[1:]) == 3
    assert house.forwarder.statistics().waiting == 0


def test_a_record_that_cannot_be_delivered_is_overdue_and_then_late(house: Delivering) -> None:
    house.store(b"a")
    house.pass_ms(4_800)
    assert house.forwarder.statistics().overdue_ms == 0
    house.logs.slow = {(DELAYED_STATE, 0)}  # the round is not written down
    house.pass_ms(30_000)
    assert house.forwarder.statistics().overdue_ms >= 29_000
    assert house.forwarder.statistics().waiting == 1
    house.logs.slow = set()
    house.pass_ms(1_000)
    cells = memoryview(array("q", [0] * HISTOGRAM_WORDS))
    house.counts.take_lateness(cells)
    assert cells[0] >= 29_000 * NS_PER_MS
    assert house.forwarder.statistics().overdue_ms == 0


def test_a_backlog_of_several_exact_levels_comes_in_due_order(house: Delivering) -> None:
    count, value = 3_000, bytes(300)
    for number in range(count):
        level, due_in_ms = ("exact_1m", "exact_1h")[number % 2], number
        if level == "exact_1h" and number > 200:  # later ones lie between earlier ones in this log
            due_in_ms = 200 + (number * 7_919 % (count - 200)) // 2 * 2 + 1
        house.store(b"%d" % due_in_ms + value, level=level, due_in_ms=due_in_ms)
    house.clock.advance(count)
    house.new_forwarder()
    house.run()
    house.pass_ms(1_000)
    values = [int((each or b"").rstrip(b"\0")) for each in house.delivered()]
    assert len(values) == count
    assert values == sorted(values)


def test_look_ups_find_in_files_what_no_run_file_has(house: Delivering, tmp_path: Path) -> None:
    for _ in range(3):
        house.store(*[b"v"] * 1_000, level="exact_1h", due_in_ms=1_800_000)
    house.pass_ms(20_000, step_ms=1_000)
    (path,) = (tmp_path / INDEX_DIRECTORY).iterdir()
    run = read_run(path)
    assert run is not None
    assert (len(run), run.topics.table) == (3_000, [TOPIC_ID])


def test_a_level_whose_end_is_not_committed_holds_up_no_other_for_long(house: Delivering) -> None:
    uncommitted = f"{DELAYED_PREFIX}exact_1h"
    house.store(b"a", level="exact_1m", due_in_ms=1_000)
    house.store(b"b", level="exact_1h", due_in_ms=1_000)
    house.logs.uncommitted = {uncommitted}
    house.new_forwarder()
    house.pass_ms(3_000)
    assert house.delivered() == []
    house.pass_ms(3_000)
    assert house.delivered() == [b"a"]
    house.store(*[b"c"] * 5, level="exact_1m", due_in_ms=100)
    house.pass_ms(400, step_ms=100)
    assert house.delivered() == [b"a", *[b"c"] * 5]
    house.logs.uncommitted = set()
    house.pass_ms(1_000)
    assert house.delivered()[-1] == b"b"
