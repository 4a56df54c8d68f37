"""Delegation tokens (KIP-48): their passwords, and the SCRAM credentials of one network process.

    hmac       = HMAC-SHA-512(secret of the cluster, id)        bytes, in the answers of the four APIs
    password   = base64(hmac)                                    what a client logs in with by SCRAM
    credential = of that password, as of a user's                derived when the token is first used

The metadata store has tokens without their passwords, so who reads it cannot log in with them.

Every process knows this module, and few of them derive a password: OpenSSL is loaded with the first one that does.

Source: Kafka's `DelegationTokenManager.java`, release 4.3.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import NamedTuple

from appliance.clock import Clock
from appliance.cluster import DelegationToken, ScramCredential
from appliance.sasl.scram_credential import new_credential


class TokenLogin(NamedTuple):
    """Who the holder of a token is, until when, and the credential that the holder must know the password of."""

    owner: str
    expires_ms: int
    credential: ScramCredential


def hmac_of(secret: str, token_id: str) -> bytes:
    """Return the HMAC of a token."""
    import hmac

    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def password_of(secret: str, token_id: str) -> str:
    """Return the password that a client logs in with."""
    return base64.b64encode(hmac_of(secret, token_id)).decode()


class TokenCredentials:
    """The credentials of the tokens that clients of one network process use.

    Args:
        secret: `delegation.token.secret.key`.
        tokens: returns those of now, the same object until one changes.
    """

    __slots__ = ("_by_id", "_clock", "_credentials", "_secret", "_seen", "_source")

    def __init__(self, secret: str, tokens: Callable[[], tuple[DelegationToken, ...]], clock: Clock) -> None:
        self._secret = secret
        self._source = tokens
        self._clock = clock
        self._seen: tuple[DelegationToken, ...] = ()
        self._by_id: dict[str, DelegationToken] = {}
        # Of tokens that exist, so as many as they are. Deriving one takes some milliseconds.
        self._credentials: dict[tuple[str, str], ScramCredential] = {}

    def find(self, mechanism: str, token_id: str) -> TokenLogin | None:
        """Return what a login with a token needs; None if it does not exist or has expired."""
        tokens = self._source()
        if tokens is not self._seen:
            self._seen = tokens
            self._by_id = {token.token_id: token for token in tokens}
            self._credentials = {
                key: credential for key, credential in self._credentials.items() if key[1] in self._by_id
            }
        token = self._by_id.get(token_id)
        if token is None or token.is_expired(self._clock.now_ms()):
            return None
        credential = self._credentials.get((mechanism, token_id))
        if credential is None:
            credential = new_credential(token_id, mechanism, password_of(self._secret, token_id))
            self._credentials[mechanism, token_id] = credential
        return TokenLogin(token.owner, token.expires_ms, credential)
