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

from collections.abc import Mapping
from struct import Struct
from typing import Final

from appliance.channels.roles import Role
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.ring import RingWriter

MOVED = FOLLOWED = Struct("<IIQqqqqqq")

assert MOVED.size == 64

# Fields by position in what MOVED and FOLLOWED unpack.
ROW: Final = 1
INCARNATION: Final = 2


def tell_rows(
    owed: dict[Role, dict[int, int]], outbound: Mapping[Role, RingWriter], bells: Mapping[Role, Doorbell]
) -> None:
    """Tells each peer the rows (row → incarnation) that it is owed, either way, and takes out what was told.

    What a ring has no room for stays owed; whoever is down is owed nothing, for it looks at everything when it is up.
    """
    for peer, rows in list(owed.items()):
        writer = outbound.get(peer)
        if writer is not None:
            for row, incarnation in list(rows.items()):
                if not writer.put(0, row, incarnation, 0, 0, 0, 0, 0, 0):
                    break
                del rows[row]
            writer.publish()
            bells[peer].ring()
        if writer is None or not rows:
            del owed[peer]
