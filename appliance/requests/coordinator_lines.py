"""The lines to all coordinators: to which one a request goes, and one answer where several take part.

    one coordinator             everything goes to it
    a request of one group      to the coordinator of the partition of `__consumer_offsets` to which the group belongs
    of one transactional id     to the coordinator of the partition of `__transaction_state` to which the id belongs
    of many of them, of all     to each coordinator whole; each answers for its own, and the answers are merged

A coordinator that is down or dies answers for its own groups and transactions with COORDINATOR_NOT_AVAILABLE, as
`coordinator_line` says it in its stead; those of the others are served meanwhile.

`ask` is for questions of this process, on behalf of a client's request (`transaction_questions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from appliance.channels.roles import Role, RoleKind, coordinator_index
from appliance.channels.wiring import Attachment
from appliance.cluster import CONSUMER_OFFSETS, NO_LEADER, TRANSACTION_STATE
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import Block
from appliance.protocol.group_partition import group_partition
from appliance.protocol.group_requests import group_named, merged, names_transactions, restricted
from appliance.requests.coordinator_line import CoordinatorLine, PartOfRequest
from appliance.requests.log_handlers.finish import Finish, Refuse
from appliance.requests.session import Request, Session
from appliance.requests.topic_routes import TopicRoutes

_FIRST: Final = 0
"""The coordinator of names whose partition is not known, because the topic does not exist yet."""


class CoordinatorLines:
    """One `CoordinatorLine` for each coordinator.

    Args:
        processes: how many coordinators there are.
        finish, refuse, give, brief_wait: as of `CoordinatorLine`.
    """

    __slots__ = ("_finish", "_lines", "_only", "_refuse", "_routes")

    def __init__(
        self,
        attachment: Attachment,
        routes: TopicRoutes,
        *,
        processes: int,
        finish: Finish,
        refuse: Refuse,
        give: Callable[[Block], None],
        brief_wait: BriefWait,
    ) -> None:
        self._routes = routes
        self._finish = finish
        self._refuse = refuse
        self._lines = [
            CoordinatorLine(
                attachment,
                finish=finish,
                refuse=refuse,
                give=give,
                brief_wait=brief_wait,
                role=Role(RoleKind.COORDINATOR, index),
            )
            for index in range(processes)
        ]
        self._only: CoordinatorLine | None = self._lines[0] if processes == 1 else None

    def answer_through(self, wrap: Callable[[Finish], Finish]) -> None:
        """`CoordinatorLine.answer_through`, of every line."""
        self._finish = wrap(self._finish)
        for line in self._lines:
            line.answer_through(wrap)

    def begin(self, pending: Request, view: memoryview, position: int, end: int, *, start: int) -> None:
        """Hand over the request whose frame is view[start:end] of its block, and whose body is at `position`.

        Raises:
            MalformedFrame: the body does not begin as it should, or a coordinator is down and the body does not parse.
        """
        if self._only is not None:
            self._only.begin(pending, view, position, end, start=start)
            return
        partitions = self._partitions(pending.api_key)
        group = group_named(pending.api_key, pending.version, view, position, end)
        if group is not None:
            line = self._lines[self._owner(group, partitions)]
            line.begin(pending, view, position, end, start=start, partitions=partitions)
            return
        shared = SharedRequest(self, pending, partitions, answers=len(self._lines))
        try:
            for index, line in enumerate(self._lines):
                line.begin(
                    pending,
                    view,
                    position,
                    end,
                    start=start,
                    partitions=partitions,
                    part=Part(shared, index),
                )
        except Exception:
            shared.is_over = True
            raise

    @property
    def has_transactions(self) -> bool:
        """Whether anybody coordinates transactional ids: their topic is there, as far as this process knows."""
        return self._routes.by_name(TRANSACTION_STATE) is not None

    def ask(
        self, pending: Request, view: memoryview, position: int, end: int, *, name: str, part: PartOfRequest
    ) -> None:
        """Hand over a request of this process, which is for the coordinator of the transactional id `name`.

        It is for the slot that leads the partition, so it is not refused as one that a client sent to another slot.
        Arguments are those of `begin`; `part` takes the answer, also the one that stands in for a dead coordinator's.
        """
        topic = self._routes.by_name(TRANSACTION_STATE)
        partitions = 0 if topic is None else len(topic.image.partitions)
        slot: int | None = None
        if topic is not None:
            leader = topic.image.partitions[group_partition(name, partitions)].leader
            slot = None if leader == NO_LEADER else leader
        several = self._only is None
        line = self._lines[self._owner(name, partitions) if several else _FIRST]
        line.begin(
            pending,
            view,
            position,
            end,
            start=0,
            partitions=partitions if several else 0,
            part=part,
            slot=slot,
        )

    def ask_shard(
        self,
        pending: Request,
        view: memoryview,
        position: int,
        end: int,
        *,
        partition: int,
        part: PartOfRequest,
    ) -> None:
        """Hand over a request of this process about a partition of an internal topic. Arguments as of `ask`."""
        index = coordinator_index(partition, processes=len(self._lines))
        self._lines[index].begin(pending, view, position, end, start=0, part=part)

    def _partitions(self, api_key: int) -> int:
        """Return how many partitions the topic has by which the requests of an API are routed."""
        topic = self._routes.by_name(TRANSACTION_STATE if names_transactions(api_key) else CONSUMER_OFFSETS)
        return 0 if topic is None else len(topic.image.partitions)

    def _owner(self, name: str, partitions: int) -> int:
        if not partitions:
            return _FIRST
        return coordinator_index(group_partition(name, partitions), processes=len(self._lines))

    def merge(self, shared: SharedRequest, frames: Sequence[bytes]) -> None:
        """Every coordinator has answered its part of the request."""
        pending = shared.pending
        # An empty frame answers a session that has ended.
        whole = merged(pending.api_key, pending.version, frames) if all(frames) else b""
        self._finish(pending, [whole])

    def refuse(self, pending: Request, why: str) -> None:
        """A coordinator could not read the request."""
        self._refuse(pending, why)

    def restrict(self, shared: SharedRequest, request: Any, index: int) -> Any:
        """Return the request with the groups or transactions of coordinator `index`."""
        pending, partitions = shared.pending, shared.partitions
        return restricted(
            pending.api_key,
            pending.version,
            request,
            lambda name: self._owner(name, partitions) == index,
        )

    @property
    def wants_turn(self) -> bool:
        """Whether there is something to say to a coordinator or to hear from one."""
        if self._only is not None:
            return self._only.wants_turn
        return any(line.wants_turn for line in self._lines)

    @property
    def has_unsaid(self) -> bool:
        """Whether the last turn has not shown a coordinator all that was noted."""
        if self._only is not None:
            return self._only.has_unsaid
        return any(line.has_unsaid for line in self._lines)

    def turn(self) -> None:
        """Take the answers that have arrived, and make visible what was placed."""
        for line in self._lines:
            line.turn()

    def leave(self, session: Session) -> None:
        """A session has ended: no coordinator's answer to it is waited for."""
        for line in self._lines:
            line.leave(session)

    def await_lone_answer(self) -> None:
        """After a turn: spin for the answer to a request that is all that is in flight."""
        if self._only is not None:
            self._only.await_lone_answer()
            return
        busy = [line for line in self._lines if line.is_waiting]
        if len(busy) == 1:
            busy[0].await_lone_answer()

    def coordinator_up(self, role: Role) -> Any:
        """A coordinator serves again: return its new inbox, for the duty cycle."""
        return self._lines[role.index].coordinator_up()

    def coordinator_down(self, role: Role) -> None:
        """A coordinator died with what it was asked; the others are not concerned."""
        self._lines[role.index].coordinator_down()

    def stop(self) -> None:
        """This process stops: no request waits for other members any more."""
        for line in self._lines:
            line.stop()

    def statistics(self) -> dict[str, int]:
        told = [line.statistics() for line in self._lines]
        return {name: sum(each[name] for each in told) for name in told[0]}


class SharedRequest:
    """A request that every coordinator answers in part."""

    __slots__ = ("_frames", "_left", "_lines", "is_over", "partitions", "pending")

    def __init__(self, lines: CoordinatorLines, pending: Request, partitions: int, *, answers: int) -> None:
        self._lines = lines
        self._frames: list[bytes] = [b""] * answers
        self._left = answers
        self.pending = pending
        self.partitions = partitions
        self.is_over = False

    def answered(self, index: int, frame: bytes) -> None:
        """Coordinator `index` has answered, or somebody in its stead."""
        if self.is_over:
            return
        self._frames[index] = frame
        self._left -= 1
        if not self._left:
            self.is_over = True
            self._lines.merge(self, self._frames)

    def refused(self, why: str) -> None:
        """A coordinator could not read the request: its connection is closed."""
        if not self.is_over:
            self.is_over = True
            self._lines.refuse(self.pending, why)

    def restrict(self, index: int, request: Any) -> Any:
        return self._lines.restrict(self, request, index)


class Part:
    """What one coordinator answers of a request that all of them answer."""

    __slots__ = ("_index", "_shared")

    def __init__(self, shared: SharedRequest, index: int) -> None:
        self._shared = shared
        self._index = index

    def answered(self, frame: bytes) -> None:
        """The part is answered."""
        self._shared.answered(self._index, frame)

    def refused(self, why: str) -> None:
        """The request does not parse."""
        self._shared.refused(why)

    def own(self, request: Any) -> Any:
        """Return the request with nothing but this coordinator's groups or transactions."""
        return self._shared.restrict(self._index, request)
