"""The message audit through real clients: what is counted, and that no death changes it. See docs/message-audit.md."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer

from appliance.cli.status import processes_of
from tests.cli.command import appliance
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.system.raw import wait_until

PATIENCE_S: Final = 60.0
BUCKET_MS: Final = 1_000


def started(data_dir: Path, *, services: int = 1) -> Appliance:
    made = Appliance(data_dir, settings={"services.processes": services} if services else {})
    made.start()
    return made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = started(tmp_path_factory.mktemp("audit") / "data")
    yield made
    made.stop()


def create(broker: Appliance, topic: str, **configs: str) -> None:
    configs = {
        "audit.enable": "true",
        "audit.bucket.ms": str(BUCKET_MS),
        **{name.replace("_", "."): each for name, each in configs.items()},
    }
    client = AdminClient({"bootstrap.servers": broker.address})
    client.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(PATIENCE_S)


def produced(broker: Appliance, topic: str, numbers: list[int], *, client_id: str = "orders") -> None:
    client = Producer({"bootstrap.servers": broker.address, "client.id": client_id, "linger.ms": 5})
    for number in numbers:
        client.produce(topic, b"x" * 100, headers=[("audit.id", b"s:%d" % number)])
    assert client.flush(PATIENCE_S) == 0


def consumed(broker: Appliance, topic: str, wanted: int, *, group: str = "billing") -> None:
    """Read and commit `wanted` records in a group."""
    client = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    client.subscribe([topic])
    found = 0
    until = time.monotonic() + PATIENCE_S
    while found < wanted and time.monotonic() < until:
        found += len([each for each in client.consume(100, 0.1) if each.error() is None])
    assert found >= wanted
    client.commit(asynchronous=False)
    client.poll(0.3)  # its next fetch shows that it has read what came before
    client.close()


def report(broker: Appliance, topic: str, *flags: str) -> dict[str, Any]:
    shown = appliance("audit", topic, "-b", broker.address, "--json", *flags).succeeded()
    found: dict[str, Any] = json.loads(shown.text)
    return found


def sums(found: dict[str, Any]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for bucket in found["buckets"]:
        counted["produced"] += bucket["produced"]["records"]
        for each in bucket["producers"]:
            counted[f"client {each['client']}"] += each["records"]
        for each in bucket["groups"]:
            counted[f"group {each['group']}"] += each["records"]
        for each in bucket["fetched"]:
            counted[f"fetched {each['client']}"] += each["records"]
    return counted


def awaited(broker: Appliance, topic: str, **wanted: int) -> dict[str, Any]:
    """Return the report once it has at least these sums."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = report(broker, topic)
        except AssertionError:
            if time.monotonic() > until:
                raise
            continue
        counted = sums(found)
        if all(counted[name.replace("_", " ")] >= count for name, count in wanted.items()):
            return found
        assert time.monotonic() < until, f"{wanted} did not come: {counted}"


def kill(broker: Appliance, role: str) -> None:
    """Kill a process, and wait until its next life has begun."""
    pids: list[int] = []

    def lives() -> bool:
        rows = processes_of(broker.data_dir.resolve()) or []
        found = [row["pid"] for row in rows if row["role"] == role]
        pids[:] = [pid for pid in found if pid not in before and psutil.pid_exists(pid)]
        return bool(pids)

    before: list[int] = []
    wait_until(lives, f"{role} lives")
    before = list(pids)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lives, f"{role} lives again")


def test_one_dropped_and_one_doubled_record_are_named_whatever_dies(broker: Appliance) -> None:
    create(broker, "orders", audit_headers="true")
    numbers = list(range(1_200))
    numbers.remove(700)
    numbers.insert(900, 800)
    stop = threading.Event()
    kills: list[float] = []

    def kill_services() -> None:
        while not stop.is_set():
            kill(broker, "services")
            kills.append(time.monotonic())
            stop.wait(0.4)

    killer = threading.Thread(target=kill_services)
    killer.start()
    try:
        for begin in range(0, len(numbers), 400):
            produced(broker, "orders", numbers[begin : begin + 400])
            consumed(broker, "orders", 400)
            time.sleep(0.3)
    finally:
        stop.set()
        killer.join()
    assert len(kills) >= 2
    found = awaited(broker, "orders", produced=1_200, group_billing=1_200, fetched_reader=1_200)
    counted = sums(found)
    assert counted["produced"] == counted["group billing"] == 1_200, "nothing twice, nothing lost"
    assert counted["client orders"] + counted["client "] == 1_200
    assert all(group["difference"] == 0 for bucket in found["buckets"] for group in bucket["groups"])
    assert [(each["kind"], each["first"], each["last"], each["source"]) for each in found["findings"]] == [
        ("missing", 700, 700, "s"),
        ("duplicate", 800, 800, "s"),
    ]
    buckets = {bucket["bucket"] for bucket in found["buckets"]}
    assert all(each["bucket"] in buckets for each in found["findings"])


def test_the_bucket_whose_records_are_not_consumed_is_seen_and_flags_narrow_the_report(
    broker: Appliance,
) -> None:
    create(broker, "late")
    produced(broker, "late", list(range(10)))
    consumed(broker, "late", 10)
    time.sleep(2 * BUCKET_MS / 1000)
    between_s = time.time() - BUCKET_MS / 1000
    produced(broker, "late", list(range(7)), client_id="other")
    found = awaited(broker, "late", produced=17, group_billing=10, client_other=7)
    differences = [bucket["groups"][0]["difference"] for bucket in found["buckets"]]
    assert sum(differences) == 7
    assert differences[-1] > 0
    assert found["buckets"][0]["groups"][0]["difference"] == 0
    assert found["findings"] == [], "no ids are read without audit.headers"
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(between_s))
    assert sums(report(broker, "late", "--from", since))["produced"] == 7
    assert sums(report(broker, "late", "--to", since))["produced"] == 10
    assert [each["group"] for each in report(broker, "late", "--group", "no")["buckets"][0]["groups"]] == [
        "no"
    ]
    shown = appliance("audit", "late", "-b", broker.address).succeeded().text
    assert "group billing" in shown
    assert "client other (User:ANONYMOUS)" in shown


def test_delays_of_producing_and_consuming_come_out(broker: Appliance) -> None:
    create(broker, "slow", audit_headers="true")
    client = Producer({"bootstrap.servers": broker.address})
    at_ms = int(time.time() * 1000) - 4_000
    client.produce("slow", b"x", headers=[("audit.time", b"%d" % at_ms)])
    client.flush(PATIENCE_S)
    consumed(broker, "slow", 1)
    found = awaited(broker, "slow", produced=1, group_billing=1, client_rdkafka=1)
    (bucket,) = found["buckets"]
    assert bucket["bucket"] == at_ms - at_ms % BUCKET_MS
    assert 4_000 <= bucket["produced"]["delay"]["max_ms"] < 60_000
    assert bucket["groups"][0]["delay"]["max_ms"] >= bucket["produced"]["delay"]["max_ms"]


def test_a_transaction_counts_for_its_group_when_it_is_committed(broker: Appliance) -> None:
    create(broker, "source")
    produced(broker, "source", list(range(5)))
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "eos", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["source"])
    assert len(consumer.consume(5, PATIENCE_S)) == 5
    client = Producer({"bootstrap.servers": broker.address, "transactional.id": "audit"})
    client.init_transactions(PATIENCE_S)
    for offset, ends in ((3, client.abort_transaction), (5, client.commit_transaction)):
        client.begin_transaction()
        client.send_offsets_to_transaction(
            [TopicPartition("source", 0, offset)], consumer.consumer_group_metadata(), PATIENCE_S
        )
        ends(PATIENCE_S)
    found = awaited(broker, "source", group_eos=5)
    assert sums(found)["group eos"] == 5
    consumer.close()


def test_any_kafka_client_reads_the_results_and_none_writes_them(broker: Appliance) -> None:
    create(broker, "seen")
    produced(broker, "seen", [1, 2])
    awaited(broker, "seen", produced=2)
    consumer = KafkaConsumer(
        "__audit",
        bootstrap_servers=broker.address,
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=3_000,
        exclude_internal_topics=False,
    )
    found = [json.loads(each.value) for each in consumer]
    consumer.close()
    assert (
        sum(each["records"] for each in found if each.get("topic") == "seen" and each["kind"] == "produced")
        == 2
    )
    shown = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        broker.address,
        "--topic",
        "__audit",
        "--from-beginning",
        "--max-messages",
        "1",
    )
    assert '"kind":"produced"' in shown
    errors: list[KafkaError | None] = []
    client = Producer({"bootstrap.servers": broker.address})
    client.produce("__audit", b"{}", on_delivery=lambda error, _: errors.append(error))
    client.flush(PATIENCE_S)
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.TOPIC_EXCEPTION
    admin = AdminClient({"bootstrap.servers": broker.address})
    with pytest.raises(KafkaException):
        admin.delete_topics(["__audit"])["__audit"].result(PATIENCE_S)


def test_a_topic_without_audit_is_observed_by_nobody(broker: Appliance) -> None:
    create(broker, "on-and-off", audit_enable="false")
    produced(broker, "on-and-off", [1, 2, 3])
    shown = report(broker, "on-and-off")
    assert shown["buckets"] == []
    appliance("configs", "set", "-t", "on-and-off", "audit.enable=true", "-b", broker.address).succeeded()
    found = awaited(broker, "on-and-off", produced=3)
    assert sums(found) == {"produced": 3, "client ": 3}, "counted from the beginning, by whom nobody knows"


def test_bad_arguments_are_named(broker: Appliance) -> None:
    for arguments, why in (
        (("nowhere",), "'nowhere' does not exist"),
        (("seen", "--from", "soon"), "'soon' is no time"),
        (("seen", "--from", "1h", "--to", "2h"), "--from must be before --to"),
    ):
        done = appliance("audit", *arguments, "-b", broker.address)
        assert done.code != 0
        assert why in done.text + done.errors


def test_a_services_process_with_nothing_to_do_sleeps(broker: Appliance) -> None:
    def loops() -> int:
        rows = processes_of(broker.data_dir.resolve()) or []
        (found,) = (row["loops"] for row in rows if row["role"] == "services")
        return int(found)

    before = loops()
    time.sleep(3)
    assert loops() - before < 100, "an audit looks once a second"
