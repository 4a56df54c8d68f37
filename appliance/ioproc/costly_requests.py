"""Operations that may hold a worker for milliseconds wait here and take turns, connection by connection.

A batch of 3 KB may grow to 32 MiB when it is decompressed, and a look-up by timestamp decompresses a batch, too. If
the worker did such work in the order of arrival, one client could hold up all others. So the worker first decompresses
a batch up to `COSTLY_BYTES`; one that grows beyond it waits here. After each round over the rings the worker serves
one operation from here, so an ordinary request waits for one costly operation at most:

    rings: cheap, cheap, costly A1, cheap, costly A2, costly B1     → cheap ones at once; A1, A2, B1 wait here
    round 1: whatever is on the rings, then A1
    round 2: whatever is on the rings, then B1   (a turn for each connection)
    round 3: whatever is on the rings, then A2

Requests of one connection keep their order: what it sends behind a waiting operation waits behind it. A connection
that closes is answered for at once, so nobody waits for work that no client wants.
Bounded by `network.requests.in.flight.per.connection` of each connection; payloads stay in the network process's pool.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from appliance.channels.request_channel import ACKS, CONNECTION, OP, Op
from appliance.channels.roles import Role

COSTLY_BYTES: Final = 4 << 20
"""What a batch may grow to and still be served in the order of arrival: about a millisecond of decompression."""

_PRODUCE: Final = int(Op.PRODUCE)

_Key = tuple[Role, int]
_Message = tuple[Any, ...]


def _is_unanswered(message: _Message) -> bool:
    return bool(message[OP] == _PRODUCE and not message[ACKS])


class CostlyRequests:
    """The costly operations of one worker. Single-threaded."""

    __slots__ = ("_turns", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[_Key, deque[_Message]] = {}
        self._turns: deque[_Key] = deque()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def has(self, peer: Role, message: _Message) -> bool:
        """Return whether an operation of the same connection waits, so that `message` must wait behind it."""
        return (peer, message[CONNECTION]) in self._waiting

    def add(self, peer: Role, message: _Message) -> None:
        """Let a request of `peer` wait for its connection's turn."""
        key = (peer, message[CONNECTION])
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque((message,))
            self._turns.append(key)
        else:
            waiting.append(message)

    def next(self) -> tuple[Role, _Message]:
        """Return the operation whose turn it is; its connection goes to the end of the line.

        Raises:
            IndexError: nothing waits.
        """
        key = self._turns.popleft()
        waiting = self._waiting[key]
        message = waiting.popleft()
        if waiting:
            self._turns.append(key)
        else:
            del self._waiting[key]
        return key[0], message

    def drop_connection(self, peer: Role, connection: int) -> list[_Message]:
        """Forget what a closed connection asked, and return it: the network process still waits for the answers.

        Batches with acks=0 stay: their client expects no answer, and may have closed because it was done.
        """
        key = (peer, connection)
        waiting = self._waiting.get(key)
        if waiting is None:
            return []
        kept = deque(message for message in waiting if _is_unanswered(message))
        dropped = [message for message in waiting if not _is_unanswered(message)]
        if kept:
            self._waiting[key] = kept
        else:
            del self._waiting[key]
            self._turns.remove(key)
        return dropped

    def drop_peer(self, peer: Role) -> None:
        """Forget what a network process asked that has died: its pool is gone, and nobody waits for an answer."""
        for key in [key for key in self._waiting if key[0] == peer]:
            del self._waiting[key]
            self._turns.remove(key)

    def statistics(self) -> dict[str, int]:
        """Count the operations that wait, and their connections."""
        return {
            "costly_waiting": sum(map(len, self._waiting.values())),
            "costly_connections": len(self._turns),
        }
