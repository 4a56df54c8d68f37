"""The log of a running appliance: JSON, levels that change, slow requests; Apache Kafka's tool changes levels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.command import appliance
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.system.raw import wait_until

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
