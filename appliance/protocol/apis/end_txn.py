"""EndTxn (26), versions 0-5: commit or abort the transaction.

v5 belongs to `transaction.version` 2 (KIP-890): its answer carries the producer id and epoch of the next transaction.
"""

from __future__ import annotations

import msgspec


class EndTxnRequest(msgspec.Struct, frozen=True):
    """`committed`: true commits, false aborts."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


class EndTxnResponse(msgspec.Struct, frozen=True):
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_time_ms: int = 0
