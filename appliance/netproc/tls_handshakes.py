"""Connections whose TLS handshake is not done: they are no sessions yet, and hold up no session.

    accepted ──first bytes──→ TLS begins ──↔──→ done: a connection like any other
                 │                 └─ fails, or takes too long: closed with a line
                 └─ not TLS: closed with a line

Bounds, beside those of every stage (`arrival_stage`)

1. A silent connection costs its descriptor and an entry here, because OpenSSL gets it with its first bytes.
2. Each has `ssl.handshake.timeout.ms` from the moment that it came.
3. When one address has `ssl.handshakes.max.per.ip` of them, or all have `ssl.handshakes.max`, its oldest (the oldest)
   is closed for the next one, so silent clients cannot keep the others out.
4. A signature may take a millisecond. Therefore a turn begins no further step of a handshake after TURN_NS.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from socket import SocketType
from typing import Final

from appliance.channels.connection_channel import Assignment
from appliance.clock import Clock
from appliance.config import Settings
from appliance.config.principal_rules import parse_rules, principal_name
from appliance.config.sections.tls import TlsSettings
from appliance.errors import ClientFault
from appliance.ipc.agent import DutyCycle
from appliance.netproc.arrival_stage import ArrivalStage, Arriving, Bounds, Failed
from appliance.netproc.audit_end import TLS
from appliance.netproc.tls_stream import TlsStream
from appliance.requests.session import ANONYMOUS
from appliance.tls.certificates import Certificates
from appliance.tls.distinguished_name import subject_of

_HANDSHAKE_RECORD: Final = b"\x16"


class _Waiting(Arriving, eq=False):
    """A connection that shakes hands; `tls` from its first bytes on."""

    tls: ssl.SSLSocket | None = None


class Handshakes(ArrivalStage[_Waiting]):
    """The handshakes of one network process.

    Args:
        settings: times and bounds, and how names become principals.
        certificates: by the name of a listener, the context for each that begins.
        cycle: where descriptors and deadlines are registered.
        done: gets a connection whose handshake is done, and its principal.
        failed: gets one that was closed.
        with_sasl: names of listeners whose clients get their principal from SASL: there no rule maps a certificate, as
            in Kafka (`DefaultKafkaPrincipalBuilder`).
    """

    __slots__ = ("_certificates", "_done", "_rules", "_with_sasl")

    def __init__(
        self,
        settings: TlsSettings,
        certificates: Mapping[str, Certificates],
        *,
        cycle: DutyCycle,
        clock: Clock,
        done: Callable[[Assignment, TlsStream, str], None],
        failed: Failed,
        with_sasl: Collection[str] = (),
    ) -> None:
        super().__init__(
            Bounds(
                settings.handshake_timeout_ms,
                in_all=settings.handshakes_max,
                of_address=settings.handshakes_max_per_ip,
                option="ssl.handshakes.max",
                late=f"its TLS handshake took longer than {settings.handshake_timeout_ms} ms",
            ),
            cycle=cycle,
            clock=clock,
            failed=failed,
        )
        self._certificates = certificates
        self._done = done
        self._rules = {
            name: parse_rules(settings.of(name, is_sasl=False).principal_mapping_rules)
            for name in certificates
        }
        self._with_sasl = with_sasl

    def begin(self, assignment: Assignment, sock: SocketType) -> None:
        """Take an accepted connection."""
        self._make_room(assignment.peer_host)
        self._keep(_Waiting(assignment, sock, sock.fileno(), self._deadline_ns()))

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
        if certificate is None or listener in self._with_sasl:
            return ANONYMOUS
        subject = subject_of(certificate)
        name = principal_name(self._rules[listener], subject)
        if name is None:
            raise ClientFault(f"no rule of ssl.principal.mapping.rules matches {subject[:200]!r}")
        return f"User:{name}"

    def _socket(self, waiting: _Waiting) -> SocketType:
        return waiting.tls or waiting.sock

    def _claim(self, _waiting: _Waiting) -> tuple[str, str]:
        return TLS, ""


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
