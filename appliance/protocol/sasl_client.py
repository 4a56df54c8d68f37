"""The client's side of SASL, without I/O: tokens to send, tokens of the broker in.

    exchange = make()                                      ClientExchange of PLAIN, SCRAM or OAUTHBEARER
    token = exchange.first()
    while token is not None:  token = exchange.answer(what the broker says to the token)

`answer` returns None when the authentication is complete. With SCRAM the broker proves then that it knows the password,
too. The requests around the tokens, SaslHandshake and SaslAuthenticate, are the caller's.

The broker names the rounds of SCRAM's hash function, so there is a bound: a broker must not keep its clients busy
(CVE-2026-10143).

Sources: RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM), RFC 7628 (OAUTHBEARER).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from abc import ABC, abstractmethod
from typing import Final

from appliance.errors import ClientFault

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM_DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism → the hash function that it is named after."""
CLIENT_MECHANISMS: Final = (PLAIN, *SCRAM_DIGESTS, OAUTHBEARER)

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 65_536
"""Kafka's brokers have at most 16,384. More take more than 0.1 s of the client's processor."""
_NONCE_BYTES: Final = 18
_SEPARATOR: Final = "\x01"
_SAID_CHARACTERS_MAX: Final = 200


class SaslFault(ClientFault):
    """The broker's token is none that the mechanism allows, or the broker has not proved that it knows the password."""


class ClientExchange(ABC):
    """One authentication."""

    @abstractmethod
    def first(self) -> bytes:
        """Return the first token."""

    @abstractmethod
    def answer(self, token: bytes) -> bytes | None:
        """Take the broker's token; return the next one to send, or None when the authentication is complete.

        Raises:
            SaslFault: the broker must not be trusted, or refuses; the connection is to be closed.
        """


class PlainClient(ClientExchange):
    """PLAIN: the password itself goes to the broker, so use it over TLS."""

    def __init__(self, user: str, password: str) -> None:
        self._token = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """Return user and password."""
        return self._token

    def answer(self, token: bytes) -> bytes | None:
        """The broker has nothing to say."""
        return None


class ScramClient(ClientExchange):
    """SCRAM-SHA-256 and SCRAM-SHA-512.

    Args:
        by_token: `user` is the id of a delegation token, and `password` its HMAC in base64 (KIP-48).
    """

    def __init__(self, mechanism: str, user: str, password: str, *, by_token: bool = False) -> None:
        self._digest = SCRAM_DIGESTS[mechanism]
        self._password = password.encode()
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES)
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}" + (",tokenauth=true" if by_token else "")
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """Return name and nonce."""
        return f"n,,{self._bare}".encode()

    def answer(self, token: bytes) -> bytes | None:
        """Prove the password, then check the broker's proof."""
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise SaslFault("the broker's SCRAM message is no text") from None
        if self._signature is None:
            return self._final(text)
        try:
            told = base64.b64decode(_fields(text).get("v", ""), validate=True)
        except ValueError:
            told = b""
        if not hmac.compare_digest(told, self._signature):
            raise SaslFault(
                "the broker does not know the password: it may be another one than it claims to be"
            )
        return None

    def _final(self, server_first: str) -> bytes:
        fields = _fields(server_first)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise SaslFault("the broker's SCRAM message has another nonce than the client's")
        try:
            salt = base64.b64decode(fields.get("s", ""), validate=True)
            iterations = int(fields.get("i", ""))
        except ValueError:
            raise SaslFault("the broker's SCRAM message has no salt or no number of iterations") from None
        if not salt or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise SaslFault(
                f"the broker wants {iterations} SCRAM iterations; this client does {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{server_first},{without_proof}".encode()
        signature = hmac.digest(stored_key, message, self._digest)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._digest)
        self._signature = hmac.digest(server_key, message, self._digest)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


class OAuthBearerClient(ClientExchange):
    """OAUTHBEARER: the token of an identity provider."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._refused: str | None = None

    def first(self) -> bytes:
        """Return the token."""
        return f"n,,{_SEPARATOR}auth=Bearer {self._token}{_SEPARATOR}{_SEPARATOR}".encode()

    def answer(self, token: bytes) -> bytes | None:
        """The broker says nothing, or why it refuses; then it waits for the client to acknowledge that."""
        if not token:
            if self._refused is not None:
                raise SaslFault(f"the broker refuses the token: {self._refused}")
            return None
        if self._refused is not None:
            raise SaslFault(f"the broker refuses the token: {self._refused}")
        self._refused = token.decode(errors="replace")[:_SAID_CHARACTERS_MAX]
        return _SEPARATOR.encode()


def password_exchange(mechanism: str, user: str, password: str, *, by_token: bool = False) -> ClientExchange:
    """Return an exchange of PLAIN or SCRAM."""
    if mechanism == PLAIN:
        return PlainClient(user, password)
    return ScramClient(mechanism, user, password, by_token=by_token)


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}
