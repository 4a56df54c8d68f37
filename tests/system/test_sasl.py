"""SASL listeners: who gets in and as whom, sessions that end, and that strangers hold up nobody."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from kafka import KafkaProducer

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from appliance.protocol.apis.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from appliance.protocol.errors import ErrorCode
from appliance.sasl.scram_credential import NUMBERS
from tests.cli.command import appliance
from tests.support.sasl_wire import (
    CLOSED,
    ScramTokens,
    answer,
    asked,
    authenticate,
    handshake,
    handshake_frame,
    log_in,
)
from tests.support.wire import PATIENCE_S, WireSocket, free_ports
from tests.system.acked_load import create
from tests.system.secured import SILENT, SecuredScene, is_ended, produced

LIFETIME_MS = 2000
NUMBERED = [b"%d" % number for number in range(1000)]
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class Scene(SecuredScene):
    """An appliance with listeners in plain text, with SASL, and with SASL over TLS; two users."""

    def __init__(self, directory: Path, **more: object) -> None:
        self.users = directory / "users.toml"
        self.users.write_text('"plain" = "plain-secret"\n')
        self.users.chmod(0o600)
        port = free_ports(3)
        self.sasl_port, self.tls_port = port + 1, port + 2
        super().__init__(
            directory,
            port,
            [
                f"PLAINTEXT://127.0.0.1:{port}",
                f"SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}",
                f"SASL_SSL://127.0.0.1:{self.tls_port}",
            ],
            **{
                "sasl.enabled.mechanisms": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
                "sasl.plain.users.file": str(self.users),
                **more,
            },
        )

    def options(self, user: str, *, tls: bool = False, **more: Any) -> dict[str, Any]:
        mechanism = "PLAIN" if user == "plain" else "SCRAM-SHA-256"
        return {
            "bootstrap.servers": f"localhost:{self.tls_port if tls else self.sasl_port}",
            "broker.address.family": "v4",
            "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
            "ssl.ca.location": str(self.authority.certificate),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": f"{user}-secret",
            **more,
        }

    def users_command(self, *arguments: object, given: bytes = b"") -> str:
        done = appliance("users", *arguments, "--bootstrap", self.broker.address, given=given)
        return done.succeeded().text


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(
        tmp_path_factory.mktemp("sasl"),
        **{
            "connections.max.reauth.ms": LIFETIME_MS,
            "sasl.authentication.timeout.ms": 3000,
            "network.closed.lines.per.minute": 1000,
        },
    )
    try:
        scene.broker.start()
        scene.users_command("add", "alice", given=b"alice-secret\n")
        yield scene
    finally:
        scene.broker.stop()


BUSY_S = 7
USERS = ("plain", "alice")


@pytest.fixture(scope="module")
def busy(scene: Scene) -> Iterator[dict[tuple[str, bool], Future[None]]]:
    """The producers of all tests of this kind, at the same time: each would wait for as long alone."""
    with ThreadPoolExecutor(2 * len(USERS)) as pool:
        yield {
            (user, tls): pool.submit(produces_and_loses_nothing, scene, user, tls=tls)
            for user in USERS
            for tls in (False, True)
        }


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("user", USERS)
def test_a_busy_producer_authenticates_again_and_loses_nothing(
    busy: dict[tuple[str, bool], Future[None]], user: str, tls: bool
) -> None:
    busy[user, tls].result()


def produces_and_loses_nothing(scene: Scene, user: str, *, tls: bool) -> None:
    """Its session lasts 2 s, and it works for 7 s on one connection."""
    topic = f"again-{user}-{tls}"
    create(scene.broker, topic, 1, replicas=1)
    errors: list[object] = []
    failures: list[object] = []
    options = scene.options(user, tls=tls, error_cb=errors.append, **{"linger.ms": 1})
    producer = Producer(options)
    ends, sent = time.monotonic() + BUSY_S, 0
    while time.monotonic() < ends:
        producer.produce(topic, b"%d" % sent, on_delivery=lambda error, _: failures.append(error))
        producer.poll(0.002)
        sent += 1
    assert producer.flush(60) == 0
    assert failures == [None] * sent
    assert not errors
    consumer = Consumer(
        {**options, "group.id": topic, "auto.offset.reset": "earliest", "error_cb": errors.append}
    )
    consumer.subscribe([topic])
    got: list[bytes | None] = []
    while len(got) < sent:
        found = consumer.consume(sent, PATIENCE_S)
        assert found
        got += [message.value() for message in found]
    consumer.close()
    assert got == [b"%d" % number for number in range(sent)]


def test_kafka_python_that_does_not_authenticate_again_connects_again(scene: Scene) -> None:
    """The broker closes its connections at their end, and it loses no record."""
    create(scene.broker, "cut", 1, replicas=1)
    producer = KafkaProducer(
        bootstrap_servers=f"127.0.0.1:{scene.sasl_port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="alice",
        sasl_plain_password="alice-secret",
        acks="all",
        retries=10,
    )
    sent = []
    ends = time.monotonic() + 5
    while time.monotonic() < ends:
        sent.append(producer.send("cut", b"x"))
        time.sleep(0.02)
    assert [each.get(timeout=60).offset for each in sent] == list(range(len(sent)))
    producer.close()


def test_a_changed_password_counts_from_its_answer_on(scene: Scene) -> None:
    for password in ("one", "two", "three"):
        scene.users_command("add", "carol", given=f"{password}\n".encode())
        for tried in ("one", "two", "three"):
            with WireSocket(scene.sasl_port) as connection:
                told = log_in(connection, "SCRAM-SHA-512", "carol", tried)
                assert told.error_code == (0 if tried == password else 58), (password, tried)
    scene.users_command("delete", "--yes", "carol")
    with WireSocket(scene.sasl_port) as connection:
        assert log_in(connection, "SCRAM-SHA-512", "carol", "three").error_code == 58


def test_a_deleted_user_is_out_when_the_session_ends(scene: Scene) -> None:
    scene.users_command("add", "dora", given=b"dora-secret\n")
    with WireSocket(scene.sasl_port) as connection:
        told = log_in(connection, "SCRAM-SHA-256", "dora", "dora-secret")
        assert (told.error_code, told.session_lifetime_ms) == (0, LIFETIME_MS)
        scene.users_command("delete", "--yes", "dora")
        assert handshake(connection, "SCRAM-SHA-256").error_code == 0
        told = log_in_again(connection, "dora", "dora-secret")
        assert told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer(connection, ApiKey.METADATA, 1) == CLOSED


def log_in_again(connection: WireSocket, user: str, password: str) -> Any:
    tokens = ScramTokens("SCRAM-SHA-256", user, password)
    first = authenticate(connection, tokens.first)
    assert not first.error_code
    return authenticate(connection, tokens.final(first.auth_bytes))


def test_a_changed_file_of_users_counts_and_a_bad_one_changes_nothing(scene: Scene) -> None:
    def works(user: str, password: str) -> bool:
        with WireSocket(scene.sasl_port) as connection:
            return not log_in(connection, "PLAIN", user, password).error_code

    before = scene.users.read_text()
    scene.users.write_text(before + '"eve" = "eve-secret"\n')
    deadline = time.monotonic() + PATIENCE_S
    # Each network process reads the file by itself, so all must have read it before the next change.
    while not all(works("eve", "eve-secret") for _ in range(4)):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    scene.users.write_text("no such file, with eve-secret")
    scene.users.chmod(0o600)
    deadline = time.monotonic() + PATIENCE_S
    while "cannot be used; the users from before stay" not in scene.broker.output():
        assert works("eve", "eve-secret")
        assert time.monotonic() < deadline
        time.sleep(0.3)
    assert works("plain", "plain-secret")
    scene.users.write_text(before)


def test_silent_connections_hold_up_nobody_and_are_closed_in_time(scene: Scene) -> None:
    create(scene.broker, "meanwhile", 1, replicas=1)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", scene.sasl_port), PATIENCE_S))
            for _ in range(SILENT)
        ]
        for number, each in enumerate(silent):
            with suppress(ConnectionError):  # the oldest are closed for the others
                if number % 3 == 0:
                    each.sendall(handshake_frame("PLAIN")[: 1 + number % 20])
                elif number % 3 == 1:
                    each.sendall((500_000).to_bytes(4, "big") + bytes(1000))
        began = time.monotonic()
        for user in ("plain", "alice"):
            produced(scene.options(user), "meanwhile", NUMBERED)
        produced(scene.options("alice", tls=True), "meanwhile", NUMBERED)
        assert time.monotonic() - began < PATIENCE_S
        assert all(is_ended(each) for each in silent)
    scene.waits_for("its client did not authenticate within 3000 ms")


def test_random_bytes_before_the_authentication_harm_nobody(scene: Scene) -> None:
    create(scene.broker, "unharmed", 1, replicas=1)
    dice = random.Random(31)
    good = handshake_frame("SCRAM-SHA-256")
    thread = threading.Thread(target=produced, args=(scene.options("alice"), "unharmed", NUMBERED * 2))
    thread.start()
    for _ in range(300):
        with suppress(ConnectionError), WireSocket(scene.sasl_port) as connection:
            match dice.randrange(5):
                case 0:
                    connection.send(dice.randbytes(dice.randrange(1, 300)))
                case 1:
                    body = dice.randbytes(dice.randrange(8, 300))
                    connection.send(len(body).to_bytes(4, "big") + body)
                case 2:
                    torn = bytearray(good)
                    torn[dice.randrange(len(torn))] ^= 1 << dice.randrange(8)
                    connection.send(bytes(torn))
                case 3:
                    connection.send(good + dice.randbytes(dice.randrange(4, 400)))
                case _:
                    connection.send(good)
                    connection.send_frame(dice.randbytes(dice.randrange(524_288)))
    thread.join(60)
    assert not thread.is_alive()
    assert "internal error" not in scene.broker.output()
    assert "Traceback" not in scene.broker.output()
    with WireSocket(scene.sasl_port) as connection:
        assert log_in(connection, "PLAIN", "plain", "plain-secret").error_code == 0


def test_many_failures_from_one_address_cost_another_nothing(scene: Scene) -> None:
    def wait_s(source: str) -> float:
        with WireSocket(scene.sasl_port, source=source) as connection:
            began = time.monotonic()
            assert log_in(connection, "PLAIN", "plain", "wrong").error_code == 58
            return time.monotonic() - began

    # Two network processes, each with its own table.
    assert any(wait_s("127.0.0.66") > 0.75 for _ in range(26))
    assert min(wait_s("127.0.0.67") for _ in range(3)) < 0.75
    with WireSocket(scene.sasl_port, source="127.0.0.66") as connection:
        began = time.monotonic()
        assert log_in(connection, "PLAIN", "plain", "plain-secret").error_code == 0
        assert time.monotonic() - began < 0.75, "a success waits for nothing"


def test_no_secret_is_in_the_log_or_in_the_settings(scene: Scene) -> None:
    """After all that the other tests have done."""
    for secret in ("plain-secret", "alice-secret", "eve-secret", "dora-secret", "stored_key", "server_key"):
        assert secret not in scene.broker.output()
    shown = appliance("configs", "describe", "--broker", 0, "--all", "-b", scene.broker.address)
    assert "-secret" not in shown.text


def test_users_have_rights_by_their_names(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **{"authorizer.class.name": AUTHORIZER, "super.users": "User:plain"})
    for user in ("alice", "bob"):
        done = appliance(
            *("users", "add", user, "--mechanism", "SCRAM-SHA-256", "--data-dir", scene.broker.data_dir),
            given=f"{user}-secret\n".encode(),
        )
        assert "SCRAM-SHA-256" in done.succeeded().text
    scene.broker.start()
    try:
        admin = AdminClient(scene.options("plain"))
        (made,) = admin.create_acls(
            [
                AclBinding(
                    *(ResourceType.TOPIC, "of-alice", ResourcePatternType.LITERAL, "User:alice", "*"),
                    *(AclOperation.ALL, AclPermissionType.ALLOW),
                )
            ]
        ).values()
        made.result(PATIENCE_S)
        produced(scene.options("alice", tls=True), "of-alice", NUMBERED[:10])
        failures: list[Any] = []
        producer = Producer(scene.options("bob"))
        producer.produce("of-alice", b"x", on_delivery=lambda error, _: failures.append(error))
        producer.flush(PATIENCE_S)
        assert [error.code() for error in failures] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        with WireSocket(scene.sasl_port) as connection:
            log_in(connection, "SCRAM-SHA-256", "alice", "alice-secret")
            body = DescribeUserScramCredentialsRequest()
            told = asked(connection, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, body)
            assert told.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert [each.user for each in told.results] == [""]
        with WireSocket(scene.sasl_port) as connection:
            log_in(connection, "SCRAM-SHA-256", "alice", "alice-secret")
            deletion = ScramCredentialDeletion("bob", NUMBERS["SCRAM-SHA-256"])
            told = asked(
                connection,
                *(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, AlterUserScramCredentialsRequest((deletion,))),
            )
            (result,) = told.results
            assert result.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        told_admin: Any = admin.describe_user_scram_credentials()
        assert sorted(told_admin.result(PATIENCE_S)) == ["alice", "bob"]
    finally:
        scene.broker.stop()


def test_a_running_appliance_refuses_the_offline_way_and_a_bad_file_refuses_the_start(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.broker.start()
    try:
        refused = appliance("users", "add", "x", "--data-dir", scene.broker.data_dir, given=b"x-secret\n")
        assert refused.code == 1
        assert "is in use by another appliance" in refused.errors
        empty = appliance("users", "add", "x", "-b", scene.broker.address, given=b"\n")
        assert empty.code == 1
        assert "the password is empty" in empty.errors
    finally:
        scene.broker.stop()
    scene.users.chmod(0o644)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "appliance", "serve", "--data-dir", str(tmp_path / "other")),
            f"--set=listeners=SASL_PLAINTEXT://127.0.0.1:{scene.sasl_port}",
            "--set=sasl.enabled.mechanisms=PLAIN",
            f"--set=sasl.plain.users.file={scene.users}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "other users may read it (mode 0644)" in ended.stderr
    assert "plain-secret" not in ended.stderr


def test_a_listener_with_sasl_may_face_other_hosts(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.broker.set_option(
        "listeners",
        [
            f"PLAINTEXT://127.0.0.1:{scene.port}",
            f"SASL_PLAINTEXT://:{scene.sasl_port}",
            f"SASL_SSL://:{scene.tls_port}",
        ],
    )
    scene.broker.start()
    try:
        assert "without authentication" not in scene.broker.output()
        assert (
            f"passwords of PLAIN cross the network unencrypted on 0.0.0.0:{scene.sasl_port}"
            in scene.broker.output()
        )
        assert os.stat(scene.broker.data_dir / "scram-salt-secret").st_mode & 0o077 == 0
        with WireSocket(scene.sasl_port) as connection:
            assert log_in(connection, "PLAIN", "plain", "plain-secret").error_code == 0
    finally:
        scene.broker.stop()
