"""Real clients log in with SASL, set up as docs/access.md says: every mechanism, in plain text and over TLS."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

import appliance_client
from appliance.protocol.errors import ErrorCode
from appliance_client.errors import AuthenticationError
from tests.clients import franz_go_logins
from tests.clients.access_page import PageScene, example, play
from tests.clients.client import RefusedError
from tests.support import native_play
from tests.support.apache_kafka import tool
from tests.support.wire import PATIENCE_S, free_ports

COUNT = 300
VALUES = [b"%d" % number * (number % 300 + 1) for number in range(COUNT)]
LOGINS = {
    "PLAIN": ("bob", "bob-secret"),
    "SCRAM-SHA-256": ("alice", "alice-secret"),
    "SCRAM-SHA-512": ("alice", "alice-secret"),
}
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")

every_way = pytest.mark.parametrize(
    ("protocol", "mechanism"), [(protocol, mechanism) for protocol in PROTOCOLS for mechanism in LOGINS]
)


class Scene(PageScene):
    """The page's example, and a listener without TLS besides."""

    def __init__(self, directory: Path) -> None:
        port = free_ports(3)
        super().__init__(
            directory, port, "sasl-options", more_listeners=(f"SASL_PLAINTEXT://127.0.0.1:{port + 2}",)
        )
        users = directory / "users.toml"
        users.write_text(example("sasl-plain-users"))
        users.chmod(0o600)
        self.addresses = {
            "SASL_SSL": f"localhost:{port + 1}",
            "SASL_PLAINTEXT": f"localhost:{port + 2}",
        }

    def start(self) -> None:
        self.broker.start()
        told = self.sh(example("sasl-user").replace("9092", str(self.port)))
        assert "alice" in told

    def options(self, protocol: str, mechanism: str) -> dict[str, Any]:
        """librdkafka's."""
        user, password = LOGINS[mechanism]
        return {
            "bootstrap.servers": self.addresses[protocol],
            "broker.address.family": "v4",
            "security.protocol": protocol,
            "ssl.ca.location": self.path("ca.pem"),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def python_options(self, protocol: str, mechanism: str) -> dict[str, Any]:
        """What kafka-python and aiokafka have in common."""
        user, password = LOGINS[mechanism]
        return {
            "bootstrap_servers": self.addresses[protocol],
            "security_protocol": protocol,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
            "ssl_context": ssl.create_default_context(cafile=self.path("ca.pem")),
        }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("sasl-clients"))
    try:
        scene.start()
        yield scene
    finally:
        scene.broker.stop()


def topic_of(client: str, protocol: str, mechanism: str) -> str:
    return f"{client}-{protocol}-{mechanism}"


def test_the_pages_commands_produce_and_consume_with_kcat(scene: Scene) -> None:
    assert scene.sh(example("sasl-kcat").replace("9192", str(scene.port + 1))) == "hello\n"


@every_way
def test_kcat(scene: Scene, protocol: str, mechanism: str) -> None:
    topic = topic_of("kcat", protocol, mechanism)
    options = [
        part
        for name, value in scene.options(protocol, mechanism).items()
        for part in ("-X", f"{name}={value}")
    ]
    kcat("-P", "-t", topic, *options, given=b"\n".join(VALUES))
    assert kcat("-C", "-e", "-t", topic, *options).splitlines() == VALUES


def kcat(*arguments: str, given: bytes = b"") -> bytes:
    done = subprocess.run(["kcat", *arguments], input=given, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@every_way
def test_confluent_kafka(scene: Scene, protocol: str, mechanism: str) -> None:
    options, topic = scene.options(protocol, mechanism), topic_of("confluent", protocol, mechanism)
    play(options, topic, VALUES, **{"compression.type": "zstd", "enable.idempotence": True})


@every_way
def test_kafka_python(scene: Scene, protocol: str, mechanism: str) -> None:
    options, topic = scene.python_options(protocol, mechanism), topic_of("kafka-python", protocol, mechanism)
    producer = KafkaProducer(**options, acks="all")
    for sent in [producer.send(topic, value) for value in VALUES]:
        sent.get(timeout=60)
    producer.close()
    consumer = KafkaConsumer(**options, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    consumer.assign([TopicPartition(topic, 0)])
    assert [next(consumer).value for _ in range(COUNT)] == VALUES
    consumer.close()


@every_way
def test_aiokafka(scene: Scene, protocol: str, mechanism: str) -> None:
    async def play() -> list[bytes]:
        options, topic = scene.python_options(protocol, mechanism), topic_of("aiokafka", protocol, mechanism)
        producer = AIOKafkaProducer(**options, acks="all")
        await producer.start()
        for value in VALUES:
            await producer.send(topic, value)
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, **options, auto_offset_reset="earliest")
        await consumer.start()
        got = [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(COUNT)]
        await consumer.stop()
        return got

    assert asyncio.run(play()) == VALUES


@every_way
def test_franz_go(scene: Scene, protocol: str, mechanism: str) -> None:
    user, password = LOGINS[mechanism]
    found = franz_go_logins.play_logged_in(
        scene.addresses[protocol],
        topic_of("franz-go", protocol, mechanism),
        VALUES,
        mechanism=mechanism,
        user=user,
        password=password,
        authority=scene.path("ca.pem") if protocol == "SASL_SSL" else "",
    )
    assert found == VALUES


def test_franz_go_learns_that_its_password_is_wrong(scene: Scene) -> None:
    with pytest.raises(RefusedError) as refused:
        franz_go_logins.play_logged_in(
            scene.addresses["SASL_SSL"],
            "refused",
            VALUES,
            mechanism="SCRAM-SHA-512",
            user="alice",
            password="wrong",
            authority=scene.path("ca.pem"),
        )
    assert refused.value.code == int(ErrorCode.SASL_AUTHENTICATION_FAILED)


def native_options(scene: Scene, protocol: str, mechanism: str) -> dict[str, Any]:
    options = scene.python_options(protocol, mechanism)
    del options["ssl_context"]
    return options | ({"ssl_cafile": scene.path("ca.pem")} if protocol == "SASL_SSL" else {})


@every_way
def test_the_native_client(scene: Scene, protocol: str, mechanism: str) -> None:
    options = native_options(scene, protocol, mechanism)
    assert native_play.play(options, topic_of("native", protocol, mechanism), VALUES) == VALUES


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_native_client_with_asyncio(scene: Scene, protocol: str) -> None:
    options = native_options(scene, protocol, "SCRAM-SHA-512")
    assert (
        native_play.play_async(options, topic_of("native-aio", protocol, "SCRAM-SHA-512"), VALUES) == VALUES
    )


def test_the_native_client_says_at_once_that_the_broker_refuses(scene: Scene) -> None:
    options = native_options(scene, "SASL_SSL", "SCRAM-SHA-256") | {"sasl_plain_password": "wrong"}
    with (
        appliance_client.Producer(**options) as producer,
        pytest.raises(AuthenticationError, match="invalid credentials"),
    ):
        producer.send("refused", b"x")
    with (
        appliance_client.Consumer("refused", **options, group_id="refused") as consumer,
        pytest.raises(AuthenticationError, match="invalid credentials"),
    ):
        consumer.poll(10_000)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mechanism", LOGINS)
def test_kafkajs(scene: Scene, protocol: str, mechanism: str) -> None:
    user, password = LOGINS[mechanism]
    values = [value.decode() for value in VALUES]
    asked = {
        "broker": scene.addresses[protocol],
        "ca": scene.path("ca.pem") if protocol == "SASL_SSL" else None,
        "mechanism": mechanism.lower(),
        "username": user,
        "password": password,
        "topic": topic_of("kafkajs", protocol, mechanism),
        "values": values,
    }
    script = Path(__file__).parent / "kafkajs" / "sasl.js"
    done = subprocess.run(
        ["node", str(script)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == values


def java_properties(scene: Scene, protocol: str, mechanism: str) -> Path:
    """The page's properties for another protocol and mechanism."""
    user, password = LOGINS[mechanism]
    text = example("sasl-java").replace("location=", f"location={scene.directory}/")
    text = text.replace("SASL_SSL", protocol).replace("SCRAM-SHA-512", mechanism)
    text = text.replace('"alice"', f'"{user}"').replace("alice-secret", password)
    if mechanism == "PLAIN":
        text = text.replace("security.scram.Scram", "security.plain.Plain")
    path = scene.directory / f"{protocol}-{mechanism}.properties"
    path.write_text(text)
    return path


@every_way
def test_java(scene: Scene, protocol: str, mechanism: str) -> None:
    topic = topic_of("java", protocol, mechanism)
    common = (
        *("--bootstrap-server", scene.addresses[protocol], "--topic", topic),
        *("--command-config", str(java_properties(scene, protocol, mechanism))),
    )
    told = tool(
        "org.apache.kafka.tools.VerifiableProducer", *common, "--max-messages", "1000", "--acks", "-1"
    )
    assert '"acked":1000' in told
    read = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*common, "--from-beginning", "--max-messages", "1000", "--timeout-ms", "60000"),
    )
    assert [int(line) for line in read.split()] == list(range(1000))


def test_kafkas_tool_for_users_works_unchanged(scene: Scene) -> None:
    """`kafka-configs.sh` adds a user over a listener with SASL, and deletes it."""
    common = (
        *("--bootstrap-server", scene.addresses["SASL_SSL"]),
        *("--command-config", str(java_properties(scene, "SASL_SSL", "SCRAM-SHA-512"))),
        *("--alter", "--entity-type", "users", "--entity-name", "dora"),
    )
    command = "kafka.admin.ConfigCommand"
    assert "Completed" in tool(
        command, *common, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=dora-secret]"
    )
    options = scene.options("SASL_SSL", "SCRAM-SHA-256") | {
        "sasl.username": "dora",
        "sasl.password": "dora-secret",
    }
    Producer(options).list_topics(timeout=PATIENCE_S)
    listed = scene.sh(f"appliance users list --bootstrap localhost:{scene.port} --json")
    assert {"user": "dora", "mechanism": "SCRAM-SHA-256", "iterations": 8192} in json.loads(listed)
    assert "Completed" in tool(command, *common, "--delete-config", "SCRAM-SHA-256")
    assert "dora" not in scene.sh(f"appliance users list --bootstrap localhost:{scene.port}")


def test_no_secret_is_in_the_log(scene: Scene) -> None:
    """After all that the other tests have done."""
    output = scene.broker.output()
    for secret in ("alice-secret", "bob-secret", "dora-secret", "stored_key", "salt="):
        assert secret not in output
    assert not re.search(r"[A-Za-z0-9+/]{40,}=", output)
