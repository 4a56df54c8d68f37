"""TxnOffsetCommit 0-5: the transaction's coordinator is asked first, then the group's coordinator gets the frame.

    < 5    was the group's partition of `__consumer_offsets` added (AddOffsetsToTxn)?      verify
    5      add it                                                                          `transaction.version` 2
    then   the frame, as it came, to the group's coordinator, which appends the offsets as a transactional batch

The leader of the partition checks that batch like any other: the coordinator has sent it the permit before it answered.

Where the client asks a slot that does not lead the partition, or where there is no such topic yet, the group's
coordinator gets the frame at once, because it refuses it.

Errors are the coordinator's (`told_to_producer`), on every partition; NETWORK_EXCEPTION becomes
COORDINATOR_LOAD_IN_PROGRESS, which clients retry, and that one to versions below 2 as COORDINATOR_NOT_AVAILABLE
(KAFKA-7296). Where Kafka first answers UNKNOWN_TOPIC_OR_PARTITION for topics that do not exist, the group's coordinator
does so here, behind the question.

Source: `KafkaApis.handleTxnOffsetCommitRequest`, `GroupCoordinatorService.commitTransactionalOffsets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from appliance.cluster import CONSUMER_OFFSETS
from appliance.errors import MalformedFrame
from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.coordinator_errors import coordinator_error_response, told_to_producer
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.group_requests import transactional_commit
from appliance.protocol.headers import RequestHeader
from appliance.protocol.messages import decode_request, encode_response
from appliance.requests.coordinator_lines import CoordinatorLines
from appliance.requests.log_handlers.finish import Finish, Refuse
from appliance.requests.session import Request
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.transaction_questions import TransactionOf, TransactionQuestions

ADDS_FROM_VERSION: Final = 5
ABORTABLE_FROM_VERSION: Final = 4

_LOADING: Final = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_NETWORK: Final = int(ErrorCode.NETWORK_EXCEPTION)


class TransactionalCommits:
    """The TxnOffsetCommit requests of one network process."""

    __slots__ = ("_finish", "_lines", "_pool", "_questions", "_refuse", "_routes")

    def __init__(
        self,
        routes: TopicRoutes,
        lines: CoordinatorLines,
        questions: TransactionQuestions,
        *,
        pool: BufferPool,
        finish: Finish,
        refuse: Refuse,
    ) -> None:
        self._routes = routes
        self._lines = lines
        self._questions = questions
        self._pool = pool
        self._finish = finish
        self._refuse = refuse

    def begin(self, pending: Request, view: memoryview, header: RequestHeader, start: int, end: int) -> None:
        """Take the request whose frame is view[start:end]. Its block is held until the group's coordinator has it.

        Raises:
            MalformedFrame: the body does not parse.
        """
        named = transactional_commit(pending.version, view, header.body_position, end)
        commit = _Commit(pending, start, header.body_position, end)
        topic = self._routes.by_name(CONSUMER_OFFSETS)
        partition = None
        if topic is not None:
            partition = topic.partition(group_partition(named.group_id, len(topic.image.partitions)))
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

    def _told(self, commit: _Commit, errors: Mapping[tuple[str, int], int]) -> None:
        """The transaction's coordinator has answered."""
        pending = commit.pending
        (error,) = errors.values()
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
        """Answer every partition with what the transaction's coordinator has said."""
        pending = commit.pending
        version, block = pending.version, pending.block
        assert block is not None
        request = decode_request(pending.api_key, version, block.view, commit.position, commit.end)
        told = told_to_producer(error, knows_fenced=False, knows_abortable=version >= ABORTABLE_FROM_VERSION)
        if told == _NETWORK:
            told = _LOADING
        response = coordinator_error_response(pending.api_key, version, request, told)
        self._finish(pending, [encode_response(pending.api_key, version, response, pending.correlation_id)])


class _Commit(NamedTuple):
    """A request, and where in its block the frame begins, the body begins, and both end."""

    pending: Request
    start: int
    position: int
    end: int
