"""A person's connections to the broker slots: requests out, answers in, with that person's user and rights.

A link belongs to one session. It connects to nothing but the broker slots of this appliance: the address of slot n is
computed from the settings, never taken from an answer or from a form. So no request can make the console connect
elsewhere, and the kernel would refuse it (`process/confinement.py`).

Threads of the HTTP server share a link. A connection serves one request at a time; idle connections wait in a stack
for each slot. One that the broker has closed while it was idle is not used. One that ends during a request is replaced
once, and the request sent again; a request that changes something is not, because it may have been carried out. Where
any slot may answer, the one that has answered last is asked first, so a slot that hangs costs its timeout only once.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from appliance.config import Settings
from appliance.errors import ApplianceDefect, ApplianceError, MalformedFrame
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateRequest
from appliance.protocol.apis.sasl_handshake import SaslHandshakeRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import decode_response, encode_request
from appliance.protocol.sasl_client import SaslFault, password_exchange

CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0
FRAME_BYTES_MAX: Final = 64 << 20
ELEMENTS_MAX: Final = 2_000_000
IDLE_MAX: Final = 3
"""Idle connections that a link keeps to one slot."""
CONNECTIONS_MAX: Final = 12
"""Connections of one link. A request beyond them waits for one of them."""
CLIENT_ID: Final = "appliance-console"
_CORRELATION_ID: Final = 1

T = TypeVar("T")


class BrokerFault(ApplianceError):
    """The broker does not answer, or refuses.

    Args:
        code: Kafka's error code, None if there is none.
        is_sent: whether the request went out, so that the broker may have carried it out.
    """

    def __init__(self, text: str, code: int | None = None, *, is_sent: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.is_sent = is_sent


class LoginRefused(BrokerFault):
    """The broker does not take this user with this password."""


class _Broken(Exception):
    """The connection ended."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a person has logged in with. The password is in memory only, and no text shows it."""

    mechanism: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism!r}, {self.user!r})"


class BrokerAddress:
    """Where the broker slots are, and how to encrypt."""

    def __init__(self, settings: Settings) -> None:
        listener = settings.console_listener
        assert listener is not None
        self.slots = settings.slots
        self.listener = listener
        self.is_sasl = listener.is_sasl
        self.mechanisms = settings.console_mechanisms(listener) if listener.is_sasl else ()
        # Not the advertised address, which may be that of a proxy elsewhere.
        self._host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(listener.host, listener.host)
        tls = settings.tls_of(listener)
        self._certificate = (tls.keystore_location or tls.certificate_file) if listener.is_tls else None

    def connect(self, slot: int) -> socket.socket:
        """Return a connection to a slot.

        Raises:
            BrokerFault: there is no such slot, or it does not answer.
        """
        if not 0 <= slot < self.slots:
            raise BrokerFault(f"there is no broker slot {slot}")
        try:
            connection: socket.socket = socket.create_connection(
                (self._host, self.listener.port + slot), timeout=CONNECT_TIMEOUT_S
            )
            if self._certificate is not None:
                connection = _context(self._certificate).wrap_socket(connection)
        except OSError as error:
            raise BrokerFault(f"broker slot {slot} does not answer: {error.strerror or error}") from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(REQUEST_TIMEOUT_S)
        return connection


def _context(certificate: str) -> ssl.SSLContext:
    """Return a context that trusts the listener's own certificate, as the file has it now, and no other one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The address is this host's own, so the certificate itself is compared, and not the name in it.
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(certificate)
    return context


class Link:
    """The connections of one session.

    Args:
        address: where the slots are.
        credentials: None where the listener does not authenticate.
    """

    def __init__(self, address: BrokerAddress, credentials: Credentials | None) -> None:
        self._address = address
        self._credentials = credentials
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._idle: dict[int, list[socket.socket]] = {}
        self._is_closed = False
        self._answered = 0
        """The slot that has answered last."""

    @property
    def slots(self) -> range:
        """The numbers of all broker slots."""
        return range(self._address.slots)

    def ask(self, api: ApiKey, version: int, body: Any, *, slot: int | None = None) -> Any:
        """Return the response, as the shape of its API.

        Args:
            slot: the one to ask; None for the first that answers.

        Raises:
            BrokerFault: nobody answers, or not in time, or with something that is no answer; or a text that a person
                has typed is too long for a request.
        """
        try:
            sent = encode_request(api, version, body, _CORRELATION_ID, client_id=CLIENT_ID)
        except ApplianceDefect as fault:
            raise BrokerFault(f"nothing was sent: {fault}", ErrorCode.INVALID_REQUEST) from fault

        def conversation(connection: socket.socket) -> Any:
            frame = exchange(connection, sent)
            return decode_response(api, version, memoryview(frame), elements_max=ELEMENTS_MAX)[1]

        return self.use(conversation, slot=slot, is_repeatable=api in _ONLY_READ)

    def use(
        self, conversation: Callable[[socket.socket], T], *, slot: int | None = None, is_repeatable: bool
    ) -> T:
        """Return what a conversation over one connection results in.

        Raises:
            BrokerFault: as `ask`.
        """
        if slot is not None:
            return self._use(conversation, slot, is_repeatable=is_repeatable)
        fault: BrokerFault | None = None
        for each in sorted(self.slots, key=lambda slot: slot != self._answered):
            try:
                result = self._use(conversation, each, is_repeatable=is_repeatable)
            except LoginRefused:
                raise
            except BrokerFault as found:
                if found.code is not None or (found.is_sent and not is_repeatable):
                    raise
                fault = found
            else:
                self._answered = each
                return result
        assert fault is not None
        raise fault

    def _use(self, conversation: Callable[[socket.socket], T], slot: int, *, is_repeatable: bool) -> T:
        if not self._room.acquire(timeout=REQUEST_TIMEOUT_S):
            raise BrokerFault("this session has too many requests at once")
        try:
            connection, is_used = self._taken(slot)
            try:
                result = conversation(connection)
            except (OSError, _Broken) as error:
                connection.close()
                if isinstance(error, TimeoutError):
                    raise BrokerFault(
                        f"broker slot {slot} did not answer within {REQUEST_TIMEOUT_S:.0f} s", is_sent=True
                    ) from error
                if not (is_used and is_repeatable):
                    raise BrokerFault(
                        f"broker slot {slot} has closed the connection", is_sent=True
                    ) from error
            except BaseException:
                connection.close()
                raise
            else:
                self._given_back(slot, connection)
                return result
            connection = self._connected(slot)
            try:
                result = conversation(connection)
            except (OSError, _Broken) as error:
                connection.close()
                raise BrokerFault(f"broker slot {slot} has closed the connection", is_sent=True) from error
            except BaseException:
                connection.close()
                raise
            self._given_back(slot, connection)
            return result
        except MalformedFrame as fault:
            raise BrokerFault(f"broker slot {slot} sent what is no answer: {fault}", is_sent=True) from fault
        finally:
            self._room.release()

    def close(self) -> None:
        """Close what is idle; what is in use closes when it is given back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _taken(self, slot: int) -> tuple[socket.socket, bool]:
        """Return a connection, and whether it has been used before."""
        while True:
            with self._lock:
                idle = self._idle.get(slot)
                connection = idle.pop() if idle else None
            if connection is None:
                return self._connected(slot), False
            if not _has_ended(connection):
                return connection, True
            connection.close()

    def _connected(self, slot: int) -> socket.socket:
        connection = self._address.connect(slot)
        if self._credentials is not None:
            try:
                _log_in(connection, self._credentials)
            except BaseException as error:
                connection.close()
                if isinstance(error, OSError | _Broken):
                    raise BrokerFault(f"broker slot {slot} has closed the connection") from error
                raise
        return connection

    def _given_back(self, slot: int, connection: socket.socket) -> None:
        with self._lock:
            idle = self._idle.setdefault(slot, [])
            if not self._is_closed and len(idle) < IDLE_MAX:
                idle.append(connection)
                return
        connection.close()


def _has_ended(connection: socket.socket) -> bool:
    """Return whether the broker has closed an idle connection. No broker sends anything before it is asked."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def exchange(connection: socket.socket, request: bytes) -> bytes:
    """Send a frame, and return the frame that answers it, with its size in front.

    Raises:
        _Broken: the broker closed the connection.
        BrokerFault: the answer is too large.
    """
    connection.sendall(request)
    size = _read(connection, SIZE.size)
    (length_bytes,) = SIZE.unpack(size)
    if not 0 < length_bytes <= FRAME_BYTES_MAX:
        raise BrokerFault(f"an answer of {length_bytes} bytes; at most {FRAME_BYTES_MAX} are read")
    return size + _read(connection, length_bytes)


def _read(connection: socket.socket, count: int) -> bytes:
    found = bytearray(count)
    view, have = memoryview(found), 0
    while have < count:
        received = connection.recv_into(view[have:])
        if not received:
            raise _Broken
        have += received
    return bytes(found)


def _log_in(connection: socket.socket, credentials: Credentials) -> None:
    """Authenticate with SASL.

    Raises:
        LoginRefused: the broker refuses, or has not proved that it knows the password.
    """

    def asked(api: ApiKey, body: Any) -> Any:
        frame = exchange(connection, encode_request(api, 1, body, _CORRELATION_ID, client_id=CLIENT_ID))
        return decode_response(api, 1, memoryview(frame))[1]

    named = asked(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(credentials.mechanism))
    if named.error_code:
        raise LoginRefused(f"the broker does not take the mechanism {credentials.mechanism}")
    conversation = password_exchange(credentials.mechanism, credentials.user, credentials.password)
    try:
        token: bytes | None = conversation.first()
        while token is not None:
            answer = asked(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(token))
            if answer.error_code:
                raise LoginRefused("the broker does not accept this user with this password")
            token = conversation.answer(answer.auth_bytes)
    except SaslFault as fault:
        raise LoginRefused(str(fault)) from fault


def check(code: int, message: str | None = None, *, what: str = "") -> None:
    """Raise the error that an answer names.

    Raises:
        BrokerFault: `code` is not 0. The text has the broker's sentence and Kafka's name of the error.
    """
    if code:
        raise BrokerFault(f"{what}: {refusal(code, message)}" if what else refusal(code, message), code)


def not_done(text: str, fault: Exception) -> str:
    """Return why a change was not made. Where no answer came, say that it may have been made all the same.

    Args:
        text: such as "the rule was not added".
    """
    if isinstance(fault, BrokerFault) and fault.is_sent and fault.code is None:
        return f"no answer came: {fault}. The change may have been made: look before you repeat it"
    return f"{text}: {fault}"


def refusal(code: int, message: str | None = None) -> str:
    """Return one sentence for an error code, with Kafka's name for a search."""
    try:
        error = ErrorCode(code)
    except ValueError:
        return f"{message or 'the broker refuses'} (error {code})"
    return f"{(message or error.message).rstrip('.')} ({error.name})"


_ONLY_READ: Final = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.LIST_OFFSETS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_PRODUCERS,
    }
)
"""APIs whose requests change nothing, so that one may be sent again."""
