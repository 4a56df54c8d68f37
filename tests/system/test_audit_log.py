"""The audit journal of a whole appliance: real clients do things, and the journal says who did what."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from appliance.cluster import AUDIT_LOG
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest
from appliance.protocol.messages import encode_request
from appliance.protocol.records.record import Record, encode_batch
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.system.raw import create_topic, produce_frame, read_produced, wait_until
from tests.system.test_acls_of_certificates import Scene, error_of_producing, rule

EVERYTHING: Final = "authentications,refusals,changes"
REPEATS: Final = 20
FLOOD: Final = 20
Entry = dict[str, Any]


def journal(data_dir: Path) -> list[Entry]:
    """Return the entries of all files, oldest first. Each line must be whole."""
    directory = data_dir / "audit"
    files = sorted(directory.glob("audit.log.*"), key=lambda path: -int(path.suffix[1:]))
    files += directory.glob("audit.log")
    lines = [line for path in files for line in path.read_bytes().splitlines() if line]
    return [json.loads(line) for line in lines]


def wait_for(data_dir: Path, wanted: Callable[[Entry], bool], what: str) -> Entry:
    """Return the first such entry, as soon as it is there."""
    found: list[Entry] = []

    def is_there() -> bool:
        with suppress(FileNotFoundError, json.JSONDecodeError):
            found.extend(entry for entry in journal(data_dir) if wanted(entry))
        return bool(found)

    wait_until(is_there, what)
    return found[0]


def auditor_is_new(broker: Appliance, pid: int) -> bool:
    """Whether the writer lives again after the one with `pid`."""
    return broker.pids("auditor") not in ([], [pid])


def connected(scene: Scene, user: str) -> ssl.SSLSocket:
    """Return a connection of the user's."""
    context = ssl.create_default_context(cafile=str(scene.authority.certificate))
    context.load_cert_chain(scene.users[user].certificate, scene.users[user].key)
    plain = socket.create_connection(("127.0.0.1", scene.port), 20)
    return context.wrap_socket(plain, server_hostname="localhost")


def read_answer(connection: ssl.SSLSocket) -> bytes:
    """Return the next response, without its size."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = connection.recv(4 if len(data) < 4 else 4 + int.from_bytes(data[:4], "big") - len(data))
        assert more, "the connection was closed"
        data += more
    return data[4:]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    settings = {
        "audit.log.events": EVERYTHING,
        "audit.log.topic": True,
        "audit.log.repeats.max": REPEATS,
        "network.processes": 1,
    }
    scene = Scene(tmp_path_factory, settings)
    scene.broker.start()
    try:
        yield scene
        assert "Traceback" not in scene.broker.output()
    finally:
        scene.broker.stop()


def changes(scene: Scene, api: str) -> list[Entry]:
    return [
        each for each in journal(scene.broker.data_dir) if each["event"] == "change" and each["api"] == api
    ]


def test_changes_by_a_principal_with_a_certificate(scene: Scene) -> None:
    admin = AdminClient(scene.options("admin", **{"client.id": "ops"}))
    admin.create_topics([NewTopic("orders", 3, config={"retention.ms": "60000"})])["orders"].result(30)
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(30)
    admin.create_partitions([NewPartitions("orders", 4)])["orders"].result(30)
    altered = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    altered.add_incremental_config(
        ConfigEntry("retention.ms", "70000", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([altered])[altered].result(30)
    allowed = rule(ResourceType.TOPIC, "orders", "User:alice", AclOperation.DESCRIBE)
    admin.create_acls([allowed])[allowed].result(30)
    wait_for(scene.broker.data_dir, lambda entry: entry.get("api") == "CreateAcls", "the last change")
    created, failed = changes(scene, "CreateTopics")[:2]
    who = {key: created[key] for key in ("principal", "host", "listener", "client", "result", "process")}
    assert who == {
        "principal": "User:admin",
        "host": "127.0.0.1",
        "listener": "SSL",
        "client": "ops",
        "result": "done",
        "process": "netproc 0",
    }
    (topic,) = created["resources"]
    assert (topic["type"], topic["name"], topic["result"]) == ("topic", "orders", "done")
    assert (topic["detail"]["partitions"], topic["detail"]["retention.ms"]) == ("3", "60000")
    assert (failed["result"], failed["resources"][0]["error"]) == ("failed", "TOPIC_ALREADY_EXISTS")
    (grown,) = changes(scene, "CreatePartitions")
    assert grown["resources"][0]["detail"] == {"partitions": "4"}
    (changed,) = changes(scene, "IncrementalAlterConfigs")
    assert changed["resources"][0]["detail"] == {"retention.ms": "set 70000"}
    (acl,) = changes(scene, "CreateAcls")
    assert acl["resources"][0]["detail"]["principal"] == "User:alice"


def test_refusals_of_another_principal(scene: Scene) -> None:
    alice = AdminClient(scene.options("alice"))
    with pytest.raises(KafkaException):
        alice.create_topics([NewTopic("forbidden", 1)])["forbidden"].result(30)
    data_dir = scene.broker.data_dir
    refused = wait_for(
        data_dir,
        lambda entry: entry["event"] == "refusal" and entry["api"] == "CreateTopics",
        "the refusal of CreateTopics",
    )
    assert (refused["principal"], refused["result"]) == ("User:alice", "denied")
    assert refused["resources"] == [
        {"type": "topic", "name": "forbidden", "result": "denied", "operation": "create"}
    ]
    assert not [each for each in changes(scene, "CreateTopics") if each["principal"] == "User:alice"]


def test_a_list_leaves_out_what_is_hidden_and_records_nothing(scene: Scene) -> None:
    before = len([each for each in journal(scene.broker.data_dir) if each["event"] == "refusal"])
    bob = AdminClient(scene.options("bob"))
    assert bob.list_topics(timeout=20).topics == {}
    bob.list_consumer_groups().result(20)
    wait_for(
        scene.broker.data_dir,
        lambda entry: entry["event"] == "authentication" and entry["principal"] == "User:bob",
        "bob's authentication",
    )
    time.sleep(0.3)
    after = [each for each in journal(scene.broker.data_dir) if each["event"] == "refusal"]
    assert after[before:] == []


def test_authentications_and_failed_ones(scene: Scene) -> None:
    context = ssl.create_default_context(cafile=str(scene.authority.certificate))
    context.check_hostname = False
    # The server refuses a missing certificate in the handshake, and not later.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", scene.port), 10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain).close()
    data_dir = scene.broker.data_dir
    failed = wait_for(
        data_dir,
        lambda entry: entry["event"] == "authentication" and entry["result"] == "denied",
        "the failed handshake",
    )
    assert (failed["host"], failed["listener"], failed["mechanism"]) == ("127.0.0.1", "SSL", "SSL")
    assert failed["reason"]
    assert "principal" not in failed
    done = wait_for(
        data_dir,
        lambda entry: entry["event"] == "authentication" and entry.get("principal") == "User:admin",
        "the administrator's authentication",
    )
    assert (done["result"], done["mechanism"]) == ("done", "SSL")
    assert done["port"] > 0


def test_kafkas_own_tool_is_recorded(scene: Scene, tmp_path: Path) -> None:
    user = scene.users["admin"]
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SSL\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={scene.authority.certificate}\n"
        "ssl.keystore.type=PEM\n"
        f"ssl.keystore.location={user.both}\n"
        "ssl.endpoint.identification.algorithm=\n"
    )
    reach = ("--bootstrap-server", f"localhost:{scene.port}", "--command-config", str(properties))
    tool("org.apache.kafka.tools.TopicCommand", *reach, "--create", "--topic", "by-tool", "--partitions", "2")
    tool("org.apache.kafka.tools.TopicCommand", *reach, "--delete", "--topic", "by-tool")
    gone = wait_for(
        scene.broker.data_dir,
        lambda entry: entry.get("api") == "DeleteTopics" and entry["result"] == "done",
        "the deletion by kafka-topics.sh",
    )
    assert gone["principal"] == "User:admin"
    assert gone["resources"][0]["name"] == "by-tool"


def test_the_journal_is_only_for_the_user_of_the_appliance(scene: Scene) -> None:
    directory = scene.broker.data_dir / "audit"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_the_command_shows_what_was_asked_for(scene: Scene) -> None:
    where = ("--data-dir", str(scene.broker.data_dir))
    run = scene.broker.run("audit-log", "show", *where, "--principal", "User:alice", "--json", timeout_s=60)
    shown = [json.loads(line) for line in run.stdout.splitlines()]
    assert shown
    assert {each["principal"] for each in shown} == {"User:alice"}
    run = scene.broker.run("audit-log", "tail", "-n", "1", *where, "--api", "createacls", timeout_s=60)
    assert "User:admin from 127.0.0.1 CreateAcls: acl orders (" in run.stdout
    assert len(run.stdout.splitlines()) == 1


def test_the_internal_topic_has_the_same_entries_and_clients_cannot_write_it(scene: Scene) -> None:
    admin = AdminClient(scene.options("admin"))
    admin.create_topics([NewTopic("marker", 1)])["marker"].result(30)
    texts: list[str] = []

    def has_marker() -> bool:
        run = scene.broker.run("consume", AUDIT_LOG, "--bootstrap", scene.broker.address, timeout_s=60)
        texts[:] = run.stdout.splitlines()
        return any('"marker"' in text for text in texts)

    # The loopback listener is for nobody but super users: allow its anonymous client to read this topic.
    allowed = rule(ResourceType.TOPIC, AUDIT_LOG, "User:ANONYMOUS", AclOperation.READ)
    admin.create_acls([allowed])[allowed].result(30)
    wait_until(has_marker, "the entry in the topic")
    from_file = {json.dumps(each, sort_keys=True) for each in journal(scene.broker.data_dir)}
    from_topic = [json.loads(text) for text in texts if text.startswith("{")]
    assert len(from_topic) > 5
    assert {json.dumps(each, sort_keys=True) for each in from_topic} <= from_file
    # Neither the creation of the topic nor an append is an entry.
    assert not [each for each in from_topic if AUDIT_LOG in json.dumps(each) and each["api"] != "CreateAcls"]
    assert error_of_producing(scene, "admin", AUDIT_LOG) is not None
    with pytest.raises(KafkaException):
        admin.delete_topics([AUDIT_LOG])[AUDIT_LOG].result(30)


def test_a_flood_of_refusals_is_counted_and_holds_up_no_producer(scene: Scene) -> None:
    admin = AdminClient(scene.options("admin"))
    admin.create_topics([NewTopic("busy", 1)])["busy"].result(30)
    acked: list[object] = []
    producer = Producer(scene.options("admin", **{"linger.ms": 0, "acks": "all"}))
    frame = produce_frame("orders", encode_batch([Record(value=b"x")]))
    denials = 0
    with connected(scene, "bob") as bob:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            began = time.monotonic()
            producer.produce("busy", b"x", on_delivery=lambda error, _: acked.append(error))
            bob.sendall(frame * FLOOD)
            for _ in range(FLOOD):
                answer = read_answer(bob)
                assert read_produced(answer).error == KafkaError.TOPIC_AUTHORIZATION_FAILED
                denials += 1
            assert producer.flush(10) == 0
            assert time.monotonic() - began < 5
    assert denials > 10 * REPEATS
    assert len(acked) > 20
    assert set(acked) == {None}
    time.sleep(0.5)
    written = [
        each
        for each in journal(scene.broker.data_dir)
        if each["event"] == "refusal" and each["principal"] == "User:bob"
    ]
    assert len(written) == REPEATS
    scene.broker.stop()  # what is left of the minute is told at the end
    told = [each for each in journal(scene.broker.data_dir) if each["event"] == "repeats"]
    assert [(each["of"], each["principal"]) for each in told if each["of"] == "refusal"] == [
        ("refusal", "User:bob")
    ]
    assert told[0]["count"] > 0
    scene.broker.start()


# ── without an authorizer: trouble of the writer ──────────────────────────────────────────────────────────


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Appliance]:
    settings = {
        "audit.log.events": "changes",
        "audit.log.file.bytes": 65_536,
        "audit.log.files.max": 3,
        "network.processes": 1,
    }
    broker = Appliance(tmp_path / "data", settings=settings)
    broker.start()
    try:
        yield broker
        assert "Traceback" not in broker.output()
    finally:
        broker.stop()


def names(data_dir: Path) -> list[str]:
    return [
        each["name"]
        for entry in journal(data_dir)
        if entry.get("api") == "CreateTopics"
        for each in entry["resources"]
    ]


def test_a_kill_of_the_writer_loses_no_request_and_the_next_one_goes_on(plain: Appliance) -> None:
    for number in range(5):
        assert create_topic(plain.port, f"before-{number}") == 0
    wait_for(plain.data_dir, lambda entry: "before-4" in json.dumps(entry), "the last topic")
    others = {role.role: role.pid for role in plain.processes() if role.role != "auditor"}
    (pid,) = plain.pids("auditor")
    for round_ in range(3):
        (pid,) = plain.pids("auditor")
        os.kill(pid, signal.SIGKILL)
        # As if the kill had come within a line.
        with (plain.data_dir / "audit" / "audit.log").open("ab") as file:
            file.write(b'{"time":"2026-03-01T12:00')
        for number in range(20):
            assert create_topic(plain.port, f"meanwhile-{round_}-{number}") == 0
        wait_until(lambda pid=pid: auditor_is_new(plain, pid), "the next writer")  # type: ignore[misc]
        assert create_topic(plain.port, f"after-{round_}") == 0
        run = plain.run("audit-log", "tail", "-n", "1", "--data-dir", str(plain.data_dir), timeout_s=60)
        assert run.returncode == 0

        def has(round_: int = round_) -> bool:
            shown = plain.run("audit-log", "show", "--data-dir", str(plain.data_dir), timeout_s=60).stdout
            return f"topic after-{round_} (" in shown and f"topic meanwhile-{round_}-19 (" in shown

        wait_until(has, "what was done after the kill")
    assert {role.role: role.pid for role in plain.processes() if role.role != "auditor"} == others


def test_a_full_disk_stops_no_request_and_the_journal_says_what_it_lost(plain: Appliance) -> None:
    assert create_topic(plain.port, "first") == 0
    wait_for(plain.data_dir, lambda entry: "first" in json.dumps(entry), "the first topic")
    (pid,) = plain.pids("auditor")
    writer = psutil.Process(pid)
    size = (plain.data_dir / "audit" / "audit.log").stat().st_size
    writer.rlimit(psutil.RLIMIT_FSIZE, (size + 100, psutil.RLIM_INFINITY))
    for number in range(10):
        began = time.monotonic()
        assert create_topic(plain.port, f"lost-{number}") == 0
        assert time.monotonic() - began < 10
    wait_until(lambda: "entries of the audit journal are lost" in plain.output(), "the line in the log")
    wait_until(
        lambda: (
            "could not be written"
            in plain.run("status", "--data-dir", str(plain.data_dir), timeout_s=60).stdout
        ),
        "the line of status",
    )
    writer.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
    assert create_topic(plain.port, "last") == 0
    wait_for(plain.data_dir, lambda entry: "last" in json.dumps(entry), "the last topic")
    # The count itself may have had room when an entry had none, so there may be several.
    lost = sum(entry["count"] for entry in journal(plain.data_dir) if entry["event"] == "lost")
    written = names(plain.data_dir)
    assert (written[0], written[-1]) == ("first", "last")
    assert lost == 12 - len(written) > 0
    assert plain.pids("auditor") == [pid]


def test_a_writer_that_stands_still_stops_no_request_and_what_waits_is_bounded(plain: Appliance) -> None:
    (pid,) = plain.pids("auditor")
    os.kill(pid, signal.SIGSTOP)
    try:
        for number in range(300):
            began = time.monotonic()
            assert create_topic(plain.port, "same-name") in {0, 36}
            assert time.monotonic() - began < 10
            assert number >= 0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: names(plain.data_dir).count("same-name") >= 200, "what waited")
    assert plain.pids("auditor") == [pid]


def test_files_are_rotated_and_bounded(plain: Appliance) -> None:
    assert create_topic(plain.port, "same-name") == 0
    for _ in range(700):
        assert create_topic(plain.port, "same-name") == 36
    directory = plain.data_dir / "audit"
    wait_until((directory / "audit.log.2").exists, "the third file")
    assert {path.name for path in directory.iterdir()} == {"audit.log", "audit.log.1", "audit.log.2"}
    assert sum(path.stat().st_size for path in directory.iterdir()) <= 3 * 65_536 + 65_536
    assert all(journal(plain.data_dir))


def test_a_change_by_a_client_that_leaves_at_once_is_recorded(plain: Appliance) -> None:
    for number in range(10):
        name = f"left-{number}"
        request = CreateTopicsRequest((CreatableTopic(name, 1, 1),))
        with socket.create_connection(("127.0.0.1", plain.port), 10) as client:
            client.sendall(encode_request(ApiKey.CREATE_TOPICS, 7, request, 1))
        wait_for(plain.data_dir, lambda entry, name=name: name in json.dumps(entry), name)  # type: ignore[misc]
