"""What network processes and workers say to the purgatory, and what it answers.

A fetch that has to wait is watched on each of its partitions and armed once:

    network process ──WATCH(row, offset)… ARM(timeout, needed_bytes)──→ purgatory ──COMPLETE──→ network process
    worker ──POKE(row, high watermark, bytes)──→ purgatory

An answer that its owner holds, a worker or a network process, has only a deadline here (`delayed/held_answers.py`):

    owner ──HOLD(identity, deadline), RELEASE(identity)──→ purgatory ──OVER(identity, reason)──→ owner

Each HOLD is answered by one OVER: EXPIRED when its deadline has come, SATISFIED when a RELEASE came before. Identities
are the owner's, and not those of fetches. An OVER(EXPIRED) may cross a RELEASE: then it is the OVER of that HOLD.

All messages are 64 bytes, little endian. From a network process (`WATCH` once a partition, then one `ARM`):

    op u8, within u8, pad u16, request_id u32, row u32, count u32, offset i64, deadline_ns i64,
    needed_bytes i64, spare 3 × i64

| op | meaning |
|---|---|
| WATCH | operation `request_id` is interested in `row` once its high watermark passes `offset` |
| ARM | all `count` watches are placed; complete at `deadline_ns` (CLOCK_MONOTONIC) or after `needed_bytes` more |
| CANCEL | forget `request_id`: its connection is gone |

`within` of a WATCH is 1 where something below `offset` is to be read: then a high watermark that has come into a later
segment ends the wait, however few bytes those are, because no answer reaches beyond its segment.

The missed-wake-up race: the network process saw a high watermark, then registers. The purgatory therefore sets
the row's `watchers` word, fences, and *re-reads* the high watermark; the worker publishes the high watermark,
fences, and *then* reads `watchers`. One of the two sees the other.

From a worker:   op u8, pad, row u32, high_watermark i64, appended_bytes i64 (since its last poke of the row), spare;
of a HOLD or RELEASE: op u8, pad, identity u32, deadline_ns i64, spare. A network process sends both as an ARM is drawn
To a network process or a worker:   op u8, reason u8, request_id or identity u32, spare
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

WATCH = Struct("<BBHIIIqqqqqq")
POKE = Struct("<BBHIqqqqqqq")
COMPLETION = Struct("<BBHIqqqqqqq")

assert WATCH.size == POKE.size == COMPLETION.size == 64

# Fields by position in what the three unpack.
OP: Final = 0
# WATCH, ARM, CANCEL
WITHIN: Final = 1
REQUEST_ID: Final = 3
ROW: Final = 4
COUNT: Final = 5
OFFSET: Final = 6
DEADLINE_NS: Final = 7
NEEDED_BYTES: Final = 8
# POKE
POKED_ROW: Final = 3
POKED_HIGH_WATERMARK: Final = 4
POKED_BYTES: Final = 5
# HOLD, RELEASE from a worker; from a network process REQUEST_ID and DEADLINE_NS
HELD_IDENTITY: Final = 3
HELD_DEADLINE_NS: Final = 4
# COMPLETE, OVER
REASON: Final = 1
COMPLETED_ID: Final = 3


class PurgatoryOp(IntEnum):
    """What is said over the purgatory's rings."""

    WATCH = 1
    ARM = 2
    CANCEL = 3
    POKE = 4
    COMPLETE = 5
    HOLD = 6
    RELEASE = 7
    OVER = 8


class CompletionReason(IntEnum):
    """Why an operation left the purgatory."""

    SATISFIED = 1
    EXPIRED = 2
