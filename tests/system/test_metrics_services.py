"""What the metrics page says of delayed delivery, retries, dead letters, the console, a collector and disks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import KafkaError

from tests.support.broker import Appliance
from tests.support.otlp_collector import OtlpCollector
from tests.support.scrape import Scraped, get, scrape
from tests.support.wire import free_ports
from tests.system import delayed, retrying
from tests.system.raw import wait_until

PATIENCE_S: Final = 60
TOPIC: Final = "late"
SOURCE: Final = "orders"
DELAY_MS: Final = 300


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpCollector]:
    made = OtlpCollector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, collector: OtlpCollector) -> Iterator[Appliance]:
    first = free_ports(2)
    started = Appliance(
        tmp_path_factory.mktemp("services") / "data",
        settings={
            "metrics.listener": f"127.0.0.1:{first}",
            "metrics.otlp.endpoint": collector.url,
            "metrics.otlp.interval.ms": 1000,
            "console.listener": f"127.0.0.1:{first + 1}",
            "services.processes": 1,
        },
    )
    started.start()
    try:
        yield started
        started.stop()
    finally:
        started.kill()


def port_of(broker: Appliance, name: str = "metrics.listener") -> int:
    return int(str(broker._settings[name]).rpartition(":")[2])


def page(broker: Appliance) -> Scraped:
    return scrape(port_of(broker))


def eventually(broker: Appliance, name: str, wanted: float, **labels: str) -> Scraped:
    """A page on which the series has reached a value."""
    found: list[Scraped] = []

    def has_it() -> bool:
        try:
            found.append(page(broker))
        except OSError:
            return False  # between two lives of the metrics process
        return found[-1].value(name, **labels) >= wanted

    wait_until(has_it, f"{name} {labels} is {wanted}", timeout_s=PATIENCE_S)
    return found[-1]


def test_delayed_records_are_counted_when_they_are_stored_and_delivered(broker: Appliance) -> None:
    delayed.create(broker, TOPIC, delivery_delay_mode="exact")
    client = retrying.producer(broker)
    for value in (b"a", b"b", b"c"):
        assert not isinstance(
            retrying.sent(client, TOPIC, value, [("delivery.delay", b"%d" % DELAY_MS)]), KafkaError
        )
    retrying.sent(client, TOPIC, b"much later", [("delivery.delay", b"3600000")])
    found = eventually(broker, "appliance_delayed_lateness_seconds_count", 3)
    assert found.value("appliance_delayed_stored_records_total") == 4
    found = eventually(broker, "appliance_delayed_delivered_records_total", 3)
    assert found.value("appliance_delayed_lateness_seconds_count") == 3, (
        "a step to another level is no delivery"
    )
    assert 0 <= found.value("appliance_delayed_lateness_seconds_sum") < PATIENCE_S
    found = eventually(broker, "appliance_delayed_waiting_records", 1)
    assert found.value("appliance_delayed_waiting_records") == 1
    assert found.value("appliance_delayed_overdue_seconds") == 0
    assert found.value("appliance_delayed_dropped_records_total") == 0


def test_no_count_falls_when_the_services_process_is_killed(broker: Appliance) -> None:
    before = page(broker).counters()
    broker.kill_role("services")
    wait_until(broker.is_whole, "it runs again", timeout_s=PATIENCE_S)
    client = retrying.producer(broker)
    retrying.sent(client, TOPIC, b"d", [("delivery.delay", b"100")])
    after = eventually(broker, "appliance_delayed_lateness_seconds_count", 4).counters()
    fallen = {key: (before[key], after[key]) for key in before if after.get(key, 0) < before[key]}
    assert fallen == {}


def test_retries_and_dead_letters_are_counted(broker: Appliance) -> None:
    retry = retrying.create(broker, SOURCE)
    client = retrying.producer(broker)
    before = page(broker)
    first = retrying.sent(client, SOURCE, b"r", partition=0)
    retrying.handed_back(client, retry, first)
    found = eventually(broker, "appliance_retry_handed_back_records_total", 1)
    assert found.value("appliance_retry_dead_letters_total") == 0
    second = retrying.sent(client, SOURCE, b"s", partition=0)
    retrying.handed_back(client, retry, second, ("retry.dead", b"true"))
    found = eventually(broker, "appliance_retry_dead_letters_total", 1)
    assert found.value("appliance_retry_handed_back_records_total") == 1
    stored = "appliance_delayed_stored_records_total"
    assert found.value(stored) == before.value(stored) + 2


def test_the_console_and_the_collector_are_on_the_page(broker: Appliance, collector: OtlpCollector) -> None:
    before = page(broker)
    console = port_of(broker, "console.listener")
    assert get(console, "/login")[0] == 200
    assert get(console, "/login", Host="evil.example")[0] == 421
    requests = "appliance_console_requests_total"
    eventually(broker, requests, before.value(requests) + 1)
    refused = "appliance_console_refused_requests_total"
    eventually(broker, refused, before.value(refused) + 1)
    assert page(broker).value("appliance_console_sessions") == 0
    sent, name = (
        before.value("appliance_metrics_otlp_requests_total", outcome="sent"),
        "appliance_metrics_otlp_requests_total",
    )
    eventually(broker, name, sent + 1, outcome="sent")
    collector.status = 503
    eventually(broker, name, 1, outcome="failed")
    collector.status = 200


def test_what_workers_write_is_counted_for_the_disk(broker: Appliance) -> None:
    client = retrying.producer(broker)
    for _ in range(4):
        retrying.sent(client, SOURCE, bytes(1_000_000), partition=0)
    name = "appliance_process_disk_written_bytes_total"
    broker.kill_role("metrics")  # its next life asks at once, and not when 30 s are over
    wait_until(broker.is_whole, "it runs again", timeout_s=PATIENCE_S)
    found = eventually(broker, name, 4_000_000, process="ioproc 0.0")
    kafka = scrape(port_of(broker), "/metrics/kafka")
    assert kafka.value("kafka_server_kafkaserver_linux_disk_write_bytes") >= 4_000_000
    assert kafka.value("process_open_fds") > 20
    assert kafka.value("process_resident_memory_bytes") > 20e6
    assert kafka.value("process_cpu_seconds_total") > 0
    assert found.value("appliance_process_disk_read_bytes_total", process="ioproc 0.0") >= 0


def test_the_last_values_leave_when_the_appliance_stops(broker: Appliance, collector: OtlpCollector) -> None:
    client = retrying.producer(broker)
    before = len(collector.requests)
    retrying.sent(client, SOURCE, b"last")
    produced = page(broker).value("appliance_produced_records_total")
    broker.stop()
    assert len(collector.requests) > before
    (metrics,) = [each["metrics"] for each in collector.requests[-1][1]["resourceMetrics"][0]["scopeMetrics"]]
    (counter,) = [each for each in metrics if each["name"] == "appliance_produced_records"]
    assert int(counter["sum"]["dataPoints"][0]["asInt"]) >= produced
    broker.start()
