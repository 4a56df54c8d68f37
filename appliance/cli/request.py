"""Requests that librdkafka's admin client does not know, sent by our own codec: one connection, one answer.

With TLS and a login where the flags of the command say so (client_settings.py).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from appliance.cli.client_settings import Login
from appliance.cli.connecting import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    BrokerError,
    is_spoken,
    login,
    split_address,
    tls_context,
)
from appliance.errors import ApplianceError
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateRequest
from appliance.protocol.apis.sasl_handshake import SaslHandshakeRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import decode_response, encode_request

_FRAME_BYTES_MAX = 1 << 30
ELEMENTS_MAX: Final = 2_000_000
"""Array elements in one answer: each id of a broker is one. 600 MB of memory at the worst."""
_CORRELATION_ID = 1


class TooOld(BrokerError):
    """The broker does not know the API, or no version of it that says what the command needs."""


class LoginRefused(BrokerError):
    """The broker does not take the user and the password, or the mechanism."""


def request(
    address: str,
    api: ApiKey,
    version: int,
    body: Any,
    *,
    oldest: int | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Any:
    """The response, as the shape of its API, of the broker at one `HOST:PORT`.

    Args:
        version: the newest version that the command knows.
        oldest: the oldest version in which `body` means the same. The newest that both sides know is used. Without it
            only `version` will do.

    Raises:
        TooOld: the broker knows none of these versions.
        BrokerError: nobody answers there, or not in time, or with something that is no answer.
    """

    def use(connection: socket.socket) -> Any:
        shared = _shared_version(connection, address, api, version if oldest is None else oldest, version)
        return _asked(connection, address, api, shared, body)

    try:
        return _on_connection(address, timeout_s, use)
    except BrokerError:
        _known.pop(address, None)  # another broker may start there: `top` and --watch run for long
        raise


_known: dict[str, dict[int, tuple[int, int]]] = {}
"""Address → API key → versions that the broker there knows. A command asks each broker once."""


def _shared_version(connection: socket.socket, address: str, api: ApiKey, oldest: int, newest: int) -> int:
    """Return the newest version of both sides.

    Raises:
        TooOld: there is none.
    """
    if address not in _known:
        told = _asked(connection, address, ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        if told.error_code:
            raise BrokerError(f"{address}: {ErrorCode(told.error_code).message}")
        _known[address] = {each.api_key: (each.min_version, each.max_version) for each in told.api_keys}
    return newest_shared(address, api, _known[address].get(int(api)), oldest=oldest, newest=newest)


def newest_shared(
    address: str, api: ApiKey, theirs: tuple[int, int] | None, *, oldest: int, newest: int
) -> int:
    """Return the newest version that lies in `oldest` to `newest` and in the broker's range, `theirs`.

    Raises:
        TooOld: there is none, or the broker does not know the API (None).
    """
    if theirs is None:
        raise TooOld(f"{address}: this broker does not know the request {api.title}; the command needs it")
    shared = min(newest, theirs[1])
    if shared < max(oldest, theirs[0]):
        wanted = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
        raise TooOld(
            f"{address}: this broker knows {api.title} in versions {theirs[0]} to {theirs[1]}; the command needs"
            f" {wanted}"
        )
    return shared


def require_login(addresses: str) -> None:
    """Return when the first broker that answers takes the login and the TLS of the flags; at once where they say none.

    librdkafka tries again for 30 seconds when a broker refuses, and does not say why in the end.

    Raises:
        BrokerError: it refuses; or none of them answers.
    """
    if not is_spoken() or (login() is None and tls_context() is None):
        return
    left = [each.strip() for each in addresses.split(",")]
    while left:
        try:
            _on_connection(left.pop(0), CONNECT_TIMEOUT_S, lambda _connection: None)
        except LoginRefused:
            raise
        except BrokerError:
            if not left:
                raise
        else:
            return


def _on_connection(address: str, timeout_s: float, use: Callable[[socket.socket], Any]) -> Any:
    """Connect, authenticate, and return what `use` makes of the connection. Raises BrokerError."""
    host, port = split_address(address)
    context, credentials = tls_context(), login()
    try:
        with ExitStack() as opened:
            connection: socket.socket = opened.enter_context(
                socket.create_connection((host, port), timeout=min(timeout_s, CONNECT_TIMEOUT_S))
            )
            connection.settimeout(timeout_s)
            if context is not None:
                connection = opened.enter_context(context.wrap_socket(connection, server_hostname=host))
            if credentials is not None:
                _log_in(connection, address, credentials)
            return use(connection)
    except TimeoutError as fault:
        raise BrokerError(f"{address}: no answer within {timeout_s:.0f} s") from fault
    except ssl.SSLCertVerificationError as fault:
        raise BrokerError(
            f"{address}: the broker's certificate is not accepted: {fault.verify_message}"
        ) from fault
    except ssl.SSLError as fault:
        reason = (fault.reason or "the connection was closed").lower().replace("_", " ")
        raise BrokerError(f"{address}: TLS failed: {reason}") from fault
    except OSError as fault:
        raise BrokerError(f"no broker answers at {address}: {fault.strerror or fault}") from fault
    except BrokerError:
        raise
    except ApplianceError as fault:
        raise BrokerError(f"{address}: {fault}") from fault


def _asked(connection: socket.socket, address: str, api: ApiKey, version: int, body: Any) -> Any:
    connection.sendall(encode_request(api, version, body, _CORRELATION_ID, client_id="appliance"))
    size = _read(connection, SIZE.size)
    length_bytes = SIZE.unpack(size)[0]
    if not 0 < length_bytes <= _FRAME_BYTES_MAX:
        raise BrokerError(f"{address}: an answer of {length_bytes} bytes")
    frame = size + _read(connection, length_bytes)
    return decode_response(api, version, memoryview(frame), elements_max=ELEMENTS_MAX)[1]


def _log_in(connection: socket.socket, address: str, credentials: Login) -> None:
    """Authenticate with SASL.

    Raises:
        LoginRefused: the broker refuses.
        SaslFault: it has not proved that it knows the password.
    """
    named = _asked(connection, address, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(credentials.mechanism))
    if named.error_code:
        known = ", ".join(named.mechanisms) or "none"
        raise LoginRefused(
            f"{address}: the broker does not take the mechanism {credentials.mechanism}; it takes {known}"
        )
    exchange = credentials.exchange()
    token: bytes | None = exchange.first()
    while token is not None:
        told = _asked(connection, address, ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(token))
        if told.error_code:
            raise LoginRefused(f"{address}: the broker refused the login: {told.error_message}")
        token = exchange.answer(told.auth_bytes)


def _read(connection: socket.socket, length_bytes: int) -> bytes:
    pieces: list[bytes] = []
    while length_bytes:
        piece = connection.recv(min(length_bytes, 1 << 20))
        if not piece:
            raise ConnectionError("the connection was closed")
        pieces.append(piece)
        length_bytes -= len(piece)
    return b"".join(pieces)
