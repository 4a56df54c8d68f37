"""Brings the state files of a process's partitions up to date, a while after something moved: never in a request.

    request    a partition that was not marked yet marks itself: one flag, one append to a queue
    turn       a record for each that is marked, SLICE_NS of them at most; the next turn comes after `interval_ms`, or
               after PAUSE_FACTOR times what this one took, if that is more
    new        a partition that was just made has its first record with its directory, and nothing waits for a turn

So a partition that takes a hundred thousand appends a second gets a record every `interval_ms`, ten thousand partitions
together take no more than a fiftieth of their process, and where nothing moves there is no timer. What is late costs
readers freshness and nothing else. Descriptors are kept for OPEN_MAX partitions, until `release`.
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
    """

    __slots__ = (
        "_after_ms",
        "_armed",
        "_boot_id",
        "_clock",
        "_interval_ms",
        "_open",
        "_queue",
        "_rest_until_ns",
        "_warn",
    )

    def __init__(
        self,
        after_ms: Callable[[int, Callable[[], None]], object],
        clock: Clock,
        *,
        interval_ms: int,
        warn: Callable[[str], object],
    ) -> None:
        self._after_ms = after_ms
        self._clock = clock
        self._interval_ms = interval_ms
        self._boot_id: UUID = boot_id()
        self._warn = warn
        self._queue: deque[Published] = deque()
        self._armed = False
        self._rest_until_ns = 0
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
        self._queue.append(partition)
        if not self._armed:
            self._armed = True
            rest_ns = self._rest_until_ns - self._clock.monotonic_ns()
            self._after_ms(max(self._interval_ms, rest_ns // NS_PER_MS), self._turn)

    def _turn(self) -> None:
        clock, queue = self._clock, self._queue
        began_ns = clock.monotonic_ns()
        now_ms = clock.now_ms()
        until_ns, spent_ns = began_ns + SLICE_NS, 0
        while queue and began_ns + spent_ns < until_ns:
            partition = queue.popleft()
            state_file = partition.state_file
            if state_file is not None:
                partition.is_marked = False
                self._write(partition, state_file, partition.state(now_ms=now_ms))
            spent_ns = clock.monotonic_ns() - began_ns
        # What took longer was somebody else's time on our core.
        rest_ns = PAUSE_FACTOR * min(spent_ns, SLICE_NS)
        self._rest_until_ns = began_ns + rest_ns
        self._armed = bool(queue)
        if queue:
            self._after_ms(max(self._interval_ms, rest_ns // NS_PER_MS), self._turn)

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
        self._warn(f"readers off the disk are not told of new records: {fault}")
        self._after_ms(AGAIN_MS, partial(self._again, partition))

    def _again(self, partition: Published) -> None:
        if not partition.is_marked:
            partition.mark()

    def statistics(self) -> dict[str, int]:
        """Partitions that wait for their record, and open descriptors."""
        return {"waiting": len(self._queue), "open": len(self._open)}
