"""Client certificates name principals, and ACLs say what each of them may do; confluent-kafka on every side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.support.broker import Appliance
from tests.support.judge import QUICK_GROUPS
from tests.support.pki import Authority
from tests.support.wire import free_ports

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
USERS = ("admin", "alice", "bob")


class Scene:
    """An appliance with a listener that wants certificates, and three users; `settings` are further ones."""

    def __init__(
        self, tmp_path_factory: pytest.TempPathFactory, settings: Mapping[str, object] | None = None
    ) -> None:
        directory = tmp_path_factory.mktemp("users")
        self.authority = Authority(directory / "pki")
        server = self.authority.server()
        self.users = {name: self.authority.issue(name, f"/O=example/CN={name}") for name in USERS}
        plain = free_ports(2)
        self.port = plain + 1
        self.broker = Appliance(
            directory / "data",
            port=plain,
            settings={
                **QUICK_GROUPS,
                "listeners": [f"PLAINTEXT://127.0.0.1:{plain}", f"SSL://127.0.0.1:{self.port}"],
                "ssl.certificate.file": str(server.certificate),
                "ssl.key.file": str(server.key),
                "ssl.truststore.location": str(self.authority.certificate),
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^.*CN=([a-z]+).*$/$1/",
                "authorizer.class.name": AUTHORIZER,
                "super.users": "User:admin",
                **(settings or {}),
            },
        )

    def options(self, user: str, **more: Any) -> dict[str, Any]:
        issued = self.users[user]
        return {
            "bootstrap.servers": f"localhost:{self.port}",
            "broker.address.family": "v4",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "ssl.certificate.location": str(issued.certificate),
            "ssl.key.location": str(issued.key),
            **more,
        }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory)
    scene.broker.start()
    try:
        admin = AdminClient(scene.options("admin"))
        for topic in admin.create_topics([NewTopic("orders", 1), NewTopic("secret", 1)]).values():
            topic.result(30)
        rules = [
            rule(ResourceType.TOPIC, "orders", "User:alice", AclOperation.WRITE),
            rule(ResourceType.TOPIC, "orders", "User:bob", AclOperation.READ),
            rule(ResourceType.GROUP, "bob-", "User:bob", AclOperation.READ, ResourcePatternType.PREFIXED),
        ]
        for created in admin.create_acls(rules).values():
            created.result(30)
        yield scene
    finally:
        scene.broker.stop()


def rule(
    kind: ResourceType,
    name: str,
    principal: str,
    operation: AclOperation,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)


def error_of_producing(scene: Scene, user: str, topic: str) -> int | None:
    """The error code of one record, None where it is acknowledged."""
    told: list[KafkaError | None] = []
    producer = Producer(scene.options(user, **{"message.timeout.ms": 20_000}))
    producer.produce(topic, b"value", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(30) == 0
    (error,) = told
    return None if error is None else error.code()


def topics_of(scene: Scene, user: str) -> set[str]:
    return set(AdminClient(scene.options(user)).list_topics(timeout=20).topics)


def test_each_user_may_do_what_the_acls_say_and_no_more(scene: Scene) -> None:
    assert error_of_producing(scene, "alice", "orders") is None
    assert error_of_producing(scene, "bob", "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert error_of_producing(scene, "alice", "secret") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert error_of_producing(scene, "admin", "secret") is None


def test_a_consumer_reads_in_a_group_that_it_may_use(scene: Scene) -> None:
    assert error_of_producing(scene, "admin", "orders") is None
    consumer = Consumer(scene.options("bob", **{"group.id": "bob-1", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["orders"])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()
    refused = Consumer(scene.options("bob", **{"group.id": "other"}))
    refused.subscribe(["orders"])
    try:
        message = refused.poll(30)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    finally:
        refused.close()


def test_users_see_only_topics_that_they_may_describe(scene: Scene) -> None:
    assert topics_of(scene, "alice") == {"orders"}
    assert {"orders", "secret"} <= topics_of(scene, "admin")


def test_who_is_no_administrator_changes_no_acls(scene: Scene) -> None:
    client = AdminClient(scene.options("alice"))
    wanted = rule(ResourceType.TOPIC, "secret", "User:alice", AclOperation.READ)
    (created,) = client.create_acls([wanted]).values()
    with pytest.raises(KafkaException) as refused:
        created.result(20)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert error_of_producing(scene, "alice", "orders") is None
