"""Brings the state files of a process's partitions up to date, a while after something moved: never in a request.

    request    a partition that was not marked yet marks itself: one flag, one append to a queue
    turn       a record for each that is marked, SLICE_NS of them at most. After a rest of two intervals two turns come
               at once, which wakes readers of a quiet log (decision 0104); else one each `interval_ms`, or after
               PAUSE_FACTOR times what the one before took, if that is more
    watched    a partition whose file a reader has locked, which says that it waits, has turns of its own: each comes
               as soon as it can, or after WATCHED_FACTOR times what the one before took
    new        a partition that was just made has its first record with its directory, and nothing waits for a turn

The first of the two tells of an append, the second of the high watermark that follows it where there are replicas.

So a partition that takes a hundred thousand appends a second gets a record every `interval_ms`, ten thousand partitions
together take no more than a fiftieth of their process, those with readers a fifth, and where nothing moves there is no
timer. What a turn takes is counted in the thread's processor time: others' time on our core is not ours. What is late
costs readers freshness and nothing else. Descriptors are kept for OPEN_MAX partitions, until `release`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from appliance.clock import NS_PER_MS, Clock
from appliance.errors import StorageFault
from appliance.log.partition_log import PartitionLog
from appliance.log.partition_state import Mode, PartitionState, StateFile, boot_id

SLICE_NS: Final = 2_000_000
PAUSE_FACTOR: Final = 50
WATCHED_FACTOR: Final = 4
OPEN_MAX: Final = 256
AGAIN_MS: Final = 5_000


class Published(Protocol):
    """A partition whose state is published."""

    log: PartitionLog
    is_marked: bool
    """Its turn comes already, or it is not published at all."""
    mark: Callable[[], None]
    """To be called when something has moved and `is_marked` is false."""
    state_file: StateFile | None

    def state(self, *, now_ms: int) -> PartitionState:
        """Its numbers as they are."""


def unpublished() -> None:
    """The `mark` of a partition that nobody publishes."""


class StatePublisher:
    """The state files of one process; used on its thread.

    Args:
        after_ms: calls something in so many milliseconds, on the same thread.
        warn: hears of a record that could not be written; it is tried again in AGAIN_MS.
        processor_ns: the processor time of this thread; None takes the clock's time for it.
    """

    __slots__ = (
        "_after_ms",
        "_armed",
        "_boot_id",
        "_clock",
        "_due_ns",
        "_interval_ns",
        "_open",
        "_processor_ns",
        "_queue",
        "_rest_until_ns",
        "_warn",
        "_watched",
        "_watched_armed",
        "_watched_until_ns",
    )

    def __init__(
        self,
        after_ms: Callable[[int, Callable[[], None]], object],
        clock: Clock,
        *,
        interval_ms: int,
        warn: Callable[[str], object],
        processor_ns: Callable[[], int] | None = None,
    ) -> None:
        self._after_ms = after_ms
        self._clock = clock
        self._processor_ns = clock.monotonic_ns if processor_ns is None else processor_ns
        self._interval_ns = interval_ms * NS_PER_MS
        self._due_ns = 0
        """When the next turn would come if each waited for an interval after the one before."""
        self._boot_id: UUID = boot_id()
        self._warn = warn
        self._queue: deque[Published] = deque()
        self._armed = False
        self._rest_until_ns = 0
        self._watched: deque[Published] = deque()
        self._watched_armed = False
        self._watched_until_ns = 0
        self._open: dict[StateFile, None] = {}

    def take(self, partition: Published) -> None:
        """Publishes a partition from now on, the first time soon."""
        state_file = self._bind(partition)
        if partition.log.settings.is_compacted:
            # Whoever died may have swapped segments and not have said so.
            state_file.expect_unsaid_swap()
        partition.mark()

    def take_new(self, partition: Published) -> None:
        """As `take`, of a partition that was just made and is ready to say its state: that is written now.

        Where somebody had been here before, it is `take`.
        """
        state_file = self._bind(partition)
        partition.is_marked = False
        try:
            if not state_file.begin(partition.state(now_ms=self._clock.now_ms())):
                self.take(partition)
        except StorageFault as fault:
            self._failed(partition, fault)

    def _bind(self, partition: Published) -> StateFile:
        partition.state_file = state_file = StateFile(partition.log.directory, self._boot_id)
        partition.mark = partial(self._mark, partition)
        return state_file

    def drop(self, partition: Published) -> None:
        """Publishes it no more; what was said last stands."""
        state_file, partition.state_file = partition.state_file, None
        partition.is_marked = True
        partition.mark = unpublished
        if state_file is not None:
            self._open.pop(state_file, None)
            state_file.release()

    def release(self) -> None:
        """Lets go of all descriptors until they are needed again."""
        for state_file in self._open:
            state_file.release()
        self._open.clear()

    def closed(self, partition: Published, state: PartitionState) -> None:
        """The last word on a log that was closed in good order; `state` is of before."""
        if partition.state_file is not None:
            last = replace(state, mode=Mode.CLOSED, durable=state.log_end)
            self._write(partition, partition.state_file, last)
            self.drop(partition)

    def _mark(self, partition: Published) -> None:
        partition.is_marked = True
        state_file = partition.state_file
        if state_file is not None and state_file.is_watched:
            self._watched.append(partition)
            if not self._watched_armed:
                self._arm_watched()
            return
        self._queue.append(partition)
        if not self._armed:
            self._armed = True
            self._after_ms(self._pause_ms(self._clock.monotonic_ns()), self._turn)

    def _arm_watched(self) -> None:
        # Rounded and not up: most pauses are shorter than a timer's millisecond.
        left_ns = max(0, self._watched_until_ns - self._clock.monotonic_ns())
        self._watched_armed = True
        self._after_ms((left_ns + NS_PER_MS // 2) // NS_PER_MS, self._watched_turn)

    def _watched_turn(self) -> None:
        spent_ns = self._write_some(self._watched)
        self._watched_until_ns = self._clock.monotonic_ns() + WATCHED_FACTOR * spent_ns
        self._watched_armed = False
        if self._watched:
            self._arm_watched()

    def _pause_ms(self, now_ns: int) -> int:
        """Until the next turn."""
        next_ns = max(self._due_ns - self._interval_ns, self._rest_until_ns)
        return max(0, next_ns - now_ns + NS_PER_MS - 1) // NS_PER_MS

    def _turn(self) -> None:
        began_ns = self._clock.monotonic_ns()
        self._due_ns = max(self._due_ns, began_ns) + self._interval_ns
        rest_ns = PAUSE_FACTOR * self._write_some(self._queue)
        self._rest_until_ns = began_ns + rest_ns
        self._armed = bool(self._queue)
        if self._armed:
            self._after_ms(max(self._interval_ns, rest_ns) // NS_PER_MS, self._turn)

    def _write_some(self, queue: deque[Published]) -> int:
        """A record for each in the queue, as far as SLICE_NS goes. What it took, SLICE_NS at most."""
        processor_ns, now_ms = self._processor_ns, self._clock.now_ms()
        began_ns, spent_ns = processor_ns(), 0
        while queue and spent_ns < SLICE_NS:
            partition = queue.popleft()
            state_file = partition.state_file
            if state_file is not None:
                partition.is_marked = False
                self._write(partition, state_file, partition.state(now_ms=now_ms))
                state_file.look_for_watchers()
            spent_ns = processor_ns() - began_ns
        return min(spent_ns, SLICE_NS)

    def _write(self, partition: Published, state_file: StateFile, state: PartitionState) -> None:
        try:
            if state_file.directory != partition.log.directory:
                state_file.relocate(partition.log.directory)
            partition.log.write_due_epochs()
            state_file.publish(state)
        except StorageFault as fault:
            self._failed(partition, fault)
        if state_file.is_open and state_file not in self._open:
            if len(self._open) >= OPEN_MAX:
                oldest = next(iter(self._open))
                oldest.release()
                del self._open[oldest]
            self._open[state_file] = None

    def _failed(self, partition: Published, fault: StorageFault) -> None:
        self._warn(f"readers of the disk do not see new records: {fault}")
        self._after_ms(AGAIN_MS, partial(self._again, partition))

    def _again(self, partition: Published) -> None:
        if not partition.is_marked:
            partition.mark()

    def statistics(self) -> dict[str, int]:
        """Partitions that wait for their record, and open descriptors."""
        return {"waiting": len(self._queue) + len(self._watched), "open": len(self._open)}
