"""Requests of groups: from their bytes to what the group, its offsets and their log make of them, and to the answer.

    request ─→ gate (is the group's partition led by that slot, and loaded?) ─→ offsets, or group/ ─→ effects
                                                                                Answer: out
                                                                                Append: the log, then further effects

Decides nothing about groups: that is `group/`, which is pure. Loads and appends nothing: that is `runtime/`, for which
groups with offsets are one service (`group_machines`). The process answers nothing and changes nothing before the
records that say it are committed, so that a death between any two steps loses nothing that a client has heard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from appliance.channels.partition_table import PartitionTable
from appliance.channels.roles import Role
from appliance.clock import Clock
from appliance.config import Settings
from appliance.control.coordinator.group_machines import GroupMachine, GroupMachines, WriteMarker
from appliance.control.coordinator.long_requests import LongRequests
from appliance.control.coordinator.marker_requests import write_markers
from appliance.control.coordinator.marker_writer import MarkerWriter
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
from appliance.control.coordinator.producer_ids import ProducerIdBlocks
from appliance.control.coordinator.request_lines import RequestLines
from appliance.control.coordinator.request_queue import SLOW_NS, Received, Reply
from appliance.control.coordinator.runtime.effects import (
    Answer,
    AnswerInPieces,
    Append,
    Client,
    Effects,
    Producer,
    Record,
)
from appliance.control.coordinator.runtime.runtime import CoordinatorRuntime, Share
from appliance.control.coordinator.runtime.shard import Shard
from appliance.control.coordinator.slices import AnswerJob, Job, PiecesJob, Slices, StepJob
from appliance.control.coordinator.topics import ImageTopics
from appliance.control.coordinator.transaction.effects import Marker
from appliance.control.coordinator.transaction_machines import TransactionMachines
from appliance.control.coordinator.transaction_requests import TransactionRequests
from appliance.errors import MalformedFrame
from appliance.ipc.agent import Timers
from appliance.partition_access.access import PartitionAccess
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest
from appliance.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from appliance.protocol.apis.write_txn_markers import WriteTxnMarkersRequest
from appliance.protocol.coordinator_errors import coordinator_error_response, told_to_reader
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.group_requests import restricted, restricted_in_pieces
from appliance.protocol.messages import decode_request, encode_response
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
from appliance.protocol.primitives import INT32

CHEAP_AT_ONCE: Final = 128
"""Cheap requests in one turn: what they write is one batch a log."""
SHORT_FETCH_BYTES_MAX: Final = 1024
UNDER_WAY_BYTES_MAX: Final = 64 << 20
"""Requests that were taken and are not answered; with more, new ones are told to come again."""
_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NOT_COORDINATOR: Final = int(ErrorCode.NOT_COORDINATOR)
_LOADING: Final = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_OFFSET_COMMIT: Final = int(ApiKey.OFFSET_COMMIT)
_LIST_GROUPS: Final = int(ApiKey.LIST_GROUPS)
_SYNC_GROUP: Final = int(ApiKey.SYNC_GROUP)
SYNC_FACTOR: Final = 8
"""How many times longer a SyncGroup may be than other requests: its leader sends the assignments of all members."""
_WAIT_FOR_OTHERS: Final = frozenset({_SYNC_GROUP, int(ApiKey.JOIN_GROUP)})
"""What these bring is the members' when it is decoded (`group_limits`), however long they wait for the others."""
LARGE_UNDER_WAY_BYTES: Final = 16 << 20
"""Requests that were taken and are not answered; with more, no large one is begun."""
LONG_ANSWER: Final = 64
"""A commit of more partitions in a transaction is answered in pieces."""
_AT_ID: Final = 4
"""Where the correlation id stands in a response's frame."""

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

_log = logging.getLogger(__name__)


class Coordinator:
    """Requests to all services of this process. Single-threaded; `turn` once in every turn of the duty cycle."""

    def __init__(
        self,
        settings: Settings,
        topics: ImageTopics,
        lines: RequestLines,
        access: PartitionAccess,
        table: PartitionTable,
        *,
        timers: Timers,
        clock: Clock,
        share: Share,
        producer_ids: ProducerIdBlocks,
        elsewhere: WriteMarker | None = None,
    ) -> None:
        """`elsewhere`: hands a marker to the coordinator process to which its partition belongs."""
        self._settings = settings
        self._topics = topics
        self._lines = lines
        self._share = share
        self._clock = clock
        self._planner = CommitPlanner(topics, metadata_max=settings.offsets.metadata_max_bytes)
        self.commits = 0
        self._runtime = CoordinatorRuntime(
            settings, topics, access, table, responder=self, timers=timers, clock=clock, share=share
        )
        self._machines = GroupMachines(settings, topics, clock, share=share, elsewhere=elsewhere)
        self._topic = self._machines.shards = self._runtime.register(self._machines)
        self.groups = self._machines.groups
        self.markers = MarkerWriter(
            access,
            topics,
            write_offsets_marker=self._machines.write_marker,
            later=self._runtime.later,
            clock=clock,
        )
        self.transactional = TransactionMachines(
            settings, clock, producer_ids, self.markers, processes=share.processes
        )
        self.transactional.shards = self._runtime.register(self.transactional)
        self._transactions = TransactionRequests(
            self.transactional,
            self.markers,
            topics,
            offsets_partitions=settings.offsets.topic_num_partitions,
            answers=self,
            later=self._runtime.later,
            clock=clock,
        )
        self._servants: Mapping[int, Callable[[Any, Reply], None]] = {
            **self._transactions.servants,
            int(ApiKey.OFFSET_FETCH): self._fetch,
            int(ApiKey.OFFSET_DELETE): self._delete,
            int(ApiKey.TXN_OFFSET_COMMIT): self._commit_in_transaction,
            int(ApiKey.WRITE_TXN_MARKERS): self._write_markers,
        }
        self._request_bytes_max = settings.group.request_max_bytes
        self._servants_in_pieces: Mapping[int, Callable[[Any, Reply], Steps[None]]] = {
            **self._transactions.servants_in_pieces,
            int(ApiKey.OFFSET_FETCH): self._fetch_in_pieces,
            int(ApiKey.OFFSET_DELETE): self._delete_in_pieces,
            int(ApiKey.TXN_OFFSET_COMMIT): self._commit_in_transaction_in_pieces,
            int(ApiKey.WRITE_TXN_MARKERS): self._write_markers_in_pieces,
            _LIST_GROUPS: self._list_in_pieces,
        }
        self._slices = Slices(clock.monotonic_ns, failed=self._job_failed)
        self._long = LongRequests(
            self._slices,
            lines,
            serve=self._serve_in_pieces,
            serve_bytes={_OFFSET_COMMIT: self._commit_in_pieces},
            contain=self._contain,
            monotonic_ns=clock.monotonic_ns,
        )
        lines.on_closed = self._slices.closed

    # Requests

    def serve(self) -> None:
        """Serve what waits: some cheap requests, then long work for a slice of time. What goes wrong in one request
        is its own."""
        queue = self._lines.queue
        if len(queue):
            now_ms = self._clock.now_ms()
            monotonic_ns = self._clock.monotonic_ns
            began_ns = monotonic_ns()
            for _ in range(CHEAP_AT_ONCE):
                received = queue.next_cheap()
                if received is None:
                    break
                self._serve_one(received, now_ms)
                ended_ns = monotonic_ns()
                if ended_ns - began_ns > SLOW_NS:
                    queue.took(received.reply.key, ended_ns - began_ns)
                began_ns = ended_ns
        if len(self._slices) or queue.has_costly or queue.has_large:
            self._slices.run(self._begin_costly)

    @property
    def has_work(self) -> bool:
        """Whether there is something to serve at once: do not sleep."""
        lines, queue = self._lines, self._lines.queue
        if queue.has_cheap or len(self._slices) or self._transactions.has_work:
            return True
        return lines.has_room and (queue.has_costly or (queue.has_large and self._has_room_for_large))

    @property
    def _has_room_for_large(self) -> bool:
        return self._long.has_room_for_large and self._lines.under_way_bytes < LARGE_UNDER_WAY_BYTES

    def _begin_costly(self) -> bool:
        if not self._lines.has_room or not self._long.has_room:
            return False
        queue = self._lines.queue
        received = queue.next_costly(with_large=self._has_room_for_large)
        if received is None:
            return False
        began_ns = self._clock.monotonic_ns()
        self._serve_one(received, self._clock.now_ms())
        queue.took(received.reply.key, self._clock.monotonic_ns() - began_ns)
        return True

    def _serve_one(self, received: Received, now_ms: int) -> None:
        reply = received.reply
        header = reply.header
        self._lines.take(reply)
        try:
            if received.is_long:
                self._begin_long(received)
                return
            if header.api_key == _OFFSET_COMMIT:
                self._commit(received, now_ms)
                return
            request = decode_request(
                header.api_key, header.version, received.view, header.body_position, received.end
            )
            if header.api_key == _LIST_GROUPS:
                self._list(request, received)
                return
            if self._share.processes > 1:
                request = self._own_part(request, reply)
            if self._lines.under_way_bytes > UNDER_WAY_BYTES_MAX:
                self.respond(
                    reply,
                    coordinator_error_response(header.api_key, header.version, request, _NOT_AVAILABLE),
                )
                return
            self._servants.get(header.api_key, self._to_groups)(request, reply)
        except MalformedFrame as fault:
            self._lines.refuse(reply, str(fault))
        except Exception as error:
            self._contain(reply, error)

    def _own_part(self, request: Any, reply: Reply) -> Any:
        """The request with the groups of this process; the network process asks the other coordinators for theirs."""
        header = reply.header
        return restricted(header.api_key, header.version, request, self._is_ours(reply))

    def _is_ours(self, reply: Reply) -> Callable[[str], bool]:
        share, partitions = self._share, reply.partitions
        return lambda group: share.has(group_partition(group, partitions) if partitions else 0)

    def _begin_long(self, received: Received) -> None:
        reply = received.reply
        api_key = reply.header.api_key
        bytes_max = self._request_bytes_max * (SYNC_FACTOR if api_key == _SYNC_GROUP else 1)
        if reply.length_bytes > bytes_max and api_key != _OFFSET_COMMIT:
            self._lines.refuse(
                reply,
                f"a request of {reply.length_bytes} bytes: more than the {bytes_max} that group.request.max.bytes ="
                f" {self._request_bytes_max} allows",
            )
            return
        self._long.begin(received)

    def _serve_in_pieces(self, request: Any, reply: Reply) -> Steps[None]:
        """Works on a long request that was decoded."""
        header = reply.header
        if header.api_key in _WAIT_FOR_OTHERS:
            self._lines.weigh(reply, 0)
        if self._share.processes > 1:
            request = yield from restricted_in_pieces(
                header.api_key, header.version, request, self._is_ours(reply)
            )
        if self._lines.under_way_bytes > UNDER_WAY_BYTES_MAX:
            response = coordinator_error_response(header.api_key, header.version, request, _NOT_AVAILABLE)
            yield from self._long.answer(reply, response)
            return
        yield from self._servants_in_pieces.get(header.api_key, self._to_groups_in_pieces)(request, reply)

    def respond(self, reply: Reply, response: Any) -> None:
        """Answers a request."""
        header = reply.header
        try:
            frame = encode_response(header.api_key, header.version, response, header.correlation_id)
        except Exception as error:
            self._contain(reply, error)
            return
        self._lines.answer(reply, frame)

    def respond_long(self, reply: Reply, response: Any) -> None:
        """Answer a request with a long response, which is encoded in slices of time."""
        self._long.later(reply, self._long.answer(reply, response))

    def answer_in_pieces(
        self, replies: list[Reply], elements: Iterator[Any], make: Callable[[tuple[Any, ...]], Any]
    ) -> None:
        """Answers all of `replies`, which ask the same, in slices of time."""
        header = replies[0].header

        def encode(some: tuple[Any, ...]) -> bytes:
            return encode_response(header.api_key, header.version, make(some), header.correlation_id)

        job = AnswerJob(
            replies,
            elements,
            encode=encode,
            send=self._send,
            drop=self._lines.drop,
            monotonic_ns=self._clock.monotonic_ns,
        )
        self._slices.begin(job)

    def _send(self, frame: bytes, replies: list[Reply]) -> None:
        """One answer to all who asked the same: only the correlation ids are unlike, behind the size."""
        lines = self._lines
        if len(replies) == 1 and replies[0].header.correlation_id == INT32.unpack_from(frame, _AT_ID)[0]:
            lines.answer(replies[0], frame)
            return
        size, body = frame[:_AT_ID], frame[_AT_ID + INT32.size :]
        for reply in replies:
            lines.answer(reply, size + INT32.pack(reply.header.correlation_id), body)

    def go_on(self, action: Callable[[], None]) -> None:
        """Call `action` after others had their turn."""
        self._slices.later(StepJob(action))

    def respond_in_pieces(self, answers: Sequence[Answer]) -> None:
        """Answer many requests, in slices of time, after others had their turn."""

        def steps() -> Iterator[None]:
            for answer in answers:
                self.respond(answer.reply, answer.response)
                yield None

        self._slices.later(PiecesJob(steps(), self._clock.monotonic_ns))

    def _job_failed(self, job: Job, error: Exception) -> None:
        if isinstance(job, AnswerJob):
            for reply in job.waiting():
                self._contain(reply, error)
        else:
            _log.error("internal error in a group request (traceback follows)", exc_info=error)

    def _contain(self, reply: Reply, error: Exception) -> None:
        _log.error("internal error in a group request (traceback follows)", exc_info=error)
        if not reply.answered:
            self._lines.refuse(reply, "a defect of ours, told above")

    def _to_groups(self, request: Any, reply: Reply) -> None:
        limits = self.groups.limits
        refused = limits.refused_groups + limits.refused_members
        self._topic.carry_out(self.groups.handle(request, client=_client(reply), reply=reply))
        self._after_groups(refused)

    def _to_groups_in_pieces(self, request: Any, reply: Reply) -> Steps[None]:
        limits = self.groups.limits
        refused = limits.refused_groups + limits.refused_members
        for effects in self.groups.handle_in_pieces(request, client=_client(reply), reply=reply):
            self._topic.carry_out(effects)
            yield None
        self._after_groups(refused)

    def _after_groups(self, refused: int) -> None:
        """`refused`: how many groups and members had been refused before the groups were asked."""
        limits = self.groups.limits
        if refused != limits.refused_groups + limits.refused_members:
            self._machines.make_room()
        if len(self.groups):
            self._machines.expire_later()

    def _list(self, request: Any, received: Received) -> None:
        """Answers ListGroups, and with the same list everybody else who waits for it: it begins after they asked."""
        reply = received.reply
        if self._topic.is_loading:
            header = reply.header
            self.respond(reply, coordinator_error_response(header.api_key, header.version, request, _LOADING))
            return
        others = [other.reply for other in self._lines.queue.like(received)]
        for other in others:
            self._lines.take(other)
        for effect in self.groups.handle(request, client=_client(reply), reply=reply):
            if isinstance(effect, AnswerInPieces):
                self.answer_in_pieces([reply, *others], effect.elements, effect.make)

    def _list_in_pieces(self, request: Any, reply: Reply) -> Steps[None]:
        """`_list` of a request with many filters, which has a list of its own."""
        if self._topic.is_loading:
            header = reply.header
            self.respond(reply, coordinator_error_response(header.api_key, header.version, request, _LOADING))
            return
        yield from self._to_groups_in_pieces(request, reply)

    # Offsets

    def _commit(self, received: Received, now_ms: int) -> None:
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

    def _commit_in_pieces(self, body: bytes, reply: Reply) -> Steps[None]:
        """`_commit` of many partitions. What it writes is one append, for a member that may commit when it is made.

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

    def _commit_in_transaction(self, request: TxnOffsetCommitRequest, reply: Reply) -> None:
        """It is short: done at once."""
        for _ in self._commit_in_transaction_in_pieces(request, reply):
            pass

    def _commit_in_transaction_in_pieces(self, request: TxnOffsetCommitRequest, reply: Reply) -> Steps[None]:
        """As of `_commit_in_pieces`; what is written is a batch of the producer's transaction."""
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
        error = shard.gate(reply.slot) or self.groups.check_transactional_commit(
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
        error = shard.gate(reply.slot) or self.groups.check_commit(
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
                self.groups.offsets_seen(group)
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
        error = self.groups.check_new(group)
        if error:
            self._machines.make_room()
        return error

    def _told_commit(self, reply: Reply, errors: Sequence[TopicErrors]) -> None:
        header = reply.header
        self._lines.answer(
            reply, encode_offset_commit_response(header.version, header.correlation_id, errors)
        )

    def _fetch(self, request: OffsetFetchRequest, reply: Reply) -> None:
        fetched = fetch_offsets(
            request,
            reply.header.version,
            topics=self._topics,
            check=self._fetch_check(reply),
            book_of=self._book_of,
        )
        if reply.length_bytes <= SHORT_FETCH_BYTES_MAX and _is_short(request):
            self.respond(reply, fetched.make(tuple(fetched.elements)))
        else:
            self.answer_in_pieces([reply], fetched.elements, fetched.make)

    def _fetch_in_pieces(self, request: OffsetFetchRequest, reply: Reply) -> Steps[None]:
        response = yield from fetch_offsets_in_pieces(
            request,
            reply.header.version,
            topics=self._topics,
            check=self._fetch_check(reply),
            book_of=self._book_of,
        )
        yield from self._long.answer(reply, response)

    def _fetch_check(self, reply: Reply) -> Callable[[OffsetFetchGroup], int]:
        client = _client(reply)

        def check(wanted: OffsetFetchGroup) -> int:
            error = self._machines.gate(wanted.group_id, reply.slot)
            if error:
                return told_to_reader(error) if self._machines.may_load(wanted.group_id) else error
            return self.groups.check_fetch(
                wanted.group_id, member_id=wanted.member_id, epoch=wanted.member_epoch, client=client
            )

        return check

    def _book_of(self, group: str) -> OffsetBook | None:
        machine = self._machines.of(group)
        return machine.book if machine is not None else None

    def _delete(self, request: OffsetDeleteRequest, reply: Reply) -> None:
        """Deletes offsets in pieces, because for each topic all members may have to be looked at."""
        self._long.later(reply, self._delete_in_pieces(request, reply))

    def _delete_in_pieces(self, request: OffsetDeleteRequest, reply: Reply) -> Steps[None]:
        """Whether members have subscribed meanwhile is asked again before the append."""
        group = request.group_id
        error = self._machines.gate(group, reply.slot) or self.groups.check_offset_delete(group)
        book = self._book_of(group)
        if not error and book is not None:
            planned = yield from plan_delete(
                request,
                topics=self._topics,
                book=book,
                check_topic=self.groups.topic_delete_check(group),
            )
            error = self._machines.gate(group, reply.slot) or self.groups.check_offset_delete(group)
        if error:
            self.respond(reply, OffsetDeleteResponse(error_code=error))
        else:
            self._write_deleted(group, settle(planned, self.groups.topic_delete_check(group)), reply)

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

    # Markers

    def write_marker(self, partition: int, marker: Marker, done: Callable[[int], None]) -> None:
        """See `GroupMachines.write_marker`."""
        self._machines.write_marker(partition, marker, done)

    def _write_markers(self, request: WriteTxnMarkersRequest, reply: Reply) -> None:
        write_markers(
            request,
            write_marker=self.write_marker,
            answer=lambda response: self.respond(reply, response),
        )

    def _write_markers_in_pieces(self, request: WriteTxnMarkersRequest, reply: Reply) -> Steps[None]:
        """Only an administrator sends these: some 500 partitions are in a request before it is long."""
        self._write_markers(request, reply)
        yield None

    # Time, the image, the workers

    def turn(self) -> bool:
        """End a turn: held requests that may go on, the runtime, then permits and markers behind what they follow from.

        Markers for our own `__consumer_offsets`, and the ends of transactions whose partitions are gone, are written by
        shards: no message would wake us for these, so they are sent in the same turn. False: something must wait for
        room.
        """
        self._transactions.turn()
        has_room = self._runtime.turn()
        has_room = self.markers.flush() and has_room
        return self._runtime.flush() and has_room

    @property
    def appends(self) -> int:
        """How many batches were appended."""
        return self._runtime.appends

    def next_due_ns(self) -> int | None:
        """See `CoordinatorRuntime.next_due_ns`."""
        return self._runtime.next_due_ns()

    def follow_image(self) -> None:
        """Before requests are served: they are judged by the newest image."""
        self._runtime.follow_image()

    def worker_up(self, worker: Role) -> None:
        """A worker serves."""
        self._runtime.worker_up(worker)
        self.markers.places_changed()

    def worker_down(self, worker: Role) -> None:
        """A worker died, its rings are gone."""
        self._runtime.worker_down(worker)

    def statistics(self) -> dict[str, int]:
        """Partitions by state, groups with offsets, offsets."""
        return {
            **self._runtime.statistics(),
            **self._machines.statistics(),
            **self._transactions.statistics(),
            **self.markers.statistics(),
        }


def _is_short(request: OffsetFetchRequest) -> bool:
    """Whether it asks for named partitions of one group: then its answer is not worth slices of time."""
    if request.groups:
        return len(request.groups) == 1 and request.groups[0].topics is not None
    return request.topics is not None


def _client(reply: Reply) -> Client:
    return Client(reply.header.client_id or "", reply.host, slot=reply.slot, api_version=reply.header.version)
