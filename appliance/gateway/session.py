"""A client's session over ZeroMQ: what it has asked, what it is owed, and how much it may still be sent. State only."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from typing import Final

import zmq

from appliance.gateway.doors import Door
from appliance.gateway.frames import TOKEN_BYTES
from appliance.gateway.received import IPC_HOST, Wire, client_of, key_of
from appliance.gateway.window import Window
from appliance.protocol.framing import SIZE_BYTES
from appliance.requests.answer import FilePiece, Piece
from appliance.requests.session import Session

SESSION_NUMBERS_FROM: Final = 1 << 30
"""A TCP connection's number is its descriptor, which is always below."""

Sent = bytes | memoryview | FilePiece
"""A piece of an answer that is leaving."""


def leaving(answer: list[Piece]) -> list[Sent]:
    """Return an answer's pieces, which leave from the end of the list. A frame knows its size, so none is in front."""
    head, *rest = answer
    assert isinstance(head, bytes)
    pieces: list[Sent] = [memoryview(head)[SIZE_BYTES:]]
    pieces += rest
    pieces.reverse()
    return pieces


def release(pieces: Iterable[Sent]) -> None:
    """Let go of the segments that the session would have sent the pieces from."""
    for piece in pieces:
        if isinstance(piece, FilePiece):
            piece.file.release()


class GatewaySession(Session):
    """A session over ZeroMQ.

    It belongs to one connection of one door: `routing_id` is what ZeroMQ calls that connection. ZeroMQ has chosen it,
    so no other connection can have it, and it is not used again while the process lives.

    Args:
        token: the secret that the client puts into each message.
        key: the client's public key in hexadecimal digits; empty for a client that has none.
        wire: the socket of the connection.
        pid: the client's process on this host; 0 where it is elsewhere.
    """

    __slots__ = (
        "bytes_in_flight",
        "door",
        "heartbeat_mark",
        "heartbeat_sent_ns",
        "held",
        "held_bytes",
        "is_leaving",
        "key",
        "out",
        "owed_bytes",
        "pid",
        "routing_id",
        "sizes",
        "subscriptions",
        "token",
        "window",
        "wire",
    )

    def __init__(
        self,
        door: Door,
        routing_id: bytes,
        *,
        token: bytes,
        window: Window,
        principal: str,
        key: str,
        wire: Wire,
        connection_id: int,
        number: int,
        slot: int,
        listener: str,
        host: str,
        pid: int,
        told_host: str | None,
        now_ns: int,
    ) -> None:
        super().__init__(
            connection_id=connection_id,
            number=number,
            slot=slot,
            listener=listener,
            peer_host=host,
            peer_port=pid,
            now_ns=now_ns,
            told_host=told_host,
        )
        self.door = door
        self.routing_id = routing_id
        self.token = token
        self.window = window
        self.principal = principal
        self.key = key
        self.wire = wire
        self.pid = pid
        # Requests that may not begin yet, in order: their frames as received, and their bytes.
        self.held: deque[tuple[list[zmq.Frame], int]] = deque()
        self.held_bytes = 0
        self.is_leaving = False  # the client has closed; what it has produced is still taken
        # The sizes of the requests whose answers have not left, in order; those in `held` are among them.
        self.sizes: deque[int] = deque()
        self.bytes_in_flight = 0
        # Answers that are leaving; of the first one a part may have left. Its pieces leave from the end of the list.
        self.out: deque[list[Sent]] = deque()
        self.owed_bytes = 0
        # Number → subscription; the one that was pushed to longest ago is the first.
        self.subscriptions: dict[int, Session] = {}
        self.heartbeat_mark = 0  # of the heartbeat that the client has not acknowledged; 0: none
        self.heartbeat_sent_ns = 0

    def collect(self) -> bool:
        """Move the answers at the head of the queue into `out`; return whether there were any."""
        queue = self.queue
        if queue is None or queue[0].answer is None:
            return False
        count = 0
        while count < len(queue) and (answer := queue[count].answer) is not None:
            if answer:
                self.out.append(leaving(answer))
            else:
                self._has_left()  # acks=0: there is nothing to send
            count += 1
        if count == len(queue):
            self.queue = None
        else:
            del queue[:count]
        return True

    def answer_left(self) -> None:
        """The first answer of `out` has left."""
        self.out.popleft()
        self._has_left()

    def _has_left(self) -> None:
        self.bytes_in_flight -= self.sizes.popleft()

    def abandon(self) -> None:
        """Release the segments that answers would have been sent from."""
        for pieces in self.out:
            release(pieces)
        self.out.clear()
        for request in self.queue or ():
            release(request.answer or ())

    def __str__(self) -> str:
        name = f" ({self.client_id})" if self.client_id else ""
        where = f"process {self.pid}" if self.pid else self.peer_host
        return f"ZeroMQ session {self.connection_id & 0x7FFFFFFF} of {self.principal}, {where}{name}"


def begin_session(
    door: Door,
    routing_id: bytes,
    header: zmq.Frame,
    *,
    window: Window,
    connection_id: int,
    number: int,
    slot: int,
    tells_arrival_address: bool,
    now_ns: int,
) -> GatewaySession:
    """Return a session of the client that sent `header`, under a token that nobody can guess."""
    principal, host, pid = client_of(header)
    return GatewaySession(
        door,
        routing_id,
        token=os.urandom(TOKEN_BYTES),
        window=window,
        principal=principal,
        key=key_of(header),
        wire=door.connections.wire_of(header),
        connection_id=connection_id,
        number=number,
        slot=slot,
        listener="PLAINTEXT",
        host=host,
        pid=pid,
        told_host=IPC_HOST if pid and tells_arrival_address else None,
        now_ns=now_ns,
    )
