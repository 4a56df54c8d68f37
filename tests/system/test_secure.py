"""`appliance serve --secure`: what it prints works as it stands, and nobody else gets in."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import appliance_client
from appliance_client import aio
from appliance_client.errors import ClientError, OptionError
from tests.cli.command import Outcome
from tests.cli.command import appliance as command_line
from tests.support import apache_kafka
from tests.support.broker import Output, end_with_the_test_runner
from tests.support.wire import free_ports

PATIENCE_S: Final = 60.0
READY_S: Final = 30.0
TOPIC: Final = "orders"
PLAIN: Final = (("topics", "list"), ("slots", "list"))
"""One command through librdkafka, and one that sends Kafka's messages itself."""


class Secure:
    """`appliance serve --secure` on a data directory, and what it printed."""

    def __init__(self, data_dir: Path, *arguments: str, port: int | None = None) -> None:
        self.data_dir = data_dir
        self.port = free_ports(1) if port is None else port
        self._arguments = arguments

    def start(self) -> None:
        command = [sys.executable, "-m", "appliance", "serve", "--secure"]
        self._process = subprocess.Popen(
            [
                *command,
                *("--data-dir", str(self.data_dir), "--port", str(self.port)),
                "--set=group.initial.rebalance.delay.ms=0",
                *self._arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )
        # The dictionary for confluent-kafka is the last that it prints.
        self._output = Output(self._process, "\n  }\n")
        assert self._output.is_ready.wait(READY_S), self._output.tail()
        assert self._process.poll() is None, self._output.tail()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0, self._output.tail()
        self._output.close()

    def text(self) -> str:
        return self._output.text()

    def lines_after(self, heading: str) -> list[str]:
        """The indented lines below a heading."""
        lines = self.text().splitlines()
        begin = next(number for number, line in enumerate(lines) if heading in line) + 1
        found = []
        for line in lines[begin:]:
            if not line.startswith("  "):
                break
            found.append(line[2:])
        return found

    def commands(self) -> list[str]:
        return self.lines_after("Try it from another terminal:")

    def command(self, word: str) -> str:
        (found,) = [line for line in self.commands() if re.search(word, line)]
        return found

    def confluent(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads("\n".join(self.lines_after("confluent-kafka:")))
        return settings

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def properties(self) -> Path:
        return self.data_dir / "secure" / "client.properties"

    def native(self) -> dict[str, Any]:
        place = self.data_dir / "secure"
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SSL",
            "ssl_cafile": str(place / "ca.pem"),
            "ssl_certfile": str(place / "admin.pem"),
            "ssl_keyfile": str(place / "admin.key"),
        }

    def run(self, *arguments: object, **more: Any) -> Outcome:
        """A command of ours with the printed file."""
        flags = ("--bootstrap", self.address, "--command-config", self.properties)
        return command_line(*arguments, *flags, **more)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    broker = Secure(tmp_path_factory.mktemp("secure") / "a data directory")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module", autouse=True)
def without_settings(secure: Secure) -> Iterator[Mapping[tuple[str, ...], Future[Outcome]]]:
    """What commands say that do not know that the broker speaks TLS.

    They run beside the other tests, because librdkafka tries again for 30 s.
    """
    with ThreadPoolExecutor(len(PLAIN)) as pool:
        flags = ("--bootstrap", secure.address)
        yield {arguments: pool.submit(command_line, *arguments, *flags) for arguments in PLAIN}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `kafka-topics.sh`, as Kafka has it: its own class on its own jars."""
    apache_kafka.install()
    folder = tmp_path_factory.mktemp("bin")
    java = shlex.join(apache_kafka.java())
    script = folder / "kafka-topics.sh"
    script.write_text(f'#!/bin/sh\nexec {java} org.apache.kafka.tools.TopicCommand "$@"\n')
    script.chmod(0o755)
    return folder


def shell(line: str, folder: Path | None = None) -> str:
    """Run a printed line in a shell; return what it says."""
    path = os.environ["PATH"] if folder is None else f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=os.environ | {"PATH": path},
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_printed_lines_for_kcat_produce_and_consume(secure: Secure) -> None:
    shell(secure.command("kcat .* -P "))
    assert "hello" in shell(secure.command("kcat .* -C ")).splitlines()


def test_the_printed_lines_for_the_command_lines_work(secure: Secure, scripts: Path) -> None:
    shell(secure.command("kcat .* -P "))
    assert "demo" in shell(secure.command("topics list"))
    assert "demo" in shell(secure.command("kafka-topics.sh"), scripts)


def test_the_printed_properties_work_for_kafkas_own_tools(
    secure: Secure, scripts: Path, tmp_path: Path
) -> None:
    file = tmp_path / "copied.properties"
    file.write_text("\n".join(secure.lines_after("Java clients")))
    line = f"kafka-topics.sh --bootstrap-server {secure.address} --command-config {file}"
    shell(f"{line} --create --topic by-java --partitions 2", scripts)
    assert "by-java" in shell(f"{line} --list", scripts).splitlines()


def test_the_printed_dictionary_works_for_confluent_kafka(secure: Secure) -> None:
    settings = secure.confluent()
    failures: list[KafkaError | None] = []
    producer = Producer(settings)
    producer.produce(TOPIC, b"value", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failures == [None]
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    (message,) = consumer.consume(1, PATIENCE_S)
    assert message.value() == b"value"
    consumer.close()


def test_nobody_without_the_certificate_gets_in(secure: Secure) -> None:
    settings = secure.confluent()
    strangers = [
        {name: value for name, value in settings.items() if name not in left_out}
        for left_out in (("ssl.certificate.location", "ssl.key.location"), ("ssl.ca.location",))
    ]
    strangers.append({"bootstrap.servers": secure.address})
    with ThreadPoolExecutor(len(strangers)) as pool:  # librdkafka tries again until its time is over
        tries = [pool.submit(AdminClient(each).list_topics, timeout=3) for each in strangers]
        for each in tries:
            with pytest.raises(KafkaException):
                each.result()


def test_another_certificate_of_the_authority_may_do_nothing(secure: Secure, tmp_path: Path) -> None:
    place = secure.data_dir / "secure"
    key, request, certificate = (tmp_path / name for name in ("ann.key", "ann.csr", "ann.pem"))
    for arguments in (
        [
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/CN=ann", "-keyout", key, "-out", request),
        ],
        [
            *("x509", "-req", "-in", request, "-CA", place / "ca.pem", "-CAkey", place / "ca.key"),
            *("-set_serial", "7", "-out", certificate),
        ],
    ):
        subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=True)
    own = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
    admin = AdminClient({**secure.confluent(), **own})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("anns", 1, 1)])["anns"].result(30)
    assert refused.value.args[0].code() in {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
    assert admin.list_topics(timeout=30).topics == {}


def test_a_second_start_prints_the_same_and_overwrites_nothing(tmp_path: Path) -> None:
    broker = Secure(tmp_path / "data")
    broker.start()
    place = broker.data_dir / "secure"
    first, files = broker.commands(), {path.name: path.read_bytes() for path in place.iterdir()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
    assert "made new certificates" in broker.text()
    broker.stop()
    broker.start()
    assert broker.commands() == first
    assert {path.name: path.read_bytes() for path in place.iterdir()} == files
    assert "made new certificates" not in broker.text()
    shell(broker.command("kcat .* -P "))
    broker.stop()


def test_status_shows_the_topics_of_a_broker_that_speaks_tls_only(secure: Secure) -> None:
    shell(secure.command("kcat .* -P "))
    told = json.loads(command_line("status", "--data-dir", secure.data_dir, "--json").succeeded().text)
    assert told["topics"] >= 1
    assert told["partitions"] >= told["topics"]
    assert (told["under_replicated_partitions"], told["unavailable_partitions"]) == (0, 0)
    assert told["address"] == secure.address
    asked = command_line(
        "status", "--data-dir", secure.data_dir, "--json", "--command-config", secure.properties
    )
    assert json.loads(asked.succeeded().text)["topics"] == told["topics"]
    assert "all in sync" in command_line("status", "--data-dir", secure.data_dir).succeeded().text


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "list"),
        ("cluster", "info"),
        ("configs", "describe", "--topic", TOPIC),
        ("groups", "list"),
        ("transactions", "list"),
        ("acls", "list"),
        ("quotas", "list"),
        ("offsets", TOPIC),
        ("log-dirs", "describe"),
        ("slots", "list"),
        ("partitions", "list"),
        ("reassign", "status"),
        ("consume", TOPIC, "--from", "beginning", "--count", "1"),
    ],
    ids=" ".join,
)
def test_every_command_that_connects_speaks_tls(secure: Secure, arguments: tuple[str, ...]) -> None:
    secure.run("topics", "create", TOPIC, "--if-not-exists").succeeded()
    secure.run("produce", TOPIC, given=b"value\n").succeeded()
    secure.run(*arguments).succeeded()


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
def test_a_command_without_the_settings_is_refused_and_told(
    without_settings: Mapping[tuple[str, ...], Future[Outcome]], arguments: tuple[str, ...]
) -> None:
    plain = without_settings[arguments].result()
    assert plain.code != 0
    assert plain.errors
    assert "Traceback" not in plain.errors


def test_settings_of_librdkafka_speak_tls_too(secure: Secure) -> None:
    kcat = secure.data_dir / "secure" / "kcat.conf"
    command_line("slots", "list", "--client-config", kcat).succeeded()
    flags = [word for name, value in secure.confluent().items() for word in ("-X", f"{name}={value}")]
    command_line("slots", "list", *flags).succeeded()
    command_line("topics", "list", *flags).succeeded()


def test_a_certificate_that_is_not_accepted_is_told(secure: Secure) -> None:
    flags = ("--bootstrap", secure.address, "-X", "security.protocol=SSL")
    told = command_line("slots", "list", *flags)
    assert told.code == 1
    assert "the broker's certificate is not accepted" in told.errors


def test_the_native_client_speaks_tls(secure: Secure) -> None:
    options = secure.native()
    values = [b"%d" % number * 10 for number in range(2000)] + [os.urandom(900_000)]
    with appliance_client.Producer(**options, linger_ms=5) as producer:
        sent = [producer.send("native", value) for value in values]
        assert [future.result(PATIENCE_S).offset for future in sent] == list(range(len(values)))
    with appliance_client.Consumer(
        "native", **options, group_id="native", auto_offset_reset="earliest"
    ) as consumer:
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < len(values) and time.monotonic() < deadline:
            for records in consumer.poll(1000).values():
                found += [record.value for record in records]
    assert found == values


def test_the_native_client_speaks_tls_with_asyncio(secure: Secure) -> None:
    options = secure.native()
    values = [b"%d" % number * 10 for number in range(500)] + [os.urandom(900_000)]

    async def both() -> list[bytes]:
        async with aio.Producer(**options, linger_ms=5) as producer:
            sent = [await producer.send("native-aio", value) for value in values]
            for future in sent:
                await future
        found: list[bytes] = []
        async with aio.Consumer(
            "native-aio", **options, group_id="native-aio", auto_offset_reset="earliest"
        ) as consumer:
            while len(found) < len(values):
                for records in (await consumer.poll(1000)).values():
                    found += [record.value for record in records]
        return found

    assert asyncio.run(asyncio.wait_for(both(), PATIENCE_S)) == values


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        (("ssl_cafile",), "certificate is not accepted"),
        (("ssl_certfile", "ssl_keyfile"), "certificate required|does it want a client certificate"),
        (
            ("security_protocol", "ssl_cafile", "ssl_certfile", "ssl_keyfile"),
            "closed by the broker|reset by peer",
        ),
    ],
)
def test_the_native_client_says_why_it_does_not_get_in(
    secure: Secure, left_out: tuple[str, ...], told: str
) -> None:
    options = {name: value for name, value in secure.native().items() if name not in left_out}
    producer = appliance_client.Producer(
        **options, max_block_ms=2000, delivery_timeout_ms=3000, request_timeout_ms=1000
    )
    deadline = time.monotonic() + PATIENCE_S
    said = ""
    while not re.search(told, said):  # where the broker stands still, the last try ends without an answer
        assert time.monotonic() < deadline, said
        with pytest.raises(ClientError) as refused:
            producer.send("native", b"value").result(30)
        said = str(refused.value)
    producer.close(1)


def test_a_host_name_that_the_certificate_does_not_have_is_refused(tmp_path: Path) -> None:
    broker = Secure(tmp_path / "data", "--host", "0.0.0.0")
    broker.start()
    options = {**broker.native(), "bootstrap_servers": f"127.0.0.3:{broker.port}"}
    with appliance_client.Producer(**options, ssl_check_hostname=False) as producer:
        assert producer.send(TOPIC, b"value").result(PATIENCE_S).offset == 0
    producer = appliance_client.Producer(**options, max_block_ms=2000, request_timeout_ms=1000)
    with pytest.raises(ClientError, match="IP address mismatch"):
        producer.send(TOPIC, b"value").result(PATIENCE_S)
    producer.close(1)
    broker.stop()


def test_options_of_the_native_client_that_contradict_each_other_are_told(secure: Secure) -> None:
    options = secure.native()
    place = secure.data_dir / "secure"
    for change, told in (
        ({"security_protocol": "PLAINTEXT"}, r"ssl_cafile needs security\.protocol=SSL"),
        ({"security_protocol": "TLS"}, r"security\.protocol is 'TLS': PLAINTEXT, SSL"),
        ({"ssl_cafile": "nowhere.pem"}, r"ssl_cafile: nowhere\.pem: No such file"),
        ({"ssl_cafile": str(place / "admin.key")}, "this is no PEM file with certificates"),
        ({"ssl_certfile": None}, "ssl_keyfile needs ssl_certfile"),
        ({"ssl_keyfile": str(place / "server.key")}, "the key does not belong to the certificate"),
        ({"bootstrap_servers": "zmq+ipc:///nowhere"}, "is for TCP"),
    ):
        with pytest.raises(OptionError, match=told):
            appliance_client.Producer(**{**options, **change})
