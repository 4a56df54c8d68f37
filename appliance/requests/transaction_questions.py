"""Questions to a transaction coordinator on behalf of a client: do these partitions belong to the transaction?

    AddPartitionsToTxn 5, one transaction      frame in our own pool, to the coordinator as a client's would go
        verify_only    they were added before, by the client itself       Produce < 12, TxnOffsetCommit < 5
        otherwise      add them, unless they are there                    Produce 12+, TxnOffsetCommit 5
    its answer         an error for each partition, 0 if it belongs to the transaction

Before the coordinator answers 0 it has sent the owner of the partition the permit for the producer
(PERMIT_TRANSACTION), so what is placed after the answer meets it.

Every question is answered once: by the coordinator; with COORDINATOR_NOT_AVAILABLE where it is down, dies, nobody has
made its topic, or there is no room for the frame; with NETWORK_EXCEPTION after DEADLINE_MS. An addition that meets a
transition under way (CONCURRENT_TRANSACTIONS) is asked again every RETRY_MS, RETRIES_MS long, because the transaction
before is being completed right now and a client would wait longer (`add.partitions.to.txn.retry.backoff.ms`,
`.max.ms`).

Source: `AddPartitionsToTxnManager`, `ReplicaManager.handleProduceAppend` (KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from appliance.clock import NS_PER_MS, Clock
from appliance.ipc.agent import Timer, Timers
from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import decode_response
from appliance.requests.coordinator_lines import CoordinatorLines
from appliance.requests.own_request import hand_over_own
from appliance.requests.session import Session

RETRY_MS: Final = 20
RETRIES_MS: Final = 100
DEADLINE_MS: Final = 30_000
"""As Kafka's `request.timeout.ms` between brokers, and about as long as clients wait for an answer."""
LOOK_MS: Final = 1_000
VERSION: Final = 5

_CONCURRENT: Final = int(ErrorCode.CONCURRENT_TRANSACTIONS)
_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NETWORK: Final = int(ErrorCode.NETWORK_EXCEPTION)

Partitions = Sequence[tuple[str, int]]
Done = Callable[[Mapping[tuple[str, int], int]], None]
"""Takes the error of each partition that was asked for."""


class TransactionOf(NamedTuple):
    """Whose transaction is meant."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionQuestions:
    """The questions of one network process."""

    __slots__ = ("_asked", "_clock", "_is_armed", "_lines", "_pool", "_timers")

    def __init__(self, lines: CoordinatorLines, pool: BufferPool, timers: Timers, clock: Clock) -> None:
        self._lines = lines
        self._pool = pool
        self._timers = timers
        self._clock = clock
        self._asked: dict[_Question, int] = {}
        self._is_armed = False

    def __len__(self) -> int:
        return len(self._asked)

    def ask(
        self, session: Session, of: TransactionOf, partitions: Partitions, *, verify_only: bool, done: Done
    ) -> None:
        """Ask for `partitions` on behalf of `session`; `done` is called once, perhaps before this returns."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        wanted = AddPartitionsToTxnTransaction(
            of.transactional_id,
            of.producer_id,
            of.producer_epoch,
            verify_only,
            tuple(AddPartitionsToTxnTopic(topic, tuple(numbers)) for topic, numbers in by_topic.items()),
        )
        now_ns = self._clock.monotonic_ns()
        question = _Question(self, session, wanted, partitions, done=done, now_ns=now_ns)
        self._asked[question] = now_ns + DEADLINE_MS * NS_PER_MS
        self._look_later(now_ns)
        self.send(question)

    def send(self, question: _Question) -> None:
        """Put the question's frame onto the line of its coordinator."""
        if not self._lines.has_transactions:
            question.end(_NOT_AVAILABLE)
            return
        wanted = question.wanted
        request = AddPartitionsToTxnRequest(transactions=(wanted,))
        hand_over = partial(self._lines.ask, name=wanted.transactional_id, part=question.attempt())
        session = question.session
        if not hand_over_own(
            self._pool, session, ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, request, hand_over=hand_over
        ):
            question.end(_NOT_AVAILABLE)

    def at(self, due_ns: int, then: Callable[[], None]) -> Timer:
        """Call `then` at that time."""
        return self._timers.add(due_ns, then)

    def now_ns(self) -> int:
        return self._clock.monotonic_ns()

    def ended(self, question: _Question) -> None:
        """It has its answer."""
        del self._asked[question]

    def _look_later(self, now_ns: int) -> None:
        """One timer for all deadlines, because nearly every question is answered within milliseconds."""
        if self._asked and not self._is_armed:
            self._is_armed = True
            self._timers.add(now_ns + LOOK_MS * NS_PER_MS, self._look)

    def _look(self) -> None:
        self._is_armed = False
        now_ns = self._clock.monotonic_ns()
        for question, due_ns in list(self._asked.items()):
            if due_ns > now_ns:
                break  # they stand in the order in which they were asked
            question.end(_NETWORK)
        self._look_later(now_ns)


class _Question:
    """One that waits for its answer, or for its next attempt."""

    __slots__ = (
        "_attempt",
        "_done",
        "_partitions",
        "_questions",
        "_retries_until_ns",
        "_retry",
        "session",
        "wanted",
    )

    def __init__(
        self,
        questions: TransactionQuestions,
        session: Session,
        wanted: AddPartitionsToTxnTransaction,
        partitions: Partitions,
        *,
        done: Done,
        now_ns: int,
    ) -> None:
        self._questions = questions
        self._partitions = partitions
        self._done: Done | None = done
        self._retries_until_ns = 0 if wanted.verify_only else now_ns + RETRIES_MS * NS_PER_MS
        self._retry: Timer | None = None
        self._attempt: _Attempt | None = None
        self.session = session
        self.wanted = wanted

    def attempt(self) -> _Attempt:
        """Return where the answer to the frame goes that is sent now; those to older frames go nowhere."""
        made = self._attempt = _Attempt(self)
        return made

    def hear(self, attempt: _Attempt, frame: bytes) -> None:
        """The coordinator has answered, or `coordinator_line` in its stead; empty: the session has ended."""
        if attempt is not self._attempt:
            return
        if not frame:
            self.end(_NOT_AVAILABLE)
            return
        response = decode_response(ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, memoryview(frame))[1]
        if response.error_code:
            errors = dict.fromkeys(self._partitions, response.error_code)
        else:
            # A partition without an answer counts as not added.
            errors = dict.fromkeys(self._partitions, _NOT_AVAILABLE)
            for result in response.results_by_transaction:
                for topic in result.topic_results:
                    for each in topic.results_by_partition:
                        errors[topic.name, each.partition_index] = each.partition_error_code
        now_ns = self._questions.now_ns()
        if now_ns < self._retries_until_ns and not self.session.closed and _CONCURRENT in errors.values():
            self._attempt = None
            self._retry = self._questions.at(now_ns + RETRY_MS * NS_PER_MS, self._again)
            return
        self._finish(errors)

    def fault(self, attempt: _Attempt) -> None:
        """The coordinator could not read our frame."""
        if attempt is self._attempt:
            self.end(int(ErrorCode.UNKNOWN_SERVER_ERROR))

    def end(self, error: int) -> None:
        """No partition has another answer."""
        self._finish(dict.fromkeys(self._partitions, error))

    def _again(self) -> None:
        self._retry = None
        self._questions.send(self)

    def _finish(self, errors: Mapping[tuple[str, int], int]) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        self._attempt = None
        retry, self._retry = self._retry, None
        if retry is not None:
            retry.cancel()
        self._questions.ended(self)
        done(errors)


class _Attempt:
    """A `PartOfRequest`: takes the answer to one frame."""

    __slots__ = ("_question",)

    def __init__(self, question: _Question) -> None:
        self._question = question

    def answered(self, frame: bytes) -> None:
        self._question.hear(self, frame)

    def refused(self, _why: str) -> None:
        self._question.fault(self)

    @staticmethod
    def own(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnRequest:
        """Return the request, whose only transaction is this coordinator's."""
        return request
