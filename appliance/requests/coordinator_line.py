"""Requests of groups, handed to one coordinator whole, and its answers (`channels.coordinator_channel`).

The block of a request stays held until the coordinator has read it, and until the answer where an error would stand
beside what was asked. Every request is answered once: by the coordinator, or with COORDINATOR_NOT_AVAILABLE when it
is down, dies, or its ring is full. When a connection closes, the coordinator is told so and drops what it has not
begun; answers to a closed connection, empty ones too, are dropped here when they come.

Requests are visible at the end of a turn, or as soon as there are some. What is released is visible at once, but nobody
is woken for it: the coordinator is awake with the next request, and where it has no room it looks again by itself. Only
when much is out on loan it is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, Protocol

from appliance.channels.coordinator_channel import CoordinatorFlag, CoordinatorOp
from appliance.channels.request_channel import REQUEST_ID_LIMIT
from appliance.channels.roles import COORDINATOR, Role
from appliance.channels.wiring import Attachment
from appliance.errors import MalformedFrame
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import Block
from appliance.ipc.ring import RingWriter
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.coordinator_errors import NEEDS_REQUEST, coordinator_error_response
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import decode_request, encode_response
from appliance.requests.log_handlers.finish import Finish, Refuse
from appliance.requests.session import Request, Session

_REQUEST: Final = int(CoordinatorOp.REQUEST)
_TAKEN: Final = int(CoordinatorOp.TAKEN)
_RELEASE: Final = int(CoordinatorOp.RELEASE)
_CLOSED: Final = int(CoordinatorOp.CLOSED)
_MORE: Final = int(CoordinatorFlag.MORE)
_REFUSED: Final = int(CoordinatorFlag.REFUSED)
_INLINE: Final = int(CoordinatorFlag.INLINE)
_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
# Blocks and bytes of the coordinator's pool that were released and nobody was woken for.
QUIET_RELEASES_MAX: Final = 16
QUIET_BYTES_MAX: Final = 256 * 1024
# So many requests are put before the coordinator sees them: it works on them while more are read (decision 0069).
REQUESTS_AT_ONCE: Final = 8
# From a commit to its answer: the coordinator twice, its worker, and a wake-up of each.
ANSWER_NS: Final = 150_000

_NO_ADDRESS: Final = bytes(16)
_WAIT_FOR_OTHERS: Final = frozenset({int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP)})


class PartOfRequest(Protocol):
    """The part of a request that one of several coordinators answers (`coordinator_lines`)."""

    def answered(self, frame: bytes) -> None:
        """The part is answered."""
        ...

    def refused(self, why: str) -> None:
        """The request does not parse."""
        ...

    def own(self, request: Any) -> Any:
        """Return the request with nothing but this coordinator's groups."""
        ...


class _Waiting:
    """A request with the coordinator: its block while that is held, its body in it, the answer's pieces so far.

    `part`: where the answer goes if it is only a part of the client's.
    """

    __slots__ = ("block", "end", "part", "pending", "pieces", "position")

    def __init__(
        self, pending: Request, block: Block, position: int, end: int, part: PartOfRequest | None
    ) -> None:
        self.part = part
        self.pending = pending
        self.block: Block | None = block
        self.position = position
        self.end = end
        self.pieces: list[bytes] = []


class CoordinatorLine:
    """The rings to and from one coordinator, and what waits for its answers.

    Args:
        role: the coordinator.
        give: gives a reference on a block of the pool back.
        brief_wait: looks out for the answer to a lone request.
    """

    __slots__ = (
        "_attachment",
        "_brief_wait",
        "_closed",
        "_finish",
        "_give",
        "_is_full",
        "_next",
        "_owed",
        "_quiet_bytes",
        "_quiet_releases",
        "_reader",
        "_refuse",
        "_role",
        "_unseen",
        "_waiting",
    )

    def __init__(
        self,
        attachment: Attachment,
        *,
        finish: Finish,
        refuse: Refuse,
        give: Callable[[Block], None],
        brief_wait: BriefWait,
        role: Role = COORDINATOR,
    ) -> None:
        self._attachment = attachment
        self._role = role
        self._brief_wait = brief_wait
        self._finish = finish
        self._refuse = refuse
        self._give = give
        self._next = 0
        self._waiting: dict[int, _Waiting] = {}
        self._owed: deque[int] = deque()
        self._closed: dict[int, None] = {}
        self._unseen = 0
        self._is_full = False
        self._quiet_releases = 0
        self._quiet_bytes = 0
        self._reader = attachment.inbound.get(role)

    def begin(
        self,
        pending: Request,
        view: memoryview,
        position: int,
        end: int,
        *,
        start: int,
        partitions: int = 0,
        part: PartOfRequest | None = None,
        slot: int | None = None,
    ) -> None:
        """Hand over the request whose frame is view[start:end] of its block, and whose body is at `position`.

        Args:
            partitions: of the internal topic, where that matters to the coordinator.
            part: where the answer goes if it is only a part of the client's.
            slot: whom the request is for, if not the one whose port the client came to.

        Raises:
            MalformedFrame: there is no coordinator, and the body does not parse.
        """
        block = pending.block
        assert block is not None
        waiting = _Waiting(pending, block, position, end, part)
        block.references += 1
        identity = self._next = self._next % (REQUEST_ID_LIMIT - 1) + 1
        writer = self._attachment.outbound.get(self._role)
        session = pending.session
        if (
            writer is None
            or (self._closed and not self._say_closed(writer))
            or not writer.put(
                _REQUEST,
                0,
                session.slot if slot is None else slot,
                identity,
                block.position + start,
                end - start,
                session.number,
                _address(session.peer_host),
                partitions,
            )
        ):
            self._fail(waiting)
            return
        self._waiting[identity] = waiting
        self._unseen += 1
        if self._unseen >= REQUESTS_AT_ONCE:
            writer.publish()
            self._wake()

    def answer_through(self, wrap: Callable[[Finish], Finish]) -> None:
        """Let every answer go through what `wrap` makes of the way that it takes now. Call it before `begin`."""
        self._finish = wrap(self._finish)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is outstanding."""
        return bool(self._waiting)

    @property
    def wants_turn(self) -> bool:
        """Whether there is something to say or to hear."""
        return (
            bool(self._unseen)
            or bool(self._owed)
            or bool(self._closed)
            or (self._reader is not None and not self._reader.is_empty())
        )

    @property
    def has_unsaid(self) -> bool:
        """Whether something was noted since the last turn; what found a full ring then waits for the next wake-up."""
        return bool(self._unseen) or (bool(self._closed) and not self._is_full)

    def turn(self) -> None:
        """Takes the answers that have arrived, and makes visible what was placed."""
        if self._reader is not None:
            for op, flags, _, identity, position, length_bytes, inline in self._reader.drain():
                if op == _TAKEN:
                    self._taken(identity)
                elif flags & _INLINE:
                    self._answered(flags, identity, inline[:length_bytes])
                else:
                    self._answered(flags, identity, self._borrowed(position, length_bytes))
        writer = self._attachment.outbound.get(self._role)
        if writer is None:
            return
        while self._owed and writer.put(_RELEASE, 0, 0, 0, self._owed[0], 0, 0, _NO_ADDRESS, 0):
            self._owed.popleft()
            self._quiet_releases += 1
        self._is_full = bool(self._closed) and not self._say_closed(writer)
        writer.publish()
        if self._unseen or self._quiet_releases >= QUIET_RELEASES_MAX or self._quiet_bytes >= QUIET_BYTES_MAX:
            self._wake()

    def leave(self, session: Session) -> None:
        """Tell the coordinator that a session has ended, so that it drops the requests that it has not begun.

        The next session may get the same number, so the coordinator reads this before any request of that session.
        """
        if self._waiting and self._attachment.outbound.get(self._role) is not None:
            self._closed[session.number] = None

    def _say_closed(self, writer: RingWriter) -> bool:
        """Whether all of the closed connections were said."""
        closed = self._closed
        for number in list(closed):
            if not writer.put(_CLOSED, 0, 0, 0, 0, 0, number, _NO_ADDRESS, 0):
                return False
            del closed[number]
            self._unseen += 1
        return True

    def await_lone_answer(self) -> None:
        """After a turn: looks out for the answer to a request that is all that is under way and waits for no member."""
        if len(self._waiting) != 1 or self._reader is None:
            return
        (waiting,) = self._waiting.values()
        if waiting.pending.api_key not in _WAIT_FOR_OTHERS:
            self._brief_wait.look_out((self._reader,))

    def coordinator_up(self) -> Any:
        """The coordinator serves again: its new inbox, for the duty cycle."""
        self._reader = self._attachment.inbound[self._role]
        return self._reader

    def coordinator_down(self) -> None:
        """The coordinator died with what it was asked: everybody may ask its next life."""
        self._reader = None
        self._owed.clear()
        self._closed.clear()
        self._unseen = 0
        self._quiet_releases = self._quiet_bytes = 0
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            try:
                self._fail(each)
            except MalformedFrame as fault:
                self._refuse_waiting(each, str(fault))

    def stop(self) -> None:
        """This process stops: nobody waits for other members any more."""
        for identity, waiting in list(self._waiting.items()):
            if waiting.pending.api_key in _WAIT_FOR_OTHERS:
                del self._waiting[identity]
                self._fail(waiting)

    def _wake(self) -> None:
        self._attachment.bells[self._role].ring()
        self._unseen = self._quiet_releases = self._quiet_bytes = 0

    def _taken(self, identity: int) -> None:
        waiting = self._waiting.get(identity)
        if waiting is not None and waiting.pending.api_key not in NEEDS_REQUEST:
            self._let_go(waiting)

    def _borrowed(self, position: int, length_bytes: int) -> bytes:
        """A copy of what lies in the coordinator's pool, which is owed a word that it was read."""
        self._owed.append(position)
        self._quiet_bytes += length_bytes
        return bytes(self._attachment.pools[self._role].view[position : position + length_bytes])

    def _answered(self, flags: int, identity: int, piece: bytes) -> None:
        waiting = self._waiting.get(identity)
        if waiting is None:
            return  # we stop, and have answered it
        waiting.pieces.append(piece)
        if flags & _MORE:
            return
        del self._waiting[identity]
        self._let_go(waiting)
        answer = b"".join(waiting.pieces)
        if flags & _REFUSED:
            self._refuse_waiting(waiting, answer.decode())
        elif waiting.part is not None:
            waiting.part.answered(answer)
        else:
            self._finish(waiting.pending, [answer])

    def _refuse_waiting(self, waiting: _Waiting, why: str) -> None:
        if waiting.part is not None:
            waiting.part.refused(why)
        else:
            self._refuse(waiting.pending, why)

    def _let_go(self, waiting: _Waiting) -> None:
        block, waiting.block = waiting.block, None
        if block is not None:
            self._give(block)

    def _fail(self, waiting: _Waiting) -> None:
        """Answer in the coordinator's stead."""
        pending, block, part = waiting.pending, waiting.block, waiting.part
        request: Any = None
        try:
            if pending.api_key in NEEDS_REQUEST:
                assert block is not None
                request = decode_request(
                    pending.api_key, pending.version, block.view, waiting.position, waiting.end
                )
                if part is not None:
                    request = part.own(request)
        finally:
            self._let_go(waiting)
        response = coordinator_error_response(pending.api_key, pending.version, request, _NOT_AVAILABLE)
        frame = encode_response(pending.api_key, pending.version, response, pending.correlation_id)
        if part is not None:
            part.answered(frame)
        else:
            self._finish(pending, [frame])

    def statistics(self) -> dict[str, int]:
        return {"waiting": len(self._waiting), "owed": len(self._owed)}


@lru_cache(maxsize=4096)
def _address(host: str) -> bytes:
    """The 16 bytes of an address; zeros where it is none."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return _NO_ADDRESS
    return bytes(10) + b"\xff\xff" + address.packed if address.version == 4 else address.packed
