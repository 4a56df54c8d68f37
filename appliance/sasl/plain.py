"""PLAIN: the client sends its name and its password (RFC 4616). Use it on encrypted listeners only.

    authorization id NUL name NUL password          the authorization id is empty, or the name

The sentences for the client are those that it would get from Kafka's `PlainSaslServer.java`, because people search
for them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final

from appliance.sasl.mechanism import AuthenticationFailed, Exchange

_PARTS: Final = 3
_COUNTED_MAX: Final = 4
_OTHER_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
_INVALID: Final = "Authentication failed: Invalid username or password"


class PlainExchange(Exchange):
    """One authentication.

    Args:
        passwords: returns name → password of now.
    """

    def __init__(self, passwords: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._passwords = passwords

    def evaluate(self, token: bytes) -> bytes:
        """Take the only token; return an empty one."""
        parts = token.decode("utf-8", "replace").split("\0", _COUNTED_MAX - 1)
        if len(parts) != _PARTS:
            raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, name, password = parts
        if not name:
            raise AuthenticationFailed("Authentication failed: username not specified")
        if not password:
            raise AuthenticationFailed("Authentication failed: password not specified")
        expected = self._passwords().get(name)
        # The hashes are of one length, and there are two of them for an unknown name as well.
        is_same = hmac.compare_digest(_hashed(password), _hashed(expected or ""))
        if expected is None or not is_same:
            raise AuthenticationFailed(_INVALID)
        if authorization_id and authorization_id != name:
            raise AuthenticationFailed(_OTHER_ID)
        self.principal = f"User:{name}"
        self.is_complete = True
        return b""


def _hashed(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
