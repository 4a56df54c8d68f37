"""PushTelemetry (72), version 0: the metrics of a client, as OTLP's MetricsData, perhaps compressed (KIP-714)."""

from __future__ import annotations

from uuid import UUID

import msgspec


class PushTelemetryRequest(msgspec.Struct, frozen=True):
    """`compression_type` is that of record batches. A client that is `terminating` pushes once more, at any time."""

    client_instance_id: UUID | None = None
    subscription_id: int = 0
    terminating: bool = False
    compression_type: int = 0
    metrics: bytes = b""


class PushTelemetryResponse(msgspec.Struct, frozen=True):
    """Nothing but whether it was taken."""

    error_code: int = 0
    throttle_time_ms: int = 0
