"""What a leader's worker and the replicas of other slots say to each other: which rows to look at, nothing else.

    worker ──MOVED(row)──→ replica          the leader serves, or has more: copy
    worker ←──FOLLOWED(row)── replica       I have looked, and my words in the partition table are up to date

Positions stand in the partition table, bytes in the leader's segments. Both messages are 64 bytes, little endian:

    pad u32, row u32, incarnation u64, spare 6 × i64

A MOVED is answered by a FOLLOWED once the replica has all that the leader had, and for every stretch on the way. Either
may say more than is new, and says it again to each new life of the other, so that none is missed: who appears looks at
everything.
"""

from __future__ import annotations

from struct import Struct

MOVED = FOLLOWED = Struct("<IIQqqqqqq")

assert MOVED.size == 64
