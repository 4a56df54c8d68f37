"""ExpireDelegationToken (40), versions 1-2: let a token end earlier, or now (KIP-48)."""

from __future__ import annotations

import msgspec


class ExpireDelegationTokenRequest(msgspec.Struct, frozen=True):
    """`expiry_time_period_ms` below 0: the token ends at once."""

    hmac: bytes
    expiry_time_period_ms: int


class ExpireDelegationTokenResponse(msgspec.Struct, frozen=True):
    """`expiry_timestamp_ms`: in milliseconds since 1970."""

    error_code: int = 0
    expiry_timestamp_ms: int = 0
    throttle_time_ms: int = 0
