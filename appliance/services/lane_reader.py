"""Reads the lanes of a forwarder from the logs of the internal topics.

read ahead   from where a lane was read, one read at a time for each log
load         the records whose time comes near, of exact levels: up to LOADS_MAX reads at a time
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from appliance.clock import NS_PER_MS, Clock
from appliance.delivery.levels import TRANSACTIONS
from appliance.partition_access.access import PartitionAccess, Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.services.batches import stored_of, wanted_of
from appliance.services.delay_topics import DelayTopics
from appliance.services.due_keys import EVERYTHING
from appliance.services.exact_lane import ExactLane
from appliance.services.lane import BUFFER_BYTES, Lane

EXACT_BYTES: Final = 128 << 10
"""Of a read of an exact level: each takes the process for some milliseconds, in which it delivers nothing."""
LEVEL_BYTES: Final = BUFFER_BYTES // 4
"""Of a read of a level: about what has room in its buffer, where each record takes ENTRY_BYTES more."""
SPARSE_BYTES: Final = 8 << 10
MEASURE_WAIT_MS: Final = 5_000
"""So long a start waits until the end of an exact level is committed. Without enough in-sync replicas it never is."""
LOADS_MAX: Final = 16
_SPAN: Final = 500
"""Offsets that one read is expected to find."""


class LaneReader:
    """Args:
    partition: of the internal topics.
    look_at_clock: returns what the clock shows, in ms, after the lanes know whether it was set back.
    complain: gets a line for the operator.
    pause: called when something has failed, so that nothing is tried for a while.
    """

    __slots__ = (
        "_clock",
        "_complain",
        "_ends",
        "_is_reading",
        "_loads",
        "_logs",
        "_look_at_clock",
        "_measured",
        "_partition",
        "_pause",
        "_since_ns",
        "_topics",
        "has_open_transactions",
        "is_leaderless",
    )

    def __init__(
        self,
        partition: int,
        topics: DelayTopics,
        logs: PartitionAccess,
        *,
        clock: Clock,
        look_at_clock: Callable[[], int],
        complain: Callable[[str], object],
        pause: Callable[[], None],
    ) -> None:
        self._partition = partition
        self._topics = topics
        self._logs = logs
        self._clock = clock
        self._look_at_clock = look_at_clock
        self._complain = complain
        self._pause = pause
        self._is_reading: set[str] = set()
        self._loads: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._since_ns: dict[str, int] = {}
        self._measured: set[str] = set()
        self.is_leaderless = False
        """Whether a log, or its end, is not there now: nothing says when it comes."""
        self.has_open_transactions = False

    def begin_turn(self) -> None:
        """Forget what the last turn has seen."""
        self.is_leaderless = self.has_open_transactions = False

    def place(self, level: str) -> LogPlace | None:
        """Return where a level is served; None, and note it, if nobody serves it now."""
        place = self._topics.wait_place(level, self._partition)
        if place is None or not self._logs.serves(place):
            self.is_leaderless = True
            return None
        return place

    def read(
        self,
        name: str,
        place: LogPlace,
        offset: int,
        take: Callable[[Read], None],
        *,
        bytes_max: int = BUFFER_BYTES,
        is_committed: bool = False,
    ) -> bool:
        """Ask for records, once at a time for each name; False: no room on the ring."""
        if name in self._is_reading:
            return True

        def done(read: Read) -> None:
            self._is_reading.discard(name)
            if not read.replaced:
                take(read)

        self._is_reading.add(name)
        if not self._logs.read(place, offset, done, bytes_max=bytes_max, is_committed=is_committed):
            self._is_reading.discard(name)
            return False
        return True

    # Reading on

    def is_behind(self, lane: Lane) -> bool:
        """Return whether a lane must read more before something is delivered."""
        if not lane.has_caught_up:
            return True
        if not isinstance(lane, ExactLane) or lane.level in self._measured or not self._is_led(lane):
            return False
        waits_ns = self._clock.monotonic_ns() - self._since_ns.get(lane.level, self._clock.monotonic_ns())
        return waits_ns < MEASURE_WAIT_MS * NS_PER_MS

    @staticmethod
    def _may_take(lane: Lane) -> bool:
        return lane.has_room or not (lane.has_caught_up or isinstance(lane, ExactLane))

    def _is_led(self, lane: Lane) -> bool:
        place = self._topics.wait_place(lane.level, self._partition)
        return place is not None and self._logs.serves(place)

    def complete_to_ms(self, lane: ExactLane) -> int:
        """Return up to when all entries of a lane are loaded; for ever, if nobody serves its log."""
        return lane.complete_to_ms if self._is_led(lane) else EVERYTHING[0]

    def read_on(self, lane: Lane) -> None:
        """Read what is new in the log of a lane, and what the lane wants to load."""
        place = self.place(lane.level)
        if place is None:
            return
        if isinstance(lane, ExactLane):
            self._measure(lane, place)
            self._load(lane, place)
        is_committed = lane.level == TRANSACTIONS
        if not self._may_take(lane):  # a run file must be written first
            self._pause()
            return
        end = self._logs.last_stable_offset(place) if is_committed else self._logs.high_watermark(place)
        if is_committed and end < self._logs.high_watermark(place):
            self.has_open_transactions = True
        if end <= lane.read_to and (lane.has_caught_up or isinstance(lane, ExactLane)):
            return

        def take(read: Read) -> None:
            self._take(lane, read)

        bytes_max = BUFFER_BYTES
        if isinstance(lane, ExactLane):
            bytes_max = EXACT_BYTES
        elif lane.has_caught_up:
            bytes_max = LEVEL_BYTES
        if not self.read(
            lane.level, place, lane.read_to, take, bytes_max=bytes_max, is_committed=is_committed
        ):
            self._pause()

    def _measure(self, lane: ExactLane, place: LogPlace) -> None:
        """Once: all that the log has now is read before something is delivered, because it can be due first."""
        if lane.level in self._measured:
            return
        log_end = self._logs.log_end(place)
        end = min(self._ends.setdefault(lane.level, log_end), log_end)
        if self._logs.high_watermark(place) < end:
            self._since_ns.setdefault(lane.level, self._clock.monotonic_ns())
            self.is_leaderless = True
            return  # not all of it is committed yet: look again
        self._measured.add(lane.level)
        if end < lane.known_end:
            self._say_lost(place, end, lane.known_end)
            lane.end_at(end)
        lane.catch_up_to = max(lane.known_end, end)

    def _take(self, lane: Lane, read: Read) -> None:
        if read.error == ErrorCode.OFFSET_OUT_OF_RANGE and read.log_start > lane.read_to:
            lane.begin_at(read.log_start)
            return
        if read.error:
            self._pause()
            return
        if not lane.has_caught_up and not isinstance(lane, ExactLane):
            self._end_lane(lane, read)
        now_ms = self._look_at_clock()  # a lane must know of a step before it takes what was stored since
        uptime_ms = self._clock.monotonic_ns() // NS_PER_MS
        for batch in stored_of(read):
            if batch.next_offset > read.end or not self._may_take(lane):
                break
            if batch.next_offset > lane.read_to:
                lane.unread += batch.unread
            lane.take(batch.records, next_offset=batch.next_offset, now_ms=now_ms, uptime_ms=uptime_ms)
        if not read.chunks and not lane.has_caught_up:
            self._pause()

    def _end_lane(self, lane: Lane, read: Read) -> None:
        """If a power cut has taken the end of the log, the position can be behind it: come back to the end."""
        place = self._topics.wait_place(lane.level, self._partition)
        if place is not None and read.high_watermark == self._logs.log_end(place) < lane.position:
            self._say_lost(place, read.high_watermark, lane.position)
            lane.end_at(read.high_watermark)

    def _say_lost(self, place: LogPlace, end: int, position: int) -> None:
        self._complain(
            f"{place.topic}-{self._partition} ends at offset {end}, but was delivered up to {position}: "
            "its last records were lost, as in a power cut; what comes at these offsets now is delivered"
        )

    # Loading

    def _load(self, lane: ExactLane, place: LogPlace) -> None:
        if self._loads.get(lane.level):
            return
        offsets = lane.to_load()
        at = 0
        for _ in range(LOADS_MAX):
            if at == len(offsets):
                return
            to = bisect_left(offsets, offsets[at] + _SPAN, at)
            bytes_max = EXACT_BYTES if to - at >= _SPAN // 4 else SPARSE_BYTES
            if not self._load_from(lane, place, offsets[at], bytes_max):
                return
            at = to

    def _load_from(self, lane: ExactLane, place: LogPlace, offset: int, bytes_max: int) -> bool:
        loads = self._loads

        def done(read: Read) -> None:
            loads[lane.level] -= 1
            if not read.replaced:
                self._take_loaded(lane, read, offset)

        if not self._logs.read(place, offset, done, bytes_max=bytes_max):
            self._pause()
            return False
        loads[lane.level] = loads.get(lane.level, 0) + 1
        return True

    def _take_loaded(self, lane: ExactLane, read: Read, offset: int) -> None:
        wanted = lane.to_load()
        if read.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            is_lost = [each for each in wanted if each < read.log_start or each >= read.high_watermark >= 0]
            for each in is_lost:
                lane.lost(each)
            if not is_lost:
                self._pause()
        elif read.error:
            self._pause()
        else:
            if not read.chunks:
                self._pause()  # a new leader does not know yet that they are committed
            records, end = wanted_of(read, wanted)
            lane.loaded(records)
            found = {each.at for each in records}
            for each in wanted[bisect_left(wanted, offset) : bisect_left(wanted, end)]:
                if each not in found:
                    lane.lost(each)
