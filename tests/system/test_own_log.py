"""The log of a running appliance: JSON, levels that change, slow requests; Apache Kafka's tool changes levels."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import appliance
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, produce, wait_until

SECRET = "record-value-4711"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(tmp_path_factory.mktemp("log") / "data", settings={"log.format": "json"})
    started.start()
    try:
        yield started
    finally:
        started.stop()


def lines(broker: Appliance) -> list[dict[str, Any]]:
    """Every line of the log that is an object."""
    return [json.loads(line) for line in broker.output().splitlines() if line.startswith("{")]


def events(broker: Appliance, name: str, **values: object) -> list[dict[str, Any]]:
    return [each for each in lines(broker) if each["event"] == name and values.items() <= each.items()]


def test_every_line_is_an_object_with_an_event_of_the_table(broker: Appliance) -> None:
    from appliance.journal_events import EVENTS

    assert events(broker, "controller-started", process="controller")
    known = {event.name for event in EVENTS}
    assert {each["event"] for each in lines(broker)} <= known


def test_kafkas_tool_changes_the_level_of_one_kind_of_process_while_it_runs(broker: Appliance) -> None:
    entity = (
        "--bootstrap-server", broker.address, "--entity-type", "broker-loggers", "--entity-name", "0",
    )  # fmt: skip
    tool("kafka.admin.ConfigCommand", *entity, "--alter", "--add-config", "netproc=DEBUG")
    wait_until(lambda: bool(events(broker, "log-levels")), "the controller to say so")
    appliance("topics", "list", "-b", broker.address).succeeded()
    wait_until(lambda: bool(events(broker, "connection-opened", level="DEBUG")), "a line of DEBUG")
    assert "netproc=DEBUG" in tool("kafka.admin.ConfigCommand", *entity, "--describe")
    tool("kafka.admin.ConfigCommand", *entity, "--alter", "--delete-config", "netproc")
    wait_until(lambda: len(events(broker, "log-levels")) == 2, "the controller to say so")
    wait_until(lambda: _adds_no_line(broker), "no more lines of DEBUG")


def _adds_no_line(broker: Appliance) -> bool:
    before = len(events(broker, "connection-opened"))
    appliance("topics", "list", "-b", broker.address).succeeded()
    return len(events(broker, "connection-opened")) == before


def test_next_life_of_a_process_logs_from_the_level_that_was_set(broker: Appliance) -> None:
    def set_level(level: str) -> None:
        appliance(
            "configs", "set", f"log.level.ioproc={level}", "--all-brokers", "-b", broker.address
        ).succeeded()

    set_level("DEBUG")
    wait_until(lambda: bool(events(broker, "log-levels", levels="root INFO, ioproc DEBUG")), "the level")
    before = len(events(broker, "assignment"))
    broker.kill_role("ioproc")
    wait_until(
        lambda: len(events(broker, "assignment", process="ioproc 0.0")) > before, "a line of its next life"
    )
    set_level("INFO")


def test_slow_requests_are_logged_while_the_option_says_so_and_show_no_record(broker: Appliance) -> None:
    appliance("topics", "create", "slow", "-b", broker.address).succeeded()
    appliance("produce", "slow", "-b", broker.address, given=SECRET.encode()).succeeded()
    assert not events(broker, "slow-request")
    # Every produce with a group commit of the disk takes a millisecond.
    option = ("--all-brokers", "-b", broker.address)
    appliance("configs", "set", "log.slow.request.ms=1", *option).succeeded()

    def is_logged() -> bool:
        records = b"\n".join([SECRET.encode() * 100] * 2000)
        appliance("produce", "slow", "-b", broker.address, given=records).succeeded()
        return bool(events(broker, "slow-request", api="Produce"))

    wait_until(is_logged, "a slow request")
    line = events(broker, "slow-request", api="Produce")[0]
    assert line["total_ms"] >= 1
    assert line["bytes"] > 1000
    assert line["process"].startswith("netproc")
    appliance("configs", "unset", "log.slow.request.ms", *option).succeeded()
    assert SECRET not in broker.output()


def test_no_line_shows_what_is_in_a_record_even_at_debug(broker: Appliance) -> None:
    """Good, refused and damaged records, of groups and transactions, while processes are killed."""
    before = len(broker.output())
    flags = ("--all-brokers", "-b", broker.address)
    appliance("configs", "unset", "log.level.ioproc", *flags).succeeded()
    appliance("configs", "set", "log.level=DEBUG", "log.slow.request.ms=1", *flags).succeeded()
    wait_until(lambda: bool(events(broker, "log-levels", levels="root DEBUG")), "the level")
    create_topic(broker.port, "hidden")
    create_topic(broker.port, "compacted", configs={"cleanup.policy": "compact"})
    _produce_secrets(broker)
    broker.kill_role("ioproc")
    broker.kill_role("netproc")
    broker.kill_role("coordinator")
    wait_until(broker.is_whole, "all processes are back")
    _produce_secrets(broker)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["hidden"])
    assert SECRET.encode() in (consumer.consume(1, 30)[0].value() or b"")
    consumer.commit(asynchronous=False)
    consumer.close()
    appliance("configs", "unset", "log.level", "log.slow.request.ms", *flags).succeeded()
    said = broker.output()[before:]
    assert said.count("DEBUG") > 10, "there are lines to look at"
    assert SECRET not in said
    assert SECRET.encode().hex() not in said
    assert base64.b64encode(SECRET.encode()).decode().rstrip("=")[:-2] not in said


def _produce_secrets(broker: Appliance) -> None:
    secret = SECRET.encode()
    options = {"bootstrap.servers": broker.address, "log_level": 0}
    producer = Producer({**options, "transactional.id": "t"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("hidden", secret, key=secret, headers=[(SECRET, secret)])
    producer.commit_transaction(60)
    good = encode_batch([Record(secret, secret, ((SECRET, secret),), 5)])
    without_key = encode_batch([Record(secret, None, (), 5)])
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    with WireSocket(broker.port) as connection:
        assert produce(connection, "hidden", good).error == 0
        assert produce(connection, "hidden", damaged).error == ErrorCode.CORRUPT_MESSAGE
        assert produce(connection, "compacted", without_key).error == ErrorCode.INVALID_RECORD
        assert produce(connection, "hidden", secret * 3).error
        assert produce(connection, "nowhere", good).error
