"""InitProducerId (22), versions 0-5: an id and an epoch for an idempotent or transactional producer.

v3 lets a producer name the id and epoch it had, to get its epoch raised (KIP-360). v6 (two-phase commit,
KIP-939) is unstable in Kafka and not advertised.
"""

from __future__ import annotations

import msgspec


class InitProducerIdRequest(msgspec.Struct, frozen=True):
    """`transactional_id` is None for a producer that is only idempotent."""

    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


class InitProducerIdResponse(msgspec.Struct, frozen=True):
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_time_ms: int = 0
