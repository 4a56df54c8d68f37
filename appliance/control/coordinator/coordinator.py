"""Requests of one coordinator process: from their bytes to the service that they are for, and back to the answer.

    request ─→ queue ─→ cheap ones at once, long ones in slices of time
                            ├→ `offset_requests`         commits and fetches of offsets
                            ├→ `transaction_requests`    transactional ids
                            └→ `group/`                  everything else, by effects: answers, records for the log

Decides nothing about groups or transactions: those are services, registered with the runtime (`group_machines`,
`transaction_machines`). Loads and appends nothing: that is `runtime/`. The process answers nothing and changes nothing
before the records that say it are committed, so a death between any two steps loses nothing that a client has heard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from appliance.channels.partition_table import PartitionTable
from appliance.channels.roles import Role
from appliance.clock import Clock
from appliance.config import Settings
from appliance.control.coordinator.group_machines import GroupMachines, WriteMarker
from appliance.control.coordinator.long_requests import LongRequests
from appliance.control.coordinator.marker_requests import write_markers
from appliance.control.coordinator.marker_writer import MarkerWriter
from appliance.control.coordinator.offset_requests import OffsetRequests
from appliance.control.coordinator.pieces import Steps
from appliance.control.coordinator.request_lines import UNDER_WAY_BYTES_MAX, RequestLines, client_of
from appliance.control.coordinator.request_queue import SLOW_NS, Received, Reply
from appliance.control.coordinator.runtime.effects import (
    Answer,
    AnswerInPieces,
)
from appliance.control.coordinator.runtime.runtime import CoordinatorRuntime, Share
from appliance.control.coordinator.slices import AnswerJob, Job, PiecesJob, Slices, StepJob
from appliance.control.coordinator.topics import ImageTopics
from appliance.control.coordinator.transaction.effects import Marker
from appliance.control.coordinator.transaction_machines import TransactionMachines
from appliance.control.coordinator.transaction_requests import TransactionRequests
from appliance.errors import MalformedFrame
from appliance.ipc.agent import Timers
from appliance.partition_access.access import PartitionAccess
from appliance.partition_access.producer_ids import ProducerIdBlocks
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.write_txn_markers import WriteTxnMarkersRequest
from appliance.protocol.coordinator_errors import coordinator_error_response
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.group_requests import restricted, restricted_in_pieces
from appliance.protocol.messages import decode_request, encode_response
from appliance.protocol.primitives import INT32

CHEAP_AT_ONCE: Final = 128
"""Cheap requests in one turn: what they write is one batch a log."""
_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
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
_AT_ID: Final = 4
"""Where the correlation id stands in a response's frame."""

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
        wake_services: Callable[[], object] = lambda: None,
    ) -> None:
        """`elsewhere`: hands a marker to the coordinator process to which its partition belongs."""
        self._settings = settings
        self._topics = topics
        self._lines = lines
        self._share = share
        self._clock = clock
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
            wake_services=wake_services,
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
        self._slices = Slices(clock.monotonic_ns, failed=self._job_failed)
        self._long = LongRequests(
            self._slices,
            lines,
            serve=self._serve_in_pieces,
            serve_bytes={_OFFSET_COMMIT: self._commit_in_pieces},
            contain=self._contain,
            monotonic_ns=clock.monotonic_ns,
        )
        offsets = self.offsets = OffsetRequests(
            self._machines,
            self._topic,
            topics,
            lines,
            self._long,
            responder=self,
            clock=clock,
            metadata_max=settings.offsets.metadata_max_bytes,
        )
        self._servants: Mapping[int, Callable[[Any, Reply], None]] = {
            **self._transactions.servants,
            int(ApiKey.OFFSET_FETCH): offsets.fetch,
            int(ApiKey.OFFSET_DELETE): offsets.delete,
            int(ApiKey.TXN_OFFSET_COMMIT): offsets.commit_in_transaction,
            int(ApiKey.WRITE_TXN_MARKERS): self._write_markers,
        }
        self._request_bytes_max = settings.group.request_max_bytes
        self._servants_in_pieces: Mapping[int, Callable[[Any, Reply], Steps[None]]] = {
            **self._transactions.servants_in_pieces,
            int(ApiKey.OFFSET_FETCH): offsets.fetch_in_pieces,
            int(ApiKey.OFFSET_DELETE): offsets.delete_in_pieces,
            int(ApiKey.TXN_OFFSET_COMMIT): offsets.commit_in_transaction_in_pieces,
            int(ApiKey.WRITE_TXN_MARKERS): self._write_markers_in_pieces,
            _LIST_GROUPS: self._list_in_pieces,
        }
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
                self.offsets.commit(received, now_ms)
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
            self._lines.refuse(reply, "internal error, see the traceback above")

    def _to_groups(self, request: Any, reply: Reply) -> None:
        limits = self.groups.limits
        refused = limits.refused_groups + limits.refused_members
        self._topic.carry_out(self.groups.handle(request, client=client_of(reply), reply=reply))
        self._after_groups(refused)

    def _to_groups_in_pieces(self, request: Any, reply: Reply) -> Steps[None]:
        limits = self.groups.limits
        refused = limits.refused_groups + limits.refused_members
        for effects in self.groups.handle_in_pieces(request, client=client_of(reply), reply=reply):
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
        for effect in self.groups.handle(request, client=client_of(reply), reply=reply):
            if isinstance(effect, AnswerInPieces):
                self.answer_in_pieces([reply, *others], effect.elements, effect.make)

    def _list_in_pieces(self, request: Any, reply: Reply) -> Steps[None]:
        """`_list` of a request with many filters, which has a list of its own."""
        if self._topic.is_loading:
            header = reply.header
            self.respond(reply, coordinator_error_response(header.api_key, header.version, request, _LOADING))
            return
        yield from self._to_groups_in_pieces(request, reply)

    def _commit_in_pieces(self, body: bytes, reply: Reply) -> Steps[None]:
        return self.offsets.commit_in_pieces(body, reply)

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
