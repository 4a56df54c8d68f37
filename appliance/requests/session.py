"""A session, which is a client as its requests see it, and a request.

A session knows who the client is, what it may do, and which of its requests are not answered yet.

A transport (`netproc.connection`) subclasses `Session` and adds how it reaches the client. The handlers see a
`Session` only: what a request means does not depend on how it arrived. It is a base class and not a second object,
because a network process holds thousands of connections, and the hot path would pay for each further hop.

Responses leave in the order of the requests, so every request has a place in `queue` from the moment its frame is
cut. Its answer fills the place, and only the head of the queue leaves. Most sessions are idle, so an empty queue is
not allocated.

`rights_version` moves whenever what the session may do changes, because its principal or the rules changed. What is
remembered of an answer or of a request is used only under the principal and the rights version that it was
remembered under (`produce_memo`, the Metadata answers of `local_requests`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from appliance.access.addresses import one_spelling
from appliance.cluster import BrokerSlot
from appliance.ipc.buffer_pool import Block, BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.produce import ProduceMemo
from appliance.requests.answer import Piece
from appliance.requests.log_handlers.refused_batches import RefusedBatches
from appliance.requests.log_handlers.session_transaction import SessionTransaction
from appliance.requests.session_lifetime import SessionLifetime

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a session that has not authenticated (Kafka's `KafkaPrincipal.ANONYMOUS`)."""
SOFTWARE_CHARACTERS_MAX: Final = 64
"""A client may send megabytes as the name of its software. A session keeps this much."""

_PRODUCE: Final = int(ApiKey.PRODUCE)


Amend = Callable[[Any], Any]
"""Takes the response to the part of a request that was allowed, and returns the response to all of it."""


class Request:
    """A request of `session`, and its place in the session's queue.

    `answer` is None while the request is in progress; an empty list sends nothing (acks=0). `drop` is called when the
    session ends first, and releases what the request holds elsewhere.
    """

    __slots__ = ("answer", "api_key", "arrived_ns", "block", "correlation_id", "drop", "session", "version")

    def __init__(
        self, session: Session, block: Block, api_key: int, version: int, correlation_id: int
    ) -> None:
        self.session = session
        self.block: Block | None = block
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.arrived_ns = 0  # of a request that is timed (`traffic`)
        self.answer: list[Piece] | None = None
        self.drop: Callable[[], None] | None = None

    def give_block(self, pool: BufferPool) -> None:
        """Give the block of the frame back, because nothing reads it any more; the first call counts."""
        block = self.block
        if block is not None:
            self.block = None
            pool.give(block)


class Session:
    """State only; the transport and the handlers change it.

    `amend` is of the request that is being served: only Produce requests are served side by side, and none of them has
    one (`guards`). So is `audited`, the request itself if the audit journal records what becomes of it (`auditing`).

    Args:
        connection_id: never used again in the life of the appliance.
        number: small and unique among the open sessions of this process; the next session may get it again.
        slot: the broker slot whose port the client came to.
        peer_host: the client's address as the kernel spells it; `host` is the same as rules are compared with it.
        told_host: the host to name to this client for every broker, instead of the one in the metadata image.
        told_port: the port of slot 0 to name to it, instead of the one in the image; slot n has the port plus n.
    """

    __slots__ = (
        "amend",
        "audited",
        "by_token",
        "client_id",
        "closed",
        "connection_id",
        "host",
        "hung_up",
        "last_active_ns",
        "lifetime",
        "listener",
        "memo_rights_version",
        "number",
        "peer_host",
        "peer_port",
        "principal",
        "produce_memo",
        "queue",
        "receiving_since_ns",
        "refused_batches",
        "rights_version",
        "slot",
        "software_name",
        "software_version",
        "throttled_until_ns",
        "told_host",
        "told_port",
        "transaction",
    )

    def __init__(
        self,
        *,
        connection_id: int,
        number: int,
        slot: int,
        listener: str,
        peer_host: str,
        peer_port: int,
        now_ns: int,
        told_host: str | None = None,
        told_port: int | None = None,
    ) -> None:
        self.connection_id = connection_id
        self.number = number
        self.slot = slot
        self.listener = listener
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.host = one_spelling(peer_host)
        self.told_host = told_host
        self.told_port = told_port
        self.client_id: str | None = None
        self.software_name = ""
        self.software_version = ""
        self.principal = ANONYMOUS
        self.by_token = False  # whether the client has logged in with a delegation token
        self.rights_version = 0
        self.lifetime: SessionLifetime | None = None  # where the client must authenticate again in time
        self.produce_memo: ProduceMemo | None = None  # made with the first produce request
        self.memo_rights_version = 0  # the rights version of the request in `produce_memo`
        self.refused_batches: RefusedBatches | None = None  # nearly always
        self.transaction: SessionTransaction | None = (
            None  # made when a produce request names a transactional id
        )
        self.last_active_ns = now_ns
        self.receiving_since_ns = 0  # while a part of a request is there
        self.amend: Amend | None = None
        self.audited: Any = None
        self.hung_up = False  # the client has closed, and what it sent before is still served
        self.closed = False
        self.queue: list[Request] | None = None
        self.throttled_until_ns = 0  # until then no further request is taken (`meter`)

    def told_of(self, slot: BrokerSlot) -> BrokerSlot:
        """Return a slot with the address that this client is told."""
        host, port = self.told_host, self.told_port
        if host is None and port is None:
            return slot
        return BrokerSlot(
            slot.node_id,
            slot.host if host is None else host,
            slot.port if port is None else port + slot.node_id,
            slot.rack,
        )

    def enqueue(self, request: Request) -> None:
        """Give a request its place behind all that are there."""
        queue = self.queue
        if queue is None:
            self.queue = [request]
        else:
            queue.append(request)

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
        return any(request.answer is None for request in reversed(queue))

    @property
    def in_flight(self) -> int:
        """The number of requests that are not answered, or whose answers are not collected."""
        queue = self.queue
        return 0 if queue is None else len(queue)

    def name_client(self, client_id: str) -> None:
        """Keep the client id of a request; the sessions of one client share the string."""
        if client_id != self.client_id:
            self.client_id = sys.intern(client_id)

    def name_software(self, name: str, version: str) -> None:
        """Keep what an ApiVersions request says of the client's library (KIP-511)."""
        self.software_name = sys.intern(name[:SOFTWARE_CHARACTERS_MAX])
        self.software_version = sys.intern(version[:SOFTWARE_CHARACTERS_MAX])

    def own_memo(self) -> ProduceMemo:
        """Return the session's memo for a request to be remembered now, under the rights of now."""
        self.memo_rights_version = self.rights_version
        memo = self.produce_memo
        if memo is None:
            memo = self.produce_memo = ProduceMemo()
        return memo

    def __str__(self) -> str:
        name = f" ({self.client_id})" if self.client_id else ""
        return f"connection {self.connection_id} from {self.peer_host}:{self.peer_port}{name}"
