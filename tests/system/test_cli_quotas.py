"""`appliance quotas`, as a user runs it, beside Apache Kafka's kafka-configs on the same broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.command import Outcome, appliance
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance

CONFIGS = "kafka.admin.ConfigCommand"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    running = Appliance(tmp_path_factory.mktemp("quotas") / "data")
    running.start()
    try:
        yield running
    finally:
        running.stop()


def run(broker: Appliance, *arguments: object) -> Outcome:
    return appliance("quotas", *arguments, "-b", broker.address)


def told(broker: Appliance, *arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(broker, *arguments, "--json").succeeded().output)
    return found


def test_what_kafkas_tool_sets_we_list_and_what_we_set_it_lists(broker: Appliance) -> None:
    where = ("--bootstrap-server", broker.address)
    entity = (
        "--entity-type",
        "users",
        "--entity-name",
        "alice",
        "--entity-type",
        "clients",
        "--entity-default",
    )
    tool(CONFIGS, *where, "--alter", "--add-config", "producer_byte_rate=1024", *entity)
    row = {"entity": {"user": "alice", "client-id": None}, "quotas": {"producer_byte_rate": 1024.0}}
    assert told(broker, "list") == [row]
    assert told(broker, "list", "--user", "bob") == []
    done = run(
        broker, "set", "request_percentage=12.5", "consumer_byte_rate=7", "--client-id", "app"
    ).succeeded()
    assert (
        done.text
        == "set: request_percentage = 12.5 of client-id app\nset: consumer_byte_rate = 7 of client-id app\n"
    )
    shown = tool(CONFIGS, *where, "--describe", "--entity-type", "clients", "--entity-name", "app")
    assert "request_percentage=12.5" in shown
    assert "consumer_byte_rate=7.0" in shown
    table = run(broker, "list").succeeded().text
    assert "alice  <default>      producer_byte_rate  1024" in " ".join(table.split("\n"))
    assert told(broker, "remove", "--client-id", "app") == [
        {"entity": {"client-id": "app"}, "quotas": {"consumer_byte_rate": None, "request_percentage": None}}
    ]
    assert told(broker, "list") == [row]
    assert run(broker, "remove", "--client-id", "app").code == 1
    run(broker, "remove", "producer_byte_rate", "--user", "alice", "--client-id-default").succeeded()
    assert told(broker, "list") == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("set", "producer_byte_rate=1"), "name an entity"),
        (("set", "producer_byte_rate=-1", "--user", "u"), "a number above 0"),
        (("set", "producer_byte_rate", "--user", "u"), "QUOTA=VALUE"),
        (("set", "connection_creation_rate=1", "--user", "u"), "choose from producer_byte_rate"),
        (("set", "producer_byte_rate=1", "--user", "u", "--user-default"), "exclude each other"),
        (("set", "producer_byte_rate=1.5", "--user", "u"), "fractional"),
        (("set", "connection_creation_rate=1", "--ip", "nowhere"), "not a valid IP"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_in_words(
    broker: Appliance, arguments: tuple[str, ...], why: str
) -> None:
    outcome = run(broker, *arguments)
    assert outcome.code in {1, 2}
    assert why in outcome.errors
