"""The deliveries that a forwarder has begun: appends them until each has its outcome.

    begin ─→ named by a state record ─→ append ─→ answered: closed
                                          │ ├ refused for good: dropped, or halved if others are in the batch
                                          │ └ outcome not known: appended again under the same number
                                          └ not answered for STUCK_MS: beside the round, which goes on without it

A delivery is one batch for one partition, with a producer id and a sequence number. The log recognizes it when it is
appended again (decision 0120). To each target only one is appended at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from appliance.channels.traffic_table import BUCKETS_NS, HISTOGRAM_WORDS, bucket_of
from appliance.clock import NS_PER_MS, Clock
from appliance.delivery.stored import batch_of
from appliance.log.producer_state import AppendOrigin
from appliance.partition_access.access import PartitionAccess
from appliance.protocol.errors import ErrorCode
from appliance.services.complaints import Drops
from appliance.services.delay_topics import DelayTopics
from appliance.services.progress import Delivery
from appliance.services.state_log import PAUSE_MS

STUCK_MS: Final = 2_000
PRODUCERS_MIN: Final = 1_000
"""Targets whose producer ids are kept without a look whether their topics are still there."""
STUCK_MAX: Final = 64
"""So many deliveries may be open beside the round; with more, the round waits for them."""

TOPIC_DELETED: Final = "their topic was deleted"
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
_PRODUCER_EPOCH: Final = 0

Target = tuple[UUID, int]
"""The id of a topic, and a partition."""


class Batch:
    """A delivery and the tails of its records (`delivery.stored`), which lie in memory until the log has answered.


    `due_ms`: when each record was due; empty if they go to a level, where they wait on.
    """

    __slots__ = ("delivery", "due_ms", "is_asked", "not_before_ns", "records", "since_ns")

    def __init__(
        self, delivery: Delivery, records: list[bytes], due_ms: Sequence[int], *, now_ns: int
    ) -> None:
        self.delivery = delivery
        self.records = records
        self.due_ms = due_ms
        self.since_ns = now_ns
        self.not_before_ns = 0
        self.is_asked = False

    @property
    def target(self) -> Target:
        return self.delivery.topic_id, self.delivery.partition


class Counts:
    """What all forwarders of a process have done since its start.

    `lateness`: a histogram in nanoseconds, as `channels.traffic_table` draws it, of what `take_lateness` has not taken.
    """

    __slots__ = ("cancelled", "delivered", "drops", "lateness")

    def __init__(self) -> None:
        self.cancelled = 0
        self.delivered = 0
        self.drops = Drops()
        self.lateness = [0] * HISTOGRAM_WORDS

    @property
    def dropped(self) -> int:
        """How many records were dropped."""
        return self.drops.total

    def delivered_at(self, now_ms: int, due_ms: Sequence[int]) -> None:
        """Records that were due at these times are in their topic now. A clock that was set back makes none early."""
        self.delivered += len(due_ms)
        lateness = self.lateness
        bucket = count = total_ns = 0
        above_ns = up_to_ns = -1
        for each in due_ms:
            late_ns = now_ms - each
            late_ns = late_ns * NS_PER_MS if late_ns > 0 else 0
            total_ns += late_ns
            if above_ns < late_ns <= up_to_ns:  # as the one before
                count += 1
                continue
            lateness[bucket] += count
            bucket, count = bucket_of(late_ns), 1
            above_ns = BUCKETS_NS[bucket - 2] if bucket > 1 else -1
            up_to_ns = BUCKETS_NS[bucket - 1] if bucket <= len(BUCKETS_NS) else late_ns
        lateness[bucket] += count
        lateness[0] += total_ns

    def take_lateness(self, cells: memoryview) -> None:
        """Add the histogram to shared memory, and begin again with zeros.

        Args:
            cells: int64 words, of which this process is the only writer.
        """
        for place, amount in enumerate(self.lateness):
            if amount:
                cells[place] += amount
                self.lateness[place] = 0


class Deliveries:
    """Args:
    take_producer_id: a fresh one, or None if none is there yet.
    changed: called when a state record must name the deliveries before another one begins.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_counts",
        "_logs",
        "_producers",
        "_producers_room",
        "_round",
        "_stuck",
        "_take_producer_id",
        "_topics",
    )

    def __init__(
        self,
        topics: DelayTopics,
        logs: PartitionAccess,
        *,
        clock: Clock,
        take_producer_id: Callable[[], int | None],
        counts: Counts,
        changed: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._clock = clock
        self._take_producer_id = take_producer_id
        self._counts = counts
        self._changed = changed
        self._round: list[Batch] = []
        self._stuck: list[Batch] = []
        self._producers: dict[Target, tuple[int, int]] = {}
        self._producers_room = PRODUCERS_MIN

    # What is open

    def __len__(self) -> int:
        return len(self._round) + len(self._stuck)

    @property
    def records(self) -> int:
        """How many records they have."""
        return sum(len(batch.records) for batch in (*self._stuck, *self._round))

    def first_due_ms(self) -> int | None:
        """Return when the first record was due; None if no record is on its way to its topic."""
        return min((each for batch in (*self._stuck, *self._round) for each in batch.due_ms), default=None)

    @property
    def has_round(self) -> bool:
        """Whether a delivery of the round is open. Those that are stuck do not count."""
        return bool(self._round)

    @property
    def has_stuck(self) -> bool:
        return bool(self._stuck)

    @property
    def is_asked(self) -> bool:
        """Whether an answer of a log is outstanding."""
        return any(batch.is_asked for batch in (*self._round, *self._stuck))

    def is_stuck(self, target: Target) -> bool:
        """Whether an earlier round's delivery to the target is open."""
        return any(batch.target == target for batch in self._stuck)

    def names(self) -> tuple[Delivery, ...]:
        """Return what a state record says of them."""
        return tuple(batch.delivery for batch in (*self._stuck, *self._round))

    def waits_ms(self) -> list[int]:
        """Return in how many milliseconds each one that waits may be appended again."""
        now_ns = self._clock.monotonic_ns()
        return [
            max(batch.not_before_ns - now_ns, 0) // NS_PER_MS + 1
            for batch in self._first_of_targets()
            if not batch.is_asked
        ]

    # Beginning

    def may_begin(self, target: Target) -> bool:
        """Return whether the target has a producer id."""
        return target in self._producers or self._new_producer(target)

    def begin(
        self,
        target: Target,
        names: tuple[tuple[str, int], ...],
        records: list[bytes],
        due_ms: Sequence[int],
    ) -> None:
        """Open a delivery; `may_begin` has said that it may. A state record must name it before it is appended.

        Args:
            due_ms: when each record was due; empty if the target is a level.
        """
        producer_id, sequence = self._producers[target]
        self.repeat(Delivery(*target, producer_id, sequence, names), records, due_ms)

    def repeat(self, delivery: Delivery, records: list[bytes], due_ms: Sequence[int]) -> None:
        """Go on with a delivery that a state record names. Arguments as of `begin`."""
        self._round.append(Batch(delivery, records, due_ms, now_ns=self._clock.monotonic_ns()))

    def written(self) -> None:
        """A state record names them all: from now on they can become stuck."""
        now_ns = self._clock.monotonic_ns()
        for each in self._round:
            each.since_ns = now_ns

    # Appending

    def append(self) -> None:
        """Append what may be appended now."""
        for batch in self._first_of_targets():
            self._append(batch)
        self._set_stuck_aside()

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

    def _append(self, batch: Batch) -> None:
        now_ns = self._clock.monotonic_ns()
        if batch.is_asked or now_ns < batch.not_before_ns:
            return
        delivery = batch.delivery
        topic = self._topics.topic(delivery.topic_id)
        if topic is None:
            self._drop(batch, TOPIC_DELETED)
            return
        place = self._topics.place(topic, delivery.partition)
        if place is None or not self._logs.serves(place):
            batch.not_before_ns = now_ns + PAUSE_MS * NS_PER_MS
            return
        # The clock may have been set since the round began. A log knows a repeat by its number, not by its bytes.
        now_ms = self._clock.now_ms()
        encoded = batch_of(
            batch.records,
            now_ms=now_ms,
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
            self._counts.delivered_at(self._clock.now_ms(), batch.due_ms)
            self._close(batch)
        elif error in _FINAL and len(batch.records) == 1:
            self._drop(batch, f"the topic refuses them: {ErrorCode(error).name}")
        elif error in _FINAL:
            self._halve(batch)
        else:
            batch.not_before_ns = self._clock.monotonic_ns() + PAUSE_MS * NS_PER_MS
            if error in _OTHER_PRODUCER:
                self._change_producer(batch)

    # After a refusal

    def _new_producer(self, target: Target) -> bool:
        producer_id = self._take_producer_id()
        if producer_id is None:
            return False
        if len(self._producers) >= self._producers_room:
            self._forget_deleted_topics()
        self._producers[target] = producer_id, 0
        return True

    def _forget_deleted_topics(self) -> None:
        """Otherwise topics that come and go take memory for ever. Deliveries that are open have their own number."""
        topics = self._topics
        self._producers = {
            target: each for target, each in self._producers.items() if topics.topic(target[0]) is not None
        }
        self._producers_room = max(PRODUCERS_MIN, 2 * len(self._producers))

    def _change_producer(self, batch: Batch) -> None:
        """The log has not appended the batch: give it another number, and write that down first."""
        if not self._new_producer(batch.target):
            return
        producer_id, sequence = self._producers[batch.target]
        old = batch.delivery
        batch.delivery = Delivery(old.topic_id, old.partition, producer_id, sequence, old.records)
        self._changed()

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
            (first_id, old.records[:middle], batch.records[:middle], batch.due_ms[:middle]),
            (second_id, old.records[middle:], batch.records[middle:], batch.due_ms[middle:]),
        )
        place = self._round if batch in self._round else self._stuck
        at = place.index(batch)
        place[at : at + 1] = [
            Batch(
                Delivery(old.topic_id, old.partition, producer_id, 0, names), records, due_ms, now_ns=now_ns
            )
            for producer_id, names, records, due_ms in halves
        ]
        self._changed()

    def _drop(self, batch: Batch, why: str) -> None:
        topic = self._topics.topic(batch.delivery.topic_id)
        name = str(batch.delivery.topic_id) if topic is None else topic.name
        self._counts.drops.add(len(batch.records), why, place=(name, batch.delivery.partition))
        self._close(batch)

    def _close(self, batch: Batch) -> None:
        if batch in self._round:
            self._round.remove(batch)
        else:
            self._stuck.remove(batch)
