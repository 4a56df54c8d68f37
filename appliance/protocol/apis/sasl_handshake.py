"""SaslHandshake (17), versions 0-1: the client names the SASL mechanism that it is going to use.

After v0 the tokens follow as bare frames, without a header. After v1 they are in SaslAuthenticate requests.
"""

from __future__ import annotations

import msgspec


class SaslHandshakeRequest(msgspec.Struct, frozen=True):
    mechanism: str


class SaslHandshakeResponse(msgspec.Struct, frozen=True):
    """`mechanisms` are those that are enabled, also if the client's is one of them."""

    error_code: int = 0
    mechanisms: tuple[str, ...] = ()
