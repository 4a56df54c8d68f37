"""`appliance acls`, as a user runs it, beside Apache Kafka's kafka-acls on the same broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.command import Outcome, appliance
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.support.judge import QUICK_GROUPS

COMMAND = "org.apache.kafka.tools.AclCommand"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
REMOVED = {
    "resource": "transactional-id",
    "name": "payments",
    "pattern": "literal",
    "principal": "User:bob",
    "host": "10.0.0.7",
    "permission": "deny",
    "operation": "write",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    running = Appliance(
        tmp_path_factory.mktemp("acls") / "data",
        settings={
            **QUICK_GROUPS,
            "authorizer.class.name": AUTHORIZER,
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    running.start()
    try:
        yield running
    finally:
        running.stop()


def run(broker: Appliance, *arguments: object) -> Outcome:
    return appliance("acls", *arguments, "-b", broker.address)


def told(broker: Appliance, *arguments: object) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(run(broker, *arguments, "--json").succeeded().output)
    return found


def test_what_kafkas_tool_adds_we_list_and_what_we_add_it_lists(broker: Appliance) -> None:
    tool(
        COMMAND,
        *("--bootstrap-server", broker.address, "--add", "--allow-principal", "User:alice"),
        *("--operation", "Read", "--topic", "team-", "--resource-pattern-type", "prefixed"),
    )
    (row,) = told(broker, "list", "--topic", "team-a")
    assert row == {
        "resource": "topic",
        "name": "team-",
        "pattern": "prefixed",
        "principal": "User:alice",
        "host": "*",
        "permission": "allow",
        "operation": "read",
    }
    arguments = ("User:bob", "write", "--transactional-id", "payments", "--host", "10.0.0.7")
    assert "added: deny User:bob from 10.0.0.7" in run(broker, "deny", *arguments).succeeded().text
    listed = tool(COMMAND, "--bootstrap-server", broker.address, "--list")
    assert "resourceType=TRANSACTIONAL_ID, name=payments" in listed
    assert "principal=User:bob, host=10.0.0.7, operation=WRITE, permissionType=DENY" in listed
    assert told(broker, "remove", *arguments) == [REMOVED]
    assert told(broker, "list", "--transactional-id", "payments") == []
    assert run(broker, "remove", *arguments).code == 1


def test_rules_are_there_after_a_kill(broker: Appliance) -> None:
    run(broker, "allow", "User:carol", "all", "--topic", "*", "--group", "g/../%2E x").succeeded()
    broker.kill()
    broker.start()
    assert [row["name"] for row in told(broker, "list", "--principal", "User:carol")] == ["*", "g/../%2E x"]
    tool(
        COMMAND,
        *("--bootstrap-server", broker.address, "--remove", "--force", "--allow-principal", "User:carol"),
        *("--operation", "All", "--group", "g/../%2E x"),
    )
    assert [row["name"] for row in told(broker, "list", "--principal", "User:carol")] == ["*"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("allow", "alice", "read", "--topic", "t"), "no colon is present"),
        (("allow", "User:a", "sing", "--topic", "t"), "choose from all, read"),
        (("allow", "User:a", "read"), "name a resource"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_in_words(
    broker: Appliance, arguments: tuple[str, ...], why: str
) -> None:
    outcome = run(broker, *arguments)
    assert outcome.code in {1, 2}
    assert why in outcome.errors


def test_without_an_authorizer_it_is_said_that_security_is_off(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plain = Appliance(tmp_path_factory.mktemp("plain") / "data")
    plain.start()
    try:
        outcome = run(plain, "list")
        assert outcome.code == 1
        assert "No Authorizer is configured" in outcome.errors
    finally:
        plain.stop()
