"""Retry and dead letters through real clients: each hand-back once, later each time, then dead. See docs/retries.md."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import appliance_client
from appliance.cli.connecting import BrokerError
from appliance.cli.topic_client import ClientReader, ClientWriter
from appliance.views.dead_letters import DeadLetterLog, Replay
from appliance_client import aio
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.system.retrying import (
    DEATH_S,
    PATIENCE_S,
    command,
    create,
    first_place,
    handed_back,
    headers_of,
    listed,
    producer,
    read,
    sent,
    started,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = started(tmp_path_factory.mktemp("retries") / "data")
    yield made
    made.stop()


def test_a_record_that_always_fails_comes_later_each_time_then_lies_with_the_dead_and_holds_up_nothing(
    broker: Appliance,
) -> None:
    retry = create(broker, "always")
    with appliance_client.Producer(bootstrap_servers=broker.address) as client:
        place = client.send("always", b"bad", b"k", [("mine", b"1")], partition=1).get()
        for number in range(20):
            client.send("always", b"%d" % number, partition=1).get()
    seen: list[tuple[float, Any]] = []
    failed = Counter[str]()
    with appliance_client.Consumer(
        "always",
        bootstrap_servers=broker.address,
        group_id="g",
        retry_topics=True,
        auto_offset_reset="earliest",
    ) as consumer:
        assert consumer.subscription() == {"always", retry}
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and failed[retry] < 2:
            for records in consumer.poll(200).values():
                for record in records:
                    seen.append((time.monotonic(), record))
                    if record.value == b"bad":
                        record.retry(ValueError(f"attempt {sum(failed.values())}"))
                        failed[record.topic] += 1
    bad = [at for at, record in seen if record.value == b"bad"]
    assert len(bad) == 3
    assert bad[1] - bad[0] >= 0.2
    assert bad[2] - bad[1] >= 0.5
    order = [record.value for _, record in seen]
    assert order.index(b"19") < len(order) - 1 - order[::-1].index(b"bad"), "later records were held up"
    (dead,) = read(broker, "always.g.dlq", 1, more_s=0.5)
    said = headers_of(dead)
    assert (dead.value(), dead.key(), said["mine"]) == (b"bad", b"k", "1")
    assert said["__dlq.errors.topic"] == "always"
    assert said["__dlq.errors.partition"] == "1"
    assert said["__dlq.errors.offset"] == str(place.offset)
    assert said["__dlq.errors.timestamp"] == str(place.timestamp)
    assert said["__dlq.errors.group"] == "g"
    assert said["__dlq.errors.delivery.count"] == "3"
    assert said["__dlq.errors.exception"] == "ValueError"
    assert said["__dlq.errors.message"] == "attempt 2"
    lived_ms = int(said["__dlq.errors.last.failed.timestamp"]) - int(
        said["__dlq.errors.first.failed.timestamp"]
    )
    assert lived_ms >= DEATH_S * 1000
    assert not any(name.startswith("retry.") for name in said)
    # Other groups read the topic itself, which has each record once.
    assert len(read(broker, "always", 21, more_s=0.3)) == 21


def test_an_asyncio_consumer_rejects_a_record(broker: Appliance) -> None:
    create(broker, "async")

    async def reject() -> None:
        async with aio.Consumer(
            "async",
            bootstrap_servers=broker.address,
            group_id="g",
            auto_offset_reset="earliest",
            retry_topics=True,
            value_deserializer=bytes.decode,
        ) as consumer:
            async for record in consumer:
                assert record.value == "not wanted"
                await record.dead("do not want")
                return

    sent(producer(broker), "async", b"not wanted")
    asyncio.run(reject())
    (dead,) = read(broker, "async.g.dlq", 1)
    assert dead.value() == b"not wanted"
    assert headers_of(dead)["__dlq.errors.message"] == "do not want"


def test_a_consumer_without_retry_topics_says_how_to_get_them(broker: Appliance) -> None:
    create(broker, "without")
    sent(producer(broker), "without", b"x")
    with appliance_client.Consumer(
        "without", bootstrap_servers=broker.address, group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        record = next(consumer)
        with pytest.raises(appliance_client.errors.IllegalStateError, match=r"retry\.topics"):
            record.retry("x")


@pytest.mark.slow
def test_kafkas_console_tools_hand_back_and_read_dead_letters(broker: Appliance) -> None:
    retry = create(broker, "console")
    tool(
        "org.apache.kafka.tools.ConsoleProducer",
        "--bootstrap-server",
        broker.address,
        "--topic",
        retry,
        "--reader-property",
        "parse.headers=true",
        typed="retry.topic:console,retry.partition:0,retry.offset:7,retry.dead:true\tthe value\n",
    )
    said = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        broker.address,
        "--topic",
        "console.g.dlq",
        "--from-beginning",
        "--max-messages",
        "1",
        "--formatter-property",
        "print.headers=true",
    )
    assert "__dlq.errors.topic:console" in said
    assert "__dlq.errors.offset:7" in said
    assert "the value" in said


def test_a_delivery_that_two_consumers_hand_back_counts_once(broker: Appliance) -> None:
    """As after the death of a consumer between handing back and its commit."""
    retry = create(broker, "twice")
    place = first_place("twice", 1, 40)
    for partition in (0, 1):
        sent(producer(broker), retry, b"same", place, partition=partition)
    sent(producer(broker), retry, b"other", first_place("twice", 1, 41))
    found = read(broker, retry, 2, more_s=0.6)
    assert sorted(each.value() for each in found) == [b"other", b"same"]
    # What comes again is another delivery, and can be handed back again, as often as it is in doubt.
    again = next(each for each in found if each.value() == b"same")
    for _ in range(2):
        handed_back(producer(broker), retry, again)
    read(broker, retry, 3)
    broker.kill_role("services")  # its next life still knows both
    handed_back(producer(broker), retry, again)
    sent(producer(broker), retry, b"same", place)
    sent(producer(broker), retry, b"last", first_place("twice", 1, 42))
    values = Counter(each.value() for each in read(broker, retry, 4, more_s=0.8))
    assert values == {b"same": 2, b"other": 1, b"last": 1}


def test_records_of_a_topic_that_was_created_again_are_not_taken_for_those_of_the_old_one(
    broker: Appliance,
) -> None:
    retry = create(broker, "renewed")
    sent(producer(broker), retry, b"old", first_place("renewed", 0, 5))
    (old,) = read(broker, retry, 1)
    command(broker, "topics", "delete", "renewed", "--yes")
    until = time.monotonic() + PATIENCE_S
    client = producer(broker)
    while "renewed" in client.list_topics(timeout=PATIENCE_S).topics and time.monotonic() < until:
        time.sleep(0.05)
    assert create(broker, "renewed") == retry
    sent(client, retry, b"new", first_place("renewed", 0, 5))
    new = next(each for each in read(broker, retry, 2) if each.value() == b"new")
    identities = {headers_of(each)["retry.topic.id"] for each in (old, new)}
    assert len(identities) == 2
    for each in (old, new):
        handed_back(client, retry, each, ("retry.dead", b"true"))
    assert {each.value() for each in read(broker, "renewed.g.dlq", 2)} == {b"old", b"new"}
    command(broker, "dead-letters", "replay", "g", "renewed")
    assert Counter(each.value() for each in read(broker, retry, 4, more_s=0.3)) == {b"old": 2, b"new": 2}


def test_each_hand_back_is_delivered_once_whatever_kills_the_services_process(broker: Appliance) -> None:
    retry = create(broker, "killed", options=("--levels", "200ms", "--max", "1"))
    client = producer(broker, **{"linger.ms": 5, "enable.idempotence": True})
    failed: list[str] = []

    def note(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    for number in range(600):
        if number % 150 == 149:
            broker.kill_role("services")
        headers: list[tuple[str, str | bytes | None]] = [*first_place("killed", number % 2, number)]
        headers += [] if number % 3 else [("retry.dead", b"true")]
        client.produce(
            retry,
            b"%d" % number,
            headers=headers,
            on_delivery=note,
        )
        client.poll(0.004)
    client.flush(PATIENCE_S)
    assert not failed
    again = Counter(int(each.value()) for each in read(broker, retry, 400, more_s=1.0))
    dead = Counter(int(each.value()) for each in read(broker, "killed.g.dlq", 200))
    assert again == Counter(number for number in range(600) if number % 3)
    assert dead == Counter(range(0, 600, 3))


@pytest.mark.slow
def test_each_hand_back_is_delivered_once_whatever_kills_workers_and_network_processes(
    broker: Appliance,
) -> None:
    retry = create(broker, "all-killed", options=("--levels", "200ms", "--max", "1"))
    client = producer(broker, **{"linger.ms": 5, "enable.idempotence": True})
    ended = threading.Event()

    def kill() -> None:
        for role in ("ioproc", "netproc", "services", "ioproc", "netproc"):
            time.sleep(0.8)
            broker.kill_role(role)
        ended.set()

    killer = threading.Thread(target=kill)
    killer.start()
    number = 0
    while not ended.is_set():
        client.produce(retry, b"%d" % number, headers=[*first_place("all-killed", 0, number)])
        client.poll(0.005)
        number += 1
    killer.join()
    client.flush(PATIENCE_S)
    found = Counter(int(each.value()) for each in read(broker, retry, number, more_s=2.0))
    assert found == Counter(range(number))


@pytest.mark.parametrize(
    "forged",
    [
        [("retry.topic", b"victim"), ("retry.partition", b"0"), ("retry.offset", b"0")],
        [("retry.group", b"other"), ("__dlq.errors.topic", b"victim")],
        [("__delayed", b"1,%032x,0,0,0,0,-1,-1,-1")],
        [("kafka_dlt-original-topic", b"victim"), ("kafka_dlt-original-partition", b"\0\0\0\0")],
    ],
)
def test_no_header_makes_the_broker_write_elsewhere(
    broker: Appliance, forged: list[tuple[str, bytes]]
) -> None:
    for topic in ("forged", "victim"):
        if topic not in AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=9).topics:
            create(broker, topic)
    retry = "forged.g.retry"
    before = len(read(broker, retry, 0, more_s=0.4)), len(read(broker, "forged.g.dlq", 0, more_s=0.4))
    sent(producer(broker), retry, b"x", forged)
    sent(producer(broker), retry, b"x", [*forged, ("retry.dead", b"true")])
    assert len(read(broker, retry, before[0] + 1)) == before[0] + 1
    assert len(read(broker, "forged.g.dlq", before[1] + 1)) == before[1] + 1
    for topic in ("victim", "victim.g.retry", "victim.g.dlq"):
        assert read(broker, topic, 0, more_s=0.2) == []


def test_a_topic_that_does_not_agree_gets_no_dead_letters(broker: Appliance) -> None:
    retry = create(broker, "agree")
    create(broker, "private")
    command(broker, "configs", "set", "--topic", retry, "retry.dead.letter.topic=private")
    assert "private" in listed(broker, "retries", "describe", "g", "agree")["fault"]
    sent(producer(broker), retry, b"x", [*first_place("agree", 0, 0), ("retry.dead", b"true")])
    begun = time.monotonic()
    (found,) = read(broker, retry, 1)
    assert time.monotonic() - begun >= 0.3, "it comes again on the last level"
    assert found.value() == b"x"
    assert read(broker, "private", 0, more_s=0.3) == []


def test_nothing_is_lost_when_the_dead_letter_topic_or_the_retry_topic_is_deleted(broker: Appliance) -> None:
    retry = create(broker, "deleted")
    client = producer(broker, **{"message.timeout.ms": 4000, "allow.auto.create.topics": False})
    command(broker, "topics", "delete", "deleted.g.dlq", "--yes")
    sent(client, retry, b"x", [*first_place("deleted", 0, 0), ("retry.dead", b"true")])
    (found,) = read(broker, retry, 1)
    assert any(each["fault"] for each in listed(broker, "retries", "list"))
    command(broker, "retries", "enable", "g", "deleted", "--levels", "200ms")
    handed_back(client, retry, found, ("retry.dead", b"true"))
    assert len(read(broker, "deleted.g.dlq", 1)) == 1
    command(broker, "topics", "delete", retry, "--yes")
    client.list_topics(retry, PATIENCE_S)  # asks for its creation
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "g", "allow.auto.create.topics": True}
    )
    consumer.list_topics(retry, PATIENCE_S)
    consumer.close()
    assert retry not in client.list_topics(timeout=PATIENCE_S).topics, "an ordinary topic would be a hot loop"
    error = sent(client, retry, b"y", first_place("deleted", 0, 1))
    assert isinstance(error, KafkaError), "a clear error"
    said = command(broker, "retries", "describe", "g", "deleted", code=1)
    assert "its dead letters are still in deleted.g.dlq" in said
    command(broker, "retries", "enable", "g", "deleted", "--levels", "200ms")
    sent(producer(broker), retry, b"y", first_place("deleted", 0, 1))
    assert [each.value() for each in read(broker, retry, 1)] == [b"y"]


def test_large_headers_pass_and_what_is_too_large_is_refused(broker: Appliance) -> None:
    retry = create(broker, "large")
    client = producer(broker)
    large = [*first_place("large", 0, 0), ("mine", b"m" * (1 << 20)), ("retry.exception", b"e" * (1 << 20))]
    sent(client, retry, b"v" * (900 << 10), large)
    (found,) = read(broker, retry, 1)
    said = headers_of(found)
    assert (len(said["mine"]), len(found.value())) == (1 << 20, 900 << 10)
    assert len(said["retry.exception"].encode()) <= 8192
    almost = b"v" * ((3 << 20) - 8192)
    sent(client, retry, almost, first_place("large", 0, 2))
    assert {len(each.value()) for each in read(broker, retry, 2)} == {900 << 10, len(almost)}
    error = sent(client, retry, b"v" * (3 << 20), first_place("large", 0, 1))
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.parametrize("value", [b"many", b"", b"-4", b"9" * 40])
def test_a_count_that_cannot_be_read_makes_a_dead_letter(broker: Appliance, value: bytes) -> None:
    topic = f"unreadable-{len(value)}"
    retry = create(broker, topic)
    sent(producer(broker), retry, b"x", [*first_place(topic, 0, 0), ("retry.attempts", value)])
    (dead,) = read(broker, f"{topic}.g.dlq", 1)
    assert "retry.attempts" in headers_of(dead)["__dlq.errors.message"]


def test_disabled_retries_refuse_what_is_handed_back_and_deliver_what_waits(broker: Appliance) -> None:
    retry = create(broker, "off")
    client = producer(broker)
    sent(client, retry, b"waits", first_place("off", 0, 0))
    assert listed(broker, "retries", "disable", "g", "off")["enabled"] is False
    error = sent(client, retry, b"late", first_place("off", 0, 1))
    assert error.code() == KafkaError.POLICY_VIOLATION
    assert [each.value() for each in read(broker, retry, 1, more_s=0.4)] == [b"waits"]
    assert "disabled" in command(broker, "dead-letters", "replay", "g", "off", code=1)


def dead_ones(broker: Appliance, topic: str, count: int) -> str:
    """Make dead letters with the keys 0, 1, …; return the retry topic."""
    retry = create(broker, topic)
    client = producer(broker)
    for number in range(count):
        headers = [
            *first_place(topic, number % 2, number),
            ("region", b"north" if number % 2 else b"south"),
            ("retry.exception", b"ValueError" if number < 4 else b"KeyError"),
            ("retry.dead", b"true"),
        ]
        sent(client, retry, b"v%d" % number, headers, key=b"%d" % number)
    read(broker, f"{topic}.g.dlq", count)
    return retry


def test_dead_letters_are_chosen_shown_replayed_and_purged(broker: Appliance) -> None:
    retry = dead_ones(broker, "dead", 8)
    assert len(listed(broker, "dead-letters", "list", "g", "dead")) == 8
    assert [each["key"] for each in listed(broker, "dead-letters", "list", "g", "dead", "--key", "3")] == [
        "3"
    ]
    some = listed(
        broker, "dead-letters", "list", "g", "dead", "--header", "region=north", "--exception", "Value"
    )
    assert sorted(each["key"] for each in some) == ["1", "3"]
    assert listed(broker, "dead-letters", "list", "g", "dead", "--since", "2099-01-01T00:00") == []
    assert len(listed(broker, "dead-letters", "list", "g", "dead", "--since", "1h")) == 8
    (shown,) = listed(broker, "dead-letters", "show", "g", "dead", "--id", some[0]["id"])
    assert shown["value"] == f"v{some[0]['key']}"
    assert ["region", "north"] in shown["headers"]
    assert "v3" in command(broker, "dead-letters", "show", "g", "dead", "--key", "3")

    chosen = ("--header", "region=north")
    assert listed(broker, "dead-letters", "replay", "g", "dead", *chosen, "--dry-run") == {
        "replayed": 0,
        "chosen": 4,
        "dry_run": True,
    }
    assert listed(broker, "dead-letters", "replay", "g", "dead", *chosen)["replayed"] == 4
    assert listed(broker, "dead-letters", "replay", "g", "dead", *chosen)["replayed"] == 0
    again = read(broker, retry, 4, more_s=0.4)
    assert sorted(each.key() for each in again) == [b"1", b"3", b"5", b"7"]
    assert {headers_of(each)["retry.replays"] for each in again} == {"1"}
    assert {headers_of(each)["retry.attempts"] for each in again} == {"0"}
    left = listed(broker, "dead-letters", "list", "g", "dead")
    assert sorted(each["key"] for each in left) == ["0", "2", "4", "6"]

    command(broker, "dead-letters", "purge", "g", "dead", "--key", "0", code=2)
    assert listed(broker, "dead-letters", "purge", "g", "dead", "--key", "0", "--dry-run")["chosen"] == 1
    assert listed(broker, "dead-letters", "purge", "g", "dead", "--key", "0", "--yes")["purged"] == 1
    assert len(listed(broker, "dead-letters", "list", "g", "dead")) == 3
    assert listed(broker, "dead-letters", "purge", "g", "dead", "--yes")["purged"] == 3
    assert "no dead letters" in command(broker, "dead-letters", "list", "g", "dead")


def test_a_replay_that_is_interrupted_moves_each_once_when_it_is_run_again(
    broker: Appliance, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = dead_ones(broker, "interrupted", 6)

    def dies(_log: object, _letters: object) -> None:
        raise BrokerError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(DeadLetterLog, "remove", dies)
        reader, writer = ClientReader(broker.address), ClientWriter(broker.address)
        log = DeadLetterLog(reader, "interrupted.g.dlq", writer)
        replay = Replay(log, retry, writer)
        for letter in log:
            replay.add(letter)
        with pytest.raises(BrokerError, match="gone"):
            replay.flush()
        reader.close()
    assert listed(broker, "dead-letters", "replay", "g", "interrupted")["replayed"] == 6
    assert len(read(broker, retry, 6, more_s=0.6)) == 6


def test_wrong_settings_and_strange_topics_are_refused(broker: Appliance) -> None:
    create(broker, "settings")
    assert "no duration" in command(broker, "retries", "enable", "g", "settings", "--levels", "soon", code=2)
    assert "above" in command(broker, "retries", "enable", "g", "settings", "--levels", "5s,1s", code=2)
    assert "no-topic" in command(broker, "retries", "enable", "g", "no-topic", code=1)
    assert "belongs" in command(broker, "retries", "enable", "g", "settings.g.retry", code=1)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("settings.h.retry", 1, 1)])["settings.h.retry"].result(PATIENCE_S)
    assert "exists" in command(broker, "retries", "enable", "h", "settings", code=1)
    with pytest.raises(KafkaException, match=r"delivery\.delay\.enable"):
        admin.create_topics([NewTopic("half", 1, 1, config={"retry.group": "g"})])["half"].result(PATIENCE_S)
    error = sent(transactional(broker), "settings.g.retry", b"x", first_place("settings", 0, 0))
    assert error.code() == KafkaError.INVALID_RECORD


def transactional(broker: Appliance) -> Any:
    client = producer(broker, **{"transactional.id": "t"})
    client.init_transactions(PATIENCE_S)
    client.begin_transaction()
    return client


def test_a_group_with_any_name_has_its_own_topics(broker: Appliance) -> None:
    retry = create(broker, "names", "g")
    other = listed(broker, "retries", "enable", "Gruppe ä.1", "names", "--levels", "200ms")["retry_topic"]
    assert other != retry
    sent(producer(broker), other, b"x", first_place("names", 0, 0))
    assert [each.value() for each in read(broker, other, 1)] == [b"x"]
    assert read(broker, retry, 0, more_s=0.3) == []
    assert {"g", "Gruppe ä.1"} <= {each["group"] for each in listed(broker, "retries", "list")}


KILLED = """
import os, sys
from appliance_client import Consumer

address, topic, process = sys.argv[1:]
with Consumer(
    topic, bootstrap_servers=address, group_id="g", group_instance_id="one", auto_offset_reset="earliest",
    retry_topics=True,
) as consumer:
    for record in consumer:
        if record.value == b"kill":
            os.kill(os.getpid(), 9)
        with open(process, "ab") as processed:
            processed.write(record.value + b"\\n")
        if record.value == b"last":
            break
"""


def test_a_record_that_kills_each_consumer_ends_with_the_dead_and_the_rest_is_processed(
    broker: Appliance, tmp_path: Path
) -> None:
    create(broker, "kills")
    client = producer(broker)
    for value in (
        *(b"%d" % number for number in range(10)),
        b"kill",
        *(b"%d" % number for number in range(10, 15)),
    ):
        sent(client, "kills", value, partition=0)
    sent(client, "kills", b"last", partition=0)
    deaths = 0
    while True:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, broker.address, "kills", str(tmp_path / "processed")],
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        deaths += 1
        assert deaths <= 5
    assert deaths == 4, "as docs/retries.md says"
    (dead,) = read(broker, "kills.g.dlq", 1)
    assert dead.value() == b"kill"
    assert "died" in headers_of(dead)["__dlq.errors.message"]
    processed = (tmp_path / "processed").read_bytes().split()
    assert set(processed) == {*(b"%d" % number for number in range(15)), b"last"}
    assert processed.count(b"last") == 1
