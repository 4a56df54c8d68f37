"""`appliance groups` and `appliance offsets`, as a user runs them, against groups of a real client."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from appliance.cli import group_ages
from tests.cli.command import Outcome, appliance, environment
from tests.support.broker import Appliance
from tests.system.raw import create_topic, wait_until

TOPIC = "orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(
        tmp_path_factory.mktemp("cli-groups") / "data",
        settings={
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "log.retention.ms": -1,  # its records are of 2001
        },
    )
    started.start()
    create_topic(started.port, TOPIC, partitions=2)
    producer = Producer({"bootstrap.servers": started.address})
    for number in range(30):
        producer.produce(TOPIC, b"%d" % number, partition=number % 2, timestamp=1_000_000_000_000 + number)
    assert producer.flush(10) == 0
    yield started
    started.stop()


def run(broker: Appliance, *arguments: object) -> Outcome:
    return appliance(*arguments, "-b", broker.address)


def told(broker: Appliance, *arguments: object) -> Any:
    return json.loads(run(broker, *arguments, "--json").succeeded().output)


def commit(broker: Appliance, group: str, *offsets: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    wanted = [TopicPartition(TOPIC, number, offset) for number, offset in enumerate(offsets)]
    for each in consumer.commit(offsets=wanted, asynchronous=False) or ():
        assert each.error is None
    consumer.close()


def committed(broker: Appliance, group: str) -> dict[int, int]:
    (each,) = told(broker, "groups", "lag", group)
    return {p["partition"]: p["committed"] for p in each["partitions"]}


def test_lag_counts_from_the_committed_offset_to_the_end(broker: Appliance) -> None:
    commit(broker, "behind", 5, 15)
    before_ms = time.time_ns() // 1_000_000
    (group,) = told(broker, "groups", "lag", "behind", "--no-ages")
    assert group == {
        "group": "behind",
        "lag": 10,
        "stable_lag": 10,
        "age_ms": None,
        "partitions": [
            {
                "topic": TOPIC,
                "partition": number,
                "committed": committed,
                "end": 15,
                "lag": 15 - committed,
                "stable_end": 15,
                "stable_lag": 15 - committed,
                "age_ms": None,
                "stable_age_ms": None,
                "commit_time_ms": None,
            }
            for number, committed in ((0, 5), (1, 15))
        ],
    }
    (group,) = told(broker, "groups", "lag", "behind")
    first, second = group["partitions"]
    # The record at offset 5 of partition 0 is the tenth that was produced.
    age_ms = before_ms - (1_000_000_000_000 + 10)
    assert age_ms <= first["age_ms"] == first["stable_age_ms"] == group["age_ms"] < age_ms + 60_000
    assert (second["age_ms"], second["stable_age_ms"]) == (0, 0)
    for each in (first, second):
        assert before_ms - 60_000 < each["commit_time_ms"] <= before_ms
    text = run(broker, "groups", "lag", "behind", "--read-committed").succeeded().text
    assert "behind: total lag 10" in text
    heading, line = (" ".join(each.split()) for each in text.splitlines()[:2])
    assert heading == "GROUP TOPIC PARTITION COMMITTED END LAG STABLE LAG AGE LAST COMMIT"
    assert line.startswith(f"behind {TOPIC} 0 5 15 10 10 {age_ms // 86_400_000} d ")


def test_a_group_of_many_partitions_is_asked_for_ages_in_parts(
    broker: Appliance, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(broker, "parts", 3, 7)
    monkeypatch.setattr(group_ages, "AT_ONCE", 1)
    times = group_ages.next_times(broker.address, {(TOPIC, 0): 3, (TOPIC, 1): 7}, read_committed=False)
    assert times == {(TOPIC, 0): (3, 1_000_000_000_006), (TOPIC, 1): (7, 1_000_000_000_015)}
    # Nothing stands behind the end, and there is no third partition: neither makes the command wait.
    began_s = time.monotonic()
    assert group_ages.next_times(broker.address, {(TOPIC, 0): 15}, read_committed=True) == {}
    assert time.monotonic() - began_s < group_ages.PATIENCE_S / 2


def test_members_are_shown_with_their_partitions_and_a_group_with_members_is_neither_reset_nor_deleted(
    broker: Appliance,
) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "alive", "client.id": "me"})
    try:
        consumer.subscribe([TOPIC])
        wait_until(
            lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2, "both", timeout_s=30
        )
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 3)], asynchronous=False)
        (group,) = told(broker, "groups", "describe", "alive")
        (member,) = group["members"]
        assert (group["state"], group["assignor"], group["coordinator"]) == ("stable", "range", 0)
        assert (member["client"], member["partitions"]) == (
            "me",
            [{"topic": TOPIC, "partition": 0}, {"topic": TOPIC, "partition": 1}],
        )
        shown = {(p["partition"], p["committed"], p["lag"], p["member"]) for p in group["partitions"]}
        assert shown == {(0, 3, 12, member["member"]), (1, None, None, member["member"])}
        text = run(broker, "groups", "describe", "alive").succeeded().text
        assert text.startswith("alive  stable, 1 member, assignor range, coordinator 0\n")
        refused = run(broker, "groups", "delete", "--yes", "alive")
        assert (refused.code, "NON_EMPTY_GROUP" in refused.errors) == (1, True)
        refused = run(broker, "groups", "reset-offsets", "alive", "--to", "end", "--execute")
        assert (refused.code, "UNKNOWN_MEMBER_ID" in refused.errors) == (1, True)
        assert committed(broker, "alive") == {0: 3}
    finally:
        consumer.close()


def test_groups_are_listed_by_state_and_deleted_with_their_offsets(broker: Appliance) -> None:
    commit(broker, "short", 1, 1)
    listed = {each["group"]: (each["state"], each["type"]) for each in told(broker, "groups", "list")}
    assert listed["short"] == ("empty", "classic")
    assert "short" in {each["group"] for each in told(broker, "groups", "list", "--state", "Empty")}
    assert not told(broker, "groups", "list", "--state", "stable")
    assert run(broker, "groups", "delete", "--yes", "short").succeeded().text == "deleted short\n"
    assert "short" not in {each["group"] for each in told(broker, "groups", "list")}
    missing = run(broker, "groups", "delete", "--yes", "short")
    assert (missing.code, "GROUP_ID_NOT_FOUND" in missing.errors) == (1, True)
    for command in ("describe", "lag"):
        missing = run(broker, "groups", command, "short")
        assert (missing.code, missing.errors) == (1, "appliance: there is no group short\n")


@pytest.mark.parametrize(
    ("how", "after"),
    [
        (("--to", "beginning"), {0: 0, 1: 0}),
        (("--to", "end"), {0: 15, 1: 15}),
        (("--to", "7"), {0: 7, 1: 7}),
        (("--to", "99"), {0: 15, 1: 15}),
        (("--to", "-5"), {0: 10, 1: 10}),
        (("--to", "@1000000000010"), {0: 5, 1: 5}),
        (("--to", "2001-09-09T01:46:40.020+00:00"), {0: 10, 1: 10}),
        (("--by", "-2"), {0: 2, 1: 6}),
        (("--by", "100"), {0: 15, 1: 15}),
        (("--ago", "1h"), {0: 15, 1: 15}),
        (("--to", "end", "--topic", f"{TOPIC}:1"), {0: 4, 1: 15}),
    ],
)
def test_reset_goes_to_a_place_a_time_or_a_distance_and_never_out_of_the_log(
    broker: Appliance, how: tuple[str, ...], after: dict[int, int]
) -> None:
    commit(broker, "again", 4, 8)
    shown = told(broker, "groups", "reset-offsets", "again", *how)
    before = {0: 4, 1: 8}
    assert {each["partition"]: each["before"] for each in shown["partitions"]}.items() <= before.items()
    assert before | {each["partition"]: each["after"] for each in shown["partitions"]} == after


def test_reset_changes_nothing_before_it_is_told_to(broker: Appliance) -> None:
    commit(broker, "asked", 4, 8)
    shown = told(broker, "groups", "reset-offsets", "asked", "--by", "3")
    assert not shown["executed"]
    assert committed(broker, "asked") == {0: 4, 1: 8}
    assert told(broker, "groups", "reset-offsets", "asked", "--by", "3", "--execute") == {
        **shown,
        "executed": True,
    }
    assert committed(broker, "asked") == {0: 7, 1: 11}


def test_new_group_is_given_a_place_to_begin_at(broker: Appliance) -> None:
    run(broker, "groups", "reset-offsets", "fresh", "--topic", TOPIC, "--to", "6", "--execute").succeeded()
    assert committed(broker, "fresh") == {0: 6, 1: 6}


@pytest.mark.parametrize(
    "arguments",
    [
        ("again",),
        ("again", "--to", "end", "--by", "1"),
        ("again", "--ago", "soon"),
        ("again", "--to", "somewhere"),
        ("again", "--to", "end", "--topic", f"{TOPIC}:x"),
    ],
)
def test_reset_that_is_not_clear_is_refused(broker: Appliance, arguments: tuple[str, ...]) -> None:
    assert run(broker, "groups", "reset-offsets", *arguments).code == 2


def test_offsets_tell_start_stable_and_end(broker: Appliance) -> None:
    rows = told(broker, "offsets", TOPIC)
    assert rows == [{"topic": TOPIC, "partition": n, "start": 0, "stable": 15, "end": 15} for n in (0, 1)]
    assert run(broker, "offsets", "nowhere").errors == "appliance: there is no topic nowhere\n"


def test_watch_shows_it_again_until_it_is_interrupted(broker: Appliance) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "appliance",
            "offsets",
            TOPIC,
            "--json",
            "--watch",
            "0.1",
            "-b",
            broker.address,
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as watching:
        assert watching.stdout is not None
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        watching.terminate()
    assert first == second
    assert first[0]["end"] == 15
