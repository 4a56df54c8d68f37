"""Produce that found nobody to lead its partitions: refused, and told so once that may be of use to the client.

    worker dies ──→ refused: nobody serves the partition, and the image knows of nobody else
                      │  the answer is kept, HOLD_MS at most
    another image, or the row is served again ──→ answered, with the leader's name where the version has room

Any news will do: of a thousand partitions some are led before others, and answers leave a connection in order.
Who is told at once asks again at once: of a slot that led a thousand partitions each was sent five to ten times before
there was a leader to take it, by a client and a network process that ran on the cores which the takeover needed
(decision 0062). A client that waits for an answer sends nothing. What is answered does not change, only when; a request
of which any partition was taken, or that has another leader by the image, is answered at once.

It is held as acks=all is (`delayed/held_answers.py`), but nobody says when there is news, so this process looks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

from appliance.channels.partition_table import (
    FILES_VERSION,
    SERVING_EPOCH,
    SERVING_INCARNATION,
    PartitionTable,
)
from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import NO_LEADER
from appliance.delayed.held_answers import Deadlines, HeldAnswers
from appliance.ipc.agent import Timers
from appliance.requests.topic_routes import TopicRoutes

HOLD_MS: Final = 100
"""The pause that clients make of their own accord before they ask again (`retry.backoff.ms`)."""
LOOK_MS: Final = 5
WAITING_MAX: Final = 1024
_QUEUE: Final = 0


class _Waiting(NamedTuple):
    """`files_version` as it was: whoever serves the row anew moves it."""

    row: int
    incarnation: int
    leader_epoch: int
    files_version: int
    image_version: int
    answer: Callable[[], None]


class LeaderWait:
    """The refusals of one network process that wait, in one queue. No timer runs while there are none."""

    __slots__ = ("_armed", "_clock", "_deadlines", "_held", "_routes", "_table", "_timers")

    def __init__(
        self,
        routes: TopicRoutes,
        table: PartitionTable,
        timers: Timers,
        clock: Clock,
        deadlines: Deadlines,
    ) -> None:
        self._routes = routes
        self._table = table
        self._timers = timers
        self._clock = clock
        self._deadlines = deadlines
        self._held: HeldAnswers[int, None, _Waiting] = HeldAnswers(deadlines, expired=self._expired)
        self._armed = False

    def __len__(self) -> int:
        return self._held.of(_QUEUE)

    def hold(
        self, topic: str | UUID, partition: int, *, slot: int, timeout_ms: int, answer: Callable[[], None]
    ) -> bool:
        """Whether `answer` will be called later, once; False where it is of use now, or too many wait.

        `slot`: whom the client took for the leader.
        """
        if len(self) >= WAITING_MAX:
            return False
        found = self._routes.of(topic)
        route = None if found is None else found.partition(partition)
        if route is None or route.leader not in (slot, NO_LEADER):
            return False
        waiting = _Waiting(
            route.row,
            route.incarnation,
            route.leader_epoch,
            self._table.files_version(route.row),
            self._routes.version,
            answer,
        )
        now_ns = self._clock.monotonic_ns()
        due_ns = now_ns + min(HOLD_MS, max(timeout_ms, 0)) * NS_PER_MS
        self._held.hold(_QUEUE, 0, None, waiting, now_ns=now_ns, due_ns=due_ns)
        self._look_later()
        return True

    def _look_later(self) -> None:
        if not self._armed:
            self._armed = True
            self._timers.add(self._clock.monotonic_ns() + LOOK_MS * NS_PER_MS, self._look)

    def _look(self) -> None:
        self._armed = False
        for _, _, _, _, known in self._held.take(_QUEUE, self._is_known):
            known.answer()
        self._deadlines.turn(self._clock.monotonic_ns())
        if len(self):
            self._look_later()

    def _expired(self, _queue: int, _requester: None, waiting: _Waiting) -> None:
        waiting.answer()

    def _is_known(self, waiting: _Waiting) -> bool:
        """Whether there is news: of other partitions, too, for which the client asks by the same connection."""
        if self._routes.version != waiting.image_version:
            return True
        cells, at = self._table.cells, self._table.at(waiting.row)
        return bool(
            cells[at + FILES_VERSION] != waiting.files_version
            and cells[at + SERVING_INCARNATION] == waiting.incarnation
            and cells[at + SERVING_EPOCH] == waiting.leader_epoch
        )
