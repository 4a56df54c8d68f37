"""What coordinator processes say to each other: markers for partitions of `__consumer_offsets`.

A transaction is decided by the coordinator process to which its transactional id belongs. A partition of the groups'
log has the process to which it belongs as its only writer. So the first one asks the second:

    coordinator 0 ──MARKER(partition, producer, commit or abort)──→ coordinator 1    appends it in order with its writes
    coordinator 0 ←──WRITTEN(id, error)──────────────────────────── coordinator 1    it is committed, or it is not

64 bytes, little endian, both ways:

    0      1       2          4        8             12               14        16              24
    ┌──────┬───────┬──────────┬────────┬─────────────┬────────────────┬─────────┬───────────────┐
    │ op   │ flags │ error    │ id     │ partition   │ producer epoch │ pad     │ producer id   │
    ├──────┴───────┴──────────┴┬───────┴─────────────┴┬───────────────┴─────────┴───────────────┘
    │ coordinator epoch (24)   │ version (28)         │ spare (32 to 64)
    └──────────────────────────┴──────────────────────┘

`flags` COMMITTED says that the transaction was committed. `version` is its `transaction.version`. WRITTEN has op, error
and id alone. The sender gives up when the other process dies. The marker may be in the log then, and a second one does
no harm.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

MARKER_MESSAGE = Struct("<BBhIIh2xqii32x")

assert MARKER_MESSAGE.size == 64

# Fields by position in what it unpacks.
OP: Final = 0
FLAGS: Final = 1
ERROR: Final = 2
ID: Final = 3
PARTITION: Final = 4
PRODUCER_EPOCH: Final = 5
PRODUCER_ID: Final = 6
COORDINATOR_EPOCH: Final = 7
TRANSACTION_VERSION: Final = 8

COMMITTED: Final = 1
"""Bit of `flags`."""
ID_LIMIT: Final = 1 << 32

Message = tuple[int, int, int, int, int, int, int, int, int]


class MarkerOp(IntEnum):
    MARKER = 1
    WRITTEN = 2


def marker_message(
    identity: int,
    partition: int,
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    transaction_version: int,
) -> Message:
    """Pack a MARKER."""
    return (
        int(MarkerOp.MARKER),
        COMMITTED if committed else 0,
        0,
        identity,
        partition,
        producer_epoch,
        producer_id,
        coordinator_epoch,
        transaction_version,
    )


def written_message(identity: int, error: int) -> Message:
    """Pack a WRITTEN."""
    return int(MarkerOp.WRITTEN), 0, error, identity, 0, 0, 0, 0, 0
