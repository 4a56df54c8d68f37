"""Requests that wait for the coordinator's next turns: each connection's in order, and connections in turns.

    put ─→ is one of its connection waiting? ─ yes ──→ behind that one
                 │ no
                 ├─→ cheap lane    short requests: heartbeats, commits, offsets, members that join, sync and leave
                 ├─→ costly lane   what names or lists many groups, and what is long (LONG_FROM)
                 └─→ large lane    what is longer than LARGE_BYTES

A connection stands in one lane, with its oldest request. When that is taken, its next request goes to the end of its
lane. So a connection that sends many requests waits for its own, and a client that lists groups does not make the
heartbeats of others wait: the coordinator takes from the cheap lane first, and works on the other requests in slices of
time (`long_requests`, `slices`). It takes from the costly and the large lane in turn, and works on few large requests
at a time, because a request that is half done is memory.

A connection whose last request took long although it is short (SLOW_NS) stands in the costly lane until one of its
requests is quick again: the cost of some requests is in what the group has, not in what they say.

What a closed connection still wants to know is dropped before anybody works on it.

Running time: `put` and `next_…` O(1); `drop` O(requests of the connection); the death of a network process O(all).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from appliance.channels.roles import Role
from appliance.errors import ApplianceDefect
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.headers import RequestHeader

LONG_BYTES: Final = 2048
"""A longer request may hold enough elements to be decoded and planned in pieces: some 700 of three bytes each."""
LONG_FROM: Final = {
    int(ApiKey.OFFSET_COMMIT): 8192,
    int(ApiKey.TXN_OFFSET_COMMIT): 4096,
    int(ApiKey.JOIN_GROUP): 4096,
    int(ApiKey.SYNC_GROUP): 4096,
}
"""API → from how many bytes on its requests are long, where that is not LONG_BYTES: 3 ms of work at most."""
LARGE_BYTES: Final = 64 * 1024
SLOW_NS: Final = 5_000_000
SLOW_MAX: Final = 1024
"""Connections that are known to be slow; with more, all are forgotten."""

_COSTLY: Final = frozenset(
    int(api)
    for api in (
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    )
)
TAKEN_FROM_THE_GONE: Final = frozenset(
    int(api)
    for api in (
        ApiKey.OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.LEAVE_GROUP,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
    )
)
"""What these requests change is changed although their connection has closed."""


class Reply:
    """Where the answer to one request goes.

    `length_bytes` is what the request counts for from `taken` until it is answered. `partitions` is how many partitions
    the internal topic has, as far as the network process knows. `connection` names the client's
    connection within its network process; a later connection may have the same number. `dropped`: it has closed.
    """

    __slots__ = (
        "answered",
        "connection",
        "dropped",
        "generation",
        "header",
        "host",
        "length_bytes",
        "partitions",
        "peer",
        "request_id",
        "slot",
        "taken",
    )

    def __init__(
        self,
        peer: Role,
        generation: int,
        *,
        request_id: int,
        header: RequestHeader,
        length_bytes: int,
        slot: int,
        host: str,
        connection: int = 0,
        partitions: int = 0,
    ) -> None:
        self.peer = peer
        self.generation = generation
        self.request_id = request_id
        self.header = header
        self.length_bytes = length_bytes
        self.slot = slot
        self.host = host
        self.connection = connection
        self.partitions = partitions
        self.answered = False
        self.dropped = False
        self.taken = False

    @property
    def key(self) -> int:
        """The connection, unlike those of other network processes."""
        return self.peer.index << 32 | self.connection


class Received:
    """A request to serve: its body is view[header.body_position:end], in memory that is not ours."""

    __slots__ = ("end", "reply", "view")

    def __init__(self, reply: Reply, view: memoryview, end: int) -> None:
        self.reply = reply
        self.view = view
        self.end = end

    def body(self) -> memoryview:
        return self.view[self.reply.header.body_position : self.end]

    @property
    def is_long(self) -> bool:
        """Whether it is decoded and planned in pieces."""
        length_bytes = self.reply.length_bytes
        return length_bytes > LONG_BYTES and (
            length_bytes > LONG_FROM.get(self.reply.header.api_key, LONG_BYTES)
        )

    @property
    def is_costly(self) -> bool:
        """Whether it may take long, as far as its header and its length say."""
        return self.reply.header.api_key in _COSTLY or self.is_long


class RequestQueue:
    """The three lanes, and what waits behind the heads of connections."""

    __slots__ = ("_behind", "_cheap", "_costly", "_large", "_large_next", "_length", "_slow")

    def __init__(self) -> None:
        self._cheap: dict[int, Received] = {}
        self._costly: dict[int, Received] = {}
        self._large: dict[int, Received] = {}
        self._large_next = False
        self._behind: dict[int, deque[Received]] = {}
        self._slow: dict[int, None] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def has_cheap(self) -> bool:
        return bool(self._cheap)

    @property
    def has_costly(self) -> bool:
        return bool(self._costly)

    @property
    def has_large(self) -> bool:
        return bool(self._large)

    def put(self, received: Received) -> None:
        """A request has come; those of its connection come in their order."""
        key = received.reply.key
        self._length += 1
        if key in self._cheap or key in self._costly or key in self._large:
            behind = self._behind.get(key)
            if behind is None:
                self._behind[key] = deque((received,))
            else:
                behind.append(received)
        else:
            self._place(key, received)

    def next_cheap(self) -> Received | None:
        """Take the oldest cheap request of the connection whose turn it is; None where there is none."""
        return self._next(self._cheap)

    def next_costly(self, *, with_large: bool = True) -> Received | None:
        """Take the oldest costly or large request of the connection whose turn it is; None where there is none.

        The two lanes take turns. `with_large`: whether there is room for a large request.
        """
        if not with_large:
            return self._next(self._costly)
        self._large_next = not self._large_next
        if self._large_next:
            return self._next(self._large) or self._next(self._costly)
        return self._next(self._costly) or self._next(self._large)

    def took(self, key: int, duration_ns: int) -> None:
        """Hear how long the last request of a connection took in one piece."""
        slow = self._slow
        if duration_ns > SLOW_NS:
            if len(slow) >= SLOW_MAX:
                slow.clear()
            slow[key] = None
        elif slow:
            slow.pop(key, None)

    def like(self, received: Received) -> list[Received]:
        """Take the requests of other connections in the costly lane that ask the same as `received`, byte for byte, of
        the same slot: one of each connection."""
        header, slot, body = received.reply.header, received.reply.slot, bytes(received.body())
        own_key = received.reply.key
        same = [
            (key, other)
            for key, other in self._costly.items()
            if key != own_key
            and other.reply.header.api_key == header.api_key
            and other.reply.header.version == header.version
            and other.reply.slot == slot
            and other.body() == body
        ]
        for key, _ in same:
            del self._costly[key]
            self._took(key)
        return [other for _, other in same]

    def drop(self, key: int) -> list[Reply]:
        """Forget what a connection that has closed wanted to know; where the answers would have gone.

        What it wanted to change stays: it was received, and its client may have meant to close behind it.
        """
        removed = self._remove(key)
        self._slow.pop(key, None)
        for received in removed:
            if received.reply.header.api_key in TAKEN_FROM_THE_GONE:
                self.put(received)
        return [
            received.reply for received in removed if received.reply.header.api_key not in TAKEN_FROM_THE_GONE
        ]

    def _remove(self, key: int) -> list[Received]:
        head = self._cheap.pop(key, None) or self._costly.pop(key, None) or self._large.pop(key, None)
        if head is None:
            return []
        removed = [head, *self._behind.pop(key, ())]
        self._length -= len(removed)
        return removed

    def peer_down(self, peer: Role) -> int:
        """Forget the requests of a network process that has died, whose bytes are gone; how many there were."""
        keys = [key for key in (*self._cheap, *self._costly, *self._large) if key >> 32 == peer.index]
        return sum([len(self._remove(key)) for key in keys])

    def _next(self, lane: dict[int, Received]) -> Received | None:
        if not lane:
            return None
        key = next(iter(lane))
        received = lane.pop(key)
        self._took(key)
        return received

    def _took(self, key: int) -> None:
        self._length -= 1
        behind = self._behind.get(key)
        if behind is not None:
            self._place(key, behind.popleft())
            if not behind:
                del self._behind[key]

    def _place(self, key: int, received: Received) -> None:
        if not received.is_costly and key not in self._slow:
            self._cheap[key] = received
        elif received.reply.length_bytes > LARGE_BYTES:
            self._large[key] = received
        else:
            self._costly[key] = received

    def check(self) -> None:
        """Raises ApplianceDefect unless each connection stands in one lane, and its requests are counted."""
        lanes = (self._cheap, self._costly, self._large)
        heads = {key for lane in lanes for key in lane}
        if len(heads) != sum(map(len, lanes)):
            raise ApplianceDefect("a connection is in two lanes")
        if self._behind.keys() - heads:
            raise ApplianceDefect("requests wait behind no other")
        length = len(heads) + sum(map(len, self._behind.values()))
        if length != self._length:
            raise ApplianceDefect(f"{length} requests wait, {self._length} are counted")
