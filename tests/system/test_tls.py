"""TLS listeners: who gets in, with what, and that nobody waits for a stranger's handshake."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.pki import Authority, Issued
from tests.support.wire import PATIENCE_S, ConnectionEnded, WireSocket, free_ports
from tests.system.acked_load import create
from tests.system.secured import SILENT, SecuredScene, consumed, is_ended, produced

HANDSHAKE_MS = 1500


class Scene(SecuredScene):
    """An appliance with a listener in plain text and one with TLS."""

    def __init__(self, directory: Path, **more: object) -> None:
        port = free_ports(2)
        self.tls_port = port + 1
        listeners = [f"PLAINTEXT://127.0.0.1:{port}", f"SSL://127.0.0.1:{self.tls_port}"]
        super().__init__(directory, port, listeners, **more)

    def context(self, client: Issued | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context

    def connect(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.tls_port), PATIENCE_S)
        return (context or self.context()).wrap_socket(raw, server_hostname="localhost")

    def options(self, **more: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"localhost:{self.tls_port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "broker.address.family": "v4",
            **more,
        }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(
        tmp_path_factory.mktemp("tls"),
        **{"ssl.handshake.timeout.ms": HANDSHAKE_MS, "network.closed.lines.per.minute": 1000},
    )
    scene.broker.start()
    yield scene
    scene.broker.stop()


def answers(tls: ssl.SSLSocket) -> bool:
    """Whether an ApiVersions request on an encrypted connection is answered."""
    body = b"\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"
    tls.sendall(len(body).to_bytes(4, "big") + body)
    head = tls.recv(8)
    return head[4:8] == b"\x00\x00\x00\x07"


def is_refused(scene: Scene, context: ssl.SSLContext) -> bool:
    """Whether a client with this context gets no answer. With TLS 1.3 it learns that only when it reads."""
    try:
        with scene.connect(context) as tls:
            return not answers(tls)
    except OSError:
        return True


def test_what_is_produced_over_tls_is_consumed_over_tls_and_in_plain_text(scene: Scene) -> None:
    """Records from 1 byte to a megabyte, so that frames and answers end anywhere in a record of TLS."""
    create(scene.broker, "both", 1, replicas=1)
    values = [bytes([number % 251]) * (1 + number * number * 25) for number in range(201)]
    produced(scene.options(), "both", values)
    assert consumed(scene.options(), "both", len(values)) == values
    plain = {"bootstrap.servers": f"127.0.0.1:{scene.port}"}
    assert consumed({**plain, "group.id": "plain"}, "both", len(values)) == values


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_served(scene: Scene, version: ssl.TLSVersion) -> None:
    context = scene.context()
    context.minimum_version = context.maximum_version = version
    with scene.connect(context) as tls:
        assert (
            tls.version() == {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}[version]
        )
        assert answers(tls)


def test_many_small_requests_in_one_record_and_one_request_in_many_are_answered(scene: Scene) -> None:
    body = b"\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"
    request = len(body).to_bytes(4, "big") + body
    with scene.connect() as tls:
        tls.sendall(request * 1000)  # in records of 16 KiB, whose parts are left inside OpenSSL
        for _ in range(1000):
            size = int.from_bytes(_exactly(tls, 4), "big")
            assert _exactly(tls, size)[:4] == b"\x00\x00\x00\x07"
        for byte in request:
            tls.sendall(bytes([byte]))
        size = int.from_bytes(_exactly(tls, 4), "big")
        assert _exactly(tls, size)[:4] == b"\x00\x00\x00\x07"


def _exactly(tls: ssl.SSLSocket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = tls.recv(size - len(got))
        assert piece, "the broker closed the connection"
        got += piece
    return got


def test_the_first_request_of_a_client_with_nagles_algorithm_waits_for_no_delayed_acknowledgement(
    scene: Scene,
) -> None:
    """The kernel delays an acknowledgement by 40 ms. One of twenty in less time shows that none was waited for."""
    waits = []
    for _ in range(20):
        with scene.connect() as tls:
            began = time.monotonic()
            assert answers(tls)
            waits.append(time.monotonic() - began)
    assert min(waits) < 0.03, waits


def test_plain_text_on_a_tls_port_is_closed_with_a_line(scene: Scene) -> None:
    with WireSocket(scene.tls_port) as connection:
        connection.send(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff")
        with pytest.raises((ConnectionEnded, ConnectionError)):
            connection.read_frame()
    scene.waits_for("on SSL closed: plain text on a port with TLS")


def test_tls_on_a_port_in_plain_text_is_closed_with_a_line(scene: Scene) -> None:
    raw = socket.create_connection(("127.0.0.1", scene.port), PATIENCE_S)
    with pytest.raises(OSError), scene.context().wrap_socket(raw, server_hostname="localhost"):  # noqa: PT011
        pass
    scene.waits_for("a TLS handshake on a port without TLS")


def test_silent_handshakes_hold_up_nobody_and_are_closed_in_time(scene: Scene) -> None:
    """Behind the tests that wait for a line: the lines of this one use up what a process writes in 10 s."""
    create(scene.broker, "meanwhile", 1, replicas=1)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", scene.tls_port), PATIENCE_S))
            for _ in range(SILENT)
        ]
        for each in silent[::2]:
            each.sendall(b"\x16\x03\x01\x02\x00\x01")  # a handshake that never goes on
        began = time.monotonic()
        produced(scene.options(), "meanwhile", [b"x"] * 1000)
        assert time.monotonic() - began < PATIENCE_S
        assert all(is_ended(each) for each in silent)
    scene.waits_for("its TLS handshake took longer than 1500 ms")


def test_a_slow_reader_of_encrypted_records_gets_all_of_them(scene: Scene) -> None:
    """Its socket is full again and again, in the middle of records of TLS and of Kafka."""
    create(scene.broker, "slow", 1, replicas=1)
    values = [os.urandom(100_000) for _ in range(100)]
    produced(scene.options(), "slow", values)
    options = scene.options(**{"receive.message.max.bytes": "60000000", "fetch.max.bytes": "50000000"})
    options |= {"max.partition.fetch.bytes": "50000000", "socket.receive.buffer.bytes": "8192"}
    assert consumed(options, "slow", len(values)) == values


def test_a_changed_certificate_counts_for_new_connections_and_drops_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.broker.start()
    try:
        with scene.connect() as before:
            first = before.getpeercert(True)
            good = scene.server.certificate.read_bytes(), scene.server.key.read_bytes()
            scene.server.certificate.write_text("this is no certificate")
            time.sleep(1.1)
            with scene.connect() as meanwhile:
                assert meanwhile.getpeercert(True) == first
            scene.waits_for("the certificate from before stays in use")
            second = scene.authority.server("second")
            scene.server.certificate.write_bytes(second.certificate.read_bytes())
            scene.server.key.write_bytes(second.key.read_bytes())
            assert good[0] != second.certificate.read_bytes()
            deadline = time.monotonic() + PATIENCE_S
            while True:
                time.sleep(1.1)
                with scene.connect() as after:
                    if after.getpeercert(True) == second.der():
                        break
                assert time.monotonic() < deadline
            assert answers(before), "a connection from before goes on"
    finally:
        scene.broker.stop()


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("ssl.certificate.file", "this is no PEM file"),
        ("ssl.key.file", "the private key does not belong to the certificate"),
        ("ssl.keystore.location", "No such file or directory"),
    ],
)
def test_a_start_with_files_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, option: str, why: str
) -> None:
    authority = Authority(tmp_path / "pki")
    server, other = authority.server(), authority.server("other")
    files = {"ssl.certificate.file": server.certificate, "ssl.key.file": server.key}
    match option:
        case "ssl.certificate.file":
            server.certificate.write_text("no certificate")
        case "ssl.key.file":
            files[option] = other.key
        case _:
            files = {option: tmp_path / "absent.pem"}
    port = free_ports()
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "appliance", "serve", "--data-dir", str(tmp_path / "data")),
            f"--set=listeners=SSL://127.0.0.1:{port}",
            *(f"--set={name}={path}" for name, path in files.items()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert why in ended.stderr
    assert "ssl.certificate.file" in ended.stderr or option in ended.stderr


def test_a_listener_with_required_certificates_may_face_other_hosts(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    client = scene.authority.issue("ann", "/O=example/OU=logs/CN=ann")
    stranger = Authority(tmp_path / "others", "others").issue("eve", "/CN=eve")
    scene.broker.set_option("listeners", [f"PLAINTEXT://127.0.0.1:{scene.port}", f"SSL://:{scene.tls_port}"])
    scene.broker.set_option("ssl.client.auth", "required")
    scene.broker.set_option("ssl.truststore.location", str(scene.authority.certificate))
    scene.broker.start()
    try:
        assert "without authentication" not in scene.broker.output()
        with scene.connect(scene.context(client)) as tls:
            assert answers(tls)
        for refused in (None, stranger):
            assert is_refused(scene, scene.context(refused))
        scene.waits_for("its TLS handshake failed: peer did not return a certificate")
        scene.waits_for("its certificate is refused: unable to get local issuer certificate")
    finally:
        scene.broker.stop()


def test_a_certificate_that_no_rule_matches_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.broker.set_option("ssl.client.auth", "requested")
    scene.broker.set_option("ssl.truststore.location", str(scene.authority.certificate))
    scene.broker.set_option("ssl.principal.mapping.rules", r"RULE:^CN=([a-z]+),OU=logs,O=example$/$1/U")
    scene.broker.start()
    try:
        with scene.connect(scene.context(scene.authority.issue("ann", "/O=example/OU=logs/CN=ann"))) as tls:
            assert answers(tls)
        with scene.connect() as tls:
            assert answers(tls), "without a certificate it is anonymous"
        bob = scene.authority.issue("bob", "/O=example/OU=trade/CN=bob")
        assert is_refused(scene, scene.context(bob))
        scene.waits_for("no rule of ssl.principal.mapping.rules matches 'CN=bob,OU=trade,O=example'")
    finally:
        scene.broker.stop()
