"""Connections whose TLS handshake is not done: they are no sessions yet, and hold up nobody.

    accepted ──first bytes──→ TLS begins ──↔──→ done: a connection like any other
                 │                 └─ fails, or takes too long: closed with a line
                 └─ not TLS: closed with a line

Bounds

1. A silent connection costs its descriptor and an entry here: OpenSSL gets it with its first bytes.
2. Each has `ssl.handshake.timeout.ms` from the moment that it came.
3. When one address has `ssl.handshakes.max.per.ip` of them, or all have `ssl.handshakes.max`, its oldest (the oldest)
   is closed for the next one: who is silent cannot keep out who is not.
4. A signature may take a millisecond. A turn begins no further step of a handshake after TURN_NS, so that requests of
   other connections pass.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from socket import SocketType
from typing import Final

import msgspec

from appliance.channels.connection_channel import Assignment
from appliance.clock import NS_PER_MS, Clock
from appliance.config import Settings
from appliance.config.principal_rules import parse_rules, principal_name
from appliance.config.sections.tls import TlsSettings
from appliance.errors import ClientFault
from appliance.ipc.agent import NEVER_NS, DutyCycle
from appliance.netproc.tls_stream import TlsStream
from appliance.requests.session import ANONYMOUS
from appliance.tls.certificates import Certificates
from appliance.tls.distinguished_name import subject_of

TURN_NS: Final = 2_000_000
_HANDSHAKE_RECORD: Final = b"\x16"


class _Waiting(msgspec.Struct, eq=False):
    """A connection that shakes hands; `tls` from its first bytes on."""

    assignment: Assignment
    sock: SocketType
    fd: int
    deadline_ns: int
    tls: ssl.SSLSocket | None = None
    mask: int = select.EPOLLIN


class Handshakes:
    """Those of one network process.

    Args:
        settings: times and bounds, and how names become principals.
        certificates: by the name of a listener, the context for each that begins.
        cycle: where descriptors and deadlines are registered.
        done: gets a connection whose handshake is done, and its principal.
        failed: hears of one that was closed, and why; without a reason its client has left.
    """

    __slots__ = (
        "_by_host",
        "_certificates",
        "_clock",
        "_cycle",
        "_done",
        "_failed",
        "_ready",
        "_rules",
        "_settings",
        "_timeout_ns",
        "_timer_ns",
        "_waiting",
    )

    def __init__(
        self,
        settings: TlsSettings,
        certificates: Mapping[str, Certificates],
        *,
        cycle: DutyCycle,
        clock: Clock,
        done: Callable[[Assignment, TlsStream, str], None],
        failed: Callable[[Assignment, str | None], None],
    ) -> None:
        self._settings = settings
        self._certificates = certificates
        self._cycle = cycle
        self._clock = clock
        self._done = done
        self._failed = failed
        self._rules = {
            name: parse_rules(settings.of(name, is_sasl=False).principal_mapping_rules)
            for name in certificates
        }
        self._timeout_ns = settings.handshake_timeout_ms * NS_PER_MS
        self._timer_ns = NEVER_NS
        # Both in the order of arrival, which is that of the deadlines.
        self._waiting: dict[int, _Waiting] = {}
        self._by_host: dict[str, dict[int, None]] = {}
        self._ready: dict[int, None] = {}
        cycle.add_inbox(self)

    def __len__(self) -> int:
        return len(self._waiting)

    def is_empty(self) -> bool:
        """Inbox: whether no step is left over from the last turn."""
        return not self._ready

    def begin(self, assignment: Assignment, sock: SocketType) -> None:
        """Take an accepted connection."""
        host = assignment.peer_host
        of_host = self._by_host.get(host)
        if of_host is not None and len(of_host) >= self._settings.handshakes_max_per_ip:
            self._fail(
                self._waiting[next(iter(of_host))],
                f"ssl.handshakes.max.per.ip = {self._settings.handshakes_max_per_ip} are not finished",
            )
        elif len(self._waiting) >= self._settings.handshakes_max:
            self._fail(
                self._waiting[next(iter(self._waiting))],
                f"ssl.handshakes.max = {self._settings.handshakes_max} are not finished",
            )
        fd = sock.fileno()
        deadline_ns = self._clock.monotonic_ns() + self._timeout_ns
        self._waiting[fd] = _Waiting(assignment, sock, fd, deadline_ns)
        self._by_host.setdefault(host, {})[fd] = None
        self._cycle.epoll.register(fd, select.EPOLLIN)
        if self._timer_ns == NEVER_NS:
            self._arm(deadline_ns)

    def on_ready(self, descriptor: int) -> bool:
        """Note a ready descriptor for this turn; return whether it is one of ours."""
        if descriptor not in self._waiting:
            return False
        self._ready[descriptor] = None
        return True

    def turn(self) -> None:
        """Do the steps that there are, as long as a turn may take."""
        until_ns = self._clock.monotonic_ns() + TURN_NS
        while self._ready:
            descriptor = next(iter(self._ready))
            del self._ready[descriptor]
            waiting = self._waiting.get(descriptor)
            if waiting is not None:
                self._step(waiting)
                if self._clock.monotonic_ns() >= until_ns:
                    return

    def close(self) -> None:
        """Close all of them without a line."""
        for waiting in list(self._waiting.values()):
            self._fail(waiting, None)

    # One of them

    def _step(self, waiting: _Waiting) -> None:
        try:
            tls = waiting.tls
            if tls is None:
                tls = self._opened(waiting)
                if tls is None:
                    return
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(waiting, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._watch(waiting, select.EPOLLOUT)
        except ssl.SSLError as error:
            self._fail(waiting, f"its TLS handshake failed: {_reason(error)}")
        except (OSError, ValueError):
            self._fail(waiting, "its client left it in the TLS handshake")
        else:
            self._finish(waiting, tls)

    def _opened(self, waiting: _Waiting) -> ssl.SSLSocket | None:
        """Begin TLS, if that is what the client speaks."""
        first = waiting.sock.recv(1, socket.MSG_PEEK)
        if not first:
            self._fail(waiting, None)
            return None
        if first != _HANDSHAKE_RECORD:
            self._fail(waiting, "plain text on a port with TLS")
            return None
        context = self._certificates[waiting.assignment.listener].context()
        if context is None:
            self._fail(waiting, "there is no certificate that can be used")
            return None
        # The descriptor moves to the new object, and stays the same.
        tls = context.wrap_socket(waiting.sock, server_side=True, do_handshake_on_connect=False)  # type: ignore[arg-type]
        waiting.tls = tls
        return tls

    def _finish(self, waiting: _Waiting, tls: ssl.SSLSocket) -> None:
        try:
            principal = self._principal_of(tls, waiting.assignment.listener)
        except ClientFault as fault:
            self._fail(waiting, str(fault))
            return
        # No answer carries the acknowledgement of the client's last flight. A client with Nagle's algorithm would hold
        # its first request until the delayed one comes, 40 ms later.
        with suppress(OSError):
            tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self._forget(waiting)
        self._done(waiting.assignment, TlsStream(tls), principal)

    def _principal_of(self, tls: ssl.SSLSocket, listener: str) -> str:
        certificate = tls.getpeercert(True)
        if certificate is None:
            return ANONYMOUS
        subject = subject_of(certificate)
        name = principal_name(self._rules[listener], subject)
        if name is None:
            raise ClientFault(f"no rule of ssl.principal.mapping.rules matches {subject[:200]!r}")
        return f"User:{name}"

    def _watch(self, waiting: _Waiting, mask: int) -> None:
        if mask != waiting.mask:
            waiting.mask = mask
            self._cycle.epoll.modify(waiting.fd, mask)

    def _fail(self, waiting: _Waiting, why: str | None) -> None:
        self._forget(waiting)
        (waiting.tls or waiting.sock).close()
        self._failed(waiting.assignment, why)

    def _forget(self, waiting: _Waiting) -> None:
        host = waiting.assignment.peer_host
        self._cycle.epoll.unregister(waiting.fd)
        del self._waiting[waiting.fd]
        self._ready.pop(waiting.fd, None)
        of_host = self._by_host[host]
        del of_host[waiting.fd]
        if not of_host:
            del self._by_host[host]

    # Deadlines

    def _arm(self, due_ns: int) -> None:
        self._timer_ns = due_ns
        self._cycle.timers.add(due_ns, self._expire)

    def _expire(self) -> None:
        self._timer_ns = NEVER_NS
        now_ns = self._clock.monotonic_ns()
        for waiting in list(self._waiting.values()):
            if waiting.deadline_ns > now_ns:
                self._arm(waiting.deadline_ns)
                return
            self._fail(
                waiting, f"its TLS handshake took longer than {self._settings.handshake_timeout_ms} ms"
            )


def certificates_by_listener(
    settings: Settings, clock: Clock, complain: Callable[[str], None]
) -> dict[str, Certificates]:
    """Return the contexts of each listener that has TLS; listeners with the same settings share one."""
    made: list[tuple[TlsSettings, Certificates]] = []
    found: dict[str, Certificates] = {}
    for listener in settings.listeners:
        if not listener.is_tls:
            continue
        wanted = settings.tls_of(listener)
        known = next((certificates for own, certificates in made if own == wanted), None)
        if known is None:
            known = Certificates(wanted, clock, complain)
            made.append((wanted, known))
        found[listener.name] = known
    return found


def _reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words."""
    if isinstance(error, ssl.SSLEOFError):
        return "its client left"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    return (error.reason or "unknown error").lower().replace("_", " ")
