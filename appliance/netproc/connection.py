"""One client connection: where its bytes lie, which of its requests wait, what is still to be sent.

Responses leave in request order, so every request has a `Pending` place in `queue` from the moment its frame is
cut; its answer fills the place, and only the head of the queue leaves.

There may be thousands that say nothing, so nothing is kept that has nothing in it: both queues are lists, and none
while they are empty.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from socket import SocketType
from typing import Final

from appliance.ipc.buffer_pool import Block, BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.produce import ProduceMemo
from appliance.requests.log_handlers.refused_batches import RefusedBatches
from appliance.requests.segment_files import SegmentFile

LANDING_BYTES: Final = 16 * 1024

_PRODUCE: Final = int(ApiKey.PRODUCE)


class FilePiece:
    """Bytes of a segment to send, `position` and `remaining` moving as they leave.

    `following_bytes` are readable behind them, and likely to be asked for next.
    """

    __slots__ = ("file", "following_bytes", "position", "remaining")

    def __init__(self, file: SegmentFile, position: int, length_bytes: int, following_bytes: int = 0) -> None:
        self.file = file
        self.position = position
        self.remaining = length_bytes
        self.following_bytes = following_bytes


Piece = bytes | FilePiece


class Pending:
    """One request's place in its connection's queue.

    `answer` is None while it is under way; an empty list answers nothing (acks=0). `drop` is called when the
    connection ends first, and gives back what the request holds outside.
    """

    __slots__ = ("answer", "api_key", "block", "connection", "correlation_id", "drop", "version")

    def __init__(
        self, connection: Connection, block: Block, api_key: int, version: int, correlation_id: int
    ) -> None:
        self.connection = connection
        self.block: Block | None = block
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.answer: list[Piece] | None = None
        self.drop: Callable[[], None] | None = None

    def give_block(self, pool: BufferPool) -> None:
        """Its frame is read no more; the first time counts."""
        block = self.block
        if block is not None:
            self.block = None
            pool.give(block)


def arrival_host(local_host: str) -> str:
    """Return the address that a client came by, as the client writes it, given that of the accepted socket.

    An IPv4 client of an IPv6 socket did not use the mapped address; a zone means nothing on another host.
    """
    host = local_host.partition("%")[0]
    if host.startswith("::ffff:") and "." in host:
        host = host[7:]
    return sys.intern(host)  # many connections came by few addresses


class Connection:
    """State only; `intake` reads, `outlet` writes, the processor decides."""

    __slots__ = (
        "block",
        "client_id",
        "closed",
        "connection_id",
        "end",
        "fd",
        "frame_began_ns",
        "held",
        "hung_up",
        "is_local",
        "last_active_ns",
        "mask",
        "muted",
        "out",
        "owed_bytes",
        "peer_host",
        "peer_port",
        "produce_memo",
        "queue",
        "refused_batches",
        "slot",
        "sock",
        "start",
        "starved",
        "stash",
        "told_host",
        "wanted_bytes",
        "was_sent_records",
    )

    def __init__(
        self,
        sock: SocketType,
        *,
        connection_id: int,
        slot: int,
        peer_host: str,
        peer_port: int,
        now_ns: int,
        is_local: bool = False,
        told_host: str | None = None,
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.connection_id = connection_id
        self.slot = slot
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.is_local = is_local  # the client runs on this host
        self.told_host = told_host  # instead of the host that the metadata image names, for every broker
        self.client_id: str | None = None
        self.closed = False
        # Receiving: bytes [start, end) of `block` are not yet cut into frames; a few of them wait in `stash`
        # instead, so that a connection at rest, or one that drips, holds no block.
        self.block: Block | None = None
        self.start = 0
        self.end = 0
        self.stash = b""
        self.wanted_bytes = LANDING_BYTES
        self.frame_began_ns = now_ns
        self.muted = False
        self.held = False  # muted because its next frame waits for the answers before it
        self.hung_up = False  # its client has closed, and what it sent before is still taken
        self.starved = False
        # Sending
        self.queue: list[Pending] | None = None
        # What leaves next is the last: so taking it costs the same, however many follow.
        self.out: list[Piece] | None = None
        self.owed_bytes = 0  # answers beside records, since the last time that all were sent
        self.was_sent_records = False
        self.mask = 0
        self.last_active_ns = now_ns
        self.produce_memo: ProduceMemo | None = None  # of who has produced
        self.refused_batches: RefusedBatches | None = None  # nearly always

    def enqueue(self, pending: Pending) -> None:
        """A request's place is behind all that are there."""
        queue = self.queue
        if queue is None:
            self.queue = [pending]
        else:
            queue.append(pending)

    def must_wait(self, is_produce: bool) -> bool:
        """Return whether a request that arrives now must not begin yet, so that effects keep the requests' order.

        A produce request may begin behind produce requests. Every other pair waits: the second request begins when
        all requests before it are answered (decision 0077).
        """
        queue = self.queue
        if queue is None:
            return False
        if is_produce:
            last = queue[-1]
            return last.answer is None and last.api_key != _PRODUCE
        return any(pending.answer is None for pending in reversed(queue))

    @property
    def in_flight(self) -> int:
        """How many requests are not answered, or their answers not collected."""
        queue = self.queue
        return 0 if queue is None else len(queue)

    def name_client(self, client_id: str) -> None:
        """Its client says who it is; many connections of one client share the word."""
        if client_id != self.client_id:
            self.client_id = sys.intern(client_id)

    def own_memo(self) -> ProduceMemo:
        """The connection's memo, made with its first produce request."""
        memo = self.produce_memo
        if memo is None:
            memo = self.produce_memo = ProduceMemo()
        return memo

    def __str__(self) -> str:
        name = f" ({self.client_id})" if self.client_id else ""
        return f"connection {self.connection_id} from {self.peer_host}:{self.peer_port}{name}"
