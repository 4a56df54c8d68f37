"""What network processes and a coordinator say to each other: whole requests one way, whole responses the other.

    netproc ──REQUEST(where its frame lies)──→ coordinator         the frame stays in the network process's pool
    coordinator ──TAKEN(id)──→ netproc                             it was read, where nothing else keeps its frame
    coordinator ──ANSWER(where it lies)──→ netproc ──RELEASE──→    the frame of the response, in the coordinator's pool
    coordinator ──ANSWER(itself)──→ netproc                        a small one, as of heartbeats and most commits
    netproc ──CLOSED(connection)──→ coordinator                    nobody waits for its answers any more

From a network process, 64 bytes, little endian:

    op u8, flags u8, slot u16, request_id u32, position u64, length_bytes u32, connection u32, address 16 bytes,
    partitions u32, spare 20 bytes

To a network process:

    op u8, flags u8, pad u16, request_id u32, position u32, length_bytes u32, inline 48 bytes

`slot` is the one whose port the client spoke to; `address` the client's, as IPv6 (an IPv4 one is mapped). REQUEST's
bytes are the request's frame without its size: header and body. A long response comes in pieces, in order, MORE on each
but the last; each piece is released for itself, by its position. For RELEASE alone nobody rings, unless much is
released: a coordinator that is short of room looks by itself. A short one comes in the messages themselves: INLINE,
`length_bytes` of `inline` in each, and nothing is released (decision 0071).

`partitions` says how many partitions `__consumer_offsets` has, 0 where there is no such topic, as far as the network
process knows; it is 0 where there is one coordinator. With several (`coordinator.processes`), a REQUEST that names many
groups goes to each of them, and each answers for the groups that are its own by that number. So every group is answered
once, also while the topic is being created.

Requests of one connection may be answered in any order; the network process keeps the order of the responses.

`connection` names the client's connection within its network process, as long as that is open. CLOSED comes behind the
last request of the connection, and before the first one of another that has its number. The coordinator drops what it
has not begun and answers each of these requests with an empty ANSWER: from then on their bytes are not read.

A response is at most 4 GiB from the beginning of the coordinator's pool (`coordinator.pool.bytes`), so its position has
32 bits; the pools of network processes may be larger (`network.pool.bytes`).
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

INLINE_BYTES: Final = 48
"""Of a response in one message."""
INLINE_FRAME_BYTES: Final = 2 * INLINE_BYTES
"""The longest response that comes so: of a commit of one partition it is at most 28 and its topic's name."""
FROM_NETPROC = Struct("<BBHIQII16sI20x")
TO_NETPROC = Struct(f"<BBHIII{INLINE_BYTES}s")

assert FROM_NETPROC.size == TO_NETPROC.size == 64


class CoordinatorOp(IntEnum):
    """What is said between a network process and the coordinator."""

    REQUEST = 1
    TAKEN = 2
    ANSWER = 3
    RELEASE = 4
    CLOSED = 5


class CoordinatorFlag(IntEnum):
    """Bits of `flags`."""

    MORE = 1  # ANSWER: another piece follows
    REFUSED = (
        2  # ANSWER: the request does not parse; the piece says why, in UTF-8, and the connection is closed
    )
    INLINE = 4  # ANSWER: the piece is in the message; `position` says nothing
