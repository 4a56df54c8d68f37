"""DeleteRecords: answers wait here until every living replica has moved its log start as well.

| what ends the wait | answer |
|---|---|
| the least log start of the living replicas is where it should | that low watermark |
| the request's time is over | REQUEST_TIMED_OUT, and the low watermark of now: followers go on |
| the partition is led no more | NOT_LEADER_OR_FOLLOWER |
| its storage fails | KAFKA_STORAGE_ERROR |
| the requester died | none |

So a low watermark that a client was told is one that no later leader goes back behind. A replica whose process is down
is not waited for: it takes the log start over before it is in sync again. They wait with the partition's owner, as
acks=all does (decision 0089). Source: `DelayedDeleteRecords.java`, `Partition.lowWatermarkIfLeader`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.channels.request_channel import LOW_WATERMARK
from appliance.channels.roles import Role
from appliance.clock import NS_PER_MS, Clock
from appliance.delayed.held_answers import Deadlines, HeldAnswers
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.protocol.errors import ErrorCode

_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)


class HeldDeletions:
    """The answers to DeleteRecords that one worker holds, in one queue a partition.

    Args:
        low_watermark: the least log start of a partition's living replicas, now.
        reply: puts an answer on its way.
    """

    __slots__ = ("_clock", "_held", "_low_watermark", "_reply")

    def __init__(
        self,
        deadlines: Deadlines,
        clock: Clock,
        *,
        low_watermark: Callable[[Partition], int],
        reply: Callable[[Role, Answer], None],
    ) -> None:
        self._clock = clock
        self._low_watermark = low_watermark
        self._reply = reply
        self._held: HeldAnswers[Partition, Role, Answer] = HeldAnswers(deadlines, expired=self._expired)

    def hold(self, partition: Partition, peer: Role, answer: Answer, *, timeout_ms: int) -> bool:
        """Keep the answer until all living replicas begin where it says; return False where they do already."""
        start = answer[LOW_WATERMARK]
        if self._low_watermark(partition) >= start:
            return False
        now_ns = self._clock.monotonic_ns()
        due_ns = now_ns + max(0, timeout_ms) * NS_PER_MS
        self._held.hold(partition, start, peer, answer, now_ns=now_ns, due_ns=due_ns)
        return True

    @property
    def partitions(self) -> list[Partition]:
        """Those with answers that are held."""
        return self._held.keys

    def moved(self, partition: Partition) -> None:
        """A replica has moved its log start, is down, or is one no longer: answer those that waited for it."""
        if not self._held.waits(partition):
            return
        low_watermark = self._low_watermark(partition)
        for _, _, _, peer, answer in self._held.take(
            partition, lambda answer: answer[LOW_WATERMARK] <= low_watermark
        ):
            self._reply(peer, _answer(answer, low_watermark))

    def forget(self, partition: Partition, error: int) -> None:
        """Answer all of a partition with `error`: this worker serves it no longer."""
        for _, _, _, peer, answer in self._held.leave(partition):
            self._reply(peer, _answer(answer, -1, error))

    def drop_requester(self, peer: Role) -> None:
        """That life of a network process is over; its successor must not get what was meant for it."""
        self._held.drop_requester(peer)

    def _expired(self, partition: Partition, peer: Role, answer: Answer) -> None:
        self._reply(peer, _answer(answer, self._low_watermark(partition), _TIMED_OUT))

    def statistics(self) -> dict[str, int]:
        """Answers that are held."""
        return {"deletions": len(self._held)}


def _answer(answer: Answer, low_watermark: int, error: int = 0) -> Answer:
    return (*answer[:2], error, *answer[3:6], low_watermark, *answer[7:])
