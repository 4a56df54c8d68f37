"""TxnOffsetCommit 0-5: the transaction's coordinator is asked first, then the group's coordinator gets the frame.

    < 5    was the group's partition of `__consumer_offsets` added (AddOffsetsToTxn)?      verify
    5      add it                                                                          `transaction.version` 2
    then   the frame, as it came, to the group's coordinator, which appends the offsets as a transactional batch
    error  is the producer's transaction open in the partition (DESCRIBE_PRODUCER)?       the frame, as above
           otherwise                                                                      the error

The last question makes the answer Kafka's, which does not ask the transaction's coordinator where the transaction is
open already: there, it does not matter whose transactional id the request names, or whether that coordinator is up.
Only a request that would fail pays for it.

The leader of the partition checks that batch like any other: the coordinator has sent it the permit before it answered.

Where the client asks a slot that does not lead the partition, or where there is no such topic yet, the group's
coordinator gets the frame at once, because it refuses it.

Errors are the coordinator's (`told_to_producer`), on every partition that is there; NETWORK_EXCEPTION becomes
COORDINATOR_LOAD_IN_PROGRESS, which clients retry, and that one to versions below 2 as COORDINATOR_NOT_AVAILABLE
(KAFKA-7296). Partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION beside any of them; Kafka does not ask the
transaction's coordinator where there is no other one.

Source: `KafkaApis.handleTxnOffsetCommitRequest`, `GroupCoordinatorService.commitTransactionalOffsets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from appliance.channels.request_channel import (
    ANSWER_EPOCH,
    ERROR,
    FOUND_PRODUCER_ID,
    TRANSACTION_FIRST_OFFSET,
    Op,
    partition_request,
)
from appliance.channels.roles import Role
from appliance.cluster import CONSUMER_OFFSETS
from appliance.errors import MalformedFrame
from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartitionResponse,
    TxnOffsetCommitResponse,
    TxnOffsetCommitTopicResponse,
)
from appliance.protocol.coordinator_errors import told_to_committer, told_to_producer
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.group_requests import transactional_commit
from appliance.protocol.headers import RequestHeader
from appliance.protocol.messages import decode_request, encode_response
from appliance.requests.coordinator_lines import CoordinatorLines
from appliance.requests.log_handlers.finish import Finish, Refuse
from appliance.requests.session import Request
from appliance.requests.topic_routes import PartitionRoute, TopicRoutes
from appliance.requests.transaction_questions import TransactionOf, TransactionQuestions
from appliance.requests.worker_lines import Answer, WorkerClient

ADDS_FROM_VERSION: Final = 5
ABORTABLE_FROM_VERSION: Final = 4

_LOADING: Final = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_NETWORK: Final = int(ErrorCode.NETWORK_EXCEPTION)
_UNKNOWN_PARTITION: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class TransactionalCommits:
    """The TxnOffsetCommit requests of one network process."""

    __slots__ = ("_finish", "_lines", "_pool", "_questions", "_refuse", "_routes", "_workers")

    def __init__(
        self,
        routes: TopicRoutes,
        lines: CoordinatorLines,
        questions: TransactionQuestions,
        *,
        workers: WorkerClient,
        pool: BufferPool,
        finish: Finish,
        refuse: Refuse,
    ) -> None:
        self._routes = routes
        self._lines = lines
        self._questions = questions
        self._workers = workers
        self._pool = pool
        self._finish = finish
        self._refuse = refuse

    def begin(self, pending: Request, view: memoryview, header: RequestHeader, start: int, end: int) -> None:
        """Take the request whose frame is view[start:end]. Its block is held until the group's coordinator has it.

        Raises:
            MalformedFrame: the body does not parse.
        """
        named = transactional_commit(pending.version, view, header.body_position, end)
        commit = _Commit(
            pending, start, header.body_position, end, named.group_id, named.producer_id, named.producer_epoch
        )
        partition = self._partition_of(named.group_id)
        if partition is None or partition.leader != pending.session.slot:
            self._hand_over(commit)
            return
        name = (CONSUMER_OFFSETS, partition.partition)
        self._questions.ask(
            pending.session,
            TransactionOf(named.transactional_id, named.producer_id, named.producer_epoch),
            (name,),
            verify_only=pending.version < ADDS_FROM_VERSION,
            done=partial(self._told, commit),
        )

    def _partition_of(self, group_id: str) -> PartitionRoute | None:
        topic = self._routes.by_name(CONSUMER_OFFSETS)
        if topic is None:
            return None
        return topic.partition(group_partition(group_id, len(topic.image.partitions)))

    def _told(self, commit: _Commit, errors: Mapping[tuple[str, int], int]) -> None:
        """The transaction's coordinator has answered."""
        (error,) = errors.values()
        if not error or commit.pending.session.closed or not self._look(commit, error):
            self._go_on(commit, error)

    def _look(self, commit: _Commit, error: int) -> bool:
        """Ask the owner of the group's partition whether the producer has a transaction open there.

        False: there is nobody to ask.
        """
        route = self._partition_of(commit.group_id)
        if route is None or route.worker is None:
            return False
        look = _Look(self, commit, error)
        operation = partition_request(
            Op.DESCRIBE_PRODUCER,
            request_id=self._workers.enter(look),
            row=route.row,
            incarnation=route.incarnation,
            offset=commit.producer_id,
        )
        if self._workers.place(route.worker, operation):
            return True
        self._workers.leave(look)
        return False

    def looked(self, look: _Look, *, is_open: bool) -> None:
        """The owner has answered, or is gone."""
        self._workers.leave(look)
        self._go_on(look.commit, 0 if is_open else look.error)

    def _go_on(self, commit: _Commit, error: int) -> None:
        """Answer the request with `error`, or hand it over if there is none."""
        pending = commit.pending
        if pending.session.closed:
            self._finish(pending, [])
            return
        try:
            if error:
                self._fail(commit, error)
            else:
                self._hand_over(commit)
        except MalformedFrame as fault:
            pending.give_block(self._pool)
            self._refuse(pending, str(fault))

    def _hand_over(self, commit: _Commit) -> None:
        pending = commit.pending
        block = pending.block
        assert block is not None
        self._lines.begin(pending, block.view, commit.position, commit.end, start=commit.start)
        pending.give_block(self._pool)

    def _fail(self, commit: _Commit, error: int) -> None:
        """Answer with what the transaction's coordinator has said, but of partitions that are not there."""
        pending = commit.pending
        version, block = pending.version, pending.block
        assert block is not None
        request = decode_request(pending.api_key, version, block.view, commit.position, commit.end)
        told = told_to_producer(error, knows_fenced=False, knows_abortable=version >= ABORTABLE_FROM_VERSION)
        told = told_to_committer(_LOADING if told == _NETWORK else told, version)
        response = TxnOffsetCommitResponse(
            tuple(
                TxnOffsetCommitTopicResponse(
                    topic.name,
                    tuple(
                        TxnOffsetCommitPartitionResponse(
                            each.partition_index,
                            told if self._is_there(topic.name, each.partition_index) else _UNKNOWN_PARTITION,
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )
        self._finish(pending, [encode_response(pending.api_key, version, response, pending.correlation_id)])

    def _is_there(self, name: str, partition: int) -> bool:
        topic = self._routes.by_name(name)
        return topic is not None and topic.partition(partition) is not None


class _Commit(NamedTuple):
    """A request, and where in its block the frame begins, the body begins, and both end."""

    pending: Request
    start: int
    position: int
    end: int
    group_id: str
    producer_id: int
    producer_epoch: int


class _Look:
    """A question to the owner of a partition. `error` is the answer where no transaction is open.

    It is an `AnswerListener` of `worker_lines`.
    """

    __slots__ = ("_commits", "commit", "error", "request_id")

    def __init__(self, commits: TransactionalCommits, commit: _Commit, error: int) -> None:
        self._commits = commits
        self.commit = commit
        self.error = error
        self.request_id = 0

    def answered(self, answer: Answer) -> None:
        commit = self.commit
        is_open = (
            not answer[ERROR]
            and answer[FOUND_PRODUCER_ID] == commit.producer_id
            and answer[ANSWER_EPOCH] == commit.producer_epoch
            and answer[TRANSACTION_FIRST_OFFSET] >= 0
        )
        self._commits.looked(self, is_open=is_open)

    def worker_lost(self, _worker: Role) -> None:
        self._commits.looked(self, is_open=False)
