"""The HTTP server of the metrics process: a few connections on the process's own epoll set, no thread.

    accepted ──→ reading ──→ writing ──→ reading …       until the client closes, is late, or sends what is refused

A slow or hostile client costs little: each connection has a time by which its request must be whole and its answer must
have left, the number of connections is bounded, and of too many the one that has made no progress for the longest ends.
A page that is still fresh is sent again, so requests in quick succession do not build it each time; clients that read
slowly share its bytes.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from appliance.clock import NS_PER_MS, Clock
from appliance.errors import HostFault
from appliance.metrics.http_request import HEAD_BYTES_MAX, Refusal, parse_request
from appliance.version import VERSION

CONNECTIONS_MAX: Final = 32
REQUEST_MS: Final = 5_000
"""From the first byte of a request, or from the connection, to its end."""
IDLE_MS: Final = 120_000
"""Between two requests of one connection. Scrapers come once a minute or more often."""
SEND_MS: Final = 30_000
SEND_BYTES: Final = 256 * 1024
"""At once to one client, so that several of them share the process."""
ACCEPTS_AT_ONCE: Final = 8
DRAINED_BYTES: Final = 64 * 1024

REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a path answers."""

    status: int
    content_type: str
    body: bytes


Serve = Callable[[str, str], Answer]
"""(path, header Accept) → the answer."""


class _Client:
    """One connection."""

    __slots__ = ("body", "deadline_ns", "is_last", "progress_ns", "received", "sent", "sock")

    def __init__(self, sock: socket.socket, now_ns: int) -> None:
        self.sock = sock
        self.received = b""
        self.body: tuple[bytes, ...] = ()
        self.sent = 0
        self.is_last = False
        self.progress_ns = now_ns
        self.deadline_ns = now_ns + REQUEST_MS * NS_PER_MS


def listen_at(option: str, address: tuple[str, int], *, backlog: int) -> socket.socket:
    """Bind a host and a port, by IPv4 if the host has both; return the socket, which does not block.

    Raises:
        HostFault: the system refuses it; the error names the option.
    """
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, place = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.create_server(place[:2], family=family, backlog=backlog)
    except OSError as error:
        raise HostFault(f"{option}: {host}:{port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


class Server:
    """The listener and its connections.

    Args:
        epoll: registers the sockets.
        serve: answers a path.
        allowed_hosts: names that a request may give this host.
    """

    def __init__(
        self,
        address: tuple[str, int],
        epoll: select.epoll,
        serve: Serve,
        *,
        clock: Clock,
        allowed_hosts: Collection[str],
    ) -> None:
        self._address = address
        self._epoll = epoll
        self._serve = serve
        self._clock = clock
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._listener: socket.socket | None = None
        self._clients: dict[int, _Client] = {}
        self.requests = 0
        self.refused_requests = 0
        self.ended_connections = 0
        """Connections that were late, or had to give way to others."""

    def listen(self) -> None:
        """Bind the address.

        Raises:
            HostFault: the system refuses it.
        """
        listener = listen_at("metrics.listener", self._address, backlog=CONNECTIONS_MAX)
        self._listener = listener
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    @property
    def is_listening(self) -> bool:
        """Whether the address is bound."""
        return self._listener is not None

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._clients)

    def ready(self, descriptor: int, mask: int) -> None:
        """A descriptor of the epoll set has an event. Others' are ignored."""
        listener = self._listener
        if listener is not None and descriptor == listener.fileno():
            self._accept(listener)
            return
        client = self._clients.get(descriptor)
        if client is None:
            return
        try:
            if client.body:
                self._write(client)
            elif mask & select.EPOLLOUT:
                self._serve_next(client)  # what came behind the request before
            else:
                self._read(client)
        except OSError:
            self._close(client)

    def next_due_ns(self) -> int | None:
        """Return when the first connection is late."""
        return min((client.deadline_ns for client in self._clients.values()), default=None)

    def expire(self) -> None:
        """End the connections that are late."""
        now_ns = self._clock.monotonic_ns()
        for client in list(self._clients.values()):
            if client.deadline_ns <= now_ns:
                self.ended_connections += 1
                self._close(client)

    def close(self) -> None:
        """End everything."""
        for client in list(self._clients.values()):
            self._close(client)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # nobody waits, or the client is gone again, or descriptors are short
            sock.setblocking(False)
            if len(self._clients) >= CONNECTIONS_MAX:
                self.ended_connections += 1
                self._close(min(self._clients.values(), key=lambda each: each.progress_ns))
            self._clients[sock.fileno()] = _Client(sock, self._clock.monotonic_ns())
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, client: _Client) -> None:
        received = client.sock.recv(HEAD_BYTES_MAX)
        if not received:
            self._close(client)
            return
        if not client.received:
            client.deadline_ns = self._clock.monotonic_ns() + REQUEST_MS * NS_PER_MS
        client.received += received
        self._serve_next(client)

    def _serve_next(self, client: _Client) -> None:
        """Answer the request that is there, if it is whole."""
        request = parse_request(client.received, allowed_hosts=self._allowed_hosts)
        if request is None:
            self._epoll.modify(client.sock.fileno(), select.EPOLLIN)
            return
        now_ns = self._clock.monotonic_ns()
        is_head = False
        if isinstance(request, Refusal):
            self.refused_requests += 1
            answer = Answer(request.status, "text/plain; charset=utf-8", f"{request.text}\n".encode())
            client.is_last = True
        else:
            self.requests += 1
            client.received = client.received[request.length_bytes :]
            answer = self._serve(request.path, request.accept)
            client.is_last = not request.keep_alive
            is_head = request.method == "HEAD"
        head = (
            f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\n"
            f"Server: appliance/{VERSION}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Content-Security-Policy: default-src 'none'\r\n"
            "Cache-Control: no-store\r\n"
            f"{'Allow: GET, HEAD' + chr(13) + chr(10) if answer.status == 405 else ''}"
            f"Connection: {'close' if client.is_last else 'keep-alive'}\r\n\r\n"
        ).encode("latin-1")
        client.body = (head,) if is_head else (head, answer.body)
        client.sent = 0
        client.progress_ns = now_ns
        client.deadline_ns = now_ns + SEND_MS * NS_PER_MS
        self._write(client)

    def _write(self, client: _Client) -> None:
        """Send what the socket takes."""
        left, skip = [], client.sent
        for piece in client.body:
            if skip < len(piece):
                left.append(memoryview(piece)[skip : skip + SEND_BYTES])
            skip = max(0, skip - len(piece))
        with suppress(BlockingIOError):
            client.sent += client.sock.sendmsg(left)
        if client.sent < sum(map(len, client.body)):
            self._epoll.modify(client.sock.fileno(), select.EPOLLOUT)
            return
        client.body = ()
        if client.is_last:
            with suppress(OSError):
                client.sock.recv(
                    DRAINED_BYTES
                )  # bytes that nobody has read would have the kernel drop the answer
            self._close(client)
            return
        now_ns = self._clock.monotonic_ns()
        client.progress_ns = now_ns
        client.deadline_ns = now_ns + (REQUEST_MS if client.received else IDLE_MS) * NS_PER_MS
        # One request of a client in a turn, however many it has sent.
        self._epoll.modify(client.sock.fileno(), select.EPOLLOUT if client.received else select.EPOLLIN)

    def _close(self, client: _Client) -> None:
        if self._clients.pop(client.sock.fileno(), None) is not None:
            client.sock.close()
