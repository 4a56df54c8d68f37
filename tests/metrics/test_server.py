"""The HTTP server of the metrics process, with real sockets and a clock that the test moves."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from appliance.clock import ManualClock
from appliance.errors import HostFault
from appliance.metrics.server import (
    CONNECTIONS_MAX,
    IDLE_MS,
    REQUEST_MS,
    SEND_MS,
    Answer,
    Server,
)
from tests.support.wire import free_ports

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = bytes(8 << 20)


class Scene:
    """A server, and clients that the test drives."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.epoll = select.epoll()
        self.port = free_ports(1)
        self.asked: list[str] = []
        self.server = Server(
            ("127.0.0.1", self.port), self.epoll, self.serve, clock=self.clock, allowed_hosts=()
        )
        self.server.listen()
        self.clients: list[socket.socket] = []

    def serve(self, path: str, accept: str) -> Answer:
        self.asked.append(path)
        return Answer(200, "text/plain", LARGE if path == "/large" else b"answer")

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        self.clients.append(sock)
        self.turn()
        return sock

    def turn(self) -> None:
        """Serve until nothing is ready, a bounded number of times."""
        for _ in range(300):
            events = self.epoll.poll(0.01)
            for descriptor, mask in events:
                self.server.ready(descriptor, mask)
            if not events:
                break

    def pass_ms(self, pause_ms: int) -> None:
        self.clock.advance(pause_ms)
        self.server.expire()

    def answered(self, sock: socket.socket, sent: bytes = GET) -> bytes:
        sock.sendall(sent)
        self.turn()
        return sock.recv(1 << 16)

    def close(self) -> None:
        for sock in self.clients:
            sock.close()
        self.server.close()
        self.epoll.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_serves_one_request_after_the_other(scene: Scene) -> None:
    sock = scene.connect()
    for _ in range(3):
        assert scene.answered(sock).endswith(b"\r\n\r\nanswer")
    assert scene.server.connections == 1


def test_requests_that_come_together_are_all_answered(scene: Scene) -> None:
    sock = scene.connect()
    received = scene.answered(sock, GET * 20)
    while received.count(b"answer") < 20:
        received += sock.recv(1 << 16)
    assert received.count(b"200 OK") == 20
    assert len(scene.asked) == 20


def test_head_has_no_body(scene: Scene) -> None:
    answer = scene.answered(scene.connect(), GET.replace(b"GET", b"HEAD"))
    assert b"Content-Length: 6\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_a_refused_request_ends_the_connection_behind_its_answer(scene: Scene) -> None:
    sock = scene.connect()
    answer = scene.answered(sock, b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert b"Allow: GET, HEAD\r\n" in answer
    assert is_closed(sock)
    assert (scene.server.refused_requests, scene.asked) == (1, [])


def test_a_client_that_says_nothing_or_too_slowly_ends(scene: Scene) -> None:
    silent, slow = scene.connect(), scene.connect()
    for _ in range(4):
        slow.sendall(b"G")
        scene.turn()
        scene.pass_ms(REQUEST_MS // 4)
    scene.pass_ms(1)
    assert scene.server.connections == 0
    assert is_closed(silent)
    assert is_closed(slow)
    assert scene.server.ended_connections == 2


def test_a_scraper_may_come_once_a_minute(scene: Scene) -> None:
    sock = scene.connect()
    for _ in range(3):
        assert scene.answered(sock)
        scene.pass_ms(60_000)
    assert scene.server.connections == 1
    scene.pass_ms(IDLE_MS)
    assert scene.server.connections == 0


def test_a_client_that_does_not_read_ends_and_costs_no_other_one(scene: Scene) -> None:
    deaf, other = scene.connect(), scene.connect()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.sendall(GET.replace(b"/x", b"/large"))
    scene.turn()
    assert scene.answered(other).endswith(b"answer")
    scene.pass_ms(SEND_MS)
    assert scene.answered(other).endswith(b"answer")
    scene.pass_ms(1)
    assert scene.server.connections == 1


def test_a_large_page_arrives_whole(scene: Scene) -> None:
    sock = scene.connect()
    sock.sendall(GET.replace(b"/x", b"/large"))
    received = 0
    while received < len(LARGE):
        scene.turn()
        received += len(sock.recv(1 << 20))
    assert received > len(LARGE)
    assert scene.answered(sock).endswith(b"answer")


def test_of_too_many_connections_the_one_without_progress_ends(scene: Scene) -> None:
    first = scene.connect()
    for _ in range(CONNECTIONS_MAX - 1):
        scene.clock.advance(1)
        scene.connect()
    scene.clock.advance(1)
    scene.answered(first)
    scene.clock.advance(1)
    last = scene.connect()
    assert scene.server.connections == CONNECTIONS_MAX
    assert is_closed(scene.clients[1])
    assert scene.answered(first).endswith(b"answer")
    assert scene.answered(last).endswith(b"answer")


def test_a_client_that_is_gone_is_forgotten(scene: Scene) -> None:
    scene.connect().close()
    reset = scene.connect()
    reset.sendall(GET.replace(b"/x", b"/large") * 2)
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    reset.close()
    scene.turn()
    assert scene.server.connections == 0


def test_an_address_that_is_taken_is_named(scene: Scene) -> None:
    second = Server(("127.0.0.1", scene.port), scene.epoll, scene.serve, clock=scene.clock, allowed_hosts=())
    with pytest.raises(HostFault, match=rf"metrics\.listener: 127\.0\.0\.1:{scene.port}: .*in use"):
        second.listen()
    assert not second.is_listening
