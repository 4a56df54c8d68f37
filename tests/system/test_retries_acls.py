"""Who may hand records back, read what comes again, look at dead letters, replay and purge them, and enable retries.

As docs/retries.md says in "Who may do what". Users log in with SCRAM, and the broker asks Kafka's ACLs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

import appliance_client
from tests.cli.command import Outcome, appliance
from tests.support.broker import Appliance
from tests.support.wire import free_ports
from tests.system.retrying import PATIENCE_S, first_place, sent

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PASSWORD: Final = "a long password"
TOPIC: Final = "orders"
RETRY: Final = "orders.billing.retry"
DEAD: Final = "orders.billing.dlq"
USERS: Final = ("root", "worker", "stranger", "clerk", "janitor", "owner")


class Scene:
    """A broker with logins. `root` may do everything."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        port = free_ports(2)
        self.address = f"127.0.0.1:{port + 1}"
        self.broker = Appliance(
            directory / "data",
            port=port,
            settings={
                "listeners": [f"PLAINTEXT://127.0.0.1:{port}", f"SASL_PLAINTEXT://{self.address}"],
                "advertised.listeners": [f"SASL_PLAINTEXT://{self.address}"],
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "authorizer.class.name": AUTHORIZER,
                "super.users": "User:root;User:ANONYMOUS",
                "services.processes": 1,
            },
        )

    def options(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    def run(self, user: str, *arguments: object) -> Outcome:
        """A command of ours, as this user."""
        path = self.directory / f"{user}.properties"
        said = self.options(user)
        del said["bootstrap.servers"]
        path.write_text("".join(f"{name}={value}\n" for name, value in said.items()))
        return appliance(*arguments, "--bootstrap", self.address, "--client-config", path)

    def allow(self, user: str, operation: str, *resource: str) -> None:
        self.run("root", "acls", "allow", f"User:{user}", operation, *resource).succeeded()

    def refused(self, user: str, *arguments: object) -> str:
        outcome = self.run(user, *arguments)
        assert outcome.code == 1, outcome.text
        return outcome.text + outcome.errors

    def hand_back(self, user: str, value: bytes, offset: int, *more: tuple[str, bytes]) -> Any:
        client = Producer({**self.options(user), "message.timeout.ms": 10_000})
        return sent(client, RETRY, value, [*first_place(TOPIC, 0, offset), *more])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("retries-acls"))
    try:
        made.broker.start()
        for user in USERS:
            appliance(
                *("users", "add", user, "--mechanism", "SCRAM-SHA-256", "--password-file", "-"),
                *("--bootstrap", made.broker.address),
                given=PASSWORD.encode() + b"\n",
            ).succeeded()
        made.run("root", "topics", "create", TOPIC).succeeded()
        made.run("root", "retries", "enable", "billing", TOPIC, "--levels", "200ms", "--max", "1").succeeded()
        yield made
    finally:
        made.broker.stop()


def read_as(scene: Scene, user: str, topic: str, group: str) -> bytes | KafkaError | None:
    """Return the first record of a topic as a member of a group, or why the broker refuses it."""
    client = Consumer({**scene.options(user), "group.id": group, "auto.offset.reset": "earliest"})
    client.subscribe([topic])
    try:
        message = client.poll(PATIENCE_S)
        return None if message is None else message.error() or message.value()
    finally:
        client.close()


def test_write_on_the_retry_topic_is_all_that_a_hand_back_needs(scene: Scene) -> None:
    refused = scene.hand_back("worker", b"x", 1)
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    scene.allow("worker", "write", "--topic", RETRY)
    assert scene.hand_back("worker", b"x", 1).error() is None
    # The broker writes the dead letter: the worker has no right to the dead-letter topic.
    assert scene.hand_back("worker", b"dead", 2, ("retry.dead", b"true")).error() is None
    direct = sent(Producer(scene.options("worker")), DEAD, b"forged")
    assert direct.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert scene.hand_back("stranger", b"x", 3).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_read_on_the_retry_topic_and_on_the_group_lets_a_consumer_read_what_comes_again(scene: Scene) -> None:
    scene.allow("worker", "write", "--topic", RETRY)
    scene.allow("worker", "read", "--group", "billing")
    found = read_as(scene, "worker", RETRY, "billing")
    assert isinstance(found, KafkaError)
    assert found.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    scene.allow("worker", "read", "--topic", RETRY)
    scene.allow("worker", "read", "--topic", TOPIC)
    assert scene.hand_back("worker", b"again", 11).error() is None
    assert isinstance(read_as(scene, "worker", RETRY, "billing"), bytes)
    refused = read_as(scene, "worker", RETRY, "foreign")
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    refused = read_as(scene, "worker", DEAD, "billing")
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_the_native_client_says_what_it_may_not(scene: Scene) -> None:
    for operation, resource in (("read", TOPIC), ("read", RETRY), ("describe-configs", RETRY)):
        scene.allow("clerk", operation, "--topic", resource)
    scene.allow("clerk", "read", "--group", "clerks")
    sent(Producer(scene.options("root")), TOPIC, b"value")
    scene.run("root", "retries", "enable", "clerks", TOPIC, "--levels", "200ms").succeeded()
    retry = f"{TOPIC}.clerks.retry"
    scene.allow("clerk", "read", "--topic", retry)
    scene.allow("clerk", "describe-configs", "--topic", retry)
    options = {name.replace(".", "_"): value for name, value in scene.options("clerk").items()}
    with appliance_client.Consumer(
        TOPIC, group_id="clerks", auto_offset_reset="earliest", retry_topics=True, **options
    ) as consumer:
        record = next(consumer)
        with pytest.raises(appliance_client.errors.ClientError, match=r"(?i)authori[sz]"):
            record.retry("no")
        scene.allow("clerk", "write", "--topic", retry)
        record.retry("no")
        assert next(each for each in consumer if each.topic == retry).value == b"value"


def test_each_command_needs_its_rights_and_says_which_topic_it_may_not_touch(scene: Scene) -> None:
    assert scene.hand_back("root", b"letter", 21, ("retry.dead", b"true")).error() is None
    assert scene.hand_back("root", b"letter", 22, ("retry.dead", b"true")).error() is None
    words = "billing", TOPIC
    for command in (("list",), ("show",), ("replay",), ("purge", "--yes")):
        said = scene.refused("janitor", "dead-letters", command[0], *words, *command[1:])
        assert "authoriz" in said.lower(), said
    for operation in ("describe-configs", "read"):
        for topic in (RETRY, DEAD):
            scene.allow("janitor", operation, "--topic", topic)
    assert "letter" in scene.run("janitor", "dead-letters", "show", *words).succeeded().text
    for command in (("replay",), ("purge", "--yes")):
        said = scene.refused("janitor", "dead-letters", command[0], *words, *command[1:])
        assert "authoriz" in said.lower(), said
    count = len(scene.run("root", "dead-letters", "list", *words, "--json").succeeded().text.splitlines())
    scene.allow("janitor", "write", "--topic", DEAD)
    scene.allow("janitor", "delete", "--topic", DEAD)
    scene.refused("janitor", "dead-letters", "replay", *words)  # WRITE on the retry topic is missing
    after = scene.run("root", "dead-letters", "list", *words, "--json").succeeded().text.splitlines()
    assert len(after) == count, "what was refused has moved nothing"
    scene.allow("janitor", "write", "--topic", RETRY)
    scene.run("janitor", "dead-letters", "replay", *words).succeeded()
    assert scene.hand_back("root", b"letter", 23, ("retry.dead", b"true")).error() is None
    scene.run("janitor", "dead-letters", "purge", *words, "--yes").succeeded()


def test_who_may_enable_retries(scene: Scene) -> None:
    scene.allow("owner", "describe", "--topic", TOPIC)
    scene.allow("owner", "describe-configs", "--topic", TOPIC)
    words = "shipping", TOPIC, "--levels", "1s"
    said = scene.refused("owner", "retries", "enable", *words)
    assert "authoriz" in said.lower(), said
    for topic in (f"{TOPIC}.shipping.retry", f"{TOPIC}.shipping.dlq"):
        scene.allow("owner", "create", "--topic", topic)
        scene.allow("owner", "describe-configs", "--topic", topic)
    scene.run("owner", "retries", "enable", *words).succeeded()
    said = scene.refused("owner", "retries", "disable", "shipping", TOPIC)
    assert f"{TOPIC}.shipping.retry" in said
    assert "authoriz" in said.lower(), said
    scene.allow("owner", "alter-configs", "--topic", f"{TOPIC}.shipping.retry")
    scene.run("owner", "retries", "disable", "shipping", TOPIC).succeeded()
