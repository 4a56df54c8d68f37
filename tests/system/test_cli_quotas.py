"""`appliance quotas`, as a user runs it, beside Apache Kafka's kafka-configs on the same broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.apache_kafka import tool
from tests.system.beside_kafkas_tool import Command, served

CONFIGS = "kafka.admin.ConfigCommand"


@pytest.fixture(scope="module")
def quotas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with served("quotas", tmp_path_factory.mktemp("quotas")) as command:
        yield command


def test_what_kafkas_tool_sets_we_list_and_what_we_set_it_lists(quotas: Command) -> None:
    where = ("--bootstrap-server", quotas.broker.address)
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
    assert quotas.told("list") == [row]
    assert quotas.told("list", "--user", "bob") == []
    done = quotas.run(
        "set", "request_percentage=12.5", "consumer_byte_rate=7", "--client-id", "app"
    ).succeeded()
    assert (
        done.text
        == "set: request_percentage = 12.5 of client-id app\nset: consumer_byte_rate = 7 of client-id app\n"
    )
    shown = tool(CONFIGS, *where, "--describe", "--entity-type", "clients", "--entity-name", "app")
    assert "request_percentage=12.5" in shown
    assert "consumer_byte_rate=7.0" in shown
    table = quotas.run("list").succeeded().text
    assert "alice  <default>      producer_byte_rate  1024" in " ".join(table.split("\n"))
    assert quotas.told("remove", "--client-id", "app") == [
        {"entity": {"client-id": "app"}, "quotas": {"consumer_byte_rate": None, "request_percentage": None}}
    ]
    assert quotas.told("list") == [row]
    assert quotas.run("remove", "--client-id", "app").code == 1
    quotas.run("remove", "producer_byte_rate", "--user", "alice", "--client-id-default").succeeded()
    assert quotas.told("list") == []


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
    quotas: Command, arguments: tuple[str, ...], why: str
) -> None:
    quotas.refuses(arguments, why)
