"""DescribeDelegationToken (41), versions 1-3: the tokens that the client may see, with their passwords (KIP-48).

v2 is flexible. v3 adds the requester (KIP-373).
"""

from __future__ import annotations

import msgspec


class DescribeDelegationTokenOwner(msgspec.Struct, frozen=True):
    principal_type: str
    principal_name: str


class DescribeDelegationTokenRequest(msgspec.Struct, frozen=True):
    """None means the tokens of all owners; no owner means no token."""

    owners: tuple[DescribeDelegationTokenOwner, ...] | None = None


class DescribedDelegationTokenRenewer(msgspec.Struct, frozen=True):
    principal_type: str
    principal_name: str


class DescribedDelegationToken(msgspec.Struct, frozen=True):
    """Times in milliseconds since 1970."""

    principal_type: str
    principal_name: str
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int
    token_id: str
    hmac: bytes
    renewers: tuple[DescribedDelegationTokenRenewer, ...]
    token_requester_principal_type: str = ""
    token_requester_principal_name: str = ""


class DescribeDelegationTokenResponse(msgspec.Struct, frozen=True):
    error_code: int = 0
    tokens: tuple[DescribedDelegationToken, ...] = ()
    throttle_time_ms: int = 0
