from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from appliance.cluster import OBSERVATIONS, TRACE, TRACE_STATE
from appliance.log.config import LogSettings
from appliance.log.producer_state import AppendOrigin
from appliance.message_trace.event import Event, decode, in_order
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.record import Record, encode_batch
from appliance.services.internal_topics import BATCH_BYTES_MAX
from appliance.services.trace_reader import PER_SECOND, TRACED_MAX
from tests.log.batches import read_all
from tests.message_trace.test_rules import PARENT, VALID
from tests.message_trace.test_rules import TRACE as ID
from tests.services.auditing import TOPIC, Tracing


@pytest.fixture
def house(tmp_path: Path) -> Tracing:
    return Tracing(tmp_path)


def produce(house: Tracing, *, trace: str = ID, count: int = 1) -> None:
    value = f"00-{trace}-{PARENT}-01".encode()
    now_ms = house.clock.now_ms()
    house.produce(*[Record(b"v", headers=(("traceparent", value),), timestamp_ms=now_ms)] * count)


def steps(house: Tracing, trace: str = ID) -> list[tuple[str, str]]:
    return [(each.step, each.client or each.group) for each in in_order(events(house)) if each.trace == trace]


def events(house: Tracing) -> list[Event]:
    found = [decode(record.value) for record in read_all(house.logs.log(TRACE))]
    return [each for each in found if each is not None]


ALL = [("produced", "c"), ("appended", "c"), ("replicated", ""), ("fetched", "r"), ("consumed", "g")]


def test_the_way_of_a_record_is_written_and_nothing_of_others(house: Tracing) -> None:
    house.values(b"plain")
    house.clock.advance(10)
    produce(house)
    house.rounds()
    house.clock.advance(500)
    house.fetch(0, 2)
    house.commit(1)
    house.rounds()
    assert steps(house) == ALL[:-1], "the group has not come to it"
    house.commit(2)
    house.rounds()
    assert steps(house) == ALL
    assert {(each.trace, each.offset, each.parent) for each in events(house)} == {(ID, 1, PARENT)}
    appended, consumed = (
        next(each for each in events(house) if each.step == step) for step in ("appended", "consumed")
    )
    assert consumed.since_ms == appended.at_ms < consumed.at_ms


@pytest.mark.parametrize(("said", "produced_ms"), [(b"5000", 5_000), (b"9" * 18, -1), (b"soon", 7_000)])
def test_a_record_that_the_broker_delivers_late_has_both_times(
    house: Tracing, said: bytes, produced_ms: int
) -> None:
    """No network process sees its append. Its timestamp is the time of that."""
    origin = (("retry.topic", b"orders"), ("retry.partition", b"0"), ("retry.offset", b"4"))
    headers = (("traceparent", f"00-{ID}-{PARENT}-01".encode()), ("delivery.timestamp", said), *origin)
    batch = encode_batch([Record(b"v", headers=headers, timestamp_ms=7_000)])
    house.logs.log(TOPIC, 0).append(memoryview(batch), leader_epoch=0)
    house.rounds()
    times = {each.step: each.at_ms for each in events(house)}
    appended_ms = -1 if said == b"soon" else 7_000
    assert (times["produced"], times["appended"], times["retried"]) == (produced_ms, appended_ms, appended_ms)
    (retried,) = (each for each in events(house) if each.step == "retried")
    assert retried.since_ms == appended_ms


def test_one_in_n_keys_is_traced_by_where_the_record_is(tmp_path: Path) -> None:
    house = Tracing(tmp_path, trace_sample="1")
    house.produce(Record(b"v", b"key", timestamp_ms=1), Record(b"v", None, timestamp_ms=1))
    house.rounds()
    assert {each.offset for each in events(house)} == {0, 1}
    assert b"key" not in b"".join(record.value or b"" for record in read_all(house.logs.log(TRACE)))


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_end_of_a_transaction_is_a_step(house: Tracing, is_committed: bool) -> None:
    log = house.logs.log(TOPIC, 0)
    now_ms = house.clock.now_ms()
    batch = encode_batch(
        [Record(b"v", headers=(("traceparent", VALID),), timestamp_ms=now_ms)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    log.append(memoryview(batch), leader_epoch=0, transaction_verified=True)
    house.rounds()
    assert ("committed", "") not in steps(house)
    marker = encode_marker_batch(
        EndTransactionMarker(is_committed, 0), producer_id=7, producer_epoch=0, timestamp_ms=now_ms
    )
    log.append(memoryview(marker), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    house.begin()
    house.rounds()
    assert steps(house)[-1] == ("committed" if is_committed else "aborted", "")


def test_traces_that_begin_in_a_second_are_bounded(house: Tracing) -> None:
    produce(house, count=PER_SECOND + 20)
    house.rounds()
    assert (house.reader.traced_records, house.reader.untraced_records) == (PER_SECOND, 20)


def test_remembered_records_are_bounded(house: Tracing) -> None:
    for _ in range(2):
        produce(house, count=TRACED_MAX - 100)
        house.rounds()
    house.commit(2 * TRACED_MAX)
    house.rounds()
    consumed = [each.offset for each in events(house) if each.step == "consumed"]
    assert len(consumed) == TRACED_MAX
    assert min(consumed) == 2 * (TRACED_MAX - 100) - TRACED_MAX, "the oldest are forgotten"


def test_more_steps_than_a_batch_takes_are_written_once(house: Tracing) -> None:
    house.logs.settings[TRACE] = LogSettings(max_message_bytes=BATCH_BYTES_MAX)
    produce(house, count=TRACED_MAX)
    house.rounds()
    for number in range(20):
        house.fetch(0, TRACED_MAX, client=f"reader-{number}")
    house.commit(TRACED_MAX)
    house.rounds()
    found = [each.step for each in events(house)]
    assert (found.count("fetched"), found.count("consumed")) == (20 * TRACED_MAX, TRACED_MAX)


@pytest.mark.parametrize("topic", [TRACE, TRACE_STATE, OBSERVATIONS])
def test_without_a_leader_of_an_internal_topic_the_trace_waits(house: Tracing, topic: str) -> None:
    house.rounds()
    house.logs.leaderless = {(topic, 0)}
    produce(house)
    house.rounds()
    house.logs.leaderless = set()
    house.rounds()
    assert [step for step, _ in steps(house)] == ["produced", "appended", "replicated"]


def test_what_is_exported_is_in_the_topic(house: Tracing) -> None:
    house.logs.refused = lambda place, _: 56 if place.topic == TRACE else 0
    produce(house)
    house.rounds()
    assert house.exported == []
    house.logs.refused = lambda _place, _batch: 0
    house.rounds()
    assert [each.step for each in house.exported] == ["produced", "appended", "replicated"]
    assert house.exported == events(house)


@pytest.mark.parametrize("seed", range(15))
def test_whatever_dies_each_step_is_there_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    house = Tracing(tmp_path)
    produced = fetched = committed = 0
    for _ in range(50):
        action = random.randrange(6)
        if action == 0:
            produce(house, trace=f"{produced + 1:032x}")
            produced += 1
        elif action == 1 and fetched < produced:
            end = random.randint(fetched + 1, produced)
            house.fetch(fetched, end)
            fetched = end
        elif action == 2 and committed < produced:
            committed = random.randint(committed + 1, produced)
            house.commit(committed)
        elif action == 3:
            house.logs.lost = {TRACE} if random.random() < 0.5 else set()
        elif action == 4:
            house.clock.advance(random.choice([500, 1_000, 40_000]))
        for _ in range(random.randrange(6)):
            house.step()
        if action == 5:
            house.begin()
    house.logs.lost = set()
    house.rounds(6)
    for number in range(produced):
        found = [step for step, _ in steps(house, f"{number + 1:032x}")]
        expected = ["produced", "appended", "replicated"]
        expected += ["fetched"] * (number < fetched) + ["consumed"] * (number < committed)
        assert sorted(found) == sorted(expected)


def test_a_record_that_a_power_cut_has_taken_has_no_further_steps(house: Tracing) -> None:
    produce(house)
    produce(house)
    house.rounds()
    house.logs.log(TOPIC, 0).truncate_to(1)
    house.rounds()
    other = ID[::-1]
    produce(house, trace=other)
    house.rounds()
    house.fetch(0, 2)
    house.rounds()
    assert [(each.trace, each.offset) for each in events(house) if each.step == "fetched"] == [
        (ID, 0),
        (other, 1),
    ]
