"""SaslAuthenticate (36), versions 0-2: one token of the client, one of the server.

v1 adds how long the session lasts until the client must authenticate again (KIP-368).
"""

from __future__ import annotations

import msgspec


class SaslAuthenticateRequest(msgspec.Struct, frozen=True):
    auth_bytes: bytes

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(…)"


class SaslAuthenticateResponse(msgspec.Struct, frozen=True):
    """`session_lifetime_ms` is 0 while the authentication goes on, and where there is no need to do it again."""

    error_code: int = 0
    error_message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0
