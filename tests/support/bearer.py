"""OAUTHBEARER without a client library: what a broker answers to a token, or to what is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateRequest
from appliance.protocol.apis.sasl_handshake import SaslHandshakeRequest
from appliance.protocol.messages import decode_response, encode_request
from tests.support.wire import ConnectionEnded, WireSocket

HANDSHAKE, AUTHENTICATE = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an authentication.

    `code` and `message` are those of the last answer, None if the connection was closed without one. `json` is the
    error that came before it.
    """

    code: int | None
    message: str | None = None
    json: bytes = b""
    lifetime_ms: int = 0


def bearer(token: str, *, begin: str = "n,,", pairs: str = "") -> bytes:
    """The first message of a client."""
    return f"{begin}\x01auth=Bearer {token}\x01{pairs}\x01".encode()


def asked(connection: WireSocket, key: ApiKey, version: int, request: object) -> Any:
    """Send a request and return its response."""
    connection.send(encode_request(key, version, request, 7, client_id="bearer"))
    frame = connection.read_frame()
    correlation_id, response = decode_response(
        key, version, memoryview(len(frame).to_bytes(4, "big") + frame)
    )
    assert correlation_id == 7
    return response


def handshake(connection: WireSocket) -> None:
    """Name the mechanism."""
    assert asked(connection, HANDSHAKE, 1, SaslHandshakeRequest("OAUTHBEARER")).error_code == 0


def authenticated(connection: WireSocket, first: bytes) -> Answer:
    """Go through the whole exchange on a connection."""
    json = b""
    try:
        handshake(connection)
        response = asked(connection, AUTHENTICATE, 2, SaslAuthenticateRequest(first))
        if response.error_code == 0 and response.auth_bytes:
            json = response.auth_bytes
            response = asked(connection, AUTHENTICATE, 2, SaslAuthenticateRequest(b"\x01"))
    except ConnectionEnded:
        return Answer(None, json=json)
    return Answer(response.error_code, response.error_message, json, response.session_lifetime_ms)


def answer(port: int, first: bytes) -> Answer:
    """What a broker answers to a client that begins with `first`."""
    with WireSocket(port) as connection:
        return authenticated(connection, first)
