"""The HTTP server of the console with real sockets: what it refuses, what it bounds, and what it never does."""

from __future__ import annotations

import os
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from appliance.clock import ManualClock
from appliance.console.server import (
    ANSWER_MS,
    CONNECTIONS_MAX,
    FORM_BYTES_MAX,
    IDLE_MS,
    REQUEST_MS,
    STRANGERS_FORM_BYTES_MAX,
    Request,
    Response,
    Server,
)
from appliance.errors import HostFault
from tests.support.wire import PATIENCE_S, free_ports

GET: Final = b"GET /x?a=1&b=%C3%B6 HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Scene:
    """A server whose main thread is this scene's; the clock moves by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.port = free_ports(1)
        self.requests: list[Request] = []
        self.go_on = threading.Event()
        self.server = Server(
            ("127.0.0.1", self.port),
            self.serve,
            clock=self.clock,
            allowed_hosts=("console.example",),
            is_known=lambda cookies: cookies.get("one") == "1",
        )
        self.server.listen()
        self.clients: list[socket.socket] = []
        self._running = True
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def serve(self, request: Request) -> Response:
        self.requests.append(request)
        if request.path == "/stream":
            return Response(content_type="text/event-stream", stream=self._stream())
        return Response(200, b"answer", "text/plain")

    def _stream(self) -> Iterator[bytes]:
        yield b"data: 1\n\n"
        self.go_on.wait(PATIENCE_S)
        yield b"data: 2\n\n"

    def _accept(self) -> None:
        while self._running:
            if select.select([self.server.descriptor], [], [], 0.02)[0]:
                self.server.accept()

    def stop_accepting(self) -> None:
        """From now on only the test calls `accept`."""
        self._running = False
        self._thread.join()

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        self.clients.append(sock)
        return sock

    def ask(self, raw: bytes) -> bytes:
        """Everything that the server answers until it closes."""
        sock = self.connect()
        sock.sendall(raw)
        with suppress(OSError):  # it has refused the beginning, and closed
            sock.shutdown(socket.SHUT_WR)
        return ended(sock)

    def wait_for(self, connections: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.server.connections != connections:
            assert time.monotonic() < deadline, self.server.connections
            time.sleep(0.01)

    def close(self) -> None:
        self.go_on.set()
        self._running = False
        self._thread.join()
        self.server.close()
        for each in self.clients:
            each.close()


def ended(sock: socket.socket) -> bytes:
    """What comes until the server closes."""
    found = b""
    while True:
        try:
            received = sock.recv(1 << 16)
        except ConnectionResetError:
            return found
        if not received:
            return found
        found += received


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    try:
        yield scene
    finally:
        scene.close()


def test_a_page_has_the_headers_that_keep_strangers_out(scene: Scene) -> None:
    answer = scene.ask(GET).decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert answer.startswith("HTTP/1.1 200 ")
    assert body == "answer"
    assert "Content-Security-Policy: default-src 'self';" in head
    assert "unsafe" not in head
    assert "frame-ancestors 'none'" in head
    assert "X-Content-Type-Options: nosniff" in head
    assert "Cache-Control: no-store" in head
    assert "access-control" not in head.lower()
    assert scene.requests[0].query == {"a": "1", "b": "ö"}


@pytest.mark.parametrize(
    "host", [b"127.0.0.1:9645", b"[::1]:9645", b"localhost", b"LOCALHOST:1", b"console.example", b"10.1.2.3"]
)
def test_a_name_of_this_host_is_served(scene: Scene, host: bytes) -> None:
    assert b" 200 " in scene.ask(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")


@pytest.mark.parametrize("host", [b"evil.example", b"evil.example:9645", b"127.0.0.1.evil.example", b""])
def test_another_name_is_dns_rebinding_and_is_refused(scene: Scene, host: bytes) -> None:
    assert b" 421 " in scene.ask(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert not scene.requests
    assert scene.server.refused_requests == 1


TOO_MUCH: Final = STRANGERS_FORM_BYTES_MAX + 1
FORM: Final = b"Content-Type: application/x-www-form-urlencoded\r\n"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: 1\r\n" % each for each in range(200)) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\n{}", 415),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % (FORM_BYTES_MAX + 1) + FORM + b"\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n" + FORM + b"\r\na=1", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n" + FORM + b"\r\n\xff\xff=", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n" + FORM + b"\r\na=%FF", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6000\r\n" + FORM + b"\r\n" + b"a=1&b=" * 1000, 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % TOO_MUCH + FORM + b"\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 0\r\n" + FORM + b"\r\na=1", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nno header\r\nContent-Length: 5\r\n\r\nGET /", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: 1\rContent-Length: 5\r\n\r\nGET /", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + (b"H: " + b"x" * 60_000 + b"\r\n") * 9 + b"\r\n", 431),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_nothing_of_it_comes_back(
    scene: Scene, raw: bytes, status: int
) -> None:
    answer = scene.ask(raw)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"Connection: close" in answer
    assert not scene.requests


def test_a_form_is_read(scene: Scene) -> None:
    body = b"a=%3Cb%3E&c=+d&e="
    head = b"POST /f HTTP/1.1\r\nHost: localhost\r\nCookie: one=1; two=2\r\nContent-Length: %d\r\n" % len(
        body
    )
    assert b" 200 " in scene.ask(head + FORM + b"\r\n" + body)
    (request,) = scene.requests
    assert request.form == {"a": "<b>", "c": " d", "e": ""}
    assert request.cookies == {"one": "1", "two": "2"}


def test_a_person_who_has_logged_in_sends_large_forms(scene: Scene) -> None:
    body = b"a=" + b"x" * (FORM_BYTES_MAX - 2)
    head = b"POST /f HTTP/1.1\r\nHost: localhost\r\nCookie: one=1\r\nContent-Length: %d\r\n" % len(body)
    assert b" 200 " in scene.ask(head + FORM + b"\r\n" + body)
    assert len(scene.requests[0].form["a"]) == FORM_BYTES_MAX - 2


def test_connections_that_send_slowly_give_way(scene: Scene) -> None:
    for _ in range(CONNECTIONS_MAX):
        scene.connect().sendall(GET[:20])
    scene.wait_for(CONNECTIONS_MAX)
    time.sleep(0.2)  # their threads read
    last = scene.connect()
    last.sendall(GET)
    assert b" 200 " in last.recv(1 << 16)


def test_requests_of_one_connection_follow_each_other(scene: Scene) -> None:
    assert scene.ask(GET * 3).count(b"answer") == 3


@pytest.mark.parametrize(("sent", "within_ms"), [(b"", REQUEST_MS), (GET[:20], REQUEST_MS), (GET, IDLE_MS)])
def test_who_is_late_is_ended(scene: Scene, sent: bytes, within_ms: int) -> None:
    sock = scene.connect()
    sock.sendall(sent)
    if sent == GET:
        assert sock.recv(1 << 16)
    scene.wait_for(1)
    time.sleep(0.1)  # its thread reads
    scene.clock.advance(within_ms - 1)
    scene.server.expire()
    assert scene.server.ended_connections == 0
    scene.clock.advance(2)
    scene.server.expire()
    ended(sock)
    scene.wait_for(0)
    assert scene.server.ended_connections == 1


def test_a_stream_that_nobody_reads_is_ended(scene: Scene) -> None:
    sock = scene.connect()
    sock.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    found = b""
    while b"data: 1" not in found:
        found += sock.recv(1 << 16)
    assert b"X-Accel-Buffering: no" in found
    scene.clock.advance(ANSWER_MS + 1)
    scene.server.expire()
    scene.go_on.set()
    assert b"data: 2" not in ended(sock)
    scene.wait_for(0)


def test_one_connection_too_many_ends_the_one_that_waits_the_longest(scene: Scene) -> None:
    first = scene.connect()
    scene.wait_for(1)
    scene.clock.advance(1)
    for _ in range(CONNECTIONS_MAX - 1):
        scene.connect()
    scene.wait_for(CONNECTIONS_MAX)
    last = scene.connect()
    assert ended(first) == b""
    last.sendall(GET)
    assert b" 200 " in last.recv(1 << 16)
    scene.wait_for(CONNECTIONS_MAX)


def test_busy_connections_do_not_give_way(scene: Scene) -> None:
    for _ in range(CONNECTIONS_MAX):
        scene.connect().sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for each in scene.clients:
        assert each.recv(1 << 16)
    assert ended(scene.connect()) == b""
    assert scene.server.ended_connections == 1
    assert scene.server.connections == CONNECTIONS_MAX


def test_an_address_in_use_is_an_error_that_names_the_option(scene: Scene) -> None:
    other = Server(("127.0.0.1", scene.port), scene.serve, clock=scene.clock, allowed_hosts=())
    with pytest.raises(HostFault, match=f"console.listener: 127.0.0.1:{scene.port}: Address already in use"):
        other.listen()


def test_without_a_descriptor_the_listener_rests_and_the_client_is_served_later(scene: Scene) -> None:
    scene.stop_accepting()
    client = scene.connect()
    client.sendall(GET)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_descriptor = os.dup(0)
    os.close(next_descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_descriptor, hard))
    try:
        assert not scene.server.accept()
        assert not scene.server.accept()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert scene.server.accept()
    assert b" 200 " in client.recv(4096)
