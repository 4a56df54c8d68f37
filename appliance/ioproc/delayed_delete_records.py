"""DeleteRecords: answers wait here until every living replica has moved its log start as well.

| what ends the wait | answer |
|---|---|
| the least log start of the living replicas is where it should | that low watermark |
| the request's time is over | REQUEST_TIMED_OUT, and the low watermark of now: followers go on |
| the partition is led no more | NOT_LEADER_OR_FOLLOWER |
| its storage fails | KAFKA_STORAGE_ERROR |
| the asker died | none |

So a low watermark that a client was told is one that no later leader goes back behind. A replica whose process is down
is not waited for: it takes the log start over before it is in sync again. They wait with the partition's owner, as
acks=all does (decision 0031). Source: `DelayedDeleteRecords.java`, `Partition.lowWatermarkIfLeader`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.channels.request_channel import LOW_WATERMARK
from appliance.channels.roles import Role
from appliance.clock import NS_PER_MS, Clock
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.ipc.agent import Timers
from appliance.protocol.errors import ErrorCode

_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)

_Held = tuple[int, int, Role, Answer]
"""Where the low watermark has to come, when time is over in ns, who asked, the answer."""


class DelayedDeleteRecords:
    """The answers that one worker holds back. Single-threaded; bounded by its askers' own bounds.

    Args:
        low_watermark: the least log start of a partition's living replicas, now.
        reply: puts an answer on its way.
    """

    __slots__ = ("_armed_ns", "_clock", "_held", "_low_watermark", "_reply", "_timers")

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        *,
        low_watermark: Callable[[Partition], int],
        reply: Callable[[Role, Answer], None],
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._low_watermark = low_watermark
        self._reply = reply
        self._held: dict[Partition, list[_Held]] = {}
        self._armed_ns: int | None = None

    def hold(self, partition: Partition, peer: Role, answer: Answer, *, timeout_ms: int) -> bool:
        """Keeps the answer until all living replicas begin where it says; False where they do already."""
        start = answer[LOW_WATERMARK]
        if self._low_watermark(partition) >= start:
            return False
        due_ns = self._clock.monotonic_ns() + max(0, timeout_ms) * NS_PER_MS
        self._held.setdefault(partition, []).append((start, due_ns, peer, answer))
        if self._armed_ns is None or due_ns < self._armed_ns:
            self._arm(due_ns)
        return True

    @property
    def partitions(self) -> list[Partition]:
        """Those that somebody waits for."""
        return list(self._held)

    def moved(self, partition: Partition) -> None:
        """Some replica has moved its log start, has gone, or is one no more: answers who has waited for that."""
        if partition not in self._held:
            return
        low_watermark = self._low_watermark(partition)
        for held in self._held[partition]:
            if held[0] <= low_watermark:
                self._reply(held[2], _told(held[3], low_watermark))
        self._keep(partition, lambda held: held[0] > low_watermark)

    def forget(self, partition: Partition, error: int) -> None:
        """The partition is served no more: who waits is told `error`."""
        for _, _, peer, answer in self._held.pop(partition, ()):
            self._reply(peer, _told(answer, -1, error))

    def drop_asker(self, peer: Role) -> None:
        """That life of a network process is over; its successor must not hear what was meant for it."""
        for partition in self.partitions:
            self._keep(partition, lambda held: held[2] != peer)

    def _keep(self, partition: Partition, waits: Callable[[_Held], bool]) -> None:
        kept = [held for held in self._held[partition] if waits(held)]
        if kept:
            self._held[partition] = kept
        else:
            del self._held[partition]

    def _arm(self, due_ns: int) -> None:
        self._armed_ns = due_ns
        self._timers.add(due_ns, lambda: self._expire(due_ns))

    def _expire(self, due_ns: int) -> None:
        if due_ns != self._armed_ns:
            return  # an earlier one was set meanwhile, and sets the next
        self._armed_ns = None
        now_ns = self._clock.monotonic_ns()
        for partition in self.partitions:
            for held in self._held[partition]:
                if held[1] <= now_ns:
                    self._reply(held[2], _told(held[3], self._low_watermark(partition), _TIMED_OUT))
            self._keep(partition, lambda held: held[1] > now_ns)
        dues = [held[1] for waiting in self._held.values() for held in waiting]
        if dues:
            self._arm(min(dues))

    def statistics(self) -> dict[str, int]:
        """Answers held back."""
        return {"deletions": sum(map(len, self._held.values()))}


def _told(answer: Answer, low_watermark: int, error: int = 0) -> Answer:
    return (*answer[:2], error, *answer[3:6], low_watermark, *answer[7:])
