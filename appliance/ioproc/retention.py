"""Retention over the partitions of a worker: a round every `log.retention.check.interval.ms`, in slices.

    round     every led partition once, in any order; ends with the timer of the next
    slice     SLICE_NS of a round, then requests are served before the next slice

A partition with nothing to delete costs a few comparisons. One with very many segments to delete loses RETIRED_AT_ONCE
of them and is looked at again at the end of the round.

Order, so that whoever dies or reads in between meets something whole:

    1  log start moves in memory      a fetch below it is refused by the owner
    2  ... and in the table           network processes refuse it without asking
    3  files become `.deleted`        oldest segment first, records before indexes: the files never have a gap
    4  files are removed              after `file.delete.delay.ms`, by the sweeper; readers that hold them are told

Killed after 1 or 2, nothing has happened; in 3, an opening finishes the segment it was at, and the log begins where
its first file does; before 4, an opening removes what is `.deleted`.

Clocks jump. Backwards, records look young and stay; a record ahead of the clock keeps its segment, as in Kafka, and the
journal names it. Forwards, everything would look old at once: so in a round before which the wall clock has run more
than CLOCK_JUMP_MS ahead of the monotonic one, nothing is deleted by time. A clock that was set right again before the
next round has cost nothing; Kafka has no such pause.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable

from appliance.clock import NS_PER_MS, Clock
from appliance.errors import ApplianceError
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.ipc.agent import Timers
from appliance.log.retention import Expired
from appliance.partition_host.listener import PartitionListener

SLICE_NS = 2_000_000
FIRST_ROUND_MS = 30_000  # Kafka's log.initial.task.delay.ms: starting is busy enough
RETIRED_AT_ONCE = 16
CLOCK_JUMP_MS = 60_000
_log = logging.getLogger(__name__)


class Retention:
    """The rounds of one worker.

    Args:
        listener: Learns of retired segments, and of what the host refused a partition.
        warn: hears of clocks, however often; whether it has passed it on.
    """

    __slots__ = (
        "_clock",
        "_interval_ms",
        "_left",
        "_listener",
        "_partitions",
        "_seen_ms",
        "_seen_ns",
        "_timers",
        "_trusts_clock",
        "_warn",
        "_warned_of",
    )

    def __init__(
        self,
        partitions: Partitions,
        timers: Timers,
        clock: Clock,
        *,
        interval_ms: int,
        listener: PartitionListener[Partition],
        warn: Callable[[str], bool],
    ) -> None:
        self._partitions = partitions
        self._timers = timers
        self._clock = clock
        self._interval_ms = interval_ms
        self._listener = listener
        self._warn = warn
        self._left: deque[Partition] = deque()
        self._seen_ms, self._seen_ns = clock.now_ms(), clock.monotonic_ns()
        self._trusts_clock = True
        self._warned_of: dict[Partition, int] = {}
        self._timers.after_ms(min(interval_ms, FIRST_ROUND_MS), self.begin)

    def begin(self) -> None:
        """Begins a round."""
        now_ms, now_ns = self._clock.now_ms(), self._clock.monotonic_ns()
        ahead_ms = now_ms - self._seen_ms - (now_ns - self._seen_ns) // NS_PER_MS
        self._seen_ms, self._seen_ns = now_ms, now_ns
        self._trusts_clock = ahead_ms <= CLOCK_JUMP_MS
        if not self._trusts_clock:
            self._warn(
                f"the clock jumped {ahead_ms // 1000} s ahead; nothing is deleted by its age for"
                f" {self._interval_ms // 1000} s"
            )
        self._left.extend(self._partitions.by_name.values())
        self._warned_of = {
            partition: ms for partition, ms in self._warned_of.items() if self._is_led(partition)
        }
        self._slice()

    def _slice(self) -> None:
        clock = self._clock
        until_ns = clock.monotonic_ns() + SLICE_NS
        left, retired = self._left, False
        while left:
            partition = left.popleft()
            if self._is_led(partition):
                retired |= self._look(partition)
            if clock.monotonic_ns() >= until_ns:
                break
        if retired:
            self._listener.segments_retired()
        if left:
            self._timers.after_ms(0, self._slice)
        else:
            self._timers.after_ms(self._interval_ms, self.begin)

    def _look(self, partition: Partition) -> bool:
        """Deletes what has had its time; whether there was any."""
        log = partition.log
        try:
            found = log.expired(
                high_watermark=partition.high_watermark,
                now_ms=self._clock.now_ms(),
                by_time=self._trusts_clock,
            )
            if found.ahead_of_clock_ms >= 0:
                self._tell_ahead(partition, found.ahead_of_clock_ms)
            if not found:
                return False
            if log.advance_start(found.log_start_offset):
                partition.publish()
            retiring = min(len(found.reasons), RETIRED_AT_ONCE)
            log.retire_oldest(retiring)
            if retiring < len(found.reasons):
                self._left.append(partition)
            self._tell(partition, found, retiring)
        except ApplianceError as fault:
            self._listener.refused(partition, fault)
        return True

    def _is_led(self, partition: Partition) -> bool:
        return self._partitions.by_row[partition.row] is partition

    def _tell(self, partition: Partition, found: Expired, retiring: int) -> None:
        reasons = Counter(reason.value for reason in found.reasons[:retiring])
        _log.info(
            "partition %s: deleted %s. The log now begins at offset %d",
            partition.topic_partition,
            ", ".join(f"{count} segments because {reason}" for reason, count in reasons.items()),
            found.log_start_offset,
        )

    def _tell_ahead(self, partition: Partition, timestamp_ms: int) -> None:
        """Once for each segment: a record that is far ahead may keep everything after it for years."""
        if self._warned_of.get(partition) != timestamp_ms and self._warn(
            f"partition {partition.topic_partition} is kept beyond retention.ms: its oldest segment has a record"
            f" of {timestamp_ms} ms, which is in the future"
        ):
            self._warned_of[partition] = timestamp_ms
