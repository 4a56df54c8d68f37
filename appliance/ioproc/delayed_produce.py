"""acks=all: answers wait here until the high watermark has passed their records.

| what ends the wait | answer |
|---|---|
| the high watermark passes the last record | as appended |
| the same, with fewer in sync by now than min.insync.replicas | NOT_ENOUGH_REPLICAS_AFTER_APPEND |
| the request's time is over | REQUEST_TIMED_OUT: the records are in the log and may yet be replicated |
| the partition is led no more | NOT_LEADER_OR_FOLLOWER |
| its storage fails | KAFKA_STORAGE_ERROR |
| the asker died | none |

They wait with the partition's owner, who moves the high watermark, not in the purgatory process: that would cost each
record two more ways between processes (decision 0031). Source: `DelayedProduce.scala`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from appliance.channels.request_channel import refusal
from appliance.channels.roles import Role
from appliance.clock import NS_PER_MS, Clock
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.ipc.agent import Timers
from appliance.protocol.errors import ErrorCode

_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)
_NOT_ENOUGH: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

_Held = tuple[int, int, Role, Answer]
"""Where the high watermark has to come, when time is over in ns, who asked, the answer."""


class DelayedProduce:
    """The answers that one worker holds back for followers. Single-threaded; bounded by its askers' own bounds.

    Args:
        reply: puts an answer on its way.
    """

    __slots__ = ("_armed_ns", "_clock", "_held", "_reply", "_timers")

    def __init__(self, timers: Timers, clock: Clock, *, reply: Callable[[Role, Answer], None]) -> None:
        self._timers = timers
        self._clock = clock
        self._reply = reply
        self._held: dict[int, deque[_Held]] = {}
        self._armed_ns: int | None = None

    def hold(
        self, partition: Partition, peer: Role, answer: Answer, *, end_offset: int, timeout_ms: int
    ) -> bool:
        """Keeps the answer until the high watermark is at `end_offset`; False where it is there already."""
        if partition.high_watermark >= end_offset:
            return False
        due_ns = self._clock.monotonic_ns() + timeout_ms * NS_PER_MS
        waiting = self._held.get(partition.row)
        if waiting is None:
            waiting = self._held[partition.row] = deque()
        waiting.append((end_offset, due_ns, peer, answer))
        if self._armed_ns is None or due_ns < self._armed_ns:
            self._arm(due_ns)
        return True

    def moved(self, partition: Partition) -> None:
        """The high watermark has been published anew: answers whom it has passed, in their order."""
        waiting = self._held.get(partition.row)
        if not waiting:
            return
        high_watermark = partition.high_watermark
        enough = len(partition.isr) >= partition.min_insync_replicas
        while waiting and waiting[0][0] <= high_watermark:
            _, _, peer, answer = waiting.popleft()
            self._reply(peer, answer if enough else refusal(answer, _NOT_ENOUGH))
        if not waiting:
            del self._held[partition.row]

    def forget(self, row: int, error: int) -> None:
        """The partition is served no more: who waits is told `error`."""
        for _, _, peer, answer in self._held.pop(row, ()):
            self._reply(peer, refusal(answer, error))

    def drop_asker(self, peer: Role) -> None:
        """That life of a network process is over; its successor must not hear what was meant for it."""
        for row, waiting in list(self._held.items()):
            kept = deque(held for held in waiting if held[2] != peer)
            if kept:
                self._held[row] = kept
            else:
                del self._held[row]

    def _arm(self, due_ns: int) -> None:
        self._armed_ns = due_ns
        self._timers.add(due_ns, lambda: self._expire(due_ns))

    def _expire(self, due_ns: int) -> None:
        """Looks at all that wait: seldom, since those with time left are far away from their deadline."""
        if due_ns != self._armed_ns:
            return  # an earlier one was set meanwhile, and sets the next
        self._armed_ns = None
        now_ns = self._clock.monotonic_ns()
        next_ns: int | None = None
        for row, waiting in list(self._held.items()):
            kept: deque[_Held] = deque()
            for held in waiting:
                if held[1] <= now_ns:
                    self._reply(held[2], refusal(held[3], _TIMED_OUT))
                else:
                    kept.append(held)
                    next_ns = held[1] if next_ns is None else min(next_ns, held[1])
            if kept:
                self._held[row] = kept
            else:
                del self._held[row]
        if next_ns is not None:
            self._arm(next_ns)

    def statistics(self) -> dict[str, int]:
        """Answers held back."""
        return {"held": sum(map(len, self._held.values()))}
