"""Requests of network processes and the answers to them: `channels.coordinator_channel` from the coordinator's side.

A request is read where it was received, in the network process's pool, and the network process is told so (TAKEN)
unless its answer comes in the same turn, or it keeps the request until the answer anyhow. A small answer goes into the
ring itself; a larger one is copied into a block of our pool and is there until it is released. Answers that find no
block, or no room on the ring, wait in order; what waits is bounded by the requests of clients under way. The death of a
network process frees what was lent to it and forgets its requests.
"""

from __future__ import annotations

from collections import defaultdict, deque
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
from appliance.ipc.buffer_pool import Block, BufferPool
from appliance.ipc.process_table import BYTES_OUT
from appliance.protocol.coordinator_errors import NEEDS_REQUEST
from appliance.protocol.headers import RequestHeader, parse_request_header

PIECE_BYTES: Final = 1 << 20
ANSWERS_AT_ONCE: Final = 16
"""So many are put before they are shown: those who wait for them go on while we make the next (decision 0069)."""

_REQUEST: Final = int(CoordinatorOp.REQUEST)
_TAKEN: Final = int(CoordinatorOp.TAKEN)
_ANSWER: Final = int(CoordinatorOp.ANSWER)
_RELEASE: Final = int(CoordinatorOp.RELEASE)
_MORE: Final = int(CoordinatorFlag.MORE)
_REFUSED: Final = int(CoordinatorFlag.REFUSED)
_INLINE: Final = int(CoordinatorFlag.INLINE)


class Reply:
    """Where the answer to one request goes. `length_bytes` is what the request counts for until it is answered."""

    __slots__ = ("answered", "generation", "header", "host", "length_bytes", "peer", "request_id", "slot")

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
    ) -> None:
        self.peer = peer
        self.generation = generation
        self.request_id = request_id
        self.header = header
        self.length_bytes = length_bytes
        self.slot = slot
        self.host = host
        self.answered = False


class Received:
    """A request to serve: its body is view[header.body_position:end], in memory that is not ours."""

    __slots__ = ("end", "reply", "view")

    def __init__(self, reply: Reply, view: memoryview, end: int) -> None:
        self.reply = reply
        self.view = view
        self.end = end


class RequestLines:
    """The rings to and from the network processes.

    `under_way` counts the requests that were taken and are not answered, `under_way_bytes` their bytes.
    """

    __slots__ = (
        "_attachment",
        "_fresh",
        "_kept_back",
        "_lent",
        "_pool",
        "_touched",
        "_unseen",
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
        self.under_way = 0
        self.under_way_bytes = 0

    def receive(self, peer: Role, messages: list[tuple[Any, ...]]) -> list[Received]:
        """What came from a network process, oldest first; releases are obeyed."""
        pool = self._attachment.pools.get(peer)
        if pool is None:
            return []
        generation, lent = self._attachment.generations[peer], self._lent[peer]
        requests: list[Received] = []
        for op, _, slot, request_id, position, length_bytes, address in messages:
            if op == _RELEASE:
                block = lent.pop(position, None)
                if block is not None:
                    self._pool.give(block)
            elif op == _REQUEST:
                end = position + length_bytes
                header = parse_request_header(pool.view, position, end)
                reply = Reply(
                    peer,
                    generation,
                    request_id=request_id,
                    header=header,
                    length_bytes=length_bytes,
                    slot=slot,
                    host=shown_host(address),
                )
                self.under_way += 1
                self.under_way_bytes += length_bytes
                if header.api_key not in NEEDS_REQUEST:
                    self._fresh.append(reply)
                requests.append(Received(reply, pool.view, end))
        return requests

    def answer(self, reply: Reply, frame: bytes) -> None:
        """Sends a whole response frame; once for each request. Nothing where its network process is gone."""
        self._answer(reply, frame, 0)

    def refuse(self, reply: Reply, why: str) -> None:
        """Instead of an answer: the request does not parse, its connection is to be closed."""
        self._answer(reply, why.encode(), _REFUSED)

    def _answer(self, reply: Reply, frame: bytes, flags: int) -> None:
        if reply.answered:
            raise AssertionError(f"request {reply.request_id} of {reply.peer} was answered before")
        reply.answered = True
        self.under_way -= 1
        self.under_way_bytes -= reply.length_bytes
        if self._attachment.generations.get(reply.peer) != reply.generation:
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
        return bool(self._kept_back)

    def peer_down(self, peer: Role) -> None:
        """A network process died: what it held is ours again."""
        self._kept_back.pop(peer, None)
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
            "kept_back": sum(map(len, self._kept_back.values())),
            "lent_blocks": sum(map(len, self._lent.values())),
        }


@lru_cache(maxsize=4096)
def shown_host(address: bytes) -> str:
    """A client's address as Kafka shows it: `/127.0.0.1`."""
    v6 = IPv6Address(address)
    return f"/{v6.ipv4_mapped or v6}"
