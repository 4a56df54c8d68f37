"""The HTTP server of the console: a thread for each connection, a bounded number of them.

    accepted ──→ reading ──→ answering ──→ reading …      until the browser closes, is late, or sends what is refused
                                  └──→ streaming           live numbers and records (server-sent events)

The standard library parses requests. This file bounds what strangers can use: connections, the time by which a request
must be whole and an answer must have left, the bytes of a form. If there is no room for a connection, the one that has
waited the longest for a request, or for its end, gives way.

Each answer has headers by which a browser runs no script but those of this package, shows the console in no other page,
and tells no other site where it was.
"""

from __future__ import annotations

import errno
import io
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Final
from urllib.parse import parse_qs

from appliance.clock import NS_PER_MS, Clock
from appliance.metrics.http_request import is_allowed
from appliance.metrics.server import listen_at
from appliance.version import VERSION

CONNECTIONS_MAX: Final = 64
REQUEST_MS: Final = 10_000
"""From the first byte of a request to its end."""
IDLE_MS: Final = 60_000
"""Between two requests of one connection."""
ANSWER_MS: Final = 120_000
"""To build an answer and send it. A stream has that for each of its events."""
FORM_BYTES_MAX: Final = 2 << 20
"""A record that somebody types in, and its key and headers."""
STRANGERS_FORM_BYTES_MAX: Final = 16 << 10
"""A login. Nobody without a session sends more."""
HEAD_BYTES_MAX: Final = 64 << 10
"""First line and headers. The standard library alone would take 6 MiB."""
FIELDS_MAX: Final = 1_000
FORM_TYPE: Final = "application/x-www-form-urlencoded"

PAUSE_MS: Final = 250
"""Without accepting, if the system has nothing left for a connection."""
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

HEADERS: Final = (
    (
        "Content-Security-Policy",
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), microphone=(), geolocation=()"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may be answered: its host is this one."""

    method: str
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    cookies: Mapping[str, str]
    headers: Mapping[str, str]
    """Lower-case names."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. With `stream` the body is what it yields, until it ends."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    stream: Iterator[bytes] | None = field(default=None, compare=False)


class _Refused(Exception):
    """A request that is not served, and the answer to it. The connection ends."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class _Lines(io.BufferedReader):
    """Bytes of a connection. The lines of one head are bounded together, and end with CR LF or LF.

    A CR in the middle of a line is refused: the standard library ends a line there, and a proxy may not, so the two
    could see different headers (RFC 9112, section 2.2).
    """

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw, HEAD_BYTES_MAX)
        self.left_bytes = HEAD_BYTES_MAX

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a line of a head.

        Raises:
            _Refused: it is too long, or has a CR inside.
        """
        is_first = self.left_bytes == HEAD_BYTES_MAX
        line = super().readline(self.left_bytes)
        self.left_bytes -= len(line)
        if line and not line.endswith(b"\n") and not self.left_bytes:
            raise _Refused(
                414 if is_first else 431, f"the head of a request has at most {HEAD_BYTES_MAX} bytes"
            )
        if b"\r" in line.removesuffix(b"\n").removesuffix(b"\r"):
            raise _Refused(400, "a line of the head has a CR inside")
        return line


class _Connection:
    """What the server knows of a connection."""

    __slots__ = ("deadline_ns", "is_waiting", "since_ns", "sock")

    def __init__(self, sock: socket.socket, now_ns: int) -> None:
        self.sock = sock
        self.is_waiting = True
        self.since_ns = now_ns
        self.deadline_ns = now_ns + REQUEST_MS * NS_PER_MS

    def move(self, now_ns: int, within_ms: int, *, is_waiting: bool) -> None:
        """It enters its next state."""
        self.is_waiting = is_waiting
        self.since_ns = now_ns
        self.deadline_ns = now_ns + within_ms * NS_PER_MS


class Server:
    """The listener and its connections.

    Args:
        serve: answers a request; in the thread of its connection.
        allowed_hosts: names that a request may give this host.
        is_known: whether cookies are those of a person who has logged in; others send small forms only.
    """

    def __init__(
        self,
        address: tuple[str, int],
        serve: Callable[[Request], Response],
        *,
        clock: Clock,
        allowed_hosts: tuple[str, ...],
        is_known: Callable[[Mapping[str, str]], bool] = lambda _: False,
    ) -> None:
        self._address = address
        self.is_known = is_known
        self.forms = threading.Lock()
        """One large form is read into fields at a time, because that takes many times its bytes."""
        self.serve = serve
        self.clock = clock
        self.allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._connections: dict[int, _Connection] = {}
        self.refused_requests = 0
        self.ended_connections = 0
        """Connections that were late, or had to give way to others."""
        self.requests = 0

    def listen(self) -> int:
        """Bind the address, and return the descriptor of the listener.

        Raises:
            HostFault: the system refuses it.
        """
        listener = listen_at("console.listener", self._address, backlog=CONNECTIONS_MAX)
        self._listener = listener
        return listener.fileno()

    @property
    def descriptor(self) -> int:
        """The listener's; -1 before it listens."""
        return -1 if self._listener is None else self._listener.fileno()

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    def accept(self) -> bool:
        """Take the connections that wait. Call it when the listener is readable.

        Returns:
            Whether to wait for the listener as before. False: the system has no descriptor or no memory for a
            connection, so the listener stays readable. Wait PAUSE_MS, or the process uses a whole core in vain.
        """
        assert self._listener is not None
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                # Otherwise nobody waits, or the client is gone again.
                if error.errno not in _SHORT:
                    return True
                with self._lock:
                    self._end_one()
                return False
            connection = _Connection(sock, self.clock.monotonic_ns())
            with self._lock:
                has_room = len(self._connections) < CONNECTIONS_MAX or self._end_one()
                if has_room:
                    self._connections[id(connection)] = connection
            if not has_room:
                self.ended_connections += 1
                sock.close()
                continue
            sock.settimeout(ANSWER_MS / 1000)
            try:
                threading.Thread(target=self._run, args=(connection,), daemon=True).start()
            except RuntimeError:  # the system has no room for a thread
                self._remove(connection)

    def _end_one(self) -> bool:
        """End the connection that has waited the longest for a request; its thread removes it. Whether there is one."""
        waiting = [each for each in self._connections.values() if each.is_waiting]
        if not waiting or len(self._connections) >= 2 * CONNECTIONS_MAX:
            return False
        self.ended_connections += 1
        oldest = min(waiting, key=lambda each: each.since_ns)
        oldest.is_waiting = False
        _shut(oldest.sock)
        return True

    def expire(self) -> None:
        """End the connections that are late."""
        now_ns = self.clock.monotonic_ns()
        with self._lock:
            for connection in self._connections.values():
                if connection.deadline_ns <= now_ns:
                    self.ended_connections += 1
                    connection.deadline_ns = now_ns + ANSWER_MS * NS_PER_MS
                    _shut(connection.sock)

    def close(self) -> None:
        """End everything. Threads end by themselves."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        with self._lock:
            for connection in self._connections.values():
                _shut(connection.sock)

    def _run(self, connection: _Connection) -> None:
        try:
            with suppress(OSError, ValueError):
                _Handler(self, connection)
        finally:
            self._remove(connection)

    def _remove(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.pop(id(connection), None)
            connection.sock.close()


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One connection: the standard library's loop around `_answer`."""

    protocol_version = "HTTP/1.1"
    server_version = f"appliance/{VERSION}"
    sys_version = ""

    def __init__(self, owner: Server, connection: _Connection) -> None:
        self._owner = owner
        self._connection = connection
        super().__init__(connection.sock, ("", 0), owner)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Read through `_Lines`."""
        super().setup()
        self.rfile = _Lines(self.rfile.detach())

    def handle_one_request(self) -> None:
        """Wait for the next request with the time for that, and serve it."""
        clock, connection = self._owner.clock, self._connection
        # The first bytes of a request come at once, or the connection is idle.
        if not self.rfile.peek(1):  # type: ignore[attr-defined]
            self.close_connection = True
            return
        # It still gives way to others: a client that sends slowly holds no place that another one needs.
        connection.move(clock.monotonic_ns(), REQUEST_MS, is_waiting=True)
        self.rfile.left_bytes = HEAD_BYTES_MAX  # type: ignore[attr-defined]
        try:
            super().handle_one_request()
        except _Refused as refusal:
            self.send_error(refusal.status)
        connection.move(clock.monotonic_ns(), IDLE_MS, is_waiting=True)

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        owner = self._owner
        try:
            request = self._request()
        except _Refused as refusal:
            owner.refused_requests += 1
            self._refuse(refusal.status, refusal.text)
            return
        self._connection.move(owner.clock.monotonic_ns(), ANSWER_MS, is_waiting=False)
        owner.requests += 1
        self._send(owner.serve(request))

    def _request(self) -> Request:
        """Return the request.

        Raises:
            _Refused: it is not served.
        """
        if self.headers.defects:
            raise _Refused(400, "a line of the head is no header")
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1:
            raise _Refused(400, "a request needs one header Host")
        if not is_allowed(hosts[0], self._owner.allowed_hosts):
            raise _Refused(
                421, "the header Host names another host: use an address, or set console.allowed.hosts"
            )
        path, _, query = self.path.partition("?")
        if not path.startswith("/"):
            raise _Refused(400, "the target of a request must be a path")
        cookies = _cookies(self.headers.get("Cookie", ""))
        form = self._form(cookies)
        try:
            queried = _fields(query)
        except ValueError:
            raise _Refused(400, "the query cannot be read") from None
        return Request(
            method=self.command,
            path=path,
            query=queried,
            form=form,
            cookies=cookies,
            headers={name.lower(): value for name, value in self.headers.items()},
        )

    def _form(self, cookies: Mapping[str, str]) -> Mapping[str, str]:
        """Return the fields of the body.

        Raises:
            _Refused: it is not read.
        """
        form: Mapping[str, str] = {}
        if "transfer-encoding" in self.headers:
            raise _Refused(411, "a form needs its length")
        length, *others = self.headers.get_all("Content-Length") or ["0"]
        if others or not length.isascii() or not length.isdigit() or len(length) > 18:
            raise _Refused(400, "Content-Length is no number")
        if int(length):
            if self.command != "POST":
                raise _Refused(400, "only POST has a body")
            bytes_max = FORM_BYTES_MAX if self._owner.is_known(cookies) else STRANGERS_FORM_BYTES_MAX
            if int(length) > bytes_max:
                raise _Refused(413, f"a form has at most {bytes_max} bytes")
            if self.headers.get_content_type() != FORM_TYPE:
                raise _Refused(415, f"a form is {FORM_TYPE}")
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                raise _Refused(400, "the form ends too early")
            try:
                with self._owner.forms if len(body) > STRANGERS_FORM_BYTES_MAX else nullcontext():
                    form = _fields(body.decode("ascii"))
            except ValueError:
                raise _Refused(400, "the form cannot be read") from None
        return form

    def _refuse(self, status: int, text: str) -> None:
        self.close_connection = True
        self._send(Response(status, f"{text}\n".encode(), "text/plain; charset=utf-8"))

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        for name, value in (*HEADERS, *response.headers):
            self.send_header(name, value)
        if not any(name == "Cache-Control" for name, _ in response.headers):
            self.send_header("Cache-Control", "no-store")
        if response.stream is None:
            self.send_header("Content-Length", str(len(response.body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(response.body)
            return
        self.close_connection = True
        self.send_header("X-Accel-Buffering", "no")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        clock, connection = self._owner.clock, self._connection
        try:
            for event in response.stream:
                connection.move(clock.monotonic_ns(), ANSWER_MS, is_waiting=False)
                self.wfile.write(event)
        finally:
            close = getattr(response.stream, "close", None)
            if close is not None:
                close()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a target may hold what a person has typed."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what the standard library cannot parse; nothing of the request is in the answer."""
        self._owner.refused_requests += 1
        self.command = getattr(self, "command", None) or "GET"
        self.requestline = ""
        self.request_version = self.protocol_version
        self._refuse(int(code), "the request is refused")


def _fields(text: str) -> dict[str, str]:
    """Return the fields of a form or a query; of two with one name the last.

    Raises:
        ValueError: too many, or not UTF-8.
    """
    found = parse_qs(text, keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    return {name: values[-1] for name, values in found.items()}


def _cookies(text: str) -> dict[str, str]:
    pairs = (part.strip().partition("=") for part in text.split(";")[:50])
    return {name: value for name, equals, value in pairs if equals}
