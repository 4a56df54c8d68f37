"""Requests that wait for the coordinator's next turns: each connection's in order, and connections in turns.

    put ─→ is one of its connection waiting? ─ yes ──→ behind that one
                 │ no
                 ├─→ cheap lane    heartbeats, commits, offsets, members that join, sync and leave
                 └─→ costly lane   what names or lists many groups, and what is long

A connection stands in one lane, with its oldest request. When that is taken, its next request goes to the end of its
lane. So a connection that sends many requests waits for its own, and a client that lists groups does not make the
heartbeats of others wait: the coordinator takes from the cheap lane first, and works on costly requests in slices of
time (`coordinator`).

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

CHEAP_BYTES_MAX: Final = 16 * 1024
"""A longer request is costly, except those of members, whose cost does not grow with what they name."""

_COSTLY: Final = frozenset(
    int(api)
    for api in (
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
    )
)
_TAKEN_FROM_THE_GONE: Final = frozenset(
    int(api)
    for api in (
        ApiKey.OFFSET_COMMIT,
        ApiKey.LEAVE_GROUP,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
    )
)
_COSTLY_WHEN_LONG: Final = frozenset({int(ApiKey.OFFSET_COMMIT), int(ApiKey.OFFSET_FETCH)})


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
    def is_costly(self) -> bool:
        """Whether it may take long, as far as its header and its length say."""
        api_key = self.reply.header.api_key
        return api_key in _COSTLY or (
            self.reply.length_bytes > CHEAP_BYTES_MAX and api_key in _COSTLY_WHEN_LONG
        )


class RequestQueue:
    """The two lanes, and what waits behind the heads of connections."""

    __slots__ = ("_behind", "_cheap", "_costly", "_length")

    def __init__(self) -> None:
        self._cheap: dict[int, Received] = {}
        self._costly: dict[int, Received] = {}
        self._behind: dict[int, deque[Received]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def has_cheap(self) -> bool:
        return bool(self._cheap)

    @property
    def has_costly(self) -> bool:
        return bool(self._costly)

    def put(self, received: Received) -> None:
        """A request has come; those of its connection come in their order."""
        key = received.reply.key
        self._length += 1
        if key in self._cheap or key in self._costly:
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

    def next_costly(self) -> Received | None:
        """Take the oldest costly request of the connection whose turn it is; None where there is none."""
        return self._next(self._costly)

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
        for received in removed:
            if received.reply.header.api_key in _TAKEN_FROM_THE_GONE:
                self.put(received)
        return [
            received.reply
            for received in removed
            if received.reply.header.api_key not in _TAKEN_FROM_THE_GONE
        ]

    def _remove(self, key: int) -> list[Received]:
        head = self._cheap.pop(key, None) or self._costly.pop(key, None)
        if head is None:
            return []
        removed = [head, *self._behind.pop(key, ())]
        self._length -= len(removed)
        return removed

    def peer_down(self, peer: Role) -> int:
        """Forget the requests of a network process that has died, whose bytes are gone; how many there were."""
        keys = [key for key in (*self._cheap, *self._costly) if key >> 32 == peer.index]
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
        lane = self._costly if received.is_costly else self._cheap
        lane[key] = received

    def check(self) -> None:
        """Raises ApplianceDefect unless each connection stands in one lane, and its requests are counted."""
        if self._cheap.keys() & self._costly.keys():
            raise ApplianceDefect("a connection stands in both lanes")
        if self._behind.keys() - self._cheap.keys() - self._costly.keys():
            raise ApplianceDefect("requests wait behind no other")
        length = len(self._cheap) + len(self._costly) + sum(map(len, self._behind.values()))
        if length != self._length:
            raise ApplianceDefect(f"{length} requests wait, {self._length} are counted")
