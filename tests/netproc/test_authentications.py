"""Connections before their authentication, over real sockets: steps, bounds, delays; no process."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from socket import SocketType

import pytest

from appliance.channels.connection_channel import Assignment
from appliance.channels.metadata_image import ImagePublisher, ImageReader
from appliance.clock import SystemClock
from appliance.config import Settings, load_settings
from appliance.netproc import authentications as room
from appliance.netproc.address_failures import (
    ADDRESSES_MAX,
    DELAY_MAX_MS,
    FORGET_NS,
    FREE_FAILURES,
    AddressFailures,
)
from appliance.netproc.authentications import Authentications
from appliance.netproc.tls_stream import TlsStream
from appliance.requests.authentication import Authenticated
from appliance.requests.authenticators import Authenticators
from appliance.requests.topic_routes import TopicRoutes
from appliance.sasl.plain import PlainExchange
from appliance.sasl.salt_secret import make_salt_secret
from tests.netproc.staged import Staged
from tests.support.sasl_wire import authenticate_frame, handshake_frame
from tests.support.wire import PATIENCE_S

HANDSHAKE = handshake_frame("PLAIN")
RIGHT = authenticate_frame(b"\0alice\0alice-secret")
WRONG = authenticate_frame(b"\0alice\0wrong")


class Stage(Staged):
    """The authentications of a network process, without the process."""

    stage: Authentications

    def __init__(self, directory: Path, **more: str) -> None:
        super().__init__("SASL_PLAINTEXT")
        users = directory / "users.toml"
        users.write_text('"alice" = "alice-secret"\n')
        users.chmod(0o600)
        make_salt_secret(directory)
        settings: Settings = load_settings(
            overrides={
                "data.dir": str(directory),
                "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.plain.users.file": str(users),
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )
        clock = SystemClock()
        pointer = memoryview(bytearray(4096))
        ImagePublisher(directory, pointer)
        routes = TopicRoutes(ImageReader(directory, pointer), workers=1)
        self.done: list[tuple[SocketType, Authenticated]] = []
        self.stage = Authentications(
            settings.sasl,
            Authenticators(settings, routes, clock, self.lines.append),
            failures=AddressFailures(settings.sasl.failed_delay_ms),
            cycle=self.cycle,
            clock=clock,
            done=self._done,
            failed=self.note_failure,
        )

    def _done(
        self, _: Assignment, sock: SocketType, _stream: TlsStream | None, client: Authenticated
    ) -> None:
        self.done.append((sock, client))

    def close(self) -> None:
        super().close()
        for sock, _ in self.done:
            sock.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def is_ended(client: socket.socket) -> bool:
    """Whether the other end is closed, after what came."""
    client.setblocking(False)
    try:
        while client.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


def test_byte_by_byte_it_authenticates_and_no_byte_more_is_read(stage: Stage) -> None:
    client = stage.arrive()
    for byte in HANDSHAKE + RIGHT:
        client.sendall(bytes([byte]))
        stage.turn(1)
    client.sendall(b"the next request")
    stage.turn_until(lambda: stage.done)
    ((sock, found),) = stage.done
    assert (found.principal, found.mechanism, found.expires_ns) == ("User:alice", "PLAIN", None)
    sock.setblocking(True)
    assert sock.recv(100) == b"the next request"
    assert not len(stage.stage)


def test_everything_at_once_authenticates_too(stage: Stage) -> None:
    client = stage.arrive()
    client.sendall(HANDSHAKE + RIGHT)
    stage.turn_until(lambda: stage.done)


def test_a_failure_is_answered_after_the_delay_and_the_connection_is_not_read_meanwhile(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, connection_failed_authentication_delay_ms="300")
    client = stage.arrive()
    began = time.monotonic()
    client.sendall(HANDSHAKE + WRONG)
    stage.turn_until(lambda: select.select([client], [], [], 0)[0])
    client.recv(1 << 16)  # of the handshake
    client.sendall(HANDSHAKE + RIGHT)
    stage.turn_until(lambda: stage.failed)
    assert time.monotonic() - began >= 0.3
    assert stage.failed == [(1, "Authentication failed: Invalid username or password")]
    assert stage.claims == [("PLAIN", "User:alice")]
    assert not stage.done
    client.settimeout(PATIENCE_S)
    assert b"Invalid username or password" in client.recv(1 << 16)
    stage.close()


def test_a_failure_is_answered_although_the_time_is_up_before(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path, connection_failed_authentication_delay_ms="400", sasl_authentication_timeout_ms="200"
    )
    client = stage.arrive()
    client.sendall(HANDSHAKE + WRONG)
    stage.turn_until(lambda: stage.failed)
    assert stage.failed == [(1, "Authentication failed: Invalid username or password")]
    client.settimeout(PATIENCE_S)
    assert b"Invalid username or password" in client.recv(1 << 16)
    stage.close()


def test_a_silent_one_is_closed_in_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path, sasl_authentication_timeout_ms="200")
    silent, half = stage.arrive(), stage.arrive()
    half.sendall(HANDSHAKE[:7])
    stage.turn_until(lambda: len(stage.failed) == 2)
    assert {why for _, why in stage.failed} == {"its client did not authenticate within 200 ms"}
    assert is_ended(silent)
    assert is_ended(half)
    stage.close()


def test_too_many_of_one_address_or_of_all_close_the_oldest(tmp_path: Path) -> None:
    stage = Stage(tmp_path, **{"sasl.authentications.max": "5", "sasl.authentications.max.per.ip": "2"})
    other = stage.arrive("10.0.0.9")
    for _ in range(20):
        stage.arrive("10.0.0.1")
    assert len(stage.stage) == 3
    assert not is_ended(other), "the address of another pays nothing"
    for number in range(10):
        stage.arrive(f"10.0.1.{number}")
    assert len(stage.stage) == 5
    last = stage.arrive("10.0.2.1")
    last.sendall(HANDSHAKE + RIGHT)
    stage.turn_until(lambda: stage.done)
    stage.close()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01", "a TLS handshake on a port without TLS"),
        (b"\x00\x08\x00\x01" + bytes(100), "frame size 524289 is above the limit of 524288 bytes"),
        (b"\xff\xff\xff\xff", "frame size -1 is not positive"),
        (bytes(4), "frame size 0 is not positive"),
    ],
)
def test_what_is_no_request_is_closed_with_a_line(stage: Stage, sent: bytes, why: str) -> None:
    client = stage.arrive()
    client.sendall(sent)
    stage.turn_until(lambda: stage.failed)
    assert why in str(stage.failed[0][1])


def test_large_frames_hold_no_more_memory_than_came_and_all_of_them_a_bounded_amount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "HELD_BYTES_MAX", 1 << 20)
    stage = Stage(tmp_path)
    announced = (500_000).to_bytes(4, "big")
    clients = [stage.arrive() for _ in range(8)]
    for client in clients:
        client.setblocking(False)
        client.sendall(announced + HANDSHAKE[4:14])
    for _ in range(20):
        stage.turn(1)
    held = stage.stage._held_bytes
    assert 0 < held <= 80, "an announced size allocates nothing"
    for _ in range(200):
        for client in clients:
            try:
                client.send(bytes(50_000))
            except (BlockingIOError, ConnectionError):
                continue
        stage.turn(1)
    assert stage.stage._held_bytes <= 1 << 20
    assert any("too many bytes" in str(why) for _, why in stage.failed)
    stage.close()
    assert not stage.stage._held_bytes


def test_a_connection_that_another_ones_bytes_close_has_no_step_in_the_same_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that passes the bound on bytes closes the largest connection, whose own step may still be due."""
    monkeypatch.setattr(room, "HELD_BYTES_MAX", 99_991)
    stage = Stage(tmp_path)
    announced = (500_000).to_bytes(4, "big")
    clients = [stage.arrive() for _ in range(4)]
    for client, count in zip(clients, (20_000, 20_000, 20_000, 39_990), strict=True):
        client.sendall(announced + bytes(count))
    for _ in range(50):
        stage.turn(1)
    assert not stage.failed
    for client in clients:
        client.sendall(b"x")
    deadline = time.monotonic() + PATIENCE_S
    while not all(select.select([waiting.sock], [], [], 0)[0] for waiting in stage.stage._waiting.values()):
        assert time.monotonic() < deadline
    for _ in range(5):
        stage.turn(1)
    assert any("too many bytes" in str(why) for _, why in stage.failed)
    assert len(stage.stage) == len(clients) - len(stage.failed)
    stage.close()


def test_a_defect_of_a_mechanism_costs_one_connection_and_shows_no_secret(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_exchange: PlainExchange, token: bytes) -> bytes:
        raise KeyError(len(token))

    healthy = stage.arrive()
    with monkeypatch.context() as patched:
        patched.setattr(PlainExchange, "evaluate", broken)
        client = stage.arrive()
        client.sendall(HANDSHAKE + RIGHT)
        stage.turn_until(lambda: stage.failed)
    assert stage.failed == [(2, "internal error, see the traceback above")]
    assert "KeyError" in caplog.text
    assert "alice-secret" not in caplog.text
    healthy.sendall(HANDSHAKE + RIGHT)
    stage.turn_until(lambda: stage.done)


def test_a_client_that_leaves_costs_nothing(stage: Stage) -> None:
    stage.arrive().close()
    stage.turn_until(lambda: stage.failed)
    assert stage.failed == [(1, None)]
    begun = stage.arrive()
    begun.sendall(HANDSHAKE)
    stage.turn_until(lambda: select.select([begun], [], [], 0)[0])
    begun.close()
    stage.turn_until(lambda: len(stage.failed) == 2)
    assert not len(stage.stage)


def test_failures_of_an_address_wait_longer_each_time_and_those_of_others_do_not() -> None:
    failures = AddressFailures(100)
    waits = [failures.failed("10.0.0.1", number) for number in range(FREE_FAILURES + 10)]
    assert waits[:FREE_FAILURES] == [100] * FREE_FAILURES
    assert waits[FREE_FAILURES : FREE_FAILURES + 3] == [200, 400, 800]
    assert waits[-1] == DELAY_MAX_MS
    assert failures.failed("10.0.0.2", 100) == 100
    assert failures.failed("10.0.0.1", 100 + FORGET_NS + 1) == 100


def test_the_table_of_failures_is_bounded_and_knows_networks_of_ipv6() -> None:
    failures = AddressFailures(100)
    for number in range(ADDRESSES_MAX + 50):
        failures.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", number)
    assert len(failures) == ADDRESSES_MAX
    one_host = [failures.failed(f"2001:db8:0:1::{number:x}", number) for number in range(FREE_FAILURES + 1)]
    assert one_host[-1] == 200
    assert failures.failed("2001:db8:0:2::1", 0) == 100
    assert failures.failed("fe80::1%eth0", 0) == 100
    assert failures.failed("::ffff:10.0.0.7", 0) == failures.failed("10.0.0.7", 0) == 100
