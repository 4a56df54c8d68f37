"""GetTelemetrySubscriptions (71), version 0: which of its metrics a client is to push, and how (KIP-714)."""

from __future__ import annotations

from uuid import UUID

import msgspec


class GetTelemetrySubscriptionsRequest(msgspec.Struct, frozen=True):
    """A client that has no id yet sends zeros, and gets one."""

    client_instance_id: UUID | None = None


class GetTelemetrySubscriptionsResponse(msgspec.Struct, frozen=True):
    """`requested_metrics`: prefixes of names; `*` alone for all, none at all for nothing."""

    error_code: int = 0
    client_instance_id: UUID | None = None
    subscription_id: int = 0
    accepted_compression_types: tuple[int, ...] = ()
    push_interval_ms: int = 0
    telemetry_max_bytes: int = 0
    delta_temporality: bool = False
    requested_metrics: tuple[str, ...] = ()
    throttle_time_ms: int = 0
