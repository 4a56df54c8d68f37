"""Delivers what is due in one partition of the internal topics, over all levels.

    load progress ─→ read each level to its position ─→ repeat open deliveries ─→ rounds
                                                                                   │
       ┌── due entries of all levels, in due order, by target                      │
       ▼                                                                           ▼
    write progress (positions behind them, deliveries open) ─→ append each delivery ─→ all answered: next round
                                                                 └ not answered for STUCK_MS: stays open, goes on alone

Each partition of a user's topic uses the same partition of all levels, so one forwarder delivers to it, one batch after
the other (`deliveries`). Entries whose target nobody leads, or has a stuck delivery, go to a level again, so that they
hold up no others.

Delayed records of transactions wait in a lane of their own until they are committed, and go from there to a level.
Those of aborted ones are skipped.

| state | waits for | on an error |
|---|---|---|
| LOADING | the last record of `__delayed_state` | reads again after PAUSE_MS |
| CATCHING_UP | entries below the positions | reads again after PAUSE_MS |
| RUNNING | the next due entry, or answers | appends again after PAUSE_MS |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import DELAYED_STATE
from appliance.delivery.levels import CANCELS
from appliance.delivery.stored import Stored
from appliance.delivery.waiting import OVERHEAD_BYTES
from appliance.partition_access.access import PartitionAccess, Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import HEADER_BYTES
from appliance.services.batches import records_of
from appliance.services.cancellations import Cancellations
from appliance.services.clock_steps import ClockSteps
from appliance.services.delay_topics import DelayTopics
from appliance.services.deliveries import TOPIC_DELETED, Counts, Deliveries, Target
from appliance.services.due_order import DueOrder
from appliance.services.exact_lane import ExactLane
from appliance.services.lane import Lane
from appliance.services.lane_reader import LaneReader
from appliance.services.overdue_rate import OverdueRate
from appliance.services.progress import Frontier
from appliance.services.run_writer import RunWriter
from appliance.services.state_log import PAUSE_MS, StateLog

ROUND_RECORDS: Final = 2_000
ROUND_BYTES: Final = 512 * 1024
LATE_MIN_MS: Final = 5_000
LATE_MAX_MS: Final = 300_000
"""So long a record waits that is due and cannot be delivered: as long as it is late, within these bounds.

Each wait is one more append of the record.
"""
TRANSACTION_LOOK_MS: Final = 1_000
TRIM_MS: Final = 10_000
"""How often the start of a log moves at most."""

_MODE: Final = "delivery.delay.mode"
_RECORD_BYTES: Final = 16
"""What a record takes in a batch beside its tail, at most."""


class State(Enum):
    LOADING = "loading"
    CATCHING_UP = "catching up"
    RUNNING = "running"


class Statistics(NamedTuple):
    """What a forwarder has now, and what its lanes have counted since they began."""

    open_deliveries: int
    repeated: int
    """Records that were sent again, and are delivered once."""
    unread: int
    """Records of internal topics that are not understood."""
    waiting: int
    """Records that are stored and not delivered, those of open transactions included."""
    overdue_ms: int
    """For how long the first of them has been due."""


class _Gathered:
    """Records for one target, as a round gathers them."""

    __slots__ = ("dues_ms", "limit_bytes", "names", "partition", "size_bytes", "tails", "topic_id")

    def __init__(self, target: Target, limit_bytes: int) -> None:
        self.topic_id, self.partition = target
        self.limit_bytes = limit_bytes
        self.size_bytes = HEADER_BYTES
        self.names: list[tuple[str, int]] = []
        self.tails: list[bytes] = []
        self.dues_ms: list[int] = []
        """When each was due; empty if they go to a level."""

    def takes(self, stored: Stored) -> bool:
        """Return whether the target is where a record that is due goes."""
        return (
            stored.topic_id is self.topic_id and stored.partition == self.partition and stored.cancels is None
        )


class _Round:
    """What a round has gathered."""

    __slots__ = ("cancelled", "count", "dropped", "last", "size_bytes", "targets")

    def __init__(self) -> None:
        self.targets: dict[Target, _Gathered] = {}
        self.last: _Gathered | None = None
        self.count = 0
        self.size_bytes = 0
        self.dropped = 0
        self.cancelled = 0


class Forwarder:
    """Args:
    partition: of the internal topics.
    take_producer_id: a fresh one, or None if none is there yet.
    complain: gets a line for the operator.
    overdue_rate: how many overdue records go in a second; None: as many as can be.
    """

    def __init__(
        self,
        partition: int,
        topics: DelayTopics,
        logs: PartitionAccess,
        *,
        clock: Clock,
        take_producer_id: Callable[[], int | None],
        counts: Counts,
        complain: Callable[[str], object],
        overdue_rate: OverdueRate | None = None,
    ) -> None:
        self._partition = partition
        self._topics = topics
        self._logs = logs
        self._clock = clock
        self._counts = counts
        self._complain = complain
        self._overdue_rate = overdue_rate
        self.state = State.LOADING
        self.lanes: list[Lane] = []
        self._exact: list[ExactLane] = []
        self.cancellations = Cancellations(0)
        self._state_log = StateLog(partition, topics, logs, complain=complain, pause=self._pause)
        self._run_writer = RunWriter(
            partition, clock=clock, complain=complain, changed=self._state_log.changed
        )
        self._deliveries = Deliveries(
            topics,
            logs,
            clock=clock,
            take_producer_id=take_producer_id,
            counts=counts,
            changed=self._state_log.changed,
        )
        self._reader = LaneReader(
            partition,
            topics,
            logs,
            clock=clock,
            look_at_clock=self._look_at_clock,
            complain=complain,
            pause=self._pause,
        )
        self._order = DueOrder(self._reader, clock)
        self._steps = ClockSteps(clock, since_ms=0)
        self._not_before_ns = 0
        self._trimmed: dict[str, int] = {}
        self._trims_under_way = 0
        self._trim_ns = 0
        self._is_stopping = False

    # What the agent asks

    def turn(self) -> None:
        """Do what can be done now."""
        if self._clock.monotonic_ns() < self._not_before_ns:
            return
        self._reader.begin_turn()
        self._look_at_clock()
        before = None
        while before is not self.state:  # no answer between two states would wake the process
            before = self.state
            self._step()

    def _step(self) -> None:
        if self.state is State.LOADING:
            if self._state_log.is_loaded:
                self._loaded()
            else:
                self._state_log.load()
        elif self.state is State.CATCHING_UP:
            self._catch_up()
        else:
            for lane in self.lanes:
                if lane.has_room:
                    self._reader.read_on(lane)
            self._run_writer.write(self._exact)
            self._deliver()
            self._trim()

    def next_look_ms(self) -> int | None:
        """Return in how many milliseconds `turn` has something to do by itself; None: not before an answer comes."""
        now_ns, now_ms = self._clock.monotonic_ns(), self._clock.now_ms()
        if now_ns < self._not_before_ns:
            return (self._not_before_ns - now_ns) // NS_PER_MS + 1
        waits: list[int] = [PAUSE_MS] if self._reader.is_leaderless else []
        if self._reader.has_open_transactions:  # if the coordinator dies behind a marker, it wakes nobody
            waits.append(TRANSACTION_LOOK_MS)
        if self._state_log.is_written:
            waits += self._deliveries.waits_ms()
        if self._is_idle and not self._is_stopping:
            due = [at_ms for lane in self.lanes if (at_ms := lane.first_due(now_ms)) is not None]
            waits += [max(min(due) - now_ms, 1)] if due else []
        return min(waits, default=None)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is under way; always once `stop` was called and answers have come."""
        return not self._state_log.is_writing and not self._deliveries.is_asked

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopping = True

    def statistics(self) -> Statistics:
        """Return what there is now. Partitions that nobody leads count no records."""
        now_ms = self._clock.now_ms()
        firsts = [*(lane.first_due(now_ms) for lane in self.lanes), self._deliveries.first_due_ms()]
        due_ms = [at_ms for at_ms in firsts if at_ms is not None]
        return Statistics(
            len(self._deliveries),
            sum(lane.repeated for lane in self.lanes),
            sum(lane.unread for lane in self.lanes) + self.cancellations.unread,
            sum(map(self._waiting_on, self.lanes)) + self._deliveries.records,
            max(0, now_ms - min(due_ms, default=now_ms)),
        )

    def _waiting_on(self, lane: Lane) -> int:
        place = self._topics.wait_place(lane.level, self._partition)
        if place is None or not self._logs.serves(place):
            return 0
        return max(0, self._logs.high_watermark(place) - max(lane.position, self._logs.log_start(place)))

    # LOADING

    def _loaded(self) -> None:
        progress = self._state_log.progress
        wanted: dict[str, set[int]] = {}
        for delivery in progress.open:
            for level, offset in delivery.records:
                wanted.setdefault(level, set()).add(offset)
        levels = self._topics.levels
        self.lanes = [
            self._exact_lane(level, delay_ms, wanted.get(level, ()))
            if levels.is_exact(number)
            else Lane(
                level,
                delay_ms,
                position=progress.positions.get(level, 0),
                wanted=wanted.get(level, ()),
            )
            for number, (level, delay_ms) in enumerate(zip(levels.names, levels.delays_ms, strict=True))
            if level != CANCELS
        ]
        self._exact = [lane for lane in self.lanes if isinstance(lane, ExactLane)]
        self._steps = ClockSteps(self._clock, since_ms=self._state_log.loaded_ms)
        self._look_at_clock()
        self.cancellations = Cancellations(progress.positions.get(CANCELS, 0))
        self.state = State.CATCHING_UP

    def _exact_lane(self, level: str, delay_ms: int, wanted: Collection[int]) -> ExactLane:
        from appliance.services.due_index import DueIndex  # numpy, which no other process needs at its start

        progress = self._state_log.progress
        return ExactLane(
            level,
            delay_ms,
            position=progress.positions.get(level, 0),
            index=DueIndex(self._topics.index_directory, self._topics.index_name(level, self._partition)),
            frontier=progress.exact.get(level, Frontier()),
            wanted=wanted,
            uptime_ms=self._uptime_ms(),
        )

    def _uptime_ms(self) -> int:
        return self._clock.monotonic_ns() // NS_PER_MS

    def _look_at_clock(self) -> int:
        """Tell the exact lanes by how much the clock was set back; return what it shows."""
        by_ms = self._steps.set_back_ms()
        if by_ms:
            for lane in self._exact:
                lane.set_back(by_ms)
            if self._exact:
                self._state_log.changed()
        return self._steps.wall_ms

    # CATCHING_UP

    def _catch_up(self) -> None:
        behind = [lane for lane in self.lanes if self._reader.is_behind(lane)]
        for lane in behind:
            self._reader.read_on(lane)
        self._run_writer.write(self._exact)
        if not any(map(self._reader.is_behind, self.lanes)):
            self._repeat_open()

    def _repeat_open(self) -> None:
        lanes = {lane.level: lane for lane in self.lanes}
        for delivery in self._state_log.progress.open:
            found = [
                lanes[level].found.get(offset) if level in lanes else None
                for level, offset in delivery.records
            ]
            if any(each is None for each in found):
                self._complain(
                    f"{DELAYED_STATE}-{self._partition}: records of an open delivery are not there any more; "
                    f"{len(found)} are dropped"
                )
                self._counts.drops.total += len(found)
                continue
            stored = [each for each in found if each is not None]
            records = [self._to_append(delivery.topic_id, each, each.due_ms) for each in stored]
            self._deliveries.repeat(delivery, records, _due_ms(delivery.topic_id, stored))
        for lane in self.lanes:
            lane.found.clear()
        self.state = State.RUNNING

    def _to_append(self, topic_id: UUID, stored: Stored, due_ms: int) -> bytes:
        """Return the tail of what is appended to a topic: for a level the record that waits, else the record itself."""
        return stored.to_deliver() if topic_id == stored.topic_id else stored.to_wait(due_ms)

    # RUNNING

    @property
    def _is_idle(self) -> bool:
        is_running = self.state is State.RUNNING
        return is_running and not self._deliveries.has_round and not self._state_log.is_writing

    def _deliver(self) -> None:
        deliveries, state = self._deliveries, self._state_log
        if state.is_writing:
            return
        if any(lane.take_news() for lane in self._exact):
            state.changed()
        if not state.is_written:
            self._write()
            return
        deliveries.append()
        if deliveries.has_round or self._is_stopping or not self._read_cancellations():
            return
        if not len(deliveries):
            self._forget_cancellations()
        if self._begin_round():
            self._write()
        elif state.progress.open and not deliveries.has_stuck:
            state.changed()
            self._write()

    def _write(self) -> None:
        for lane in self._exact:
            lane.settle()
        positions = {lane.level: lane.position for lane in self.lanes}
        positions[CANCELS] = self.cancellations.position
        exact = {lane.level: lane.progress() for lane in self._exact}

        def written() -> None:
            self._deliveries.written()
            for lane in self._exact:
                lane.written(exact[lane.level], uptime_ms=self._uptime_ms())

        self._state_log.write(
            positions, self._deliveries.names(), written, exact=exact, now_ms=self._steps.wall_ms
        )

    # Cancelling

    def _read_cancellations(self) -> bool:
        """Read what cancels records; return whether all that is acknowledged has been read, so a round may begin."""
        cancellations = self.cancellations
        place = self._reader.place(CANCELS)
        if place is None:
            return False
        end = self._logs.log_end(place)
        if end < cancellations.read_to:
            cancellations.begin_at(end)  # a power cut has taken the end of the log
        if self._logs.high_watermark(place) <= cancellations.read_to:
            return True
        if not cancellations.has_room:
            self._complain(
                f"{place.topic}-{self._partition}: too many records were cancelled; later cancellations do not count "
                "before earlier ones are forgotten, which takes as long as the largest level"
            )
            return True
        if not self._reader.read(CANCELS, place, cancellations.read_to, self._take_cancellations):
            self._pause()
        return False

    def _take_cancellations(self, read: Read) -> None:
        if read.error == ErrorCode.OFFSET_OUT_OF_RANGE and read.log_start > self.cancellations.read_to:
            self.cancellations.begin_at(read.log_start)
        elif read.error:
            self._pause()
        now_ns = self._clock.monotonic_ns()
        for batch in records_of(read):
            if batch.next_offset > read.end or not self.cancellations.has_room:
                break
            self.cancellations.take(batch.records, next_offset=batch.next_offset, now_ns=now_ns)

    def _forget_cancellations(self) -> None:
        """No delivery is open, so all that waits is on a level."""
        cancellations, now_ns = self.cancellations, self._clock.monotonic_ns()
        if cancellations.wants_close(now_ns):
            places = {lane.level: self._topics.wait_place(lane.level, self._partition) for lane in self.lanes}
            led = {level: place for level, place in places.items() if place is not None}
            if len(led) == len(places):
                ends = {level: self._logs.high_watermark(place) for level, place in led.items()}
                wanted = cancellations.fingerprints()
                for lane in self._exact:
                    if lane.read_to >= ends[lane.level] and not lane.has_waiting(wanted):
                        del ends[lane.level]
                cancellations.close(ends)
        cancellations.expire({lane.level: lane.position for lane in self.lanes}, now_ns)

    # Rounds

    def _begin_round(self) -> bool:
        """Take due entries out of the lanes; return whether there are some."""
        now_ms = self._clock.now_ms()
        gathering = _Round()
        lane: Lane | None = None
        until_ms = now_ms
        complete_ms = self._order.complete_to_ms(self._exact, now_ms)
        while gathering.count < ROUND_RECORDS and gathering.size_bytes < ROUND_BYTES:
            first_ms = None if lane is None else lane.first_due(now_ms)
            if lane is None or first_ms is None or first_ms > until_ms:
                lane, until_ms = self._next_due(now_ms, complete_ms)
                if lane is None:
                    break
            if not self._gather(lane, gathering, now_ms):
                break
        dropped, cancelled = gathering.dropped, gathering.cancelled
        self._counts.cancelled += cancelled
        if dropped:
            self._counts.drops.add(dropped, TOPIC_DELETED)
        for target, each in gathering.targets.items():
            if each.tails:
                self._deliveries.begin(target, tuple(each.names), each.tails, each.dues_ms)
        has_some = bool(gathering.count or dropped or cancelled)
        if has_some:
            self._state_log.changed()
        return has_some

    def _gather(self, lane: Lane, gathering: _Round, now_ms: int) -> bool:
        """Take the first entry of a lane into the round; False: the round is over, and the entry stays."""
        entry = lane.first
        stored = entry.stored
        if stored.delivery_id is not None and self.cancellations.has(stored):
            lane.pop()
            gathering.cancelled += 1
            return True
        due_ms = lane.due_now(entry, now_ms)
        rate = self._overdue_rate
        if rate is not None and not rate.take(now_ms - due_ms):
            if not gathering.count:
                self._pause(rate.wait_ms())
            return False
        last = gathering.last
        # Most records go where the one before went.
        if last is None or due_ms > now_ms or not last.takes(stored):
            found = self._target(stored, due_ms, now_ms)
            if found is None:
                lane.pop()
                gathering.dropped += 1
                return True
            target, limit_bytes = found
            if limit_bytes < 0 or not self._deliveries.may_begin(target):
                self._pause()
                return False
            last = gathering.last = gathering.targets.get(target)
            if last is None:
                last = gathering.last = gathering.targets[target] = _Gathered(target, limit_bytes)
        tail = self._to_append(last.topic_id, stored, due_ms)
        length_bytes = len(tail) + _RECORD_BYTES
        if last.tails and last.size_bytes + length_bytes > last.limit_bytes:
            return False
        lane.pop()
        last.tails.append(tail)
        if stored.topic_id == last.topic_id:
            last.dues_ms.append(stored.due_ms)
        last.names.append((lane.level, entry.offset))
        last.size_bytes += length_bytes
        gathering.count += 1
        gathering.size_bytes += length_bytes
        return True

    def _next_due(self, now_ms: int, complete_ms: int) -> tuple[Lane | None, int]:
        """Return the lane whose first entry is due first, if it is due by both; and until when it is the first one."""
        found: Lane | None = None
        found_ms = next_ms = complete_ms
        for lane in self.lanes:
            due_ms = lane.first_due(now_ms)
            if due_ms is None or due_ms > next_ms:
                continue
            if due_ms < found_ms or (found is None and due_ms == found_ms):
                if found is not None:
                    next_ms = found_ms
                found, found_ms = lane, due_ms
            else:
                next_ms = due_ms
        return found, next_ms

    def _target(self, stored: Stored, due_ms: int, now_ms: int) -> tuple[Target, int] | None:
        """Return where an entry goes, and the largest batch there; None if its topic is gone; -1 if it must wait."""
        topic = self._topics.topic(stored.topic_id)
        if topic is None or stored.partition >= len(topic.partitions):
            return None
        if stored.cancels is not None:  # of a transaction
            return self._level_target(self._topics.levels.cancels)
        left_ms = due_ms - now_ms
        if left_ms <= 0:
            target = stored.topic_id, stored.partition
            place = self._topics.place(topic, stored.partition)
            if place is not None and self._logs.serves(place) and not self._deliveries.is_stuck(target):
                return target, self._topics.batch_bytes_max(place)
            late_ms = min(max(-left_ms, LATE_MIN_MS), LATE_MAX_MS)
            return self._level_target(self._topics.levels.of(late_ms))
        is_exact = topic.configs.get(_MODE) == "exact"
        return self._level_target(self._topics.levels.of(left_ms, is_exact=is_exact))

    def _level_target(self, level: int) -> tuple[Target, int]:
        topic = self._topics.level_topic(level)
        place = None if topic is None else self._topics.place(topic, self._partition)
        if topic is None or place is None or not self._logs.serves(place):
            return (UUID(int=0), 0), -1
        target = topic.topic_id, self._partition
        return target, -1 if self._deliveries.is_stuck(target) else self._topics.batch_bytes_max(place)

    # Forgetting

    def _trim(self) -> None:
        """Move the log starts up to what the last state record needs after a death."""
        now_ns = self._clock.monotonic_ns()
        if self._trims_under_way or now_ns < self._trim_ns:
            return
        self._trim_ns = now_ns + TRIM_MS * NS_PER_MS
        progress = self._state_log.progress
        needed = dict(progress.positions)
        for delivery in progress.open:
            for level, offset in delivery.records:
                needed[level] = min(needed.get(level, offset), offset)
        for lane in self.lanes:
            offset = min(lane.may_forget(now_ns // NS_PER_MS), needed.get(lane.level, 0))
            place = self._topics.wait_place(lane.level, self._partition)
            if place is not None and offset > self._trimmed.get(lane.level, 0):
                self._trim_log(lane.level, place, offset)
        offset = progress.positions.get(CANCELS, 0)
        place = self._topics.wait_place(CANCELS, self._partition)
        if place is not None and offset > self._trimmed.get(CANCELS, 0):
            self._trim_log(CANCELS, place, offset)
        place = self._state_log.place()
        if place is not None and not self._state_log.is_writing:
            offset = self._logs.log_end(place) - 1  # the last record is the one that counts
            if offset > self._trimmed.get(DELAYED_STATE, 0):
                self._trim_log(DELAYED_STATE, place, offset)

    def _trim_log(self, name: str, place: LogPlace, offset: int) -> None:
        def done(error: int) -> None:
            self._trims_under_way -= 1
            if not error:
                self._trimmed[name] = offset

        self._trims_under_way += 1
        if not self._logs.delete_records(place, offset, done):
            self._trims_under_way -= 1

    def _pause(self, pause_ms: int = PAUSE_MS) -> None:
        self._not_before_ns = self._clock.monotonic_ns() + pause_ms * NS_PER_MS


def _due_ms(topic_id: UUID, stored: Sequence[Stored]) -> list[int]:
    """Return when each was due, if it goes to its topic now; nothing if it goes to a level."""
    return [each.due_ms for each in stored if each.topic_id == topic_id]


assert ROUND_BYTES > OVERHEAD_BYTES
