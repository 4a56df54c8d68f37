"""The part of Produce that takes delayed records out of a batch, and stores them (docs/delayed-delivery.md).

    batch ─ divide ─→ kept batch ─→ owner of the partition ─ base offset ─→ delayed records ─→ internal topics ─→ answer

The kept batch goes first, for two reasons. Its answer has the offset by which each delayed record is known from then
on. And the log recognizes a batch that is sent again: the answer is then the one of the first time, and the same
delayed records are stored again under the same offsets. The services process recognizes them by the sequence number of
their batch, and drops them (decision 0120).

The delayed records of a level are stored in batches of at most `arriving.STORED_BYTES`, one after the other, so that
what is stored of a batch is always its beginning.

Once the kept batch is in the log, a producer with sequence numbers gets no error any more: what fails is stored again
until it succeeds. librdkafka takes the success of a batch for that of all batches before it, because their sequence
numbers are in the log. Answers of a connection leave in the order of its requests, so a later success waits for this
one. A client that has waited too long connects again and sends the batches again, in order.

Delayed records of a transaction go to `__delayed_transactions`, as records of the same transaction. So its markers
decide about them, whichever process dies, and the services process passes on those that are committed.

    placed ─→ the transaction is open there, or permitted: appended
           └→ NOT_PERMITTED ─→ the coordinator adds the partition, if the transaction has the one to which the records
                               were produced ─→ placed again
                                             └→ the transaction has ended: the client gets an error

They have no sequence numbers there, because records of one producer come through several network processes. What comes
twice is recognized as above. A client commits when all its batches are answered, so all that is committed was stored.

Only a topic with `delivery.delay.enable` comes here. A thousand delayed records take this process about a millisecond
where it is compiled (`benchmarks/micro/delayed_batch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from appliance.channels.request_channel import (
    CONNECTION_LIMIT,
    ERROR,
    REJECT_REASON,
    RejectReason,
    RequestFlag,
    produce_request,
)
from appliance.channels.roles import Role
from appliance.clock import Clock
from appliance.config import BrokerConfigs, Settings, effective_topic_configs
from appliance.delivery.arriving import pieces_of, redirected_pieces_of, set_levels
from appliance.delivery.division import Division, RefusedDelay, Rules, divide
from appliance.delivery.levels import Levels
from appliance.delivery.waiting import delay_partition
from appliance.ipc.agent import Timers
from appliance.ipc.buffer_pool import Block, BufferPool
from appliance.ipc.doorbell import Doorbell
from appliance.protocol.coordinator_errors import told_to_producer
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTIONAL
from appliance.protocol.records.record import frame_batch
from appliance.requests.session import Request
from appliance.requests.topic_routes import PartitionRoute, TopicRoute, TopicRoutes
from appliance.requests.transaction_questions import TransactionOf, TransactionQuestions
from appliance.requests.worker_lines import Answer, WorkerClient
from appliance.retries.handed_back import hand_back
from appliance.retries.rules import (
    DeadLetters,
    RetryRules,
    dead_letters_name,
    is_retry_topic,
    rules_of,
    source_name,
    takes_dead_letters_of,
)

STORE_TIMEOUT_MS: Final = 5_000
AGAIN_MS: Final = 100
"""The pause before records are stored again."""
_API_VERSION: Final = 9
_ACKS_ALL: Final = -1
_NOT_AVAILABLE: Final = int(ErrorCode.LEADER_NOT_AVAILABLE)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)
_UNKNOWN_TOPIC: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_INVALID_TIMESTAMP: Final = int(ErrorCode.INVALID_TIMESTAMP)
_NOT_PERMITTED: Final = int(RejectReason.NOT_PERMITTED)
_COORDINATOR_ORIGIN: Final = int(RequestFlag.COORDINATOR_ORIGIN)
_ABORTABLE_FROM_VERSION: Final = 11
_TRANSACTION_OVER: Final = frozenset(
    map(
        int,
        (
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.TRANSACTION_ABORTABLE,
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ),
    )
)
"""The records are not part of an open transaction of their producer, so nobody can commit them."""

Where = tuple[int, UUID, int]
"""A level, and the topic and partition to which records of it are to be delivered."""
Stored = Callable[[int], None]
"""Gets 0 when all delayed records are stored, or an error code."""


class Divided(NamedTuple):
    """A batch whose kept part lies in `block`, `length_bytes` of it.

    It has all that storing needs: when the kept part is answered, the topic may be gone.
    """

    route: PartitionRoute
    division: Division
    block: Block
    length_bytes: int


class DelayedRecords:
    """One network process's part in delayed delivery.

    Args:
        bells: those of the services processes; none if there is no such process.

    `stored`, `handed_back` and `dead` count records: all that were stored, those among them that consumers have handed
    back and get again, and those that are dead letters. What a client sends again counts again.
    """

    __slots__ = (
        "_bells",
        "_clock",
        "_levels",
        "_lines",
        "_pool",
        "_questions",
        "_retries",
        "_routes",
        "_rules",
        "_settings",
        "_timers",
        "_version",
        "dead",
        "handed_back",
        "stored",
    )

    def __init__(
        self,
        routes: TopicRoutes,
        lines: WorkerClient,
        settings: Settings,
        *,
        pool: BufferPool,
        clock: Clock,
        bells: Sequence[Doorbell],
        timers: Timers,
        questions: TransactionQuestions,
    ) -> None:
        self._questions = questions
        self._routes = routes
        self._lines = lines
        self._settings = settings
        self._pool = pool
        self._clock = clock
        self._bells = tuple(bells)
        self._timers = timers
        self._levels = Levels(settings.services.delay_levels, settings.services.delay_exact_levels)
        self._rules: dict[tuple[str, int], Rules] = {}
        self._retries: dict[tuple[str, int], RetryRules] = {}
        self._version = -1
        self.stored = self.handed_back = self.dead = 0

    def divide(self, route: PartitionRoute, batch: memoryview) -> Divided | None:
        """Return the divided batch; None if it has no delayed record. Its block is the caller's: `give` it.

        Raises:
            RefusedDelay: the batch is to be refused.
        """
        rules = self._rules_of(route)
        try:
            retry = self._retries.get((route.topic, route.leader))
            now_ms = self._clock.now_ms()
            division = (
                divide(batch, rules, now_ms=now_ms)
                if retry is None
                else hand_back(batch, rules, retry, now_ms=now_ms)
            )
        except RefusedDelay:
            raise
        except (
            Exception
        ) as error:  # a defect costs this batch only: its request is answered and gives its block
            raise RefusedDelay(
                0, ErrorCode.UNKNOWN_SERVER_ERROR, f"the batch could not be divided: {error!r}"
            ) from error
        if division is None:
            return None
        first = division.delayed[0].index
        if not self._bells:
            raise RefusedDelay(
                first, ErrorCode.POLICY_VIOLATION, "the appliance runs without services.processes"
            )
        # What is handed back has exact delays.
        is_exact = rules.is_exact or bool(division.redirected)
        levels = set_levels(
            division.delayed, self._levels, is_exact=is_exact, is_transactional=division.is_transactional
        )
        if any(self._place(level, route.topic_id, route.partition) is None for level in levels):
            # Before anything is appended. The services process creates the topics, and may not know yet that it must.
            self.wake()
            raise RefusedDelay(
                first, ErrorCode.LEADER_NOT_AVAILABLE, "the topics for delayed records are not available yet"
            )
        block = self._pool.take(len(division.kept))
        if block is None:
            raise RefusedDelay(
                first, ErrorCode.NOT_ENOUGH_REPLICAS, "no memory is free for a batch with delayed records"
            )
        block.view[: len(division.kept)] = division.kept
        return Divided(route, division, block, len(division.kept))

    def give(self, divided: Divided) -> None:
        """Give the block of a kept batch back; its worker has answered, or is dead, or has not got it."""
        self._pool.give(divided.block)

    def store(
        self,
        divided: Divided,
        base_offset: int,
        pending: Request,
        stored: Stored,
        *,
        transactional_id: str | None,
    ) -> None:
        """Store the delayed records of a batch that was appended at `base_offset`.

        Args:
            transactional_id: as the request names it.
        """
        storing = _Storing(self, divided, base_offset, pending, stored, transactional_id=transactional_id)
        storing.go_on()

    def batches(self, divided: Divided, base_offset: int) -> list[tuple[Where, bytes]]:
        """Return (where, batch) of what is to be stored, in the order of the records."""
        route, division, now_ms = divided.route, divided.division, self._clock.now_ms()
        origin = division.origin
        if division.redirected:
            found = redirected_pieces_of(division.delayed, division.redirected, route.partition, base_offset)
        else:
            levels = pieces_of(division.delayed, route.topic_id, route.partition, base_offset, origin)
            found = {(level, route.topic_id, route.partition): some for level, some in levels.items()}
        is_part = division.is_transactional
        return [
            (
                where,
                frame_batch(
                    payload,
                    count=count,
                    attributes=TRANSACTIONAL if is_part else 0,
                    base_timestamp_ms=now_ms,
                    max_timestamp_ms=now_ms,
                    producer_id=origin.producer_id if is_part else NO_PRODUCER_ID,
                    producer_epoch=origin.producer_epoch if is_part else NO_PRODUCER_EPOCH,
                ),
            )
            for where, pieces in found.items()
            for count, payload in pieces.done
        ]

    def append(self, storing: _Storing, where: Where, batch: bytes) -> int:
        """Place one batch; 0, or an error code if it was not placed."""
        place = self._place(*where)
        if place is None or place.worker is None:
            return _NOT_AVAILABLE
        block = self._pool.take(len(batch))
        if block is None:
            return _NOT_AVAILABLE
        block.view[: len(batch)] = batch
        operation = produce_request(
            self._lines.enter(storing),
            0,
            place.row,
            place.incarnation,
            _COORDINATOR_ORIGIN if storing.divided.division.is_transactional else 0,
            _ACKS_ALL,
            block.position,
            len(batch),
            _API_VERSION,
            STORE_TIMEOUT_MS,
            storing.pending.session.connection_id % CONNECTION_LIMIT,
        )
        if not self._lines.place(place.worker, operation):
            self._lines.leave(storing)
            self._pool.give(block)
            return _NOT_LEADER
        storing.block, storing.worker = block, place.worker
        return 0

    def ask(self, storing: _Storing, transactional_id: str) -> None:
        """Ask the transaction coordinator to add the partition of `__delayed_transactions`."""
        route, origin = storing.divided.route, storing.divided.division.origin
        place = self._place(self._levels.transactions, route.topic_id, route.partition)
        if place is None:
            storing.told(_NOT_AVAILABLE, 0)
            return
        own, added = (route.topic, route.partition), (place.topic, place.partition)

        def done(errors: Mapping[tuple[str, int], int]) -> None:
            storing.told(errors[added], errors[own])

        self._questions.ask(
            storing.pending.session,
            TransactionOf(transactional_id, origin.producer_id, origin.producer_epoch),
            (own, added),
            verify_only=True,
            done=done,
        )

    def count(self, division: Division) -> None:
        """All delayed records of a batch are stored."""
        dead = sum(each.is_dead for each in division.redirected)
        self.stored += len(division.delayed)
        self.handed_back += len(division.redirected) - dead
        self.dead += dead

    def later(self, action: Callable[[], None]) -> None:
        """Call `action` after AGAIN_MS."""
        self._timers.after_ms(AGAIN_MS, action)

    def settle(self, storing: _Storing) -> None:
        """The worker has answered, or is dead."""
        self._lines.leave(storing)
        if storing.block is not None:
            self._pool.give(storing.block)
            storing.block = None

    def wake(self) -> None:
        """Wake the services processes: there are new delayed records."""
        for bell in self._bells:
            bell.wake()

    def _place(self, level: int, topic_id: UUID, partition: int) -> PartitionRoute | None:
        topic = self._routes.by_name(self._levels.topics[level])
        if topic is None:
            return None
        partitions = len(topic.image.partitions)
        return topic.partition(delay_partition(topic_id, partition, partitions))

    def _rules_of(self, route: PartitionRoute) -> Rules:
        """Look the topic's settings up, once for each metadata image.

        Raises:
            RefusedDelay: there is no such topic any more.
        """
        if self._version != self._routes.version:
            self._version = self._routes.version
            self._rules.clear()
            self._retries.clear()
        key = route.topic, route.leader
        rules = self._rules.get(key)
        if rules is None:
            rules = self._rules[key] = self._read_rules(route)
        return rules

    def _read_rules(self, route: PartitionRoute) -> Rules:
        image, topic = self._routes.image, self._routes.by_name(route.topic)
        if image is None or topic is None or topic.image.topic_id != route.topic_id:
            raise RefusedDelay(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        broker = BrokerConfigs.of(image.broker_configs, route.leader)
        configs = effective_topic_configs(self._settings, topic.image.configs, broker)
        message_bytes_max = int(configs["max.message.bytes"])
        if is_retry_topic(configs):
            self._retries[route.topic, route.leader] = self._read_retries(route, configs, topic)
        return Rules(
            message_bytes_max,
            min(
                message_bytes_max * int(configs["decompressed.ratio.max"]),
                self._settings.broker.max_decompressed_message_bytes,
            ),
            "compact" in configs["cleanup.policy"].split(","),
            configs["delivery.delay.mode"] == "exact",
            self._settings.services.delay_max_ms,
        )

    def _read_retries(
        self, route: PartitionRoute, configs: Mapping[str, str], topic: TopicRoute
    ) -> RetryRules:
        found = self._routes.by_name(dead_letters_name(configs))
        takes = found is not None and takes_dead_letters_of(found.image.configs, route.topic)
        dead_letters = (
            DeadLetters(found.image.topic_id, len(found.image.partitions))
            if found is not None and takes and not found.image.internal
            else None
        )
        source = self._routes.by_name(source_name(configs))
        return rules_of(
            route.topic,
            route.topic_id,
            len(topic.image.partitions),
            configs,
            dead_letters,
            source_id="" if source is None else str(source.image.topic_id),
        )


class _Storing:
    """The delayed records of one batch on their way: an `AnswerListener`."""

    __slots__ = (
        "_base_offset",
        "_delayed",
        "_has_asked",
        "_left",
        "_stored",
        "_transactional_id",
        "block",
        "divided",
        "pending",
        "request_id",
        "worker",
    )

    def __init__(
        self,
        delayed: DelayedRecords,
        divided: Divided,
        base_offset: int,
        pending: Request,
        stored: Stored,
        *,
        transactional_id: str | None,
    ) -> None:
        self._delayed = delayed
        self._stored = stored
        self._transactional_id = transactional_id
        self._has_asked = False
        self._base_offset = base_offset
        self._left = delayed.batches(divided, base_offset)
        self.divided = divided
        self.pending = pending
        self.request_id = 0
        self.block: Block | None = None
        self.worker: Role | None = None

    def go_on(self) -> None:
        """Place the next batch, or end."""
        if not self._left:
            self._delayed.count(self.divided.division)
            self._delayed.wake()
            self._stored(0)
            return
        where, batch = self._left[0]
        error = self._delayed.append(self, where, batch)
        if error:
            self._fail(error)

    def answered(self, answer: Answer) -> None:
        if answer[ERROR] and answer[REJECT_REASON] == _NOT_PERMITTED and self._transactional_id is not None:
            self._delayed.settle(self)
            self.worker = None
            self._delayed.ask(self, self._transactional_id)
        else:
            self._ended(answer[ERROR])

    def told(self, error: int, own_error: int) -> None:
        """The transaction coordinator has answered.

        Args:
            error: of the partition for delayed records; `own_error`: of the one to which they were produced.
        """
        if own_error == _UNKNOWN_TOPIC:
            self._stored(own_error)
        elif error or own_error:
            self._fail(error or own_error)
        elif self._has_asked:  # the permit was lost, because the leader has changed
            self._delayed.later(self.go_on)
        else:
            self._has_asked = True
            self.go_on()

    def worker_lost(self, worker: Role) -> None:
        if worker == self.worker:
            self._ended(_TIMED_OUT)

    def _ended(self, error: int) -> None:
        self._delayed.settle(self)
        self.worker = None
        if error:
            self._fail(error)
        else:
            del self._left[0]
            self.go_on()

    def _fail(self, error: int) -> None:
        """Store it again, if its producer has sequence numbers, by which records that come twice are recognized."""
        if self.divided.division.is_transactional and error in _TRANSACTION_OVER:
            knows_abortable = self.pending.version >= _ABORTABLE_FROM_VERSION
            self._stored(told_to_producer(error, knows_fenced=False, knows_abortable=knows_abortable))
        elif self.divided.division.origin.producer_id < 0 or self.pending.session.closed:
            self._stored(error)
        else:
            if error == _INVALID_TIMESTAMP:  # the clock was set back by hours since the records were made
                self._left = self._delayed.batches(self.divided, self._base_offset)[-len(self._left) :]
            self._delayed.later(self.go_on)
