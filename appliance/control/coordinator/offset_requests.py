"""Requests about committed offsets: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete.

    request ─→ gate of the group's partition, the member's right ─→ `offsets/`: what to write, what to answer
                                                              ─→ the shard's next batch ─→ committed ─→ answered

What is long is worked on in pieces (`pieces`), and what it writes is one append for a member that may commit when it is
made. The registry of groups decides who may commit (`group/`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from appliance.clock import Clock
from appliance.control.coordinator.group_machines import GroupMachine, GroupMachines
from appliance.control.coordinator.long_requests import LongRequests
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.offsets.offset_commit import (
    CommitPlan,
    CommitPlanner,
    LongPlan,
    failed_commit,
    plan_in_pieces,
)
from appliance.control.coordinator.offsets.offset_delete import Deleted, plan_delete, settle
from appliance.control.coordinator.offsets.offset_fetch import fetch_offsets, fetch_offsets_in_pieces
from appliance.control.coordinator.offsets.txn_offset_commit import (
    PENDING_BYTES_MAX,
    as_commit,
    names_something,
    refused,
    response_of,
)
from appliance.control.coordinator.pieces import Steps
from appliance.control.coordinator.request_lines import UNDER_WAY_BYTES_MAX, RequestLines, client_of
from appliance.control.coordinator.request_queue import Received, Reply
from appliance.control.coordinator.runtime.effects import Append, Effects, Producer, Record
from appliance.control.coordinator.runtime.runtime import Responder, TopicShards
from appliance.control.coordinator.runtime.shard import Shard
from appliance.control.coordinator.topics import ImageTopics
from appliance.protocol.apis.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest
from appliance.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from appliance.protocol.coordinator_errors import told_to_reader
from appliance.protocol.errors import ErrorCode
from appliance.protocol.offset_commit import (
    CommitRequest,
    TopicErrors,
    encode_offset_commit_response,
    encode_offset_commit_response_in_pieces,
    every_partition,
    every_partition_in_pieces,
    parse_offset_commit,
    parse_offset_commit_in_pieces,
)

SHORT_FETCH_BYTES_MAX: Final = 1024
LONG_ANSWER: Final = 64
"""A commit of more partitions in a transaction is answered in pieces."""

_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NOT_COORDINATOR: Final = int(ErrorCode.NOT_COORDINATOR)
_LOADING: Final = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

_APPEND_ERRORS: Final = {
    int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): _NOT_AVAILABLE,
    int(ErrorCode.NOT_ENOUGH_REPLICAS): _NOT_AVAILABLE,
    int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND): _NOT_AVAILABLE,
    int(ErrorCode.REQUEST_TIMED_OUT): _NOT_AVAILABLE,
    int(ErrorCode.NOT_LEADER_OR_FOLLOWER): _NOT_COORDINATOR,
    int(ErrorCode.KAFKA_STORAGE_ERROR): _NOT_COORDINATOR,
    int(ErrorCode.MESSAGE_TOO_LARGE): int(ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    int(ErrorCode.RECORD_LIST_TOO_LARGE): int(ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
}
"""What an append of offsets met → what its client hears. Source: `GroupCoordinatorService.java`."""
_TRANSACTIONAL_APPEND_ERRORS: Final = {
    **_APPEND_ERRORS,
    int(ErrorCode.INVALID_TXN_STATE): _LOADING,  # the permit is gone: `txn_offset_commit`
}

Owner: TypeAlias = tuple[Shard, GroupMachine]
"""The partition to which a group belongs: where its offsets are written, and where they are kept."""


class OffsetRequests:
    """Those of one process. `commits`: how many were written.

    Args:
        metadata_max: the bytes of a client's text beside an offset.
        long: carries on what is worked on in pieces.
    """

    def __init__(
        self,
        machines: GroupMachines,
        topic: TopicShards,
        topics: ImageTopics,
        lines: RequestLines,
        long: LongRequests,
        *,
        responder: Responder,
        clock: Clock,
        metadata_max: int,
    ) -> None:
        self._machines = machines
        self._groups = machines.groups
        self._topic = topic
        self._topics = topics
        self._lines = lines
        self._long = long
        self._responder = responder
        self._clock = clock
        self._planner = CommitPlanner(topics, metadata_max=metadata_max)
        self.commits = 0

    def commit(self, received: Received, now_ms: int) -> None:
        reply = received.reply
        header = reply.header
        request = parse_offset_commit(
            received.view, header.body_position, received.end, version=header.version
        )
        owner = self._owner_of(request.group_id)
        error = self._commit_fault(owner, request, reply)
        if error or owner is None:
            self._told_commit(reply, every_partition(request, error))
            return
        plan = self._planner.plan(request, now_ms)
        if not plan.records:
            self._told_commit(reply, plan.errors)
            return
        self._write_commit(owner, request.group_id, plan, reply=reply, tell=self._tell_commit)

    def commit_in_pieces(self, body: bytes, reply: Reply) -> Steps[None]:
        """`commit` of many partitions. What it writes is one append, for a member that may commit when it is made.

        It may be as long as the longest request of all, and most of it may be refused: it counts as under way with what
        it writes.
        """
        self._lines.weigh(reply, 0)
        request = yield from parse_offset_commit_in_pieces(body, reply.header.version)
        owner = self._owner_of(request.group_id)
        plan = LongPlan(owner[0].entry_bytes_max if owner is not None else 0)
        error = self._commit_fault(owner, request, reply)
        if not error:
            yield from plan_in_pieces(self._planner, request, self._clock.now_ms(), plan)
            owner = self._owner_of(request.group_id)
            error = self._commit_fault(owner, request, reply)
        if error or owner is None:
            errors = yield from every_partition_in_pieces(request, error)
            yield from self._told_commit_in_pieces(reply, errors, 0)
        elif plan.is_too_large:
            too_large = _APPEND_ERRORS[int(ErrorCode.RECORD_LIST_TOO_LARGE)]
            yield from self._told_commit_in_pieces(reply, plan.errors, too_large)
        elif not plan.records:
            yield from self._told_commit_in_pieces(reply, plan.errors, 0)
        else:
            self._lines.weigh(reply, plan.bytes)
            self._write_commit(owner, request.group_id, plan.made(), reply=reply, tell=self._tell_long_commit)

    def commit_in_transaction(self, request: TxnOffsetCommitRequest, reply: Reply) -> None:
        """It is short: done at once."""
        for _ in self.commit_in_transaction_in_pieces(request, reply):
            pass

    def commit_in_transaction_in_pieces(self, request: TxnOffsetCommitRequest, reply: Reply) -> Steps[None]:
        """As of `commit_in_pieces`; what is written is a batch of the producer's transaction."""
        commit = yield from as_commit(request)
        group = commit.group_id
        owner = self._owner_of(group)
        plan = LongPlan(owner[0].entry_bytes_max if owner is not None else 0)
        yield from plan_in_pieces(self._planner, commit, self._clock.now_ms(), plan)
        owner = self._owner_of(group)
        if not names_something(plan.errors):
            yield from self._told_in_transaction(reply, plan.errors)
            return
        error = self._transactional_fault(owner, commit, reply)
        if error or owner is None:
            yield from self._told_in_transaction(reply, refused(plan.errors, error))
        elif plan.is_too_large:
            too_large = _APPEND_ERRORS[int(ErrorCode.RECORD_LIST_TOO_LARGE)]
            yield from self._told_in_transaction(reply, failed_commit(plan.errors, too_large))
        elif not plan.records:
            yield from self._told_in_transaction(reply, plan.errors)
        else:
            self._lines.weigh(reply, plan.bytes)
            producer = Producer(request.producer_id, request.producer_epoch)
            self._write_in_transaction(owner[1], plan, producer, reply)

    def _transactional_fault(self, owner: Owner | None, request: CommitRequest, reply: Reply) -> int:
        """Why nothing can be committed for the group in a transaction now; 0 if it can."""
        group = request.group_id
        if not group:
            return int(ErrorCode.INVALID_GROUP_ID)
        if owner is None or self._lines.under_way_bytes > UNDER_WAY_BYTES_MAX:
            return _NOT_AVAILABLE
        shard, machine = owner
        error = shard.gate(reply.slot) or self._groups.check_transactional_commit(
            group,
            member_id=request.member_id,
            instance_id=request.instance_id,
            generation=request.generation,
        )
        if not error and self._machines.pending_bytes > PENDING_BYTES_MAX:
            return _LOADING
        if not error and not machine.book.has(group):
            error = self._check_new(group)
        return error

    def _write_in_transaction(
        self, machine: GroupMachine, plan: LongPlan, producer: Producer, reply: Reply
    ) -> None:
        self.commits += 1
        errors = plan.errors

        def committed(error: int) -> Effects:
            failed = _TRANSACTIONAL_APPEND_ERRORS.get(error, error)
            told = failed_commit(errors, failed) if error else errors
            if len(plan.records) > LONG_ANSWER:
                self._long.later(reply, self._told_in_transaction(reply, told))
            else:
                for _ in self._told_in_transaction(reply, told):
                    pass
            return []

        records = tuple(Record(key, value) for key, value in plan.records)
        self._topic.carry_out([Append(machine.number, records, committed, producer)])

    def _told_in_transaction(self, reply: Reply, errors: Sequence[TopicErrors]) -> Steps[None]:
        response = yield from response_of(errors, reply.header.version)
        yield from self._long.answer(reply, response)

    def _owner_of(self, group: str) -> Owner | None:
        """The group's partition; None while the topic does not exist."""
        shards = self._topic.shards
        if not shards:
            return None
        number = self._machines.partition_of(group)
        return shards[number], self._machines.by_partition[number]

    def _commit_fault(self, owner: Owner | None, request: CommitRequest, reply: Reply) -> int:
        """Why nothing can be committed for the group by this member now; 0 if it can."""
        if owner is None or self._lines.under_way_bytes > UNDER_WAY_BYTES_MAX:
            return _NOT_AVAILABLE
        shard, machine = owner
        group = request.group_id
        error = shard.gate(reply.slot) or self._groups.check_commit(
            group,
            member_id=request.member_id,
            instance_id=request.instance_id,
            generation=request.generation,
            api_version=reply.header.version,
        )
        if not error and not machine.book.has(group):
            error = self._check_new(group)
        return error

    def _write_commit(
        self,
        owner: Owner,
        group: str,
        plan: CommitPlan,
        *,
        reply: Reply,
        tell: Callable[[Reply, Sequence[TopicErrors], int], None],
    ) -> None:
        """`tell` gets what the plan says of each partition, and the error of those that were to be committed."""
        self.commits += 1
        shard, machine = owner

        def committed(error: int) -> None:
            if error:
                tell(reply, plan.errors, _APPEND_ERRORS.get(error, error))
                return
            book = machine.book
            is_new = not book.has(group)
            for topic, values in plan.puts:
                book.put_all(group, topic, values)
            if is_new:
                self._groups.offsets_seen(group)
                self._machines.expire_later()
            tell(reply, plan.errors, 0)

        shard.write(plan.records, committed)

    def _tell_commit(self, reply: Reply, errors: Sequence[TopicErrors], failed: int) -> None:
        self._told_commit(reply, failed_commit(errors, failed) if failed else errors)

    def _tell_long_commit(self, reply: Reply, errors: Sequence[TopicErrors], failed: int) -> None:
        self._long.later(reply, self._told_commit_in_pieces(reply, errors, failed))

    def _told_commit_in_pieces(self, reply: Reply, errors: Sequence[TopicErrors], failed: int) -> Steps[None]:
        header = reply.header
        frame = yield from encode_offset_commit_response_in_pieces(
            header.version, header.correlation_id, errors, failed=failed
        )
        self._lines.answer(reply, frame)

    def _check_new(self, group: str) -> int:
        error = self._groups.check_new(group)
        if error:
            self._machines.make_room()
        return error

    def _told_commit(self, reply: Reply, errors: Sequence[TopicErrors]) -> None:
        header = reply.header
        self._lines.answer(
            reply, encode_offset_commit_response(header.version, header.correlation_id, errors)
        )

    def fetch(self, request: OffsetFetchRequest, reply: Reply) -> None:
        fetched = fetch_offsets(
            request,
            reply.header.version,
            topics=self._topics,
            check=self._fetch_check(reply),
            book_of=self._book_of,
        )
        if reply.length_bytes <= SHORT_FETCH_BYTES_MAX and _is_short(request):
            self._responder.respond(reply, fetched.make(tuple(fetched.elements)))
        else:
            self._responder.answer_in_pieces([reply], fetched.elements, fetched.make)

    def fetch_in_pieces(self, request: OffsetFetchRequest, reply: Reply) -> Steps[None]:
        response = yield from fetch_offsets_in_pieces(
            request,
            reply.header.version,
            topics=self._topics,
            check=self._fetch_check(reply),
            book_of=self._book_of,
        )
        yield from self._long.answer(reply, response)

    def _fetch_check(self, reply: Reply) -> Callable[[OffsetFetchGroup], int]:
        client = client_of(reply)

        def check(wanted: OffsetFetchGroup) -> int:
            error = self._machines.gate(wanted.group_id, reply.slot)
            if error:
                return told_to_reader(error) if self._machines.may_load(wanted.group_id) else error
            return self._groups.check_fetch(
                wanted.group_id, member_id=wanted.member_id, epoch=wanted.member_epoch, client=client
            )

        return check

    def _book_of(self, group: str) -> OffsetBook | None:
        machine = self._machines.of(group)
        return machine.book if machine is not None else None

    def delete(self, request: OffsetDeleteRequest, reply: Reply) -> None:
        """Deletes offsets in pieces, because for each topic all members may have to be looked at."""
        self._long.later(reply, self.delete_in_pieces(request, reply))

    def delete_in_pieces(self, request: OffsetDeleteRequest, reply: Reply) -> Steps[None]:
        """Whether members have subscribed meanwhile is asked again before the append."""
        group = request.group_id
        error = self._machines.gate(group, reply.slot) or self._groups.check_offset_delete(group)
        book = self._book_of(group)
        if not error and book is not None:
            planned = yield from plan_delete(
                request,
                topics=self._topics,
                book=book,
                check_topic=self._groups.topic_delete_check(group),
            )
            error = self._machines.gate(group, reply.slot) or self._groups.check_offset_delete(group)
        if error:
            self._responder.respond(reply, OffsetDeleteResponse(error_code=error))
        else:
            self._write_deleted(group, settle(planned, self._groups.topic_delete_check(group)), reply)

    def _write_deleted(self, group: str, deleted: Deleted, reply: Reply) -> None:
        records, response = deleted
        if not records:
            self._long.later(reply, self._long.answer(reply, response))
            return

        def written(error: int) -> Effects:
            told = OffsetDeleteResponse(error_code=_APPEND_ERRORS.get(error, error)) if error else response
            self._long.later(reply, self._long.answer(reply, told))
            return []

        self._topic.carry_out([Append(self._machines.partition_of(group), tuple(records), written)])


def _is_short(request: OffsetFetchRequest) -> bool:
    """Whether it asks for named partitions of one group: then its answer is not worth slices of time."""
    if request.groups:
        return len(request.groups) == 1 and request.groups[0].topics is not None
    return request.topics is not None
