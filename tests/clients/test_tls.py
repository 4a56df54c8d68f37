"""Real clients over TLS with a certificate of their own, set up as docs/access.md says."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.support.judge import QUICK_GROUPS
from tests.support.wire import PATIENCE_S, free_ports

PAGE = Path(__file__).parents[2] / "docs" / "access.md"
COUNT = 500
VALUES = [b"%d" % number * (number % 300 + 1) for number in range(COUNT)]


def example(name: str) -> str:
    """The code block of the page behind its mark."""
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None, f"{PAGE} has no example {name}"
    return found[1]


class Scene:
    """The page's example: its certificates, and its options with ports and paths of the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sh(example("certificates"))
        self.port = free_ports(2)
        options = (
            example("options").replace("/etc/appliance", str(directory)).replace("9192", str(self.port + 1))
        )
        settings: dict[str, object] = {}
        for line in options.replace("9092", str(self.port)).splitlines():
            name, value = line.split(" = ", 1)
            read: object = re.findall(r'"([^"]*)"', value)
            assert isinstance(read, list)
            settings[name.strip('"')] = read if value.startswith("[") else read[0]
        assert settings["ssl.client.auth"] == "required"
        self.broker = Appliance(directory / "data", port=self.port, settings={**settings, **QUICK_GROUPS})
        self.address = f"localhost:{self.port + 1}"

    def sh(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        context.load_cert_chain(self.path("client.pem"), self.path("client.key"))
        return context

    def s_client(self, *arguments: str) -> tuple[int, str]:
        """Run `openssl s_client` with the client's certificate; its exit code and output."""
        done = subprocess.run(
            [
                *("openssl", "s_client", "-connect", self.address, "-CAfile", self.path("ca.pem")),
                *("-cert", self.path("client.pem"), "-key", self.path("client.key"), *arguments),
            ],
            input="",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("tls-clients"))
    scene.broker.start()
    yield scene
    scene.broker.stop()


def test_the_pages_commands_produce_and_consume_with_kcat(scene: Scene) -> None:
    assert scene.sh(example("kcat").replace("9192", str(scene.port + 1))) == "hello\n"


def test_confluent_kafka(scene: Scene) -> None:
    options: dict[str, str | int | float | bool] = {
        "bootstrap.servers": scene.address,
        "security.protocol": "SSL",
        "ssl.ca.location": scene.path("ca.pem"),
        "ssl.certificate.location": scene.path("client.pem"),
        "ssl.key.location": scene.path("client.key"),
    }
    producer = Producer({**options, "compression.type": "zstd", "enable.idempotence": True})
    failures: list[object] = []
    for value in VALUES:
        producer.produce("confluent", value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(60) == 0
    assert failures == [None] * COUNT
    consumer = Consumer({**options, "group.id": "confluent", "auto.offset.reset": "earliest"})
    consumer.subscribe(["confluent"])
    got: list[bytes | None] = []
    while len(got) < COUNT:
        found = consumer.consume(COUNT, PATIENCE_S)
        assert found, f"only {len(got)} came"
        got += [message.value() for message in found]
    consumer.close()
    assert got == VALUES


def test_kafka_python(scene: Scene) -> None:
    options = {
        "bootstrap_servers": scene.address,
        "security_protocol": "SSL",
        "ssl_cafile": scene.path("ca.pem"),
        "ssl_certfile": scene.path("client.pem"),
        "ssl_keyfile": scene.path("client.key"),
    }
    producer = KafkaProducer(**options, acks="all")
    for sent in [producer.send("kafka-python", value) for value in VALUES]:
        sent.get(timeout=60)
    producer.close()
    consumer = KafkaConsumer(**options, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    consumer.assign([TopicPartition("kafka-python", 0)])
    assert [next(consumer).value for _ in range(COUNT)] == VALUES
    consumer.close()


def test_aiokafka(scene: Scene) -> None:
    async def play() -> list[bytes]:
        options = {
            "bootstrap_servers": scene.address,
            "security_protocol": "SSL",
            "ssl_context": scene.context(),
        }
        producer = AIOKafkaProducer(**options, acks="all")
        await producer.start()
        for value in VALUES:
            await producer.send("aiokafka", value)
        await producer.stop()
        consumer = AIOKafkaConsumer("aiokafka", **options, auto_offset_reset="earliest")
        await consumer.start()
        got = [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(COUNT)]
        await consumer.stop()
        return got

    assert asyncio.run(play()) == VALUES


def test_java(scene: Scene) -> None:
    scene.sh("cat client.key client.pem > client-both.pem")
    properties = scene.directory / "client.properties"
    page = re.search(r"```properties\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert page is not None
    properties.write_text(re.sub(r"location=", f"location={scene.directory}/", page[1]))
    server = ("--bootstrap-server", scene.address)
    told = tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *(*server, "--topic", "java", "--max-messages", "1000", "--acks", "-1"),
        *("--command-config", str(properties)),
    )
    assert '"acked":1000' in told
    read = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*server, "--topic", "java", "--from-beginning", "--max-messages", "1000", "--timeout-ms", "60000"),
        *("--command-config", str(properties)),
    )
    assert [int(line) for line in read.split()] == list(range(1000))


@pytest.mark.parametrize(
    ("arguments", "cipher"),
    [
        (("-tls1_3",), "TLSv1.3"),
        (("-tls1_2",), "TLSv1.2"),
        (("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"), "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ],
)
def test_versions_and_ciphers_that_are_safe_are_served(
    scene: Scene, arguments: tuple[str, ...], cipher: str
) -> None:
    code, output = scene.s_client(*arguments)
    assert code == 0, output
    assert cipher in output
    assert "Verification: OK" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "aNULL:@SECLEVEL=0"),
    ],
)
def test_versions_and_ciphers_that_are_not_are_refused(scene: Scene, arguments: tuple[str, ...]) -> None:
    code, output = scene.s_client(*arguments)
    assert code != 0, output
    assert "alert" in output or "handshake failure" in output, output


def test_a_client_without_a_certificate_is_refused_and_the_others_go_on(scene: Scene) -> None:
    context = ssl.create_default_context(cafile=scene.path("ca.pem"))
    raw = socket.create_connection(("127.0.0.1", scene.port + 1), PATIENCE_S)
    got = b"?"
    try:
        with context.wrap_socket(raw, server_hostname="localhost") as tls:
            got = tls.recv(1)
    except OSError:
        got = b""
    assert got == b""
    assert scene.s_client("-tls1_3")[0] == 0
