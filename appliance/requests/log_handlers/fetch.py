"""Fetch 4-18 in the network process: what is there, where it lies, and waiting for what is not.

    begin ─→ look ──────────→ ask owners where ──→ enough, an error, or no time left? ─→ respond
              ↑  (partition      (only partitions                │ no
              │   table)          with records,                  ↓
              │                   no cursor)                 purgatory
              └──────────────── woken ←───────────────────────── ┘

A look reads the partition table: a partition without new records costs no other process anything. Whoever goes on
behind its last answer is led by a cursor (decision 0059); what it does not reach, owners answer with
(segment, position, length). What one partition's answer is made of is a `FetchItem`; what of it is sent, and from which
open file, is the `FetchResponder`'s.

What ends with a segment is answered as it is, however little, where what is readable goes on in the next one: waiting
would not make it more. Source: Kafka's `DelayedFetch`, its case F.

A client that says of which epoch the record before its fetch offset was is compared with the owner's log each time, for
it may have read what no longer counts; where they part is told at once (diverging epoch, v12+).

Left out: reading from followers (KIP-392). Consumers always read from the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.channels.partition_table import (
    FILES_VERSION,
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    LOG_START,
    SERVING_INCARNATION,
    SLOT_LOG_END,
    PartitionTable,
)
from appliance.channels.request_channel import ITEM, RequestFlag, fetch_request
from appliance.channels.roles import Role
from appliance.clock import NS_PER_MS, Clock
from appliance.errors import RejectedRequest
from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.errors import ErrorCode
from appliance.protocol.fetch_request import (
    FIRST_BY_TOPIC_ID,
    FIRST_WITH_SESSIONS,
    FetchRequest,
    parse_fetch,
)
from appliance.protocol.leader_epoch import leader_epoch_fault
from appliance.requests.auditing import Auditing
from appliance.requests.cursors import Cursors
from appliance.requests.fetch_session import FetchSessions, SessionPartition, SessionTurn
from appliance.requests.log_handlers.fetch_item import FetchItem
from appliance.requests.log_handlers.fetch_responder import FetchResponder
from appliance.requests.log_handlers.finish import Finish
from appliance.requests.meter import Meter
from appliance.requests.observer import Observer
from appliance.requests.purgatory_line import PurgatoryLine
from appliance.requests.rights import Rights
from appliance.requests.segment_files import SegmentFiles
from appliance.requests.session import Request
from appliance.requests.steps import Steps
from appliance.requests.topic_routes import PartitionRoute, TopicRoutes
from appliance.requests.traffic import Traffic
from appliance.requests.worker_lines import Answer, WorkerClient

_MIN_ONE_BATCH: Final = int(RequestFlag.MIN_ONE_BATCH)
_READ_COMMITTED: Final = int(RequestFlag.READ_COMMITTED)
_LONE: Final = int(RequestFlag.LONE)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_STORAGE_ERROR: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)
_DENIED: Final = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_READ: Final = int(AclOperation.READ)
_TOPIC: Final = int(ResourceType.TOPIC)
_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)

# Owners are asked about this many partitions at a time, so that a session of thousands stops when the answer is full.
ASKED_AT_ONCE: Final = 64
# A request of more bytes names thousands of partitions: it waits for its turn between others.
LARGE_BYTES: Final = 64 << 10


class FetchHandler:
    """Serves Fetch for one network process."""

    def __init__(
        self,
        routes: TopicRoutes,
        lines: WorkerClient,
        table: PartitionTable,
        *,
        purgatory: PurgatoryLine,
        sessions: FetchSessions,
        files: SegmentFiles,
        finish: Finish,
        clock: Clock,
        max_bytes: int,
        partitions_max: int,
        complain: Callable[[str], bool],
        rights: Rights | None = None,
        auditing: Auditing | None = None,
    ) -> None:
        self._rights = rights
        self._auditing = auditing
        self._traffic: Traffic | None = None
        self._routes = routes
        self._lines = lines
        self._table = table
        self._purgatory = purgatory
        self._sessions = sessions
        self._cursors = Cursors(files)
        self._plain_responder = self._responder = FetchResponder(
            routes, table, files=files, cursors=self._cursors, finish=finish, complain=complain
        )
        self._clock = clock
        self._max_bytes = max_bytes
        self._partitions_max = partitions_max
        self.observer: Observer | None = None

    def set_traffic(self, traffic: Traffic) -> None:
        """Count what is fetched from now on."""
        self._traffic = traffic
        self._plain_responder.traffic = self._responder.traffic = traffic

    def set_meter(self, meter: Meter | None) -> None:
        """Throttle clients that are over their quota from now on, or do not."""
        self._responder = self._plain_responder if meter is None else self._plain_responder.metered(meter)

    def begin(
        self, pending: Request, view: memoryview, position: int, end: int, limit_bytes: int = 0
    ) -> None:
        """Parses, finds the session, looks. `limit_bytes`: what a quota lets one answer have; 0: any.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request = self._parsed(pending, view, position, end)
        if request is not None:
            self._go(pending, request, limit_bytes)

    def begin_large(
        self, pending: Request, view: memoryview, position: int, end: int, limit_bytes: int = 0
    ) -> Steps[None]:
        """`begin` for a request of thousands of partitions, in two long pieces: one of them in a turn."""
        request = self._parsed(pending, view, position, end)
        yield None
        if request is not None:
            self._go(pending, request, limit_bytes)

    def _parsed(self, pending: Request, view: memoryview, position: int, end: int) -> FetchRequest | None:
        """None: it is refused."""
        try:
            return parse_fetch(view, position, end, pending.version, self._partitions_max)
        except RejectedRequest as rejected:
            self._responder.refuse(pending, rejected.code)
            return None

    def _go(self, pending: Request, request: FetchRequest, limit_bytes: int) -> None:
        now_ns = self._clock.monotonic_ns()
        turn = self._turn(request, pending.session.principal, now_ns // NS_PER_MS)
        if turn.error:
            self._responder.refuse(pending, turn.error)
            return
        max_wait_ms = 0 if pending.session.hung_up else max(0, request.max_wait_ms)
        deadline_ns = now_ns + max_wait_ms * NS_PER_MS
        max_bytes = min(self._max_bytes, request.max_bytes) if request.max_bytes > 0 else self._max_bytes
        if limit_bytes:
            max_bytes = min(max_bytes, limit_bytes)
        partitioned = _PartitionedFetch(
            self, pending, request, turn, deadline_ns=deadline_ns, max_bytes=max_bytes
        )
        self._lines.enter(partitioned)
        pending.drop = partitioned.dropped
        items = partitioned.items = tuple(
            FetchItem(wanted, self._route(wanted, pending)) for wanted in turn.partitions
        )
        self.look(partitioned)
        if self.observer is not None and self.observer.rows:
            self.observer.fetching(items, pending.session, max_bytes)

    def end_wait(self, pending: Request) -> None:
        """Answer with what there is. A wait may be for weeks, and the connection's descriptor is held as long."""
        partitioned = getattr(pending.drop, "__self__", None)
        if isinstance(partitioned, _PartitionedFetch):
            if partitioned.outstanding:
                partitioned.deadline_ns = 0
            else:
                self._purgatory.cancel(partitioned)
                partitioned.hurried()

    def _turn(self, request: FetchRequest, principal: str, now_ms: int) -> SessionTurn:
        wanted = tuple(
            SessionPartition(
                p.topic,
                p.partition,
                p.fetch_offset,
                p.max_bytes,
                p.current_leader_epoch,
                p.last_fetched_epoch,
            )
            for p in request.partitions
        )
        if request.version < FIRST_WITH_SESSIONS:
            return SessionTurn(None, wanted)
        return self._sessions.turn(
            request.session_id,
            request.session_epoch,
            wanted,
            ((p.topic, p.partition) for p in request.forgotten),
            principal=principal,
            uses_topic_ids=request.version >= FIRST_BY_TOPIC_ID,
            now_ms=now_ms,
        )

    def _route(self, wanted: SessionPartition, pending: Request) -> PartitionRoute | int:
        session = pending.session
        topic = self._routes.of(wanted.topic)
        if self._rights is not None:
            name = wanted.topic if topic is None else topic.image.name
            if isinstance(name, str) and not self._rights.may(session, _READ, _TOPIC, name):
                if self._auditing is not None:
                    self._auditing.denied(pending, _READ, _TOPIC, name)
                return _DENIED
        if topic is None:
            by_name = isinstance(wanted.topic, str)
            return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID)
        route = topic.partition(wanted.partition)
        if route is None:
            return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if route.worker is None:
            return _NOT_LEADER  # as Kafka; its Java consumer ends with LEADER_NOT_AVAILABLE in a Fetch answer
        return route if route.leader == session.slot else _NOT_LEADER

    def look(self, partitioned: _PartitionedFetch) -> None:
        """Reads the partition table for every partition, then asks owners about those with records."""
        read_committed = partitioned.read_committed
        cells, table, lines = self._table.cells, self._table, self._lines
        for item in partitioned.items:
            item.length_bytes = item.first_batch_bytes = item.following_bytes = 0
            item.asks_owner = item.on_older_segment = False
            route = item.route
            if route is None or route.worker is None:
                continue
            at = table.at(route.row)
            if cells[at + SERVING_INCARNATION] != route.incarnation or not lines.is_up(route.worker):
                item.error = _STORAGE_ERROR if table.is_offline(route.row, route.incarnation) else _NOT_LEADER
                continue
            high_watermark = cells[at + HIGH_WATERMARK]
            item.high_watermark = high_watermark
            item.last_stable_offset = cells[at + LAST_STABLE_OFFSET]
            item.log_start = cells[at + LOG_START]
            wanted = item.wanted
            offset, epoch = wanted.fetch_offset, wanted.current_leader_epoch
            item.error = leader_epoch_fault(epoch, route.leader_epoch)
            if item.error:
                continue
            # Before the owner is asked: if it stands still when the file is opened, the answer is about that file.
            item.files_version = cells[at + FILES_VERSION]
            if wanted.last_fetched_epoch >= 0:
                item.asks_owner = True
            elif (
                offset < item.log_start
                # Another slot may lead by now, whose high watermark we have read beside this one's log end.
                or (
                    offset > cells[table.slot_at(route.row, route.leader) + SLOT_LOG_END]
                    and offset > high_watermark
                )
            ):
                item.error = _OUT_OF_RANGE
            else:
                item.asks_owner = offset < (item.last_stable_offset if read_committed else high_watermark)
        partitioned.next_asked = 0
        self.ask_more(partitioned)

    def ask_more(self, partitioned: _PartitionedFetch) -> None:
        """Places the next operations, or decides when nothing more is to be asked."""
        flags = _MIN_ONE_BATCH | (_READ_COMMITTED if partitioned.read_committed else 0)
        items, lines = partitioned.items, self._lines
        if lines.is_idle:
            flags |= _LONE
        while partitioned.next_asked < len(items) and partitioned.outstanding < ASKED_AT_ONCE:
            if partitioned.found_bytes >= partitioned.max_bytes:
                break
            index = partitioned.next_asked
            partitioned.next_asked += 1
            item = items[index]
            route = item.route
            if not item.asks_owner or route is None or route.worker is None:
                continue
            wanted = item.wanted
            if self._goes_on(partitioned, item, route):
                continue
            operation = fetch_request(
                partitioned.request_id,
                index,
                route.row,
                route.incarnation,
                flags,
                wanted.current_leader_epoch,
                max(0, min(wanted.partition_max_bytes, partitioned.max_bytes)),
                wanted.last_fetched_epoch,
                wanted.fetch_offset,
                partitioned.timed_ns,
            )
            if not lines.place(route.worker, operation):
                item.error = _NOT_LEADER
                continue
            item.asked = route.worker
            partitioned.outstanding += 1
        if partitioned.timed_ns:
            partitioned.timed_ns = 0
        if not partitioned.outstanding:
            self._decide(partitioned)

    def _goes_on(self, partitioned: _PartitionedFetch, item: FetchItem, route: PartitionRoute) -> bool:
        """Whether what follows an earlier answer is found where that ended: then no owner is asked."""
        wanted = item.wanted
        cursor = self._cursors.find(route, wanted.fetch_offset, files_version=item.files_version)
        if cursor is None or wanted.last_fetched_epoch >= 0:
            return False
        max_bytes = min(wanted.partition_max_bytes, partitioned.max_bytes - partitioned.found_bytes)
        if not cursor.on_older_segment and partitioned.found_bytes + max_bytes < partitioned.min_bytes:
            return False  # whether there is more behind the segment, the owner knows
        length_bytes, following_bytes, end_offset = self._cursors.advance(
            route,
            cursor,
            max_bytes=max_bytes,
            upper_bound=item.last_stable_offset if partitioned.read_committed else item.high_watermark,
            read_committed=partitioned.read_committed,
        )
        if not length_bytes:
            return False
        item.segment, item.directory, item.position = cursor.segment, cursor.directory, cursor.position
        # Whole or not at all: of what is left of the answer, the next may get its part.
        item.length_bytes = item.first_batch_bytes = length_bytes
        item.following_bytes = following_bytes
        item.on_older_segment = cursor.on_older_segment
        item.end_offset = end_offset
        item.has_aborted = partitioned.read_committed and cursor.has_aborted
        item.asks_owner = False
        # All it was allowed, not what it found: whoever wants as much at least as at most would wait for the rest.
        partitioned.found_bytes += max_bytes
        return True

    def _decide(self, partitioned: _PartitionedFetch) -> None:
        """Everything asked is answered: respond, or wait for more."""
        items = partitioned.items
        enough = (
            partitioned.found_bytes >= partitioned.min_bytes
            or not items
            or any(item.error or item.on_older_segment for item in items)
            or self._clock.monotonic_ns() >= partitioned.deadline_ns
        )
        if not enough:
            # By row: a client may name a partition twice.
            watches = {
                item.route.row: (
                    item.route.row,
                    item.high_watermark,
                    item.wanted.fetch_offset < item.high_watermark,
                )
                for item in items
                if item.route is not None
            }
            if self._purgatory.wait(
                partitioned,
                watches.values(),
                deadline_ns=partitioned.deadline_ns,
                needed_bytes=self._needed_bytes(partitioned),
            ):
                if self._traffic is not None:
                    self._traffic.waits(partitioned.pending)
                return
        self._lines.leave(partitioned)
        self._responder.respond(
            partitioned.pending,
            partitioned.turn,
            items=items,
            max_bytes=partitioned.max_bytes,
            read_committed=partitioned.read_committed,
        )

    def _needed_bytes(self, partitioned: _PartitionedFetch) -> int:
        """How many more must come before another look is worth it.

        The last stable offset moves with the high watermark, and no sooner. Where it is behind, a marker of a few bytes
        may let out all that waits for it.
        """
        if partitioned.read_committed and any(
            item.last_stable_offset < item.high_watermark for item in partitioned.items
        ):
            return 1
        return partitioned.min_bytes - partitioned.found_bytes

    def cancel(self, partitioned: _PartitionedFetch) -> None:
        """The connection is gone."""
        self._lines.leave(partitioned)
        self._purgatory.cancel(partitioned)


class _PartitionedFetch:
    """One Fetch request in flight: the workers and the purgatory call it back.

    `found_bytes` count against `min_bytes`; what a cursor leads to counts as all that it was allowed: there is more.
    `next_asked` is the first item that nobody was asked about yet, `outstanding` how many answers are still to come.
    """

    __slots__ = (
        "_handler",
        "deadline_ns",
        "found_bytes",
        "items",
        "max_bytes",
        "min_bytes",
        "next_asked",
        "outstanding",
        "pending",
        "read_committed",
        "request_id",
        "timed_ns",
        "turn",
        "watched",
    )

    def __init__(
        self,
        handler: FetchHandler,
        pending: Request,
        request: FetchRequest,
        turn: SessionTurn,
        *,
        deadline_ns: int,
        max_bytes: int,
    ) -> None:
        self._handler = handler
        self.pending = pending
        self.read_committed = request.isolation_level == 1
        self.turn = turn
        self.deadline_ns = deadline_ns
        self.max_bytes = max_bytes
        self.min_bytes = min(request.min_bytes, max_bytes)
        self.items: tuple[FetchItem, ...] = ()
        self.request_id = 0
        self.watched = 0
        self.outstanding = 0
        self.next_asked = 0
        self.found_bytes = 0
        self.timed_ns = pending.arrived_ns  # until owners were asked first: later questions come after a wait

    def answered(self, answer: Answer) -> None:
        """An owner says where the records lie."""
        item = self.items[answer[ITEM]]
        if item.asked is None:
            return
        item.answered(answer)
        if item.diverging is not None:
            self.deadline_ns = 0  # told at once
        self.found_bytes += item.length_bytes
        self._settled()

    def worker_lost(self, worker: Role) -> None:
        for item in self.items:
            if item.asked == worker:
                item.asked = None
                item.error = _NOT_LEADER
                self._settled()

    def woken(self) -> None:
        """More became readable, or the time is up: look again."""
        self.found_bytes = 0
        self._handler.look(self)

    def hurried(self) -> None:
        """Too many partitions are waited for: answer with what there is."""
        self.deadline_ns = 0
        self.woken()

    def dropped(self) -> None:
        self._handler.cancel(self)

    def _settled(self) -> None:
        self.outstanding -= 1
        if not self.outstanding:
            self._handler.ask_more(self)
