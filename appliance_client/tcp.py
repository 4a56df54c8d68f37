"""TCP for the sync face: sockets that never block, gathered writes, reads into the connection's own room.

With TLS a link has a second part of its set-up, the handshake, and OpenSSL between it and the socket. Two things
differ. A record may be left in OpenSSL that epoll does not know of, so the link reads until nothing is left. Pieces are
joined, because OpenSSL makes a record of each.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

from appliance.protocol.records.batch import Buffer
from appliance_client.connection import Connection
from appliance_client.errors import AuthenticationError, TransportError
from appliance_client.options import ConnectionOptions
from appliance_client.scheduling import Outcome
from appliance_client.transport import READABLE, WRITABLE, Io

_GATHERED_MAX: Final = 64
_READS_MAX: Final = 16
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_JOINED_BYTES: Final = 64 * 1024
_UNDER_WAY: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY, errno.EINTR)


class TcpTransport:
    """Opens TCP connections."""

    def __init__(self, io: Io, options: ConnectionOptions) -> None:
        self._io = io
        self._tls = options.tls

    def open(self, connection: Connection) -> None:
        """Connect to the first address of the name that answers."""
        host, port = connection.address
        tls = self._tls
        link = TcpLink(self._io, connection) if tls is None else TlsLink(self._io, connection, tls, host)
        connection.link = link
        # A name server may take long, and this thread holds the lock that poll needs.
        found = connection.aside(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
        found.when_done(partial(link.resolved, host))

    def may_sleep(self) -> bool:
        """Epoll tells of everything."""
        return True

    def woken(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing is common."""


class TcpLink:
    """One connection's socket."""

    def __init__(self, io: Io, connection: Connection) -> None:
        self._io = io
        self._connection = connection
        self._addresses: Iterator[Any] = iter(())
        self._socket: socket.socket | None = None
        self._connected = False
        self._wants_write = True
        io.scheduler.call_at(io.scheduler.now_s + connection.setup_timeout_s, self._late)

    def resolved(self, host: str, found: Outcome[Any]) -> None:
        """The addresses of the broker are known, or that there are none."""
        if self._connection.link is not self:
            return
        if found.error is not None:  # also of a name or a port that nobody can have
            self._lose(f"cannot resolve {host}: {found.error}")
            return
        addresses = found.result()
        # The last attempt may have run out of time at an address that is silent: begin with the next one.
        first = self._connection.failures % len(addresses)
        self._addresses = iter(addresses[first:] + addresses[:first])
        self.try_next("no address")

    def try_next(self, why: str) -> None:
        """Connect to the next address of a name; with none left the connection is lost."""
        for family, kind, protocol, _, address in self._addresses:
            try:
                made = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
            except OSError as error:  # no descriptor is left, or the host has no such addresses
                why = str(error.strerror or error)
                continue
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            code = made.connect_ex(address)
            if code and code not in _UNDER_WAY:
                why = os.strerror(code)
                made.close()
                continue
            self._socket = made
            self._io.watch(made.fileno(), self._serve, READABLE | WRITABLE)
            return
        self._lose(f"cannot connect: {why}")

    def flush(self) -> None:
        """Send what the socket takes."""
        used = self._socket
        if used is None or not self._connected or self._wants_write:
            return
        self._write(used)

    def close(self) -> None:
        """Close the socket."""
        self._forget_socket()

    def _late(self) -> None:
        if self._connection.link is self and not self._connected:
            self._lose("no connection within socket.connection.setup.timeout.ms")

    def _lose(self, reason: str, kind: type[TransportError] = TransportError) -> None:
        self._forget_socket()
        if self._connection.link is self:
            self._connection.link = None
            self._connection.lost(reason, kind)

    def _lose_by(self, error: OSError) -> None:
        """The connection is lost by an error of its socket."""
        self._lose(str(error.strerror or error))

    def _serve(self, events: int) -> None:
        used = self._socket
        if used is None:
            return
        if not self._connected:
            self._connect(used, events)
            return
        if events & READABLE:
            self._read(used)
        if events & WRITABLE and self._socket is not None:
            self._write(used)

    def _connect(self, used: socket.socket, events: int) -> None:
        code = used.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._forget_socket()
            self.try_next(os.strerror(code))
            return
        if not events & WRITABLE:
            return
        try:
            itself = used.getsockname() == used.getpeername()
        except OSError as error:
            self._forget_socket()
            self.try_next(str(error.strerror or error))
            return
        if itself:
            # A port that nobody listens on may be connected to itself.
            self._forget_socket()
            self.try_next("connected to itself")
            return
        self._established(used)

    def _established(self, used: socket.socket) -> None:
        self._connected = True
        self._connection.opened()
        self._write(used)

    def _read(self, used: socket.socket) -> None:
        connection = self._connection
        for _ in range(_READS_MAX):
            room = connection.room()
            try:
                received = used.recv_into(room)
            except _NOT_NOW:
                return
            except OSError as error:
                self._lose_by(error)
                return
            if not received:
                self._lose("closed by the broker")
                return
            connection.filled(received)
            if connection.link is not self or connection.state == Connection.IDLE:
                return
            if received < len(room):
                return

    def _write(self, used: socket.socket) -> None:
        outgoing = self._connection.outgoing
        while outgoing:
            pieces = list(islice(outgoing, _GATHERED_MAX))
            try:
                sent = self._send(used, pieces)
            except _NOT_NOW:
                self._want_write(used, wanted=True)
                return
            except OSError as error:
                self._lose_by(error)
                return
            for piece in pieces:
                if sent < len(piece):
                    if sent:
                        outgoing[0] = memoryview(piece)[sent:]
                    break
                sent -= len(piece)
                outgoing.popleft()
        self._want_write(used, wanted=False)

    def _send(self, used: socket.socket, pieces: list[Buffer]) -> int:
        """Send a part of `pieces`; return its length."""
        return used.sendmsg(pieces)

    def _want_write(self, used: socket.socket, *, wanted: bool) -> None:
        if self._wants_write != wanted:
            self._wants_write = wanted
            self._io.watch(used.fileno(), self._serve, READABLE | WRITABLE if wanted else READABLE)

    def _forget_socket(self) -> None:
        if self._socket is not None:
            self._io.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self._connected = False
            self._wants_write = True


class TlsLink(TcpLink):
    """One connection's socket with TLS on it."""

    def __init__(
        self,
        io: Io,
        connection: Connection,
        context: ssl.SSLContext,
        host: str,
    ) -> None:
        super().__init__(io, connection)
        self._context = context
        self._host = host
        self._is_tcp_open = False

    def _serve(self, events: int) -> None:
        used = self._socket
        if used is None:
            return
        if not self._is_tcp_open:
            self._connect(used, events)
        elif not self._connected:
            self._shake_hands(used)
        else:
            # Either may need the other direction of the socket.
            self._read(used)
            if self._socket is not None:
                self._write(used)

    def _established(self, used: socket.socket) -> None:
        """TCP is there: begin the handshake."""
        self._is_tcp_open = True
        descriptor = used.fileno()
        try:
            self._socket = self._context.wrap_socket(
                used, server_hostname=self._host, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as error:
            # The descriptor has changed hands, and is closed by now.
            self._io.unwatch(descriptor)
            self._socket = None
            self._lose(f"TLS: {error}")
            return
        self._shake_hands(self._socket)

    def _shake_hands(self, used: socket.socket) -> None:
        assert isinstance(used, ssl.SSLSocket)
        try:
            used.do_handshake()
        except ssl.SSLWantReadError:
            self._want_write(used, wanted=False)
        except ssl.SSLWantWriteError:
            self._want_write(used, wanted=True)
        except OSError as error:
            self._lose_by(error)
        else:
            super()._established(used)

    def _read(self, used: socket.socket) -> None:
        assert isinstance(used, ssl.SSLSocket)
        connection = self._connection
        reads = 0
        while reads < _READS_MAX or used.pending():
            reads += 1
            try:
                received = used.recv_into(connection.room())
            except _NOT_NOW:
                return
            except OSError as error:
                self._lose_by(error)
                return
            if not received:
                self._lose("closed by the broker")
                return
            connection.filled(received)
            if connection.link is not self or connection.state == Connection.IDLE:
                return

    def _send(self, used: socket.socket, pieces: list[Buffer]) -> int:
        first = pieces[0]
        if len(first) >= _JOINED_BYTES or len(pieces) == 1:
            return used.send(first)
        # After a call that did not send, OpenSSL wants the same bytes again: what joins them later comes behind.
        return used.send(b"".join(pieces)[:_JOINED_BYTES])

    def _lose_by(self, error: OSError) -> None:
        self._lose(f"TLS: {reason_of(error)}", kind_of(error))

    def _forget_socket(self) -> None:
        super()._forget_socket()
        self._is_tcp_open = False


def kind_of(error: OSError) -> type[TransportError]:
    """Return AuthenticationError where one side refuses the other one's certificate, or its kind of TLS.

    To try again does not help then, so the caller hears of it at once, as with Kafka's SslAuthenticationException.
    """
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return TransportError
    passes = ("INTERNAL_ERROR", "RECORD_MAC")
    if isinstance(error, ssl.SSLError) and not any(each in (error.reason or "") for each in passes):
        return AuthenticationError
    return TransportError


def reason_of(error: OSError) -> str:
    """Return what went wrong in a handshake, in words for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return "the broker closed the connection; does it want a client certificate, or does the port speak plain text?"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error.strerror or error)
