"""CreateDelegationToken (38), versions 1-3: a token to log in with in place of a password (KIP-48).

v2 is flexible. v3 adds an owner who is another one than the requester (KIP-373).
"""

from __future__ import annotations

import msgspec


class CreatableRenewers(msgspec.Struct, frozen=True):
    principal_type: str
    principal_name: str


class CreateDelegationTokenRequest(msgspec.Struct, frozen=True):
    """Without an owner's name the requester owns the token. `max_lifetime_ms` of 0 or less: the broker's maximum."""

    renewers: tuple[CreatableRenewers, ...] = ()
    max_lifetime_ms: int = -1
    owner_principal_type: str | None = None
    owner_principal_name: str | None = None


class CreateDelegationTokenResponse(msgspec.Struct, frozen=True):
    """Times in milliseconds since 1970. Who knows `hmac` can log in as the owner: it is the token's password."""

    error_code: int = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = ""
    token_requester_principal_name: str = ""
    issue_timestamp_ms: int = 0
    expiry_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: int = 0
