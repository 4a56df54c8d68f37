"""RenewDelegationToken (39), versions 1-2: let a token live longer, up to its maximum (KIP-48)."""

from __future__ import annotations

import msgspec


class RenewDelegationTokenRequest(msgspec.Struct, frozen=True):
    """`renew_period_ms` of 0 or less: the broker's default."""

    hmac: bytes
    renew_period_ms: int


class RenewDelegationTokenResponse(msgspec.Struct, frozen=True):
    """`expiry_timestamp_ms`: in milliseconds since 1970."""

    error_code: int = 0
    expiry_timestamp_ms: int = 0
    throttle_time_ms: int = 0
