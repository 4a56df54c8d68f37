from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from appliance.clock import NS_PER_MS
from appliance.cluster import CONSUMER_OFFSETS, MESSAGE_AUDIT, MESSAGE_AUDIT_STATE, OBSERVATIONS
from appliance.log.producer_state import AppendOrigin
from appliance.message_audit.positions import GROUPS_MAX
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.offset_records import CommittedOffset, encode_value, offset_key
from appliance.protocol.records.record import Record, encode_batch
from appliance.services import audit_reader, rounds
from appliance.services.audit_reader import AGAIN_MS
from appliance.services.giving_way import GivingWay
from appliance.services.round_state import SNAPSHOT_MS
from tests.services.auditing import BUCKET_MS, TOPIC, Auditing, topic_image


@pytest.fixture
def house(tmp_path: Path) -> Auditing:
    return Auditing(tmp_path)


def test_what_comes_in_and_goes_out_is_counted_with_names_and_delays(house: Auditing) -> None:
    house.values(b"a", b"b", b"c")
    house.values(b"d", partition=1, client="d")
    house.clock.advance(300)
    house.commit(2)
    house.fetch(0, 3)
    house.rounds()
    assert house.counted() == {
        ("produced", 0, "c"): 3,
        ("produced", 1, "d"): 1,
        ("committed", 0, "g"): 2,
        ("fetched", 0, "r"): 3,
    }
    (bucket,) = house.report()["buckets"]
    assert bucket["producers"][0]["principal"] == "User:u"
    assert bucket["producers"][0]["delay"]["max_ms"] == 0
    assert bucket["groups"][0]["delay"]["max_ms"] == 300
    assert bucket["groups"][0]["difference"] == 2
    assert bucket["produced"]["bytes"] == sum(
        house.logs.log(TOPIC, partition).size_bytes for partition in (0, 1)
    )


def test_the_audit_begins_with_the_oldest_record_and_the_first_commit_of_a_group(house: Auditing) -> None:
    house.values(*[b"x"] * 10)
    house.commit(10)
    house.rounds()
    house.values(b"y")
    house.commit(11)
    house.rounds()
    assert house.counted()["committed", 0, "g"] == 11


def test_the_bucket_whose_counts_differ_is_seen(house: Auditing) -> None:
    house.values(b"a", b"b")
    house.clock.advance(BUCKET_MS)
    house.values(b"c", b"d", b"e")
    house.commit(4)
    house.rounds()
    buckets = house.report()["buckets"]
    assert [each["groups"][0]["difference"] for each in buckets] == [0, 1]


def test_a_batch_over_two_buckets_is_read(house: Auditing) -> None:
    house.produce(Record(b"a", timestamp_ms=BUCKET_MS - 1), Record(b"b", timestamp_ms=BUCKET_MS))
    house.commit(1)
    house.rounds()
    buckets = house.report()["buckets"]
    assert [(each["produced"]["records"], each["groups"][0]["records"]) for each in buckets] == [
        (1, 1),
        (1, 0),
    ]


def ids(house: Auditing, *numbers: int) -> None:
    now_ms = house.clock.now_ms()
    house.produce(
        *(Record(b"", headers=(("audit.id", b"s:%d" % number),), timestamp_ms=now_ms) for number in numbers)
    )


def test_a_dropped_and_a_doubled_record_are_named_with_their_bucket(tmp_path: Path) -> None:
    house = Auditing(tmp_path, audit_headers="true")
    ids(house, *(number for number in range(10) if number != 4))
    house.rounds()
    house.clock.advance(BUCKET_MS)
    ids(house, 10, 7, 11)
    house.rounds()
    assert house.findings() == [("missing", 4, 4), ("duplicate", 7, 7)]
    first, second = (each for each in house.entries() if each.kind in ("missing", "duplicate"))
    assert second.bucket - first.bucket == BUCKET_MS
    assert (first.source, first.offset, second.offset) == ("s", 4, 10)


def test_records_without_audit_headers_disturb_nothing(tmp_path: Path) -> None:
    house = Auditing(tmp_path, audit_headers="true")
    ids(house, 1)
    house.values(b"plain")
    house.produce(Record(b"", headers=(("audit.id", b"\xff"), ("audit.time", b"no")), timestamp_ms=1))
    ids(house, 2)
    house.rounds()
    assert house.findings() == []
    assert house.counted()["produced", 0, "c"] == 4


def test_a_time_header_says_when_a_record_was_produced(tmp_path: Path) -> None:
    house = Auditing(tmp_path, audit_headers="true")
    now_ms = house.clock.now_ms()
    at = b"%d" % (now_ms - 40)
    house.produce(Record(b"", headers=(("audit.time", at),), timestamp_ms=now_ms))
    house.rounds()
    (bucket,) = house.report()["buckets"]
    assert bucket["producers"][0]["delay"]["max_ms"] == 40


def test_a_group_that_goes_back_is_named_and_counted_again(house: Auditing) -> None:
    house.values(*[b"x"] * 10)
    house.commit(10)
    house.rounds()
    house.commit(4)
    house.commit(10)
    house.rounds()
    assert house.findings() == [("rewound", 4, 9)]
    assert house.counted()["committed", 0, "g"] == 16


@pytest.mark.parametrize("is_committed", [True, False])
def test_commits_of_a_transaction_count_if_it_is_committed(house: Auditing, is_committed: bool) -> None:
    house.values(*[b"x"] * 4)
    log = house.logs.log(CONSUMER_OFFSETS, 0)
    value = encode_value(CommittedOffset(2, -1, "", house.clock.now_ms()))
    commit = encode_batch(
        [Record(value, offset_key("g", TOPIC, 0), timestamp_ms=house.clock.now_ms())],
        producer_id=7,
        producer_epoch=0,
        attributes=TRANSACTIONAL,
    )
    log.append(memoryview(commit), leader_epoch=0, origin=AppendOrigin.COORDINATOR, transaction_verified=True)
    house.rounds()
    assert house.counted()["committed", 0, "g"] == 0
    house.begin()
    house.rounds()
    marker = encode_marker_batch(
        EndTransactionMarker(is_committed, 0),
        producer_id=7,
        producer_epoch=0,
        timestamp_ms=house.clock.now_ms(),
    )
    log.append(memoryview(marker), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    house.rounds()
    assert house.counted()["committed", 0, "g"] == (2 if is_committed else 0)


def test_what_retention_removed_before_it_was_counted_is_named(house: Auditing) -> None:
    house.values(*[b"x"] * 5)
    house.rounds()
    house.logs.leaderless = {(TOPIC, 0)}
    house.values(*[b"x"] * 5)
    house.values(*[b"x"] * 5)
    house.logs.log(TOPIC, 0).advance_start(10)
    house.commit(15)
    house.logs.leaderless = set()
    house.rounds()
    assert house.findings() == [("unseen", 5, 9), ("unseen", 0, 9)]
    assert house.counted() == {("produced", 0, "c"): 10, ("committed", 0, "g"): 5}


def test_a_commit_far_beyond_the_end_counts_what_there_is(house: Auditing) -> None:
    house.values(b"a", b"b")
    house.commit(1 << 60)
    house.rounds()
    assert house.counted()["committed", 0, "g"] == 2
    house.values(b"c")
    house.rounds()
    assert house.counted()["committed", 0, "g"] == 3


def test_groups_are_bounded(house: Auditing) -> None:
    house.values(b"a")
    for number in range(GROUPS_MAX + 3):
        house.commit(1, group=f"g{number}")
    house.rounds()
    assert (
        sum(records for (kind, _, _), records in house.counted().items() if kind == "committed") == GROUPS_MAX
    )
    assert house.reader.refused_groups == 3


def test_a_topic_that_is_audited_later_gets_the_commits_from_before(tmp_path: Path) -> None:
    house = Auditing(tmp_path)
    house.values(b"a", b"b")
    house.commit(2)
    house.set_topics(t=topic_image(TOPIC, 5, 2), other=topic_image("other", 6, 1, {"audit.enable": "true"}))
    house.rounds()
    assert house.counted() == {}
    house.set_topics(t=topic_image(TOPIC, 5, 2, {"audit.enable": "true"}))
    house.rounds()
    assert house.counted() == {("produced", 0, ""): 2, ("committed", 0, "g"): 2}


@pytest.mark.parametrize("topic", [MESSAGE_AUDIT, MESSAGE_AUDIT_STATE, OBSERVATIONS])
def test_without_a_leader_of_an_internal_topic_the_audit_waits(house: Auditing, topic: str) -> None:
    house.values(b"a")
    house.rounds()
    house.logs.leaderless = {(topic, 0)}
    house.values(b"b")
    house.rounds()
    house.logs.leaderless = set()
    house.rounds()
    assert sum(records for (kind, _, _), records in house.counted().items() if kind == "produced") == 2


def test_a_write_whose_outcome_is_not_known_is_counted_once(house: Auditing) -> None:
    house.logs.lost = {MESSAGE_AUDIT}
    house.values(b"a", b"b")
    house.rounds()
    house.logs.lost = set()
    house.values(b"c")
    house.rounds()
    assert house.counted() == {("produced", 0, "c"): 3}


def test_a_write_that_fails_is_made_later(house: Auditing) -> None:
    house.logs.refused = lambda place, _: 56 if place.topic == MESSAGE_AUDIT else 0
    house.values(b"a", b"b")
    house.rounds()
    assert house.entries() == []
    house.logs.refused = lambda _place, _batch: 0
    house.rounds()
    assert house.counted() == {("produced", 0, "c"): 2}


def test_a_snapshot_replaces_the_ones_before_and_a_life_goes_on_after_it(house: Auditing) -> None:
    for _ in range(3):
        house.values(b"a")
        house.commit(house.logs.log(TOPIC, 0).log_end_offset)
        house.clock.advance(SNAPSHOT_MS)
        house.rounds()
    assert house.logs.log(MESSAGE_AUDIT_STATE).log_end_offset >= 2
    house.begin()
    house.values(b"a")
    house.rounds()
    assert house.counted() == {("produced", 0, "c"): 4, ("committed", 0, "g"): 3}


@pytest.mark.parametrize("seed", range(25))
def test_whatever_dies_nothing_is_counted_twice_or_lost(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    house = Auditing(tmp_path, audit_headers="true" if seed % 2 else "false")
    produced = committed = fetched = number = 0
    for _ in range(60):
        action = random.randrange(7)
        if action == 0:
            count = random.randrange(1, 5)
            ids(house, *range(number, number + count))
            number += count
            produced += count
        elif action == 1 and committed < produced:
            committed = random.randint(committed + 1, produced)
            house.commit(committed)
        elif action == 2 and fetched < produced:
            end = random.randint(fetched + 1, produced)
            house.fetch(fetched, end)
            fetched = end
        elif action == 3:
            house.logs.lost = {MESSAGE_AUDIT} if random.random() < 0.5 else set()
        elif action == 4:
            house.clock.advance(random.choice([500, 1_000, 40_000]))
        for _ in range(random.randrange(6)):
            house.step()
        if action == 5:
            house.begin()
    house.logs.lost = set()
    house.rounds(6)
    counted = house.counted()
    expected = {"produced": produced, "committed": committed, "fetched": fetched}
    for kind, count in expected.items():
        assert sum(records for (each, _, _), records in counted.items() if each == kind) == count, kind
    assert house.findings() == []


def test_the_audit_gives_way_while_it_reads_commits_and_counts_what_was_fetched(house: Auditing) -> None:
    """Not only while it reads logs: a start reads all commits, and one fetch may be of a whole log."""
    house.values(*[b"x"] * 10)
    house.rounds()
    busy = [0]

    def measure() -> tuple[int, int]:
        busy[0] += 10 * NS_PER_MS
        return busy[0], busy[0]

    house.reader._way = GivingWay(house.clock.monotonic_ns, measure)
    measured = busy[0]
    house.commit(10)
    house.rounds(9)
    assert busy[0] >= measured + 2 * 10 * NS_PER_MS, "after the commits, and after the log that they passed"
    measured = busy[0]
    house.fetch(0, 10)
    house.rounds(9)
    assert busy[0] >= measured + 2 * 10 * NS_PER_MS, "after the observations, and after the log"
    assert house.counted()["fetched", 0, "r"] == house.counted()["committed", 0, "g"] == 10


def test_a_group_that_goes_to_and_fro_is_counted_again_once_in_a_minute(house: Auditing) -> None:
    """As two programs of one group do that assign themselves the same partition."""
    house.values(*[b"x"] * 20)
    house.rounds()
    for _ in range(50):
        house.commit(20)
        house.commit(0)
    house.commit(20, group="other")
    house.rounds()
    assert house.counted()["committed", 0, "g"] == 40
    assert house.counted()["committed", 0, "other"] == 20
    assert house.findings() == [("rewound", 0, 19)] * 50
    house.clock.advance(AGAIN_MS)
    house.commit(20)
    house.commit(5)
    house.commit(20)
    house.rounds()
    assert house.counted()["committed", 0, "g"] == 55


def test_a_group_that_goes_back_in_a_round_that_is_not_written_is_counted_again_once(house: Auditing) -> None:
    house.values(*[b"x"] * 20)
    house.commit(20)
    house.rounds()
    house.logs.refused = lambda place, _: 56 if place.topic == MESSAGE_AUDIT else 0
    house.commit(0)
    house.commit(20)
    house.rounds()
    house.logs.refused = lambda _place, _batch: 0
    house.rounds()
    assert house.counted()["committed", 0, "g"] == 40


def test_a_client_that_fetches_here_and_there_has_read_what_its_answers_had(house: Auditing) -> None:
    for _ in range(40):
        house.values(b"x" * 100, b"y" * 100)
    batch_bytes = house.logs.log(TOPIC, 0).size_bytes // 40
    house.rounds()
    for _ in range(5):
        house.fetch(0, 80, bytes_max=3 * batch_bytes + 50)
        house.fetch(10, 80, bytes_max=1)
    house.rounds(5)
    assert house.counted()["fetched", 0, "r"] == 5 * (3 * 2 + 1 * 2)
    house.fetch(0, 80, bytes_max=1 << 30, client="all")
    house.rounds()
    assert house.counted()["fetched", 0, "all"] == 80


@pytest.mark.parametrize("by_headers", [False, True])
def test_a_bound_holds_over_several_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_headers: bool
) -> None:
    monkeypatch.setattr(audit_reader, "FIRST_BYTES", 1)
    monkeypatch.setattr(audit_reader, "HEADERS_BYTES", 300)
    monkeypatch.setattr(audit_reader, "RECORDS_BYTES", 300)
    house = Auditing(tmp_path, audit_headers=str(by_headers).lower())
    for _ in range(30):
        house.values(b"x" * 100)
    house.rounds()
    batch_bytes = house.logs.log(TOPIC, 0).size_bytes // 30
    house.fetch(2, 30, bytes_max=7 * batch_bytes)
    house.rounds(5)
    assert house.counted()["fetched", 0, "r"] == 7


def test_partitions_of_deleted_topics_take_no_room_for_names(
    house: Auditing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "ATTRIBUTED_PARTITIONS_MAX", 2)
    house.values(b"a")
    house.values(b"b", partition=1)
    house.rounds()
    assert len(house.reader._attributions) == 2
    house.set_topics(**{TOPIC: topic_image(TOPIC, 8, 1, {"audit.enable": "true"})})
    house.rounds()
    assert house.reader._attributions == {}
