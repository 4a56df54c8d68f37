"""acks=all: answers wait here until the high watermark has passed their records.

| what ends the wait | answer |
|---|---|
| the high watermark passes the last record | as appended |
| the same, with fewer in sync by now than min.insync.replicas | NOT_ENOUGH_REPLICAS_AFTER_APPEND |
| the request's time is over | REQUEST_TIMED_OUT: the records are in the log and may yet be replicated |
| the partition is led no more | NOT_LEADER_OR_FOLLOWER |
| its storage fails | KAFKA_STORAGE_ERROR |
| the requester died | none |

They wait with the partition's owner, who moves the high watermark: the purgatory process only expires them (decision
0089). Source: `DelayedProduce.scala`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.channels.request_channel import refusal
from appliance.channels.roles import Role
from appliance.clock import NS_PER_MS, Clock
from appliance.delayed.held_answers import Deadlines, HeldAnswers
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.protocol.errors import ErrorCode

_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)
_NOT_ENOUGH: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class HeldProduces:
    """The answers to acks=all that one worker holds, in one queue a partition's row.

    Args:
        reply: puts an answer on its way.
    """

    __slots__ = ("_clock", "_held", "_reply")

    def __init__(self, deadlines: Deadlines, clock: Clock, *, reply: Callable[[Role, Answer], None]) -> None:
        self._clock = clock
        self._reply = reply
        self._held: HeldAnswers[int, Role, Answer] = HeldAnswers(deadlines, expired=self._expired)

    def hold(
        self, partition: Partition, peer: Role, answer: Answer, *, end_offset: int, timeout_ms: int
    ) -> bool:
        """Keep the answer until the high watermark is at `end_offset`; return False where it is there already."""
        if partition.high_watermark >= end_offset:
            return False
        now_ns = self._clock.monotonic_ns()
        due_ns = now_ns + timeout_ms * NS_PER_MS
        self._held.hold(partition.row, end_offset, peer, answer, now_ns=now_ns, due_ns=due_ns)
        return True

    def moved(self, partition: Partition) -> None:
        """Answer those whose records the high watermark, which was published just now, has passed; in their order."""
        left = self._held.reached(partition.row, partition.high_watermark)
        if not left:
            return
        enough = len(partition.isr) >= partition.min_insync_replicas
        for _, _, _, peer, answer in left:
            self._reply(peer, answer if enough else refusal(answer, _NOT_ENOUGH))

    def forget(self, row: int, error: int) -> None:
        """Answer all of a partition with `error`: this worker serves it no longer."""
        for _, _, _, peer, answer in self._held.leave(row):
            self._reply(peer, refusal(answer, error))

    def drop_requester(self, peer: Role) -> None:
        """That life of a network process is over; its successor must not get what was meant for it."""
        self._held.drop_requester(peer)

    def _expired(self, _row: int, peer: Role, answer: Answer) -> None:
        self._reply(peer, refusal(answer, _TIMED_OUT))

    def statistics(self) -> dict[str, int]:
        """Answers that are held."""
        return {"held": len(self._held)}
