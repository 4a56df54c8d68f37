"""AddOffsetsToTxn (25), versions 0-4: the transaction is about to commit offsets of this group.

The partition of `__consumer_offsets` that keeps the group becomes part of the transaction. A client of
`transaction.version` 2 does not send it: the broker adds the partition when it gets TxnOffsetCommit 5.
"""

from __future__ import annotations

import msgspec


class AddOffsetsToTxnRequest(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


class AddOffsetsToTxnResponse(msgspec.Struct, frozen=True):
    error_code: int = 0
    throttle_time_ms: int = 0
