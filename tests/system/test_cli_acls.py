"""`appliance acls`, as a user runs it, beside Apache Kafka's kafka-acls on the same broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.apache_kafka import tool
from tests.system.beside_kafkas_tool import Command, served

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
def acls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with served(
        "acls",
        tmp_path_factory.mktemp("acls"),
        **{"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"},
    ) as command:
        yield command


def test_what_kafkas_tool_adds_we_list_and_what_we_add_it_lists(acls: Command) -> None:
    tool(
        COMMAND,
        *("--bootstrap-server", acls.broker.address, "--add", "--allow-principal", "User:alice"),
        *("--operation", "Read", "--topic", "team-", "--resource-pattern-type", "prefixed"),
    )
    (row,) = acls.told("list", "--topic", "team-a")
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
    assert "added: deny User:bob from 10.0.0.7" in acls.run("deny", *arguments).succeeded().text
    listed = tool(COMMAND, "--bootstrap-server", acls.broker.address, "--list")
    assert "resourceType=TRANSACTIONAL_ID, name=payments" in listed
    assert "principal=User:bob, host=10.0.0.7, operation=WRITE, permissionType=DENY" in listed
    assert acls.told("remove", *arguments) == [REMOVED]
    assert acls.told("list", "--transactional-id", "payments") == []
    assert acls.run("remove", *arguments).code == 1


def test_rules_are_there_after_a_kill(acls: Command) -> None:
    acls.run("allow", "User:carol", "all", "--topic", "*", "--group", "g/../%2E x").succeeded()
    acls.broker.kill()
    acls.broker.start()
    assert [row["name"] for row in acls.told("list", "--principal", "User:carol")] == ["*", "g/../%2E x"]
    tool(
        COMMAND,
        *(
            "--bootstrap-server",
            acls.broker.address,
            "--remove",
            "--force",
            "--allow-principal",
            "User:carol",
        ),
        *("--operation", "All", "--group", "g/../%2E x"),
    )
    assert [row["name"] for row in acls.told("list", "--principal", "User:carol")] == ["*"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("allow", "alice", "read", "--topic", "t"), "no colon is present"),
        (("allow", "User:a", "sing", "--topic", "t"), "choose from all, read"),
        (("allow", "User:a", "read"), "name a resource"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_in_words(
    acls: Command, arguments: tuple[str, ...], why: str
) -> None:
    acls.refuses(arguments, why)


def test_without_an_authorizer_it_is_said_that_security_is_off(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with served("acls", tmp_path_factory.mktemp("plain")) as plain:
        outcome = plain.run("list")
        assert outcome.code == 1
        assert "No Authorizer is configured" in outcome.errors
