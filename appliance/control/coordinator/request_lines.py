"""Requests of network processes and the answers to them: `channels.coordinator_channel` from the coordinator's side.

A request waits in the queue, where it was received, in the network process's pool. When the coordinator begins it, the
network process is told so (TAKEN), unless its answer comes in the same turn, or it keeps the request until the answer
anyhow. A small answer goes into the ring itself; a larger one is copied into a block of our pool and is there until it
is released. Answers that find no block, or no room on the ring, wait in order.

Answers of more than SMALL_BYTES_MAX go in a lane of their own: piece by piece, never with more than a part of the pool
out on loan to one network process. So they delay no small answer, and the pool has room for small answers and for
appends. While many bytes wait in that lane the coordinator begins nothing that makes more of them (`has_room`).

A connection that has closed is asked for nothing any more: its requests in the queue and its large answers are dropped.
The death of a network process frees what was lent to it and forgets its requests.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any, Final

from appliance.channels.coordinator_channel import (
    INLINE_BYTES,
    INLINE_FRAME_BYTES,
    CoordinatorFlag,
    CoordinatorOp,
)
from appliance.channels.roles import Role
from appliance.channels.wiring import Attachment
from appliance.control.coordinator.request_queue import Received, Reply, RequestQueue
from appliance.control.coordinator.runtime.effects import Client
from appliance.ipc.buffer_pool import Block, BufferPool
from appliance.ipc.process_table import BYTES_OUT
from appliance.protocol.coordinator_errors import NEEDS_REQUEST
from appliance.protocol.headers import parse_request_header

PIECE_BYTES: Final = 1 << 20
SMALL_BYTES_MAX: Final = 64 * 1024
LARGE_LENT_PART: Final = 8
"""Large answers have this part of the pool at most on loan to one network process; at least one piece."""
LARGE_WAITING_BYTES_MAX: Final = 16 << 20
"""Of large answers that wait for room; each one counts whole, though many may share their bytes."""
UNDER_WAY_BYTES_MAX: Final = 64 << 20
"""Requests that were taken and are not answered; with more, new ones are told to come again."""
ANSWERS_AT_ONCE: Final = 16
"""So many are put before they are shown: those who wait for them go on while we make the next (decision 0069)."""

_REQUEST: Final = int(CoordinatorOp.REQUEST)
_TAKEN: Final = int(CoordinatorOp.TAKEN)
_ANSWER: Final = int(CoordinatorOp.ANSWER)
_RELEASE: Final = int(CoordinatorOp.RELEASE)
_CLOSED: Final = int(CoordinatorOp.CLOSED)
_MORE: Final = int(CoordinatorFlag.MORE)
_REFUSED: Final = int(CoordinatorFlag.REFUSED)
_INLINE: Final = int(CoordinatorFlag.INLINE)


def client_of(reply: Reply) -> Client:
    """Return who sent a request."""
    return Client(reply.header.client_id or "", reply.host, slot=reply.slot, api_version=reply.header.version)


class _LargeAnswer:
    """An answer that goes out piece by piece: `head`, then `body`, which answers of others may share."""

    __slots__ = ("at", "body", "head", "length_bytes", "reply")

    def __init__(self, reply: Reply, head: bytes, body: bytes) -> None:
        self.reply = reply
        self.head = head
        self.body = body
        self.at = 0
        self.length_bytes = len(head) + len(body)

    @property
    def left_bytes(self) -> int:
        return self.length_bytes - self.at

    def piece(self) -> bytes:
        """The next piece; `at` is moved when it was put."""
        begin, head_bytes = self.at, len(self.head)
        end = min(begin + PIECE_BYTES, self.length_bytes)
        if end <= head_bytes:
            return self.head[begin:end]
        if begin >= head_bytes:
            return self.body[begin - head_bytes : end - head_bytes]
        return self.head[begin:] + self.body[: end - head_bytes]

    def drop(self) -> int:
        """Nobody waits for it: what is left is forgotten; its bytes. An empty last piece is still to be put."""
        left_bytes = self.left_bytes
        self.head = self.body = b""
        self.length_bytes = self.at = 0
        return left_bytes


class RequestLines:
    """The rings to and from the network processes.

    `under_way` counts the requests that have come and are not answered, `under_way_bytes` the bytes of those among them
    that were begun. `on_closed` hears of each connection that closes, by `Reply.key`. `dropped` counts the requests
    that were not served, because their connection had closed.
    """

    __slots__ = (
        "_attachment",
        "_fresh",
        "_kept_back",
        "_large",
        "_large_by_connection",
        "_large_lent",
        "_large_lent_max",
        "_large_waiting_bytes",
        "_lent",
        "_pool",
        "_touched",
        "_unseen",
        "dropped",
        "on_closed",
        "queue",
        "under_way",
        "under_way_bytes",
    )

    def __init__(self, attachment: Attachment, pool: BufferPool) -> None:
        self._attachment = attachment
        self._pool = pool
        self._kept_back: dict[Role, deque[tuple[int, int, bytes]]] = {}
        self._lent: defaultdict[Role, dict[int, Block]] = defaultdict(dict)
        self._fresh: list[Reply] = []
        self._touched: set[Role] = set()
        self._unseen = 0
        self._large: dict[Role, deque[_LargeAnswer]] = {}
        self._large_by_connection: dict[int, list[_LargeAnswer]] = {}
        self._large_lent: defaultdict[Role, int] = defaultdict(int)
        self._large_lent_max = max(PIECE_BYTES, pool.size_bytes // LARGE_LENT_PART)
        self._large_waiting_bytes = 0
        self.queue = RequestQueue()
        self.on_closed: Callable[[int], None] | None = None
        self.under_way = 0
        self.under_way_bytes = 0
        self.dropped = 0

    def receive(self, peer: Role, messages: list[tuple[Any, ...]]) -> tuple[int, int]:
        """Take what came from a network process: requests go into the queue; (how many, their bytes)."""
        pool = self._attachment.pools.get(peer)
        if pool is None:
            return 0, 0
        generation, lent, queue = self._attachment.generations[peer], self._lent[peer], self.queue
        requests = requests_bytes = 0
        for op, _, slot, request_id, position, length_bytes, connection, address, partitions in messages:
            if op == _RELEASE:
                block = lent.pop(position, None)
                if block is not None:
                    if block.size_bytes > SMALL_BYTES_MAX:
                        self._large_lent[peer] -= block.size_bytes
                    self._pool.give(block)
            elif op == _REQUEST:
                end = position + length_bytes
                reply = Reply(
                    peer,
                    generation,
                    request_id=request_id,
                    header=parse_request_header(pool.view, position, end),
                    length_bytes=length_bytes,
                    slot=slot,
                    host=shown_host(address),
                    connection=connection,
                    partitions=partitions,
                )
                requests += 1
                requests_bytes += length_bytes
                queue.put(Received(reply, pool.view, end))
            elif op == _CLOSED:
                self._closed(peer.index << 32 | connection)
        self.under_way += requests
        return requests, requests_bytes

    def take(self, reply: Reply) -> None:
        """The coordinator begins a request: its bytes are read in this turn, or not at all."""
        reply.taken = True
        self.under_way_bytes += reply.length_bytes
        if reply.header.api_key not in NEEDS_REQUEST:
            self._fresh.append(reply)

    def weigh(self, reply: Reply, length_bytes: int) -> None:
        """A request that was begun is decoded: until it is answered it counts for what is kept of it."""
        self.under_way_bytes += length_bytes - reply.length_bytes
        reply.length_bytes = length_bytes

    def _closed(self, key: int) -> None:
        for reply in self.queue.drop(key):
            self.drop(reply)
        for answer in self._large_by_connection.pop(key, ()):
            self._large_waiting_bytes -= answer.drop()
        if self.on_closed is not None:
            self.on_closed(key)

    def drop(self, reply: Reply) -> None:
        """Nobody waits for the answer: the network process may let the request go.

        A long request and its answer in pieces are two pieces of work, so a closed connection may drop it twice.
        """
        if reply.answered:
            return
        reply.dropped = True
        self.dropped += 1
        self._answer(reply, b"", 0)

    @property
    def has_room(self) -> bool:
        """Whether answers that may be large are to be made now."""
        return self._large_waiting_bytes < LARGE_WAITING_BYTES_MAX

    def answer(self, reply: Reply, frame: bytes, body: bytes = b"") -> None:
        """Send a whole response frame, `frame` and `body` behind it; once for each request.

        Nothing is sent where its network process is gone.
        """
        if len(frame) + len(body) > SMALL_BYTES_MAX:
            self._answer_large(reply, frame, body)
        else:
            self._answer(reply, frame + body if body else frame, 0)

    def refuse(self, reply: Reply, why: str) -> None:
        """Instead of an answer: the request does not parse, its connection is to be closed."""
        self._answer(reply, why.encode(), _REFUSED)

    def _is_wanted(self, reply: Reply) -> bool:
        """Account for the end of a request; return whether its client still wants the answer."""
        if reply.answered and reply.dropped:
            return False  # its client left while its group held the answer back
        if reply.answered:
            raise AssertionError(f"request {reply.request_id} of {reply.peer} was answered before")
        reply.answered = True
        self.under_way -= 1
        if reply.taken:
            self.under_way_bytes -= reply.length_bytes
        return self._attachment.generations.get(reply.peer) == reply.generation

    def _answer(self, reply: Reply, frame: bytes, flags: int) -> None:
        if not self._is_wanted(reply):
            return
        self._attachment.row.cells[BYTES_OUT] += len(frame)
        piece_bytes = PIECE_BYTES
        if len(frame) <= INLINE_FRAME_BYTES:
            piece_bytes = INLINE_BYTES
            flags |= _INLINE
        at, more = 0, flags | _MORE
        while len(frame) - at > piece_bytes:
            self._put_or_keep(reply.peer, (reply.request_id, more, frame[at : at + piece_bytes]))
            at += piece_bytes
        self._put_or_keep(reply.peer, (reply.request_id, flags, frame[at:] if at else frame))

    def _answer_large(self, reply: Reply, head: bytes, body: bytes) -> None:
        if not self._is_wanted(reply):
            return
        answer = _LargeAnswer(reply, head, body)
        peer = reply.peer
        self._attachment.row.cells[BYTES_OUT] += answer.length_bytes
        self._large_waiting_bytes += answer.length_bytes
        self._large_by_connection.setdefault(reply.key, []).append(answer)
        waiting = self._large.get(peer)
        if waiting is None:
            waiting = self._large[peer] = deque()
        waiting.append(answer)
        if len(waiting) == 1:
            self._put_large(peer, waiting)

    def _put_large(self, peer: Role, waiting: deque[_LargeAnswer]) -> None:
        """Puts pieces of large answers, the oldest answer's first, as long as there is room for them."""
        while waiting:
            answer = waiting[0]
            piece = answer.piece()
            request_id = answer.reply.request_id
            is_last = len(piece) == answer.left_bytes
            if not piece:  # dropped meanwhile
                if not self._put(peer, (request_id, _INLINE, b"")):
                    return
            elif self._large_lent[peer] >= self._large_lent_max or not self._put(
                peer, (request_id, 0 if is_last else _MORE, piece)
            ):
                return
            answer.at += len(piece)
            self._large_waiting_bytes -= len(piece)
            if is_last:
                waiting.popleft()
                self._forget_large(answer)
        self._large.pop(peer, None)

    def _forget_large(self, answer: _LargeAnswer) -> None:
        of_connection = self._large_by_connection.get(answer.reply.key)
        if of_connection is not None and answer in of_connection:
            of_connection.remove(answer)
            if not of_connection:
                del self._large_by_connection[answer.reply.key]

    def _put_or_keep(self, peer: Role, piece: tuple[int, int, bytes]) -> None:
        waiting = self._kept_back.get(peer)
        if waiting is not None:
            waiting.append(piece)
        elif not self._put(peer, piece):
            self._kept_back[peer] = deque((piece,))

    def publish(self) -> None:
        """The end of a turn: what waited for room, who was read, and then all that is not visible yet becomes so."""
        for peer, waiting in list(self._kept_back.items()):
            while waiting and self._put(peer, waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._kept_back[peer]
        for peer, large in list(self._large.items()):
            self._put_large(peer, large)
        for reply in self._fresh:
            if not reply.answered:
                writer = self._attachment.outbound.get(reply.peer)
                # A full ring costs the courtesy only: the block comes back with the answer.
                if writer is not None and writer.put(_TAKEN, 0, 0, reply.request_id, 0, 0, b""):
                    self._touched.add(reply.peer)
        self._fresh.clear()
        self._show()

    @property
    def congested(self) -> bool:
        """Whether answers wait for room: look again soon."""
        return bool(self._kept_back) or bool(self._large)

    def peer_down(self, peer: Role) -> None:
        """A network process died: what it held is ours again, and its requests' bytes are gone."""
        self._kept_back.pop(peer, None)
        self.under_way -= self.queue.peer_down(peer)
        for answer in self._large.pop(peer, ()):
            self._large_waiting_bytes -= answer.drop()
            self._forget_large(answer)
        self._large_lent.pop(peer, None)
        self._touched.discard(peer)
        for block in self._lent.pop(peer, {}).values():
            self._pool.give(block)

    def _put(self, peer: Role, piece: tuple[int, int, bytes]) -> bool:
        request_id, flags, data = piece
        writer = self._attachment.outbound.get(peer)
        if writer is None:
            return True
        if flags & _INLINE:
            if not writer.put(_ANSWER, flags, 0, request_id, 0, len(data), data):
                return False
        else:
            block = self._pool.take(len(data))
            if block is None:
                return False
            block.view[: len(data)] = data
            if not writer.put(_ANSWER, flags, 0, request_id, block.position, len(data), b""):
                self._pool.give(block)
                return False
            self._lent[peer][block.position] = block
            if block.size_bytes > SMALL_BYTES_MAX:
                self._large_lent[peer] += block.size_bytes
        self._touched.add(peer)
        self._unseen += 1
        if self._unseen >= ANSWERS_AT_ONCE:
            self._show()
        return True

    def _show(self) -> None:
        """Makes visible what was put, and wakes who sleeps."""
        self._unseen = 0
        for peer in self._touched:
            writer = self._attachment.outbound.get(peer)
            if writer is not None:
                writer.publish()
                self._attachment.bells[peer].ring()
        self._touched.clear()

    def statistics(self) -> dict[str, int]:
        return {
            "under_way": self.under_way,
            "under_way_bytes": self.under_way_bytes,
            "queued": len(self.queue),
            "dropped": self.dropped,
            "kept_back": sum(map(len, self._kept_back.values())),
            "large": sum(map(len, self._large.values())),
            "large_waiting_bytes": self._large_waiting_bytes,
            "lent_blocks": sum(map(len, self._lent.values())),
        }


@lru_cache(maxsize=4096)
def shown_host(address: bytes) -> str:
    """A client's address as Kafka shows it: `/127.0.0.1`."""
    v6 = IPv6Address(address)
    return f"/{v6.ipv4_mapped or v6}"
