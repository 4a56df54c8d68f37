"""SASL without a Kafka client: handshakes and tokens on a raw connection, and a SCRAM client that can lie."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any, Final

from msgspec.structs import replace

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateRequest
from appliance.protocol.apis.sasl_handshake import SaslHandshakeRequest
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import decode_response, encode_request
from tests.support.wire import ConnectionEnded, WireSocket

CLOSED: Final = "closed"
CLIENT_NONCE: Final = "fyko+d2lbbFgONRv9qkxdawL"


def asked(connection: WireSocket, api: ApiKey, version: int, body: Any, correlation_id: int = 7) -> Any:
    """Send a request; return its response, or CLOSED where the broker closes without one."""
    try:
        connection.send(encode_request(api, version, body, correlation_id, client_id="wire"))
    except (BrokenPipeError, ConnectionResetError):
        return CLOSED
    return answer(connection, api, version)


def answer(connection: WireSocket, api: ApiKey, version: int) -> Any:
    """Return the next response, or CLOSED."""
    frame = raw_answer(connection)
    if frame == CLOSED:
        return CLOSED
    assert isinstance(frame, bytes)
    return decode_response(api, version, memoryview(SIZE.pack(len(frame)) + frame))[1]


def raw_answer(connection: WireSocket) -> bytes | str:
    """Return the next frame without its size, or CLOSED."""
    try:
        return connection.read_frame()
    except ConnectionEnded:
        return CLOSED


def handshake_frame(mechanism: str, version: int = 1) -> bytes:
    """Return a SaslHandshake request."""
    return encode_request(
        ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism), 1, client_id="wire"
    )


def authenticate_frame(token: bytes, version: int = 2) -> bytes:
    """Return a SaslAuthenticate request."""
    return encode_request(
        ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(token), 2, client_id="wire"
    )


def handshake(connection: WireSocket, mechanism: str, version: int = 1) -> Any:
    """Name a mechanism; the mechanisms of the answer are sorted."""
    told = asked(connection, ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism))
    return told if told == CLOSED else replace(told, mechanisms=tuple(sorted(told.mechanisms)))


def authenticate(connection: WireSocket, token: bytes, version: int = 2) -> Any:
    """Send a token."""
    return asked(connection, ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(token))


class ScramTokens:
    """A client's side of SCRAM. `extensions` are what stands behind its nonce, such as `tokenauth=true`."""

    def __init__(self, mechanism: str, user: str, password: str, *, extensions: str = "") -> None:
        self._digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self._password = password
        self.first_bare = f"n={user},r={CLIENT_NONCE}{extensions and ','}{extensions}"

    @property
    def first(self) -> bytes:
        """The client's first message."""
        return f"n,,{self.first_bare}".encode()

    def final(self, server_first: bytes, *, nonce: str | None = None) -> bytes:
        """The client's final message; `nonce` in place of the server's."""
        text = server_first.decode()
        server_nonce, salt, iterations = (field.partition("=")[2] for field in text.split(","))
        salted = hashlib.pbkdf2_hmac(
            self._digest, self._password.encode(), base64.b64decode(salt), int(iterations)
        )
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        without_proof = f"c=biws,r={nonce or server_nonce}"
        signature = hmac.digest(
            stored_key, f"{self.first_bare},{text},{without_proof}".encode(), self._digest
        )
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def log_in(
    connection: WireSocket,
    mechanism: str,
    user: str,
    password: str,
    *,
    version: int = 2,
    extensions: str = "",
) -> Any:
    """Authenticate to the end; return the last response."""
    handshaken = handshake(connection, mechanism)
    assert handshaken != CLOSED
    assert not handshaken.error_code, handshaken
    if mechanism == "PLAIN":
        return authenticate(connection, f"\0{user}\0{password}".encode(), version)
    tokens = ScramTokens(mechanism, user, password, extensions=extensions)
    server_first = authenticate(connection, tokens.first, version)
    assert not server_first.error_code, server_first
    return authenticate(connection, tokens.final(server_first.auth_bytes), version)
