"""OAUTHBEARER: the client sends an access token of an identity provider (RFC 7628, KIP-255, KIP-768).

    client:  n,a=alice,^A auth=Bearer eyJhbGciOiJSUzI1NiIs… ^A traceId=123 ^A ^A      (^A is byte 1; without spaces)
    server:  (empty)                           the token is good: done
    server:  {"status":"invalid_token"}        it is not: the client answers ^A, and gets error 58 with this text

`a=` may be absent; if it is there, it must be the token's principal. The further pairs are extensions: their form is
checked, and they have no meaning here, as with the default of Kafka.

| state | the client sends | then |
|---|---|---|
| waits for the token | a good token | complete |
| waits for the token | a bad token | rejected; the answer is the JSON text |
| waits for the token | no such message, or another principal in `a=` | failed |
| rejected | anything; ^A is usual | failed, with the JSON text |
"""

from __future__ import annotations

import re
from typing import Final

from appliance.sasl.mechanism import AuthenticationFailed, Exchange
from appliance.sasl.token_validator import TokenRejected, TokenValidator

INVALID_TOKEN: Final = '{"status":"invalid_token"}'

_SEPARATOR: Final = b"\x01"
_NAME_OF_SASL: Final = rb"(?:[\x02-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_HEADER: Final = re.compile(rb"n,(?:a=(" + _NAME_OF_SASL + rb"))?,")
_PAIR: Final = re.compile(rb"([A-Za-z]+)=([\x21-\x7e \t\r\n]+)")
_BEARER: Final = re.compile(rb"bearer +([-_.a-zA-Z0-9]+)", re.IGNORECASE)


class OAuthBearerExchange(Exchange):
    """One authentication with a token.

    Args:
        validator: decides about the token.
    """

    def __init__(self, validator: TokenValidator) -> None:
        super().__init__()
        self._validator = validator
        self._rejected: TokenRejected | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Take the client's message; return the server's.

        Raises:
            AuthenticationFailed: see the table at the top.
            CannotDecide: no keys have been fetched yet.
        """
        if self._rejected is not None:
            raise AuthenticationFailed(INVALID_TOKEN, why=f"its access token is refused: {self._rejected}")
        wanted_principal, access_token = _first_message(token)
        try:
            good = self._validator.validate(access_token)
        except TokenRejected as fault:
            self._rejected = fault
            return INVALID_TOKEN.encode()
        if wanted_principal not in ("", good.subject):
            raise AuthenticationFailed(
                f"The client asked for the authorization id {wanted_principal[:200]!r}, but its token is for"
                f" {good.subject[:200]!r}.",
                why="its client asked for another principal than that of its token",
            )
        self.principal = f"User:{good.subject}"
        self.expires_at_ms = good.expires_at_ms
        self.is_complete = True
        return b""


def _first_message(message: bytes) -> tuple[str, str]:
    """Return the authorization id, which may be empty, and the access token.

    Raises:
        AuthenticationFailed: this is no first message of OAUTHBEARER.
    """
    begin, _, rest = message.partition(_SEPARATOR)
    opening = _HEADER.fullmatch(begin)
    if opening is None or not rest.endswith(_SEPARATOR * 2):
        raise AuthenticationFailed
    access_token = b""
    for pair in rest[:-2].split(_SEPARATOR):
        matched = _PAIR.fullmatch(pair)
        if matched is None:
            raise AuthenticationFailed
        if matched[1] == b"auth":
            bearer = _BEARER.fullmatch(matched[2])
            if bearer is None or access_token:
                raise AuthenticationFailed
            access_token = bearer[1]
    if not access_token:
        raise AuthenticationFailed
    authorization_id = (opening[1] or b"").replace(b"=2C", b",").replace(b"=3D", b"=")
    return authorization_id.decode("ascii"), access_token.decode("ascii")
