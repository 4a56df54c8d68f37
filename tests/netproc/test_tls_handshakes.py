"""Handshakes on real sockets, turned by the test: principals, bounds and deadlines."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest

from appliance.channels.connection_channel import Assignment
from appliance.clock import SystemClock
from appliance.config import Settings
from appliance.config.sections.listeners import ListenerSettings
from appliance.config.sections.tls import TlsSettings
from appliance.netproc.tls_handshakes import Handshakes, certificates_by_listener
from appliance.netproc.tls_stream import TlsStream
from appliance.tls.certificates import Certificates
from tests.netproc.staged import Staged
from tests.support.pki import Authority, Issued
from tests.support.wire import PATIENCE_S


class Stage(Staged):
    """The handshakes of a network process, without the process."""

    def __init__(self, settings: TlsSettings, *, with_sasl: Collection[str] = ()) -> None:
        super().__init__("SSL")
        clock = SystemClock()
        self.done: list[tuple[Assignment, TlsStream, str]] = []
        self.stage = Handshakes(
            settings,
            {"SSL": Certificates(settings, clock, self.lines.append)},
            cycle=self.cycle,
            clock=clock,
            done=lambda *one: self.done.append(one),
            failed=self.note_failure,
            with_sasl=with_sasl,
        )

    def shake_hands(self, context: ssl.SSLContext) -> str:
        """Let a client with a context in; return its principal."""
        client, before = self.arrive(), len(self.done)
        thread = threading.Thread(target=_shake, args=(client, context))
        thread.start()
        self.turn_until(lambda: len(self.done) > before)
        _, stream, principal = self.done[-1]
        stream.close()  # which the client waits for
        thread.join(PATIENCE_S)
        client.close()
        assert not thread.is_alive()
        return principal


def _shake(client: socket.socket, context: ssl.SSLContext) -> None:
    context.wrap_socket(client, server_hostname="localhost").recv(1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("handshakes"))


@pytest.fixture(scope="module")
def settings(authority: Authority) -> TlsSettings:
    server = authority.server()
    return TlsSettings(
        certificate_file=str(server.certificate),
        key_file=str(server.key),
        truststore_location=str(authority.certificate),
        client_auth="requested",
    )


@pytest.fixture(scope="module")
def ann(authority: Authority) -> Issued:
    return authority.issue("ann", "/O=example/OU=logs/CN=ann")


@pytest.fixture
def stages() -> Iterator[list[Stage]]:
    stages: list[Stage] = []
    yield stages
    for stage in stages:
        stage.close()


def context_of(authority: Authority, client: Issued | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def test_each_listener_goes_by_its_own_settings(
    authority: Authority, settings: TlsSettings, ann: Issued, stages: list[Stage], tmp_path: Path
) -> None:
    """Another certificate, another rule for names, and no client without a certificate."""
    other = Authority(tmp_path / "other")
    own = other.server()
    strict = {
        "certificate_file": str(own.certificate),
        "key_file": str(own.key),
        "client_auth": "required",
        "principal_mapping_rules": r"RULE:^CN=([a-z]+),.*$/$1/",
    }
    of_both = Settings(
        listener=ListenerSettings(
            listeners=("SSL://127.0.0.1:9192", "STRICT://127.0.0.1:9292"),
            security_protocol_map=("STRICT:SSL",),
        ),
        ssl=replace(settings, of_listeners={"STRICT": strict}),
    )
    stage = Stage(of_both.ssl)
    stages.append(stage)
    found = certificates_by_listener(of_both, SystemClock(), stage.lines.append)
    stage.stage = Handshakes(
        of_both.ssl,
        found,
        cycle=stage.cycle,
        clock=SystemClock(),
        done=lambda *one: stage.done.append(one),
        failed=stage.note_failure,
    )
    assert stage.shake_hands(context_of(authority)) == "User:ANONYMOUS"
    assert stage.shake_hands(context_of(authority, ann)) == "User:CN=ann,OU=logs,O=example"
    stage.listener_name = "STRICT"
    assert stage.shake_hands(context_of(other, ann)) == "User:ann"
    client = stage.arrive()
    thread = threading.Thread(target=_refused, args=(client, context_of(other)))
    thread.start()
    stage.turn_until(lambda: stage.failed)
    assert "handshake failed" in str(stage.failed[0][1])
    client.close()
    thread.join(PATIENCE_S)


def _refused(client: socket.socket, context: ssl.SSLContext) -> None:
    with suppress(OSError):
        context.wrap_socket(client, server_hostname="localhost").recv(1)


@pytest.mark.parametrize(
    "mapping",
    [
        ("DEFAULT", "User:CN=ann,OU=logs,O=example"),
        (r"RULE:^CN=([a-z]+),.*$/$1/", "User:ann"),
        (r"RULE:^CN=bob.*$/b/,RULE:^CN=([a-z]+),OU=(.*),O=.*$/$2-$1/U", "User:LOGS-ANN"),
    ],
)
def test_the_principal_is_what_the_rules_make_of_the_certificate(
    settings: TlsSettings, authority: Authority, ann: Issued, stages: list[Stage], mapping: tuple[str, str]
) -> None:
    rules, principal = mapping
    stage = Stage(replace(settings, principal_mapping_rules=rules))
    stages.append(stage)
    assert stage.shake_hands(context_of(authority, ann)) == principal
    assert stage.shake_hands(context_of(authority)) == "User:ANONYMOUS"
    assert stage.failed == []


def test_no_rule_maps_a_certificate_where_sasl_names_the_principal(
    authority: Authority, settings: TlsSettings, ann: Issued, stages: list[Stage]
) -> None:
    stage = Stage(replace(settings, principal_mapping_rules=r"RULE:^CN=nobody.*$/x/"), with_sasl={"SSL"})
    stages.append(stage)
    assert stage.shake_hands(context_of(authority, ann)) == "User:ANONYMOUS"


def test_at_the_bound_of_an_address_its_oldest_makes_room_and_no_other(
    settings: TlsSettings, authority: Authority, stages: list[Stage]
) -> None:
    stage = Stage(replace(settings, handshakes_max_per_ip=3))
    stages.append(stage)
    silent = [stage.arrive() for _ in range(3)]
    other = stage.arrive("192.0.2.1")
    silent.append(stage.arrive())
    assert stage.failed == [(1, "ssl.handshakes.max.per.ip = 3 are not finished")]
    assert stage.shake_hands(context_of(authority)) == "User:ANONYMOUS", "the next one is let in all the same"
    assert [number for number, _ in stage.failed] == [1, 2]
    for each in (*silent, other):
        each.close()


def test_at_the_bound_of_all_the_oldest_makes_room(settings: TlsSettings, stages: list[Stage]) -> None:
    stage = Stage(replace(settings, handshakes_max=3))
    stages.append(stage)
    clients = [stage.arrive(f"192.0.2.{number}") for number in range(5)]
    assert [number for number, _ in stage.failed] == [1, 2]
    assert len(stage.stage) == 3
    for each in clients:
        each.close()


def test_a_handshake_that_goes_on_byte_by_byte_ends_at_its_deadline(
    settings: TlsSettings, stages: list[Stage]
) -> None:
    stage = Stage(replace(settings, handshake_timeout_ms=400))
    stages.append(stage)
    client = stage.arrive()
    began = time.monotonic()
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(400)
    sent = 0
    while not stage.failed:
        assert time.monotonic() < began + PATIENCE_S
        if sent < len(hello):
            client.sendall(hello[sent : sent + 1])
            sent += 1
        stage.turn(10)
    assert time.monotonic() - began >= 0.4
    assert stage.failed == [(1, "its TLS handshake took longer than 400 ms")]
    assert len(stage.stage) == 0
    client.close()


def test_a_client_that_resets_the_connection_after_its_first_byte_costs_that_connection_only(
    settings: TlsSettings, stages: list[Stage]
) -> None:
    """`ssl` then closes the descriptor itself, before the stage does."""
    stage = Stage(settings)
    stages.append(stage)
    healthy = stage.arrive()
    for number in (2, 3):
        client = stage.arrive()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        client.sendall(b"\x16")
        client.close()
        stage.turn_until(lambda wanted=number - 1: len(stage.failed) == wanted)  # type: ignore[misc]
    assert [number for number, _ in stage.failed] == [2, 3]
    assert len(stage.stage) == 1
    healthy.close()


def test_a_client_that_leaves_or_speaks_plain_text_is_closed(
    settings: TlsSettings, stages: list[Stage]
) -> None:
    stage = Stage(settings)
    stages.append(stage)
    stage.arrive().close()
    plain = stage.arrive()
    plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    garbage = stage.arrive()
    garbage.sendall(b"\x16\x03\x01\x00\x05hello" + bytes(100))
    stage.turn_until(lambda: len(stage.failed) == 3)
    reasons = dict(stage.failed)
    assert reasons[1] is None, "nothing was sent: no line"
    assert reasons[2] == "plain text on a port with TLS"
    assert str(reasons[3]).startswith("its TLS handshake failed: ")
    plain.close()
    garbage.close()
