"""The metrics process beside real clients: what the pages say, that no counter falls, that no scraper hurts anybody."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.channels.roles import RoleKind
from appliance.metrics import families, kafka_page
from tests.support.broker import Appliance
from tests.support.scrape import Key, Scraped, get, scrape
from tests.support.wire import free_ports
from tests.system.raw import wait_until

SLOTS: Final = 2
TOPIC: Final = "orders"
GROUP: Final = 'a "group"\\ with\nlines'
RECORDS: Final = 300
COMMITTED: Final = 100
PATIENCE_S: Final = 60
CONDITIONAL: Final = {
    family.name
    for family in families.ALL
    if "partition" in family.labels
    or any(
        word in family.name
        for word in ("audit", "identity", "client_", "delayed_", "retry_", "trace_", "console_", "otlp_")
    )
}
"""Families of options that this broker has not set."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    port = free_ports(1)
    broker = Appliance(
        tmp_path_factory.mktemp("metrics") / "data",
        slots=SLOTS,
        settings={"metrics.listener": f"127.0.0.1:{port}", "metrics.groups.interval.ms": 1000},
    )
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, 2, SLOTS)])[TOPIC].result(30)
        work(broker)
        yield broker
        broker.stop()
    finally:
        broker.kill()


def port_of(broker: Appliance) -> int:
    return int(str(broker._settings["metrics.listener"]).rpartition(":")[2])


def produce(broker: Appliance, count: int, *, value: bytes = b"v" * 100) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(count):
        producer.produce(TOPIC, value, partition=number % 2, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def work(broker: Appliance) -> None:
    """Produce RECORDS, and commit COMMITTED of them as GROUP."""
    produce(broker, RECORDS)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": GROUP, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(2)])
        assert len(consumer.consume(COMMITTED, PATIENCE_S)) == COMMITTED
        reached = [TopicPartition(TOPIC, partition, COMMITTED // 2) for partition in range(2)]
        consumer.commit(offsets=reached, asynchronous=False)
    finally:
        consumer.close()


def eventually(broker: Appliance, wanted: str, **labels: str) -> Scraped:
    """A page that has this series."""
    found: list[Scraped] = []

    def has_it() -> bool:
        page = scrape(port_of(broker))
        found.append(page)
        return (wanted, frozenset(labels.items())) in page.samples

    wait_until(has_it, f"{wanted} {labels}", timeout_s=PATIENCE_S)
    return found[-1]


def test_the_page_says_what_clients_have_done(broker: Appliance) -> None:
    page = eventually(broker, "appliance_group_lag_records", group=GROUP, topic=TOPIC)
    assert page.value("appliance_topic_produced_records_total", topic=TOPIC) >= RECORDS
    assert page.value("appliance_topic_produced_bytes_total", topic=TOPIC) >= 100 * RECORDS
    assert page.value("appliance_topic_fetched_bytes_total", topic=TOPIC) >= 100 * COMMITTED
    assert page.value("appliance_topic_offsets", topic=TOPIC) >= RECORDS
    assert page.value("appliance_requests_total", api="Produce") >= 1
    assert page.value("appliance_request_duration_seconds_count", api="Produce") >= 1
    assert page.value("appliance_group_lag_records", group=GROUP, topic=TOPIC) == RECORDS - COMMITTED
    assert page.value("appliance_group_stable_lag_records", group=GROUP, topic=TOPIC) == RECORDS - COMMITTED
    aged = eventually(broker, "appliance_group_lag_seconds", group=GROUP, topic=TOPIC)
    assert 0 < aged.value("appliance_group_lag_seconds", group=GROUP, topic=TOPIC) < PATIENCE_S
    assert 0 < aged.value("appliance_group_stable_lag_seconds", group=GROUP, topic=TOPIC) < PATIENCE_S
    committed_s = aged.value("appliance_group_last_commit_timestamp_seconds", group=GROUP, topic=TOPIC)
    assert 0 <= time.time() - committed_s < PATIENCE_S
    assert page.value("appliance_led_partitions", broker="0") >= 1
    assert page.total("appliance_led_partitions") == page.total("appliance_replicas") / SLOTS
    assert page.total("appliance_offline_partitions") == 0
    assert page.value("appliance_controller_active") == 1
    assert 0 <= page.value("appliance_network_idle_ratio") <= 1
    processes = {
        str(dict(labels)["process"]) for (name, labels) in page.samples if name == "appliance_process_up"
    }
    assert processes == {row.role for row in broker.processes()} - {"supervisor"}
    assert page.value("appliance_process_resident_bytes", process="netproc 0") > 1e6


def test_the_sizes_of_logs_are_there_within_seconds(broker: Appliance) -> None:
    def sizes() -> tuple[float, float]:
        page = scrape(port_of(broker))
        return (
            page.value("appliance_topic_log_segments", topic=TOPIC),
            page.value("appliance_topic_log_bytes", topic=TOPIC),
        )

    wait_until(lambda: sizes()[0] == 2, "the segments of both partitions", timeout_s=PATIENCE_S)
    assert sizes()[1] >= 100 * RECORDS


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_name_that_is_documented_is_on_the_page_and_no_other(
    broker: Appliance, openmetrics: bool
) -> None:
    for path, known in (("/metrics", families.ALL), ("/metrics/kafka", kafka_page.ALL)):
        page = scrape(port_of(broker), path, openmetrics=openmetrics)
        kinds = {family.name.removesuffix("_total"): family.type for family in page.families}
        wanted = {each.name.removesuffix("_total"): str(each.kind) for each in known}
        missing = set(wanted) - set(kinds) - {name.removesuffix("_total") for name in CONDITIONAL}
        if path == "/metrics/kafka":
            missing -= {"kafka_topic_partition_leader", "kafka_topic_partition_leader_is_preferred"}
            missing -= {"kafka_log_log_logstartoffset", "kafka_log_log_logendoffset"}
        assert missing == set()
        assert {name: kinds[name] for name in kinds} == {name: wanted[name] for name in kinds}


def test_kafkas_names_say_the_same(broker: Appliance) -> None:
    eventually(broker, "appliance_group_lag_records", group=GROUP, topic=TOPIC)
    own, kafka = scrape(port_of(broker)), scrape(port_of(broker), "/metrics/kafka")
    assert kafka.value("kafka_server_brokertopicmetrics_messagesin_total") == own.value(
        "appliance_produced_records_total"
    )
    assert kafka.value("kafka_server_brokertopicmetrics_bytesin_total", topic=TOPIC) == own.value(
        "appliance_topic_produced_bytes_total", topic=TOPIC
    )
    assert kafka.total("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert kafka.value("kafka_consumergroup_lag", consumergroup=GROUP, topic=TOPIC) == RECORDS - COMMITTED
    assert kafka.value("kafka_topic_partition_current_offset", topic=TOPIC) == own.value(
        "appliance_topic_offsets", topic=TOPIC
    )
    assert kafka.value("kafka_brokers") == SLOTS
    p99 = kafka.value("kafka_network_requestmetrics_totaltimems", request="Produce", quantile="0.99")
    assert 0 < p99 <= 10_000


def test_no_counter_falls_while_every_process_is_killed(broker: Appliance) -> None:
    port, ended = port_of(broker), threading.Event()
    fallen: list[str] = []
    pages = [0]

    def watch() -> None:
        highest: dict[Key, float] = {}
        while not ended.is_set():
            try:
                page = scrape(port)
            except (OSError, HTTPException):
                time.sleep(0.02)  # the metrics process is between two lives
                continue
            pages[0] += 1
            for key, value in page.counters().items():
                if value < highest.get(key, value):
                    fallen.append(f"{key} from {highest[key]} to {value}")
                highest[key] = value
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = scrape(port)
    try:
        for kind in RoleKind:
            if broker.pids(str(kind)) and kind is not RoleKind.SUPERVISOR:
                broker.kill_role(str(kind))
                wait_until(broker.is_whole, f"{kind} runs again", timeout_s=PATIENCE_S)
                seen = pages[0]
                wait_until(lambda seen=seen: pages[0] > seen, "a page", timeout_s=PATIENCE_S)  # type: ignore[misc]
        produce(broker, 20)
    finally:
        ended.set()
        watcher.join()
    assert fallen == []
    assert pages[0] >= 8
    after = scrape(port)
    for process in ("controller", "netproc 0", "ioproc 0.0", "metrics", "coordinator", "acceptor"):
        restarts = after.value("appliance_process_restarts_total", process=process)
        assert restarts == before.value("appliance_process_restarts_total", process=process) + 1, process


def test_a_slot_that_stops_and_comes_back_shows_in_the_replicas(broker: Appliance) -> None:
    port, flag = port_of(broker), ("--bootstrap", broker.address)
    before = scrape(port)
    broker.run("slots", "stop", "1", *flag, timeout_s=PATIENCE_S).check_returncode()
    wait_until(
        lambda: scrape(port).total("appliance_under_replicated_partitions") >= 2,
        "the partitions of the topic are under-replicated",
        timeout_s=PATIENCE_S,
    )
    kafkas = "kafka_server_replicamanager_underreplicatedpartitions"
    wait_until(
        lambda: scrape(port, "/metrics/kafka").value(kafkas, broker="0") >= 2,
        "Kafka's name says so, too",
        timeout_s=PATIENCE_S,
    )
    shrinks = "appliance_isr_shrinks_total"
    wait_until(
        lambda: scrape(port).value(shrinks) >= before.value(shrinks) + 2,
        "the replicas that left are counted",
        timeout_s=PATIENCE_S,
    )
    broker.run("slots", "start", "1", *flag, timeout_s=PATIENCE_S).check_returncode()
    wait_until(
        lambda: scrape(port).total("appliance_under_replicated_partitions") == 0,
        "all replicas are in sync again",
        timeout_s=PATIENCE_S,
    )
    expansions = "appliance_isr_expansions_total"
    wait_until(
        lambda: scrape(port).value(expansions) >= before.value(expansions) + 2,
        "the replicas that came back are counted",
        timeout_s=PATIENCE_S,
    )
    assert scrape(port, "/metrics/kafka").total("kafka_controller_kafkacontroller_activecontrollercount") == 1


def test_health_follows_the_broker(broker: Appliance) -> None:
    port = port_of(broker)
    assert get(port, "/healthz")[::2] == (200, b"ok\n")
    wait_until(lambda: get(port, "/readyz")[0] == 200, "/readyz answers 200", timeout_s=PATIENCE_S)
    assert get(port, "/startupz")[0] == 200
    assert get(port, "/nothing")[0] == 404
    assert get(port, "/metrics", Host="evil.example")[0] == 421


def test_slow_and_hostile_scrapers_hurt_nobody(broker: Appliance) -> None:
    port = port_of(broker)
    hostile: list[socket.socket] = []
    try:
        for number in range(100):
            sock = socket.create_connection(("127.0.0.1", port))
            hostile.append(sock)
            sock.settimeout(10)
            if number % 3 == 0:
                sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")  # and no more
            elif number % 3 == 1:
                sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)  # and reads nothing
            else:
                sock.sendall(bytes(16384))
            if number % 20 == 0:
                assert get(port, "/healthz")[0] == 200
        assert scrape(port).value("appliance_controller_active") == 1
        produce(broker, 10)
        (pid,) = broker.pids("metrics")
        assert Path(f"/proc/{pid}/stat").exists()
    finally:
        for sock in hostile:
            sock.close()
    assert "internal error" not in broker.output()


def test_a_second_appliance_with_the_same_address_does_not_start(broker: Appliance, tmp_path: Path) -> None:
    second = Appliance(tmp_path / "data", settings={"metrics.listener": f"127.0.0.1:{port_of(broker)}"})
    with pytest.raises(AssertionError, match=r"metrics\.listener: 127\.0\.0\.1:\d+: .*in use"):
        second.start()
