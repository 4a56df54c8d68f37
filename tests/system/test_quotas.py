"""Quotas seen from clients: what they get, over two network processes, and what they are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.apis.create_partitions import CreatePartitionsRequest, PartitionsTopic
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest
from appliance.protocol.apis.describe_client_quotas import (
    DescribeClientQuotasRequest,
    QuotaFilterComponent,
)
from appliance.protocol.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.apache_kafka import ApacheKafka, tool
from tests.support.broker import Appliance
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.raw import ask, create_topic, produce_body

WINDOW_S: Final = 11
SPAN_S: Final = 20.5
"""Nearly two windows: a client may use up a window's worth at the beginning of each."""
RATE: Final = 2_000_000
MESSAGE: Final = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    running = Appliance(tmp_path_factory.mktemp("quotas") / "data", settings={"network.processes": 2})
    running.start()
    try:
        yield running
    finally:
        running.stop()


def set_quotas(
    broker: Appliance | ApacheKafka, entity: dict[str, str | None], **quotas: float | None
) -> None:
    """None removes one."""
    parts = tuple(QuotaEntity(kind.replace("_", "-"), name) for kind, name in entity.items())
    operations = tuple(
        QuotaOperation(key, 0.0 if value is None else value, value is None) for key, value in quotas.items()
    )
    with WireSocket(broker.port, timeout_s=30) as admin:
        request = AlterClientQuotasRequest((QuotaAlteration(parts, operations),))
        (done,) = ask(admin, ApiKey.ALTER_CLIENT_QUOTAS, request).entries
        assert done.error_code == 0, done


@pytest.fixture
def quota(broker: Appliance) -> Iterator[Callable[..., None]]:
    """Sets quotas of an entity; they are gone at the end."""
    with ExitStack() as undone:

        def set_them(entity: dict[str, str | None], **quotas: float) -> None:
            set_quotas(broker, entity, **quotas)
            undone.callback(set_quotas, broker, entity, **dict.fromkeys(quotas))

        yield set_them


def run_together(clients: dict[str, Callable[[threading.Event], int]], seconds: float) -> dict[str, float]:
    """What each moved in a second."""
    stop = threading.Event()
    moved: dict[str, int] = {}

    def run(name: str) -> None:
        moved[name] = clients[name](stop)

    threads = [threading.Thread(target=run, args=(name,)) for name in clients]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    elapsed = time.monotonic() - began
    for thread in threads:
        thread.join(60)
    return {name: size / elapsed for name, size in moved.items()}


def producing(broker: Appliance, client_id: str, topic: str) -> Callable[[threading.Event], int]:
    """Sends as much as it may; what was acknowledged while it ran counts."""

    def run(stop: threading.Event) -> int:
        acknowledged = 0

        def delivered(error: Any, message: Any) -> None:
            nonlocal acknowledged
            if stop.is_set():
                return  # what is left is purged
            assert error is None, error
            acknowledged += len(MESSAGE)

        producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "client.id": client_id,
                "queue.buffering.max.messages": 200,
                "batch.num.messages": 10,
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
            }
        )
        while not stop.is_set():
            try:
                producer.produce(topic, MESSAGE, on_delivery=delivered)
            except BufferError:
                producer.poll(0.01)
            producer.poll(0)
        producer.purge()
        producer.poll(0)
        return acknowledged

    return run


def consuming(broker: Appliance, client_id: str, topic: str) -> Callable[[threading.Event], int]:
    """Reads as much as it gets, over and over."""

    def run(stop: threading.Event) -> int:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "client.id": client_id,
                "group.id": f"group-{client_id}",
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 1024,
                "fetch.message.max.bytes": 200_000,
                "fetch.max.bytes": 400_000,
                "message.max.bytes": 400_000,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        read = 0
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error():
                continue
            read += len(MESSAGE)
            if message.offset() == FILLED - 1:
                consumer.seek(TopicPartition(topic, 0, 0))
        consumer.close()
        return read

    return run


FILLED: Final = 6_000


@pytest.fixture(scope="module")
def filled(broker: Appliance) -> str:
    assert create_topic(broker.port, "filled") == 0
    producer = Producer({"bootstrap.servers": broker.address, "client.id": "filler"})
    for _ in range(FILLED):
        producer.produce("filled", MESSAGE)
        producer.poll(0)
    assert producer.flush(60) == 0
    return "filled"


@pytest.mark.slow
def test_producers_of_one_client_id_share_its_rate_and_others_are_not_hurt(
    broker: Appliance, quota: Callable[..., None]
) -> None:
    assert create_topic(broker.port, "written") == 0
    quota({"client_id": "limited"}, producer_byte_rate=RATE)
    clients = {f"limited-{number}": producing(broker, "limited", "written") for number in range(4)}
    clients["free"] = producing(broker, "free", "written")
    rates = run_together(clients, SPAN_S)
    free = rates.pop("free")
    print(f"wanted {RATE}, got {sum(rates.values()):.0f} ({rates}); free {free:.0f}")
    assert sum(rates.values()) == pytest.approx(RATE, rel=0.1)
    assert free > 2 * RATE


@pytest.mark.slow
def test_consumers_of_one_client_id_share_its_rate_and_others_are_not_hurt(
    broker: Appliance, quota: Callable[..., None], filled: str
) -> None:
    quota({"client_id": "reader"}, consumer_byte_rate=RATE)
    clients = {f"reader-{number}": consuming(broker, "reader", filled) for number in range(4)}
    clients["free"] = consuming(broker, "free-reader", filled)
    rates = run_together(clients, SPAN_S)
    free = rates.pop("free")
    print(f"wanted {RATE}, got {sum(rates.values()):.0f} ({rates}); free {free:.0f}")
    assert sum(rates.values()) == pytest.approx(RATE, rel=0.1)
    assert free > 2 * RATE


# What clients are told


def batch(size_bytes: int) -> bytes:
    return encode_batch([Record(bytes(size_bytes))])


def produce_raw(connection: WireSocket, topic: str, records: bytes) -> int:
    """Produces with v8; returns the throttle time of the answer."""
    connection.send_request(0, 8, produce_body(topic, records), flexible=False)
    return int.from_bytes(connection.read_frame()[-4:], "big", signed=True)


def warm_up(connection: WireSocket, topic: str) -> None:
    """Lets the connection's network process look at the metadata image with the first quota."""
    produce_raw(connection, topic, batch(1))


def test_an_answer_comes_at_once_says_the_time_and_then_the_connection_is_muted(
    broker: Appliance, quota: Callable[..., None]
) -> None:
    assert create_topic(broker.port, "muted") == 0
    quota({"client_id": "wire"}, producer_byte_rate=100_000)
    with WireSocket(broker.port, timeout_s=30) as connection:
        warm_up(connection, "muted")
        began = time.monotonic()
        assert produce_raw(connection, "muted", batch(900_000)) == 0
        throttle_ms = produce_raw(connection, "muted", batch(350_000))
        assert time.monotonic() - began < 1.0
        assert 1_000 <= throttle_ms <= 3_000
        ask(connection, ApiKey.LIST_GROUPS, ListGroupsRequest())
        waited_s = time.monotonic() - began
        assert waited_s >= throttle_ms / 1_000 - 0.1


def test_a_killed_network_process_leaves_no_budget_used_up(
    broker: Appliance, quota: Callable[..., None]
) -> None:
    assert create_topic(broker.port, "killed") == 0
    quota({"client_id": "wire"}, producer_byte_rate=200_000)
    with ExitStack() as held:
        for _ in range(4):  # some to each of the two
            connection = held.enter_context(WireSocket(broker.port, timeout_s=30))
            warm_up(connection, "killed")
            produce_raw(connection, "killed", batch(950_000))
        sent_s = time.monotonic()
        for index in range(2):
            broker.kill_role("netproc", index)
    wait_for(lambda: answers(broker))
    throttled = True
    while throttled:
        with WireSocket(broker.port, timeout_s=60) as connection:
            throttled = produce_raw(connection, "killed", batch(1)) > 0
        assert time.monotonic() < sent_s + WINDOW_S + 10


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def answers(broker: Appliance) -> bool:
    try:
        with WireSocket(broker.port, timeout_s=1) as connection:
            ask(connection, ApiKey.LIST_GROUPS, ListGroupsRequest())
    except (OSError, ConnectionEnded):
        return False
    return True


def test_time_in_this_process_is_limited_and_a_quota_that_is_gone_limits_nothing(broker: Appliance) -> None:
    with WireSocket(broker.port, timeout_s=30) as connection:
        set_quotas(broker, {"client_id": "raw"}, request_percentage=0.01)
        told = []
        for _ in range(2_000):
            told.append(ask(connection, ApiKey.LIST_GROUPS, ListGroupsRequest()).throttle_time_ms)
            if told[-1]:
                break
        assert 0 < told[-1] <= 1_000
    set_quotas(broker, {"client_id": "raw"}, request_percentage=None)
    with WireSocket(broker.port, timeout_s=30) as connection:
        began = time.monotonic()
        for _ in range(50):
            assert not ask(connection, ApiKey.LIST_GROUPS, ListGroupsRequest()).throttle_time_ms
        assert time.monotonic() - began < 5


def test_kafkas_tool_sets_shows_and_removes_quotas(broker: Appliance) -> None:
    configs = "kafka.admin.ConfigCommand"
    where = ("--bootstrap-server", broker.address)
    for entity, setting in (
        (("--entity-type", "clients", "--entity-name", "tool client"), "producer_byte_rate=1024"),
        (("--entity-type", "clients", "--entity-default"), "request_percentage=250.5"),
        (
            (
                "--entity-type",
                "users",
                "--entity-name",
                "u",
                "--entity-type",
                "clients",
                "--entity-name",
                "c",
            ),
            "consumer_byte_rate=2048",
        ),
        (("--entity-type", "ips", "--entity-name", "10.1.2.3"), "connection_creation_rate=20"),
    ):
        name, _, value = setting.partition("=")
        assert "Completed updating" in tool(configs, *where, "--alter", "--add-config", setting, *entity)
        shown = tool(configs, *where, "--describe", *entity)
        assert name in shown
        assert value in shown
        tool(configs, *where, "--alter", "--delete-config", name, *entity)
        assert name not in tool(configs, *where, "--describe", *entity)


def test_kafkas_tool_sets_and_removes_quotas_of_users(broker: Appliance) -> None:
    configs = "kafka.admin.ConfigCommand"
    where = ("--bootstrap-server", broker.address)
    for entity, name in ((("--entity-name", "tool user"), "tool user"), (("--entity-default",), None)):
        users = ("--entity-type", "users", *entity)
        tool(configs, *where, "--alter", "--add-config", "producer_byte_rate=1024", *users)
        assert shown_of_user(broker, name) == {"producer_byte_rate": 1024.0}
        tool(configs, *where, "--alter", "--delete-config", "producer_byte_rate", *users)
        assert shown_of_user(broker, name) == {}


def shown_of_user(broker: Appliance, name: str | None) -> dict[str, float]:
    wanted = QuotaFilterComponent("user", 1 if name is None else 0, name)
    with WireSocket(broker.port, timeout_s=30) as connection:
        answer = ask(
            connection, ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest((wanted,), strict=True)
        )
    return {value.key: value.value for entry in answer.entries for value in entry.values}


def test_a_java_producer_reports_its_throttle_time(broker: Appliance, quota: Callable[..., None]) -> None:
    assert create_topic(broker.port, "java") == 0
    quota({"client_id": "perf-producer-client"}, producer_byte_rate=200_000)
    began = time.monotonic()
    printed = tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "java", "--num-records", "3000", "--record-size", "1000", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={broker.address}", "client.id=perf-producer-client"),
        "--print-metrics",
    )
    (line,) = [line for line in printed.splitlines() if "produce-throttle-time-max" in line]
    assert float(line.rpartition(":")[2]) > 0
    assert time.monotonic() - began > 5  # ten seconds' bytes at once, and half as many behind them


# Creations and deletions


def create(
    connection: WireSocket, names: tuple[str, ...], partitions: int, version: int
) -> tuple[list[int], int]:
    request = CreateTopicsRequest(tuple(CreatableTopic(name, partitions, 1) for name in names), 30_000, False)
    answer = ask(connection, ApiKey.CREATE_TOPICS, request, version=version)
    errors = {each.name: each.error_code for each in answer.topics}
    return [errors[name] for name in names], answer.throttle_time_ms


def mutate(port: int) -> list[object]:
    """The same creations and deletions, and what is said of them; times in tenths of seconds."""
    said: list[object] = []
    with WireSocket(port, timeout_s=60) as strict:
        errors, throttle_ms = create(strict, ("q1", "q2"), 15, 7)  # 11 are allowed at once
        said += [errors, throttle_ms > 0]
    with WireSocket(port, timeout_s=60) as strict:
        errors, throttle_ms = create(strict, ("q3", "q4"), 1, 6)
        said += [errors, throttle_ms > 0]
    with WireSocket(port, timeout_s=60) as strict:
        grown = CreatePartitionsRequest((PartitionsTopic("q1", 16, None),), 30_000, False)
        answer = ask(strict, ApiKey.CREATE_PARTITIONS, grown, version=3)
        said += [[each.error_code for each in answer.results], answer.throttle_time_ms > 0]
    with WireSocket(port, timeout_s=60) as permissive:
        errors, throttle_ms = create(permissive, ("q5",), 1, 5)
        said += [errors, throttle_ms > 1_000]
    return said


def test_creations_over_the_quota_are_refused_or_throttled_as_in_kafka(
    broker: Appliance, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    kafka.start()
    try:
        said = []
        for each in (broker, kafka):
            set_quotas(each, {"client_id": "raw"}, controller_mutation_rate=1.0)
            time.sleep(1)  # Kafka's controller answers before it goes by it
            said.append(mutate(each.port))
            set_quotas(each, {"client_id": "raw"}, controller_mutation_rate=None)
    finally:
        kafka.stop()
    assert said[0] == said[1]
    refused = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    assert said[0] == [[0, refused], True, [refused] * 2, True, [refused], True, [0], True]


# Connections


def opened(port: int, seconds: float, *, source: str) -> int:
    """How many connections are answered if one is opened after the other."""
    count, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with WireSocket(port, source=source, timeout_s=5) as connection:
                ask(connection, ApiKey.API_VERSIONS, ApiVersionsRequest(), version=0)
                count += 1
        except (OSError, ConnectionEnded):
            pass
    return count


def test_an_address_over_its_rate_is_closed_and_others_are_not_hurt(
    broker: Appliance, quota: Callable[..., None]
) -> None:
    quota({"ip": "127.0.0.9"}, connection_creation_rate=3)
    time.sleep(0.5)  # the acceptor looks at the image when it wakes
    with ThreadPoolExecutor(
        2
    ) as pool:  # at the same time, or it would not be seen that the other is not hurt
        other = pool.submit(opened, broker.port, 4, source="127.0.0.8")
        assert 28 <= opened(broker.port, 4, source="127.0.0.9") <= 34
        assert other.result() > 100


def test_the_rate_of_all_connections_is_kept_and_one_address_may_hold_more(broker: Appliance) -> None:
    settings = {"max.connection.creation.rate": "5", "max.connections.per.ip.overrides": "127.0.0.7:2"}
    alter_broker(broker, settings)
    try:
        time.sleep(0.5)
        with ExitStack() as held:
            for _ in range(2):
                connection = held.enter_context(WireSocket(broker.port, source="127.0.0.7", timeout_s=5))
                ask(connection, ApiKey.API_VERSIONS, ApiVersionsRequest(), version=0)
            third = held.enter_context(WireSocket(broker.port, source="127.0.0.7", timeout_s=5))
            assert third.ends_without_an_answer()
        assert 45 <= opened(broker.port, 8, source="127.0.0.8") <= 5 * 11 + 9
    finally:
        alter_broker(broker, dict.fromkeys(settings))


def alter_broker(broker: Appliance, settings: dict[str, str] | dict[str, None]) -> None:
    changes = tuple(
        AlterableConfig(name, 1 if value is None else 0, value) for name, value in settings.items()
    )
    with WireSocket(broker.port, timeout_s=30) as admin:
        request = IncrementalAlterConfigsRequest((AlterConfigsResource(4, "", changes),))
        (done,) = ask(admin, ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
        assert done.error_code == 0, done
