"""Delivers what is due in one partition of the internal topics, over all levels.

    load progress ─→ read each level to its position ─→ repeat open deliveries ─→ rounds
                                                                                   │
       ┌── due entries of all levels, in due order, by target                      │
       ▼                                                                           ▼
    write progress (positions behind them, deliveries open) ─→ append each delivery ─→ all answered: next round
                                                                 └ not answered for STUCK_MS: stays open, goes on alone

A delivery is one batch for one partition, with a producer id and a sequence number. If its outcome is not known, it is
appended again under the same number, and the log recognizes it (decision 0120). Each partition of a user's topic uses
the same partition of all levels, so one forwarder delivers to it, one batch after the other.

Whatever a log refuses for good is dropped and counted. Entries whose target nobody leads, or has a stuck delivery, go
to a level again, so that they hold up no others.

| state | waits for | on an error |
|---|---|---|
| LOADING | the last record of `__delayed_state` | reads again after PAUSE_MS |
| CATCHING_UP | entries below the positions | reads again after PAUSE_MS |
| RUNNING | the next due entry, or answers | appends again after PAUSE_MS |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final
from uuid import UUID

from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import DELAYED_STATE
from appliance.delivery.waiting import OVERHEAD_BYTES, Origin, Waiting
from appliance.errors import ApplianceError
from appliance.log.producer_state import AppendOrigin
from appliance.partition_access.access import PartitionAccess, Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import HEADER_BYTES
from appliance.protocol.records.record import Record, decode_records, encode_batch
from appliance.services.delay_topics import DelayTopics
from appliance.services.lane import BUFFER_BYTES, Entry, Lane
from appliance.services.progress import Delivery, Progress, UnreadableProgress, decode, encode

ROUND_RECORDS: Final = 1_000
ROUND_BYTES: Final = 512 * 1024
PAUSE_MS: Final = 200
STUCK_MS: Final = 2_000
STUCK_MAX: Final = 64
"""So many deliveries may be open beside the round; with more, the round waits for them."""
LATE_MIN_MS: Final = 5_000
LATE_MAX_MS: Final = 300_000
"""So long a record waits that is due and cannot be delivered: as long as it is late, within these bounds.

Each wait is one more append of the record.
"""
TRIM_MS: Final = 10_000
"""How often the start of a log moves at most."""

_FINAL: Final = frozenset(
    map(
        int,
        (
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.RECORD_LIST_TOO_LARGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ),
    )
)
"""The log has not appended the batch, and never will. A timestamp is refused only while a clock is being set."""
_OTHER_PRODUCER: Final = frozenset(
    map(
        int,
        (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.UNKNOWN_PRODUCER_ID,
        ),
    )
)
"""The log has not appended the batch, and would append it under another producer id."""
_MODE: Final = "delivery.delay.mode"
_RECORD_BYTES: Final = 64
_PRODUCER_EPOCH: Final = 0

Target = tuple[UUID, int]


class State(Enum):
    LOADING = "loading"
    CATCHING_UP = "catching up"
    RUNNING = "running"


class Batch:
    """A delivery and its records, which lie in memory until the log has answered."""

    __slots__ = ("delivery", "is_asked", "not_before_ns", "records", "since_ns")

    def __init__(self, delivery: Delivery, records: list[Record], *, now_ns: int) -> None:
        self.delivery = delivery
        self.records = records
        self.since_ns = now_ns
        self.not_before_ns = 0
        self.is_asked = False

    @property
    def target(self) -> Target:
        return self.delivery.topic_id, self.delivery.partition


class Counts:
    """What all forwarders of a process have done since its start."""

    __slots__ = ("delivered", "dropped")

    def __init__(self) -> None:
        self.delivered = 0
        self.dropped = 0


class Forwarder:
    """Args:
    partition: of the internal topics.
    take_producer_id: a fresh one, or None if none is there yet.
    complain: gets a line for the operator.
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
    ) -> None:
        self._partition = partition
        self._topics = topics
        self._logs = logs
        self._clock = clock
        self._take_producer_id = take_producer_id
        self._counts = counts
        self._complain = complain
        self.state = State.LOADING
        self.lanes: list[Lane] = []
        self._read_state_to = 0
        self._state_value: bytes | None = None
        self._progress = Progress()
        self._is_reading: set[str] = set()
        self._not_before_ns = 0
        self._round: list[Batch] = []
        self._stuck: list[Batch] = []
        self._is_writing = False
        self._is_written = True
        self._changes = 0
        self._is_open_written = False
        self._producers: dict[Target, tuple[int, int]] = {}
        self._trimmed: dict[str, int] = {}
        self._trims_under_way = 0
        self._trim_ns = 0
        self._is_leaderless = False
        self._is_stopping = False

    # What the agent asks

    def turn(self) -> None:
        """Do what can be done now."""
        if self._clock.monotonic_ns() < self._not_before_ns:
            return
        self._is_leaderless = False
        if self.state is State.LOADING:
            self._load()
        elif self.state is State.CATCHING_UP:
            self._catch_up()
        else:
            self._read_ahead()
            self._deliver()
            self._trim()

    def next_look_ms(self) -> int | None:
        """Return in how many milliseconds `turn` has something to do by itself; None: not before an answer comes."""
        now_ns, now_ms = self._clock.monotonic_ns(), self._clock.now_ms()
        if now_ns < self._not_before_ns:
            return (self._not_before_ns - now_ns) // NS_PER_MS + 1
        waits: list[int] = [PAUSE_MS] if self._is_leaderless else []
        waits += [
            max(batch.not_before_ns - now_ns, 0) // NS_PER_MS + 1
            for batch in self._first_of_targets()
            if not batch.is_asked and self._is_written
        ]
        if self._is_idle and not self._is_stopping:
            due = [at_ms for lane in self.lanes if (at_ms := lane.first_due(now_ms)) is not None]
            waits += [max(min(due) - now_ms, 1)] if due else []
        return min(waits, default=None)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is under way; always once `stop` was called and answers have come."""
        return not self._is_writing and not any(batch.is_asked for batch in (*self._round, *self._stuck))

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopping = True

    def statistics(self) -> tuple[int, int, int]:
        """Return (open deliveries, records that were sent again, records that are not understood)."""
        return (
            len(self._round) + len(self._stuck),
            sum(lane.repeated for lane in self.lanes),
            sum(lane.unread for lane in self.lanes),
        )

    # LOADING

    def _state_place(self) -> LogPlace | None:
        place = self._topics.state_place(self._partition)
        return place if place is not None and self._logs.serves(place) else None

    def _load(self) -> None:
        place = self._state_place()
        if place is None or not self._read(DELAYED_STATE, place, self._read_state_to, self._take_state):
            self._pause()

    def _take_state(self, read: Read) -> None:
        place = self._state_place()
        if read.error == ErrorCode.OFFSET_OUT_OF_RANGE and read.log_start > self._read_state_to:
            self._read_state_to = read.log_start
        elif read.error or place is None:
            self._pause()
        elif read.chunks:
            for record, next_offset in _records(read):
                for each in record:
                    self._state_value = each.value
                self._read_state_to = max(self._read_state_to, next_offset)
        elif read.high_watermark < self._logs.log_end(place):
            self._pause()
        else:
            self._loaded()

    def _loaded(self) -> None:
        if self._state_value is not None:
            try:
                self._progress = decode(self._state_value)
            except UnreadableProgress as fault:
                self._complain(f"{DELAYED_STATE}-{self._partition}: {fault}; nothing is delivered from there")
                self._pause(60_000)
                return
        wanted: dict[str, set[int]] = {}
        for delivery in self._progress.open:
            for level, offset in delivery.records:
                wanted.setdefault(level, set()).add(offset)
        levels = self._topics.levels
        self.lanes = [
            Lane(
                level,
                delay_ms,
                position=self._progress.positions.get(level, 0),
                wanted=wanted.get(level, ()),
            )
            for level, delay_ms in zip(levels.names, levels.delays_ms, strict=True)
        ]
        self.state = State.CATCHING_UP

    # CATCHING_UP

    def _catch_up(self) -> None:
        behind = [lane for lane in self.lanes if not lane.has_caught_up]
        for lane in behind:
            self._read_lane(lane)
        if not behind:
            self._repeat_open()

    def _repeat_open(self) -> None:
        now_ms, now_ns = self._clock.now_ms(), self._clock.monotonic_ns()
        lanes = {lane.level: lane for lane in self.lanes}
        for delivery in self._progress.open:
            found = [
                lanes[level].found.get(offset) if level in lanes else None
                for level, offset in delivery.records
            ]
            if any(each is None for each in found):
                self._complain(
                    f"{DELAYED_STATE}-{self._partition}: records of an open delivery are not there any more; "
                    f"{len(found)} are dropped"
                )
                self._counts.dropped += len(found)
                continue
            records = [self._to_append(delivery.topic_id, each, now_ms) for each in found if each is not None]
            self._round.append(Batch(delivery, records, now_ns=now_ns))
        for lane in self.lanes:
            lane.found.clear()
        self._is_open_written = bool(self._progress.open)
        self.state = State.RUNNING

    def _to_append(self, topic_id: UUID, waiting: Waiting, now_ms: int) -> Record:
        """Return what is appended to a topic: for a level the record that waits, else the record itself.

        On another level it has no origin any more. There it would look like one that its producer has sent again.
        """
        if topic_id == waiting.topic_id:
            return waiting.to_deliver(now_ms)
        return waiting._replace(origin=Origin()).to_record(now_ms)

    # Reading

    def _read_ahead(self) -> None:
        for lane in self.lanes:
            if lane.has_room:
                self._read_lane(lane)

    def _read_lane(self, lane: Lane) -> None:
        place = self._topics.wait_place(lane.level, self._partition)
        if place is None or not self._logs.serves(place):
            self._is_leaderless = True
            return
        if lane.has_caught_up and self._logs.high_watermark(place) <= lane.read_to:
            return

        def take(read: Read) -> None:
            self._take_entries(lane, read)

        if not self._read(lane.level, place, lane.read_to, take):
            self._pause()

    def _take_entries(self, lane: Lane, read: Read) -> None:
        if read.error == ErrorCode.OFFSET_OUT_OF_RANGE and read.log_start > lane.read_to:
            lane.begin_at(read.log_start)
            return
        if read.error:
            self._pause()
            return
        if not lane.has_caught_up:
            self._end_lane(lane, read)
        now_ms = self._clock.now_ms()
        for records, next_offset in _records(read):
            if next_offset > read.high_watermark or not (lane.has_room or not lane.has_caught_up):
                break
            lane.take(records, next_offset=next_offset, now_ms=now_ms)
        if not read.chunks and not lane.has_caught_up:
            self._pause()

    def _end_lane(self, lane: Lane, read: Read) -> None:
        """If a power cut has taken the end of the log, the position can be behind it: come back to the end."""
        place = self._topics.wait_place(lane.level, self._partition)
        if place is not None and read.high_watermark == self._logs.log_end(place) < lane.position:
            end = read.high_watermark
            self._complain(
                f"{place.topic}-{self._partition} ends at offset {end}, but was delivered up to {lane.position}: "
                "its last records were lost, as in a power cut; what comes at these offsets now is delivered"
            )
            lane.end_at(end)

    def _read(self, name: str, place: LogPlace, offset: int, take: Callable[[Read], None]) -> bool:
        """Ask for records, once at a time for each log; False: no room on the ring."""
        if name in self._is_reading:
            return True

        def done(read: Read) -> None:
            self._is_reading.discard(name)
            if not read.replaced:
                take(read)

        self._is_reading.add(name)
        if not self._logs.read(place, offset, done, bytes_max=BUFFER_BYTES):
            self._is_reading.discard(name)
            return False
        return True

    # RUNNING

    @property
    def _is_idle(self) -> bool:
        return self.state is State.RUNNING and not self._round and not self._is_writing

    def _deliver(self) -> None:
        if self._is_writing:
            return
        if not self._is_written:
            self._write()
            return
        for batch in self._first_of_targets():
            self._append(batch)
        self._set_stuck_aside()
        if self._round or self._is_stopping:
            return
        if self._begin_round():
            self._write()
        elif self._is_open_written and not self._stuck:
            self._must_write()
            self._write()

    def _first_of_targets(self) -> list[Batch]:
        """Return the batches that may be appended now: halves of one go to their target one after the other."""
        first: dict[Target, Batch] = {}
        for batch in (*self._stuck, *self._round):
            first.setdefault(batch.target, batch)
        return list(first.values())

    def _set_stuck_aside(self) -> None:
        now_ns = self._clock.monotonic_ns()
        for batch in list(self._round):
            is_stuck = now_ns - batch.since_ns > STUCK_MS * NS_PER_MS
            if is_stuck and len(self._stuck) < STUCK_MAX:
                self._round.remove(batch)
                self._stuck.append(batch)

    def _begin_round(self) -> bool:
        """Take due entries out of the lanes; return whether there are some."""
        now_ms, now_ns = self._clock.now_ms(), self._clock.monotonic_ns()
        taken: dict[Target, list[tuple[str, Entry, Record]]] = {}
        sizes: dict[Target, int] = {}
        count = size_bytes = 0
        dropped = 0
        while count < ROUND_RECORDS and size_bytes < ROUND_BYTES:
            lane = self._next_due(now_ms)
            if lane is None:
                break
            entry = lane.buffer[0]
            found = self._target(entry.waiting, now_ms)
            if found is None:
                lane.pop()
                dropped += 1
                continue
            target, limit_bytes = found
            if limit_bytes < 0:
                self._pause()
                break
            record = self._to_append(target[0], entry.waiting, now_ms)
            length_bytes = _length_bytes(record)
            used_bytes = sizes.get(target, HEADER_BYTES)
            if target in taken and used_bytes + length_bytes > limit_bytes:
                break
            if target not in self._producers and not self._new_producer(target):
                self._pause()
                break
            lane.pop()
            taken.setdefault(target, []).append((lane.level, entry, record))
            sizes[target] = used_bytes + length_bytes
            count += 1
            size_bytes += length_bytes
        if dropped:
            self._counts.dropped += dropped
            self._complain(f"{dropped} delayed records were dropped, because their topic was deleted")
        for target, entries in taken.items():
            producer_id, sequence = self._producers[target]
            delivery = Delivery(
                *target, producer_id, sequence, tuple((level, entry.offset) for level, entry, _ in entries)
            )
            self._round.append(Batch(delivery, [record for _, _, record in entries], now_ns=now_ns))
        if taken or dropped:
            self._must_write()
        return bool(taken or dropped)

    def _next_due(self, now_ms: int) -> Lane | None:
        """Return the lane whose first entry is due first, if it is due."""
        found: Lane | None = None
        found_ms = now_ms
        for lane in self.lanes:
            due_ms = lane.first_due(now_ms)
            if due_ms is not None and (due_ms < found_ms or (due_ms == found_ms and found is None)):
                found, found_ms = lane, due_ms
        return found

    def _target(self, waiting: Waiting, now_ms: int) -> tuple[Target, int] | None:
        """Return where an entry goes, and the largest batch there; None if its topic is gone; -1 if it must wait."""
        topic = self._topics.topic(waiting.topic_id)
        if topic is None or waiting.partition >= len(topic.partitions):
            return None
        left_ms = waiting.due_ms - now_ms
        if left_ms <= 0:
            target = waiting.topic_id, waiting.partition
            place = self._topics.place(topic, waiting.partition)
            if place is not None and self._logs.serves(place) and not self._is_stuck(target):
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
        return target, -1 if self._is_stuck(target) else self._topics.batch_bytes_max(place)

    def _is_stuck(self, target: Target) -> bool:
        return any(batch.target == target for batch in self._stuck)

    def _new_producer(self, target: Target) -> bool:
        producer_id = self._take_producer_id()
        if producer_id is None:
            return False
        self._producers[target] = producer_id, 0
        return True

    # Writing progress, and appending

    def _must_write(self) -> None:
        """Deliveries have changed: none begins before a state record names them all."""
        self._changes += 1
        self._is_written = False

    def _write(self) -> None:
        place = self._state_place()
        if place is None:
            self._pause()
            return
        open_batches = (*self._stuck, *self._round)
        changes = self._changes
        positions = {lane.level: lane.position for lane in self.lanes}
        # Levels that were taken out of the options keep their position.
        progress = Progress(
            self._progress.positions | positions, tuple(batch.delivery for batch in open_batches)
        )
        value = encode(progress)
        batch = encode_batch(
            [Record(value, str(self._partition).encode(), timestamp_ms=self._clock.now_ms())],
            leader_epoch=place.leader_epoch,
        )
        self._is_writing = True

        def done(error: int) -> None:
            self._is_writing = False
            if error:
                self._pause()
                return
            self._progress = progress
            self._is_written = self._changes == changes
            self._is_open_written = bool(progress.open)
            now_ns = self._clock.monotonic_ns()
            for each in self._round:
                each.since_ns = now_ns

        if not self._logs.append(place, batch, done, origin=AppendOrigin.CLIENT):
            self._is_writing = False
            self._pause()

    def _append(self, batch: Batch) -> None:
        now_ns = self._clock.monotonic_ns()
        if batch.is_asked or now_ns < batch.not_before_ns:
            return
        delivery = batch.delivery
        topic = self._topics.topic(delivery.topic_id)
        if topic is None:
            self._drop(batch, "their topic was deleted")
            return
        place = self._topics.place(topic, delivery.partition)
        if place is None or not self._logs.serves(place):
            batch.not_before_ns = now_ns + PAUSE_MS * NS_PER_MS
            return
        # The clock may have been set since the round began. A log knows a repeat by its number, not by its bytes.
        now_ms = self._clock.now_ms()
        encoded = encode_batch(
            [replace(record, timestamp_ms=now_ms) for record in batch.records],
            leader_epoch=place.leader_epoch,
            producer_id=delivery.producer_id,
            producer_epoch=_PRODUCER_EPOCH,
            base_sequence=delivery.sequence,
        )
        batch.is_asked = True
        if not self._logs.append(
            place, encoded, lambda error: self._appended(batch, error), origin=AppendOrigin.CLIENT
        ):
            batch.is_asked = False
            batch.not_before_ns = now_ns + PAUSE_MS * NS_PER_MS

    def _appended(self, batch: Batch, error: int) -> None:
        batch.is_asked = False
        if not error:
            delivery = batch.delivery
            known = self._producers.get(batch.target)
            if known is not None and known[0] == delivery.producer_id:
                self._producers[batch.target] = (
                    delivery.producer_id,
                    (delivery.sequence + len(batch.records)) & 0x7FFFFFFF,
                )
            self._counts.delivered += len(batch.records)
            self._close(batch)
        elif error in _FINAL and len(batch.records) == 1:
            self._drop(batch, f"the topic refuses them: {ErrorCode(error).name}")
        elif error in _FINAL:
            self._halve(batch)
        else:
            batch.not_before_ns = self._clock.monotonic_ns() + PAUSE_MS * NS_PER_MS
            if error in _OTHER_PRODUCER:
                self._change_producer(batch)

    def _change_producer(self, batch: Batch) -> None:
        """The log has not appended the batch: give it another number, and write that down first."""
        if not self._new_producer(batch.target):
            return
        producer_id, sequence = self._producers[batch.target]
        old = batch.delivery
        batch.delivery = Delivery(old.topic_id, old.partition, producer_id, sequence, old.records)
        self._must_write()

    def _halve(self, batch: Batch) -> None:
        """The log refuses the batch for some of its records: deliver each half by itself, and write that down first.

        Each half has a producer id of its own: the second one's sequence number depends on nothing that the log does
        with the first one. The halves take the place of the batch, and go to the log in their order.
        """
        now_ns = self._clock.monotonic_ns()
        first_id, second_id = self._take_producer_id(), self._take_producer_id()
        if first_id is None or second_id is None:
            batch.not_before_ns = now_ns + PAUSE_MS * NS_PER_MS
            return
        old, middle = batch.delivery, len(batch.records) // 2
        halves = (
            (first_id, old.records[:middle], batch.records[:middle]),
            (second_id, old.records[middle:], batch.records[middle:]),
        )
        place = self._round if batch in self._round else self._stuck
        at = place.index(batch)
        place[at : at + 1] = [
            Batch(Delivery(old.topic_id, old.partition, producer_id, 0, names), records, now_ns=now_ns)
            for producer_id, names, records in halves
        ]
        self._must_write()

    def _drop(self, batch: Batch, why: str) -> None:
        self._counts.dropped += len(batch.records)
        topic = self._topics.topic(batch.delivery.topic_id)
        name = str(batch.delivery.topic_id) if topic is None else topic.name
        self._complain(
            f"partition {name}-{batch.delivery.partition}: {len(batch.records)} delayed records were dropped, "
            f"because {why}"
        )
        self._close(batch)

    def _close(self, batch: Batch) -> None:
        if batch in self._round:
            self._round.remove(batch)
        else:
            self._stuck.remove(batch)

    # Forgetting

    def _trim(self) -> None:
        """Move the log starts up to what the last state record needs after a death."""
        now_ns = self._clock.monotonic_ns()
        if self._trims_under_way or now_ns < self._trim_ns:
            return
        self._trim_ns = now_ns + TRIM_MS * NS_PER_MS
        now_ms = self._clock.now_ms()
        needed = dict(self._progress.positions)
        for delivery in self._progress.open:
            for level, offset in delivery.records:
                needed[level] = min(needed.get(level, offset), offset)
        for lane in self.lanes:
            offset = min(lane.may_forget(now_ms), needed.get(lane.level, 0))
            place = self._topics.wait_place(lane.level, self._partition)
            if place is not None and offset > self._trimmed.get(lane.level, 0):
                self._trim_log(lane.level, place, offset)
        place = self._state_place()
        if place is not None and not self._is_writing:
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


def _records(read: Read) -> list[tuple[list[Record], int]]:
    """Return (records, next offset) of each batch. A batch that cannot be read counts as empty."""
    found = []
    for chunk in read.chunks:
        for batch in chunk.batches:
            records: list[Record] = []
            if not batch.is_control:
                try:
                    records = decode_records(memoryview(chunk.data)[batch.position : batch.end])
                except ApplianceError:
                    records = []
            found.append((records, batch.last_offset + 1))
    return found


def _length_bytes(record: Record) -> int:
    """Return about how long the record is in a batch, rather more."""
    headers = sum(4 * len(name) + len(value or b"") + 10 for name, value in record.headers)
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


assert ROUND_BYTES > OVERHEAD_BYTES
