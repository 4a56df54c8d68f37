"""Groups that ask for the order of a partition, or of its keys, through the native client. See docs/retries.md."""

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

import pytest
from confluent_kafka import KafkaError

import appliance_client
from appliance_client import aio
from tests.support.broker import Appliance
from tests.system.retrying import (
    PATIENCE_S,
    create,
    first_place,
    headers_of,
    listed,
    producer,
    read,
    sent,
    started,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = started(tmp_path_factory.mktemp("in-order") / "data")
    yield made
    made.stop()


def test_a_group_that_asks_for_the_order_gets_what_follows_a_failed_record_after_it(
    broker: Appliance,
) -> None:
    retry = create(
        broker, "order", "in-order", options=("--levels", "300ms,600ms", "--max", "2", "--ordered")
    )
    client = producer(broker)
    for value in (b"0", b"fails twice", b"1", b"always fails", b"2"):
        sent(client, "order", value, partition=0)
    sent(client, "order", b"elsewhere", partition=1)
    error = sent(client, retry, b"x", first_place("order", 0, 0))
    assert error.code() == KafkaError.POLICY_VIOLATION
    seen: list[tuple[float, bytes]] = []
    failed = Counter[bytes]()

    def read_until(last: bytes, most: int) -> None:
        """As one consumer, until `last` was processed, or `most` records were given."""
        with appliance_client.Consumer(
            "order",
            bootstrap_servers=broker.address,
            group_id="in-order",
            retry_topics=True,
            auto_offset_reset="earliest",
        ) as consumer:
            for record in consumer:
                seen.append((time.monotonic(), record.value))
                most -= 1
                if b"fails" in record.value and not (b"twice" in record.value and failed[record.value] == 2):
                    assert int(dict(record.headers).get("retry.attempts") or 0) == failed[record.value]
                    failed[record.value] += 1
                    record.retry(ValueError("no"))
                elif record.value == last:
                    return
                if not most:
                    return

    read_until(b"2", 4)  # and the next consumer goes on
    read_until(b"2", 99)
    order = [value for _, value in seen if value != b"elsewhere"]
    assert order == [b"0", *[b"fails twice"] * 3, b"1", *[b"always fails"] * 3, b"2"]
    times = [at for at, value in seen if value == b"always fails"]
    assert times[1] - times[0] >= 0.3
    assert times[2] - times[1] >= 0.6
    assert b"elsewhere" in [value for _, value in seen]
    (dead,) = read(broker, "order.in-order.dlq", 1, more_s=0.3)
    assert (dead.value(), headers_of(dead)["__dlq.errors.delivery.count"]) == (b"always fails", "3")


def test_an_asyncio_consumer_keeps_the_order(broker: Appliance) -> None:
    create(broker, "async-order", "in-order", options=("--levels", "300ms", "--max", "5", "--ordered"))
    client = producer(broker)
    for value in (b"fails", b"after"):
        sent(client, "async-order", value, partition=0)

    async def run() -> list[bytes]:
        seen: list[bytes] = []
        async with aio.Consumer(
            "async-order",
            bootstrap_servers=broker.address,
            group_id="in-order",
            auto_offset_reset="earliest",
            retry_topics=True,
            enable_auto_commit=False,
        ) as consumer:
            async for record in consumer:
                seen.append(record.value)
                if record.value == b"fails" and len(seen) < 3:
                    await record.retry("not yet")
                    continue
                await consumer.commit()
                if record.value == b"after":
                    return seen
        return seen

    assert asyncio.run(run()) == [b"fails", b"fails", b"fails", b"after"]


BY_KEY = """
import os, sys, time
from collections import Counter
from appliance_client import Consumer

address, log, life = sys.argv[1:]
with Consumer(
    "keys", bootstrap_servers=address, group_id="by-key", group_instance_id="one", auto_offset_reset="earliest",
    retry_topics=True, auto_commit_interval_ms=50,
) as consumer, open(log, "a", buffering=1) as said:
    given = 0
    for record in consumer:
        key, value = (record.key or b"").decode(), record.value.decode()
        said.write(f"{life} {time.time()} {key} {value} {int(dict(record.headers).get('retry.attempts') or 0)}\\n")
        given += 1
        if life == "killed" and given == 60:
            os.kill(os.getpid(), 9)
        if value == "end":
            break
        if "fails" in value:
            record.retry(ValueError("no"))
"""


def test_a_group_that_asks_for_the_order_of_keys_gets_only_what_has_the_key_of_a_failed_record_late(
    broker: Appliance, tmp_path: Path
) -> None:
    """The first consumer is killed; the second one knows what is done and how often what is not has failed."""
    create(broker, "keys", "by-key", options=("--levels", "700ms,900ms", "--max", "2", "--ordered-by-key"))
    found = listed(broker, "retries", "describe", "by-key", "keys")
    assert (found["ordered"], found["ordered_by_key"]) == (True, True)
    client = producer(broker)
    sent(client, "keys", b"fails", key=b"bad", partition=0)
    for number in range(100):
        for key in (b"bad", b"k%d" % (number % 5)):
            client.produce("keys", b"%d" % number, key=key, partition=0)
    client.flush(PATIENCE_S)
    log = tmp_path / "log"

    def run(life: str) -> int:
        arguments = [sys.executable, "-c", BY_KEY, broker.address, str(log), life]
        return subprocess.run(arguments, timeout=PATIENCE_S, check=False).returncode

    assert run("killed") == -signal.SIGKILL
    sent(client, "keys", b"end", key=b"bad", partition=0)
    assert run("next") == 0
    seen = [line.split() for line in log.read_text().splitlines()]
    bad = [(value, int(attempts)) for _, _, key, value, attempts in seen if key == "bad"]
    assert bad[:3] == [("fails", 0), ("fails", 1), ("fails", 2)]
    assert [value for value, _ in bad[3:]] == [*(str(number) for number in range(100)), "end"]
    others = Counter(value for _, _, key, value, _ in seen if key != "bad")
    assert others.keys() == {str(number) for number in range(100)}
    # After a death, what came in the last poll and since the last commit may come again, as with any consumer.
    assert sum(others.values()) <= 100 + 60
    times = [float(at) for _, at, _, value, _ in seen if value == "fails"]
    assert times[1] - times[0] >= 0.7
    assert times[2] - times[1] >= 0.9
    killed = [key for life, _, key, _, _ in seen if life == "killed"]
    assert len([key for key in killed if key != "bad"]) > 50, "the other keys went on"
    (dead,) = read(broker, "keys.by-key.dlq", 1)
    assert (dead.value(), headers_of(dead)["__dlq.errors.delivery.count"]) == (b"fails", "3")


def test_records_of_a_key_stay_in_order_while_consumers_come_and_go(broker: Appliance) -> None:
    create(broker, "moving", "movers", options=("--levels", "200ms", "--max", "9", "--ordered-by-key"))
    client = producer(broker)
    for number in range(300):
        for partition in range(2):
            client.produce("moving", b"%d" % number, key=b"k%d" % (number % 10), partition=partition)
    client.flush(PATIENCE_S)
    done: dict[tuple[int, bytes | None], list[int]] = {}
    failed = Counter[tuple[int, int]]()
    lock, ended = threading.Lock(), threading.Event()

    def consume(lives: int, polls: int) -> None:
        for life in range(lives):
            with appliance_client.Consumer(
                "moving",
                bootstrap_servers=broker.address,
                group_id="movers",
                retry_topics=True,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                max_poll_records=20,
            ) as consumer:
                turns, is_all = 0, False
                while not ended.is_set() and (turns < polls or life == lives - 1):
                    turns += 1
                    for records in consumer.poll(100).values():
                        for record in records:
                            with lock:
                                place = record.partition, record.offset
                                if record.offset % 30 == 7 and failed[place] < 2:
                                    failed[place] += 1
                                    record.retry("not yet")
                                    continue
                                done.setdefault((record.partition, record.key), []).append(record.offset)
                                is_all = sum(len(set(each)) for each in done.values()) == 600
                    consumer.commit()
                    if is_all:
                        ended.set()

    threads = [threading.Thread(target=consume, args=each) for each in ((3, 4), (1, 10**6))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ended.is_set()
    for offsets in done.values():
        first = [offset for at, offset in enumerate(offsets) if offset not in offsets[:at]]
        assert first == sorted(first), "a record was processed before an earlier one of its key"
    assert set(failed.values()) == {2}


KILLED = """
import os, sys
from appliance_client import Consumer

address, topic, log = sys.argv[1:]
with Consumer(
    topic, bootstrap_servers=address, group_id=topic, group_instance_id="one", auto_offset_reset="earliest",
    retry_topics=True, auto_commit_interval_ms=50,
) as consumer, open(log, "a", buffering=1) as said:
    for record in consumer:
        attempts = int(dict(record.headers).get("retry.attempts") or 0)
        if record.value == b"kill" or record.value == b"fails, then kills" and attempts:
            os.kill(os.getpid(), 9)
        if record.value.startswith(b"fails") and not attempts:
            record.retry(ValueError("not yet"))
            continue
        said.write(record.value.decode() + "\\n")
        if record.value == b"end":
            break
"""


@pytest.mark.parametrize(
    ("topic", "poison", "options"),
    [
        ("poisoned", b"kill", "--ordered-by-key"),
        ("poisoned-again", b"fails, then kills", "--ordered-by-key"),
        ("poisoned-order", b"fails, then kills", "--ordered"),
    ],
)
def test_a_record_that_kills_each_consumer_ends_with_the_dead_in_its_order(
    broker: Appliance, tmp_path: Path, topic: str, poison: bytes, options: str
) -> None:
    """It waits for a failed record of its key, or fails first itself: each life commits other keys before it dies."""
    create(broker, topic, topic, options=("--levels", "300ms", "--max", "5", options))
    client = producer(broker)
    sent(client, topic, b"fails", key=b"bad", partition=0)
    sent(client, topic, poison, key=b"bad", partition=0)
    for number in range(50):
        for key in (b"bad", b"k%d" % (number % 5)):
            client.produce(topic, b"%s-%d" % (key, number), key=key, partition=0)
    client.flush(PATIENCE_S)
    sent(client, topic, b"end", key=b"bad", partition=0)
    log = tmp_path / "log"
    deaths = 0
    while True:
        arguments = [sys.executable, "-c", KILLED, broker.address, topic, str(log)]
        done = subprocess.run(arguments, timeout=PATIENCE_S, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        deaths += 1
        assert deaths <= 5, "as docs/retries.md says"
        passed = "k4-49" in log.read_text().split()
        assert passed == (options == "--ordered-by-key"), (
            "other keys pass it, if the group asks only for their order"
        )
    (dead,) = read(broker, f"{topic}.{topic}.dlq", 1)
    headers = headers_of(dead)
    assert dead.value() == poison
    assert (headers["__dlq.errors.topic"], headers["__dlq.errors.group"]) == (topic, topic)
    assert "died" in headers["__dlq.errors.message"]
    assert headers["__dlq.errors.delivery.count"] == ("1" if poison == b"kill" else "2")
    processed = list(dict.fromkeys(log.read_text().split()))
    bad = [value for value in processed if value.startswith(("bad", "fails"))]
    assert bad == ["fails", *(f"bad-{number}" for number in range(50))]
    assert {f"k{number % 5}-{number}" for number in range(50)} <= set(processed)
