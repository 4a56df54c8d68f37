"""Fetch 4-18 in the network process: what is there, where it lies, and waiting for what is not.

    begin ─→ look ──────────→ ask owners where ──→ enough, an error, or no time left? ─→ respond
              ↑  (partition      (only partitions                │ no
              │   table)          with records,                  ↓
              │                   no cursor)                 purgatory
              └──────────────── woken, once ←─────────────────── ┘

A look reads the partition table: a partition without new records costs no other process anything. Whoever goes on
behind its last answer is led by a cursor (decision 0059); what it does not reach, owners answer with
(segment, position, length), and records leave by sendfile. `max_bytes` bounds the whole answer except that its first
batch always comes whole; later partitions get whole first batches or nothing.

What ends with a segment is answered as it is, however little, where what is readable goes on in the next one: waiting
would not make it more. Source: Kafka's `DelayedFetch`, its case F.

A client that says of which epoch the record before its fetch offset was is compared with the owner's log each time, for
it may have read what no longer counts; where they part is told at once (diverging epoch, v12+).

Left out until its issue: fetch from followers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from appliance.channels.request_channel import FETCH_DIRECTORY, Op, RequestFlag, ResponseFlag
from appliance.channels.roles import Role
from appliance.clock import Clock
from appliance.errors import RejectedRequest, StorageFault
from appliance.log.faults import is_gone, storage_fault
from appliance.netproc.aborted_transactions import aborted_in
from appliance.netproc.connection import FilePiece, Pending, Piece
from appliance.netproc.cursors import Cursors
from appliance.netproc.fetch_session import FetchSessions, SessionPartition, SessionTurn
from appliance.netproc.leader_hints import endpoints_of, leader_hint
from appliance.netproc.log_handlers.finish import Finish
from appliance.netproc.purgatory_line import PurgatoryLine
from appliance.netproc.segment_files import SegmentFile, SegmentFiles
from appliance.netproc.segment_replaced import SegmentReplaced
from appliance.netproc.topic_routes import PartitionRoute, TopicRoutes
from appliance.netproc.worker_lines import Answer, WorkerLines
from appliance.protocol.errors import ErrorCode
from appliance.protocol.fetch_request import (
    FIRST_BY_TOPIC_ID,
    FIRST_WITH_SESSIONS,
    FetchRequest,
    parse_fetch,
)
from appliance.protocol.fetch_response import (
    AbortedTransaction,
    DivergingEpoch,
    FetchedPartition,
    encode_fetch_response,
)
from appliance.protocol.leader_epoch import leader_epoch_fault
from appliance.protocol.node_endpoint import NodeEndpoint

HINTS_FROM_VERSION: Final = 12

_FETCH: Final = int(Op.FETCH)
_EPOCH_END: Final = int(Op.EPOCH_END)
_MIN_ONE_BATCH: Final = int(RequestFlag.MIN_ONE_BATCH)
_READ_COMMITTED: Final = int(RequestFlag.READ_COMMITTED)
_ABORTED: Final = int(ResponseFlag.ABORTED)
_OLDER_SEGMENT: Final = int(ResponseFlag.OLDER_SEGMENT)
_LONE: Final = int(RequestFlag.LONE)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_STORAGE_ERROR: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)
_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)

# Owners are asked about this many partitions at a time, so that a session of thousands stops when the answer is full.
ASKED_AT_ONCE: Final = 64
_NS_PER_MS: Final = 1_000_000


class FetchHandler:
    """Serves Fetch for one network process."""

    def __init__(
        self,
        routes: TopicRoutes,
        lines: WorkerLines,
        table: PartitionTable,
        *,
        purgatory: PurgatoryLine,
        sessions: FetchSessions,
        files: SegmentFiles,
        finish: Finish,
        clock: Clock,
        max_bytes: int,
        complain: Callable[[str], bool],
    ) -> None:
        self._routes = routes
        self._complain = complain
        self.lines = lines
        self._table = table
        self._purgatory = purgatory
        self._sessions = sessions
        self._files = files
        self._cursors = Cursors(files)
        self._finish = finish
        self._clock = clock
        self._max_bytes = max_bytes

    def begin(self, pending: Pending, view: memoryview, position: int, end: int) -> None:
        """Parses, finds the session, looks.

        Raises:
            MalformedFrame: the body does not parse.
        """
        try:
            request = parse_fetch(view, position, end, pending.version)
        except RejectedRequest as rejected:
            frames = encode_fetch_response(
                pending.version, pending.correlation_id, (), error_code=rejected.code
            )
            self._finish(pending, [piece for piece in frames.pieces if isinstance(piece, bytes)])
            return
        now_ns = self._clock.monotonic_ns()
        turn = self._turn(request, now_ns // _NS_PER_MS)
        deadline_ns = now_ns + max(0, request.max_wait_ms) * _NS_PER_MS
        max_bytes = min(self._max_bytes, request.max_bytes) if request.max_bytes > 0 else self._max_bytes
        asker = _Asker(self, pending, request, turn, deadline_ns=deadline_ns, max_bytes=max_bytes)
        if turn.error:
            self._respond(asker, ())
            return
        self.lines.enter(asker)
        pending.drop = asker.dropped
        asker.items = tuple(
            _Item(wanted, self._route(wanted, pending.connection.slot)) for wanted in turn.partitions
        )
        self.look(asker)

    def look(self, asker: _Asker) -> None:
        """Reads the partition table for every partition, then asks owners about those with records."""
        read_committed = asker.read_committed
        cells, table, lines = self._table.cells, self._table, self.lines
        for item in asker.items:
            item.length_bytes = item.first_batch_bytes = item.following_bytes = 0
            item.is_asked = item.on_older_segment = False
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
            if wanted.last_fetched_epoch >= 0:
                item.is_asked = True
                item.files_version = cells[at + FILES_VERSION]
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
                # Before the owner is asked: if it stands still when the file is opened, the answer is about that file.
                item.files_version = cells[at + FILES_VERSION]
                item.is_asked = offset < (item.last_stable_offset if read_committed else high_watermark)
        asker.next_asked = 0
        self.ask_more(asker)

    def ask_more(self, asker: _Asker) -> None:
        """Places the next operations, or decides when nothing more is to be asked."""
        flags = _MIN_ONE_BATCH | (_READ_COMMITTED if asker.read_committed else 0)
        items, lines = asker.items, self.lines
        if lines.is_idle:
            flags |= _LONE
        while asker.next_asked < len(items) and asker.outstanding < ASKED_AT_ONCE:
            if asker.found_bytes >= asker.max_bytes:
                break
            index = asker.next_asked
            asker.next_asked += 1
            item = items[index]
            route = item.route
            if not item.is_asked or route is None or route.worker is None:
                continue
            wanted = item.wanted
            if self._goes_on(asker, item, route):
                continue
            operation = (
                _FETCH,
                flags,
                0,
                asker.request_id,
                index,
                route.row,
                route.incarnation,
                wanted.current_leader_epoch,
                0,
                max(0, min(wanted.partition_max_bytes, asker.max_bytes)),
                wanted.last_fetched_epoch,
                wanted.fetch_offset,
                0,
                0,
            )
            if not lines.place(route.worker, operation):
                item.error = _NOT_LEADER
                continue
            item.asked = route.worker
            asker.outstanding += 1
        if not asker.outstanding:
            self._decide(asker)

    def _goes_on(self, asker: _Asker, item: _Item, route: PartitionRoute) -> bool:
        """Whether what follows an earlier answer is found where that ended: then no owner is asked."""
        wanted = item.wanted
        cursor = self._cursors.find(route, wanted.fetch_offset, files_version=item.files_version)
        if cursor is None or wanted.last_fetched_epoch >= 0:
            return False
        max_bytes = min(wanted.partition_max_bytes, asker.max_bytes - asker.found_bytes)
        if not cursor.on_older_segment and asker.found_bytes + max_bytes < asker.min_bytes:
            return False  # whether there is more behind the segment, the owner knows
        length_bytes, following_bytes = self._cursors.advance(
            route,
            cursor,
            max_bytes=max_bytes,
            upper_bound=item.last_stable_offset if asker.read_committed else item.high_watermark,
            read_committed=asker.read_committed,
        )
        if not length_bytes:
            return False
        item.segment, item.directory, item.position = cursor.segment, cursor.directory, cursor.position
        # Whole or not at all: of what is left of the answer, the next may get its part.
        item.length_bytes = item.first_batch_bytes = length_bytes
        item.following_bytes = following_bytes
        item.on_older_segment = cursor.on_older_segment
        item.has_aborted = False
        item.is_asked = False
        # There is more: a reader who wants as much at least as at most does not wait for the rest of a batch.
        asker.found_bytes += max_bytes
        return True

    def _decide(self, asker: _Asker) -> None:
        """Everything asked is answered: respond, or wait for more."""
        items = asker.items
        enough = (
            asker.found_bytes >= asker.min_bytes
            or not items
            or any(item.error or item.on_older_segment for item in items)
            or self._clock.monotonic_ns() >= asker.deadline_ns
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
                asker,
                watches.values(),
                deadline_ns=asker.deadline_ns,
                needed_bytes=self._needed_bytes(asker),
            ):
                return
        self.lines.leave(asker)
        self._respond(asker, items)

    def _needed_bytes(self, asker: _Asker) -> int:
        """How many more must come before another look is worth it.

        The last stable offset moves with the high watermark, and no sooner. Where it is behind, a marker of a few bytes
        may let out all that waits for it.
        """
        if asker.read_committed and any(
            item.last_stable_offset < item.high_watermark for item in asker.items
        ):
            return 1
        return asker.min_bytes - asker.found_bytes

    def cancel(self, asker: _Asker) -> None:
        """The connection is gone."""
        self.lines.leave(asker)
        self._purgatory.cancel(asker)

    def _respond(self, asker: _Asker, items: Sequence[_Item]) -> None:
        turn, pending = asker.turn, asker.pending
        self._trim(asker, items)
        files = self._hold(asker, items)
        chosen: list[_Item] = []
        has_moved = False
        for item in items:
            if item.error == _NOT_LEADER:
                has_moved = True
            mentioned = item.wanted.has_news(
                error=item.error,
                records_bytes=item.length_bytes,
                high_watermark=item.high_watermark,
                log_start=item.log_start,
            )
            if mentioned or item.diverging is not None or not turn.incremental:
                chosen.append(item)
        if turn.session is not None:
            for item in items:
                if item.length_bytes:
                    turn.session.to_the_end(item.wanted.key)
        chosen = _by_topic(chosen)
        fetched = [item.fetched(read_committed=asker.read_committed) for item in chosen]
        endpoints: Sequence[NodeEndpoint] = ()
        if has_moved and pending.version >= HINTS_FROM_VERSION:
            fetched, endpoints = self._with_hints(fetched)
        frames = encode_fetch_response(
            pending.version,
            pending.correlation_id,
            fetched,
            error_code=turn.error,
            session_id=turn.session_id,
            node_endpoints=endpoints,
        )
        answer: list[Piece] = []
        for piece in frames.pieces:
            if isinstance(piece, bytes):
                answer.append(piece)
            else:
                item = chosen[piece[0]]
                held = files[id(item)]
                answer.append(FilePiece(held, item.position, item.length_bytes, item.following_bytes))
        pending.drop = None
        self._finish(pending, answer)

    def _with_hints(
        self, fetched: list[FetchedPartition]
    ) -> tuple[list[FetchedPartition], Sequence[NodeEndpoint]]:
        routes = self._routes
        hinted = [
            one._replace(current_leader=leader_hint(routes, one.topic, one.partition))
            if one.error_code == _NOT_LEADER
            else one
            for one in fetched
        ]
        return hinted, endpoints_of(routes, [one.current_leader for one in hinted])

    def _trim(self, asker: _Asker, items: Sequence[_Item]) -> None:
        """Applies `max_bytes`: whole for the first batch of all, then what fits."""
        left, first = asker.max_bytes, True
        for item in items:
            if not item.length_bytes:
                continue
            allowed = min(item.length_bytes, max(left, 0), max(0, item.wanted.partition_max_bytes))
            if allowed < item.first_batch_bytes:
                allowed = item.first_batch_bytes if first else 0
            item.length_bytes = allowed
            left -= allowed
            first = first and not allowed

    def _hold(self, asker: _Asker, items: Sequence[_Item]) -> dict[int, SegmentFile]:
        """Opens the segments of what will be sent; one that is gone makes its partition's answer an error."""
        files: dict[int, SegmentFile] = {}
        for item in items:
            if item.length_bytes and item.route is not None:
                try:
                    files[id(item)] = held = self._held(item, item.route)
                    if item.is_asked:
                        self._follow(asker, item, item.route, held)
                except SegmentReplaced:
                    item.length_bytes = 0  # nothing now; the client asks again, and so do we
                except (OSError, StorageFault) as error:
                    item.error, item.length_bytes = self._why_not(item, item.route, error), 0
        return files

    def _held(self, item: _Item, route: PartitionRoute) -> SegmentFile:
        held = self._files.hold(route, item.segment, item.directory, version=item.files_version)
        if item.has_aborted:
            try:
                item.aborted = self._aborted(item, route)
            except (OSError, StorageFault, SegmentReplaced):
                held.release()
                raise
        return held

    def _follow(self, asker: _Asker, item: _Item, route: PartitionRoute, held: SegmentFile) -> None:
        """Of what was cut short by what was asked for, sends whole batches: the reader will go on behind them."""
        wanted = item.wanted
        if (
            item.length_bytes < min(wanted.partition_max_bytes, asker.max_bytes)
            or item.length_bytes <= item.first_batch_bytes
            or item.has_aborted
            or wanted.last_fetched_epoch >= 0
        ):
            return
        read_committed, stable = asker.read_committed, item.last_stable_offset
        item.length_bytes, item.following_bytes = self._cursors.follow(
            route,
            held,
            directory=item.directory,
            segment=item.segment,
            position=item.position,
            length_bytes=item.length_bytes,
            upper_bound=stable if read_committed else item.high_watermark,
            settled_below=stable if read_committed else -1,
            on_older_segment=item.on_older_segment,
        )

    def _aborted(self, item: _Item, route: PartitionRoute) -> Sequence[AbortedTransaction]:
        """The aborted transactions that the item's records are among."""
        try:
            return aborted_in(
                self._files.directory_of(route, item.directory),
                item.segment,
                offset=item.wanted.fetch_offset,
                upper_bound=item.last_stable_offset,
            )
        finally:
            # Indexes are read by their names: what was swapped meanwhile no longer knows the records that we hold.
            self._files.expect(route, version=item.files_version)

    def _why_not(self, item: _Item, route: PartitionRoute, error: OSError | StorageFault) -> int:
        """A segment that its owner named is gone: deleted as too old since then, or with its partition. Or it is there,
        and the host does not let us have it, for want of descriptors perhaps: its owner would fare no better elsewhere.
        """
        if not is_gone(error):
            path = self._files.directory_of(route, item.directory)
            fault = error if isinstance(error, StorageFault) else storage_fault(error, error.filename or path)
            self._complain(f"a segment cannot be read: {fault}")
            return _STORAGE_ERROR
        if self._table.serves(route.row, route.incarnation):
            item.log_start = self._table.cells[self._table.at(route.row) + LOG_START]
            if item.wanted.fetch_offset < item.log_start:
                return _OUT_OF_RANGE
        return _NOT_LEADER

    def _route(self, wanted: SessionPartition, slot: int) -> PartitionRoute | int:
        topic = self._routes.of(wanted.topic)
        if topic is None:
            by_name = isinstance(wanted.topic, str)
            return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID)
        route = topic.partition(wanted.partition)
        if route is None:
            return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if route.worker is None:
            return int(ErrorCode.LEADER_NOT_AVAILABLE)
        return route if route.leader == slot else _NOT_LEADER

    def _turn(self, request: FetchRequest, now_ms: int) -> SessionTurn:
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
            uses_topic_ids=request.version >= FIRST_BY_TOPIC_ID,
            now_ms=now_ms,
        )


class _Item:
    """One partition of one Fetch request: what is wanted, what the table says, what the owner found."""

    __slots__ = (
        "aborted",
        "asked",
        "directory",
        "diverging",
        "error",
        "files_version",
        "first_batch_bytes",
        "following_bytes",
        "has_aborted",
        "high_watermark",
        "is_asked",
        "last_stable_offset",
        "length_bytes",
        "log_start",
        "on_older_segment",
        "position",
        "route",
        "segment",
        "wanted",
    )

    def __init__(self, wanted: SessionPartition, route: PartitionRoute | int) -> None:
        self.wanted = wanted
        self.route = None if isinstance(route, int) else route
        self.error = route if isinstance(route, int) else 0
        self.asked: Role | None = None
        self.is_asked = self.has_aborted = self.on_older_segment = False
        self.diverging: DivergingEpoch | None = None
        self.aborted: Sequence[AbortedTransaction] = ()
        self.high_watermark = self.last_stable_offset = self.log_start = -1
        self.files_version = 0
        self.directory = self.segment = self.position = self.length_bytes = self.first_batch_bytes = 0
        self.following_bytes = 0

    def fetched(self, *, read_committed: bool) -> FetchedPartition:
        return FetchedPartition(
            self.wanted.topic,
            self.wanted.partition,
            self.error,
            self.high_watermark,
            self.last_stable_offset,
            self.log_start,
            self.length_bytes,
            self.aborted if read_committed else None,
            -1,
            self.diverging,
        )


class _Asker:
    """One Fetch request from its first look to its answer."""

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
        "turn",
    )

    def __init__(
        self,
        handler: FetchHandler,
        pending: Pending,
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
        self.items: tuple[_Item, ...] = ()
        self.request_id = 0
        self.outstanding = 0
        self.next_asked = 0
        self.found_bytes = 0

    def answered(self, answer: Answer) -> None:
        """An owner says where the records lie."""
        item = self.items[answer[4]]
        if item.asked is None:
            return
        item.asked = None
        item.error = answer[2]
        item.high_watermark = answer[7]
        item.log_start = answer[8]
        item.last_stable_offset = answer[13]
        if answer[0] == _EPOCH_END:
            item.diverging = DivergingEpoch(answer[12], answer[6])
            self.deadline_ns = 0  # told at once
        elif not item.error:
            item.segment = answer[6]
            item.directory = answer[1] & FETCH_DIRECTORY
            item.position = answer[9]
            item.length_bytes = answer[10]
            item.first_batch_bytes = answer[11]
            item.has_aborted = bool(answer[1] & _ABORTED)
            item.on_older_segment = bool(answer[1] & _OLDER_SEGMENT)
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

    def dropped(self) -> None:
        self._handler.cancel(self)

    def _settled(self) -> None:
        self.outstanding -= 1
        if not self.outstanding:
            self._handler.ask_more(self)


def _by_topic(items: list[_Item]) -> list[_Item]:
    """Partitions of a topic side by side, topics and partitions otherwise in the order they came."""
    groups: dict[object, list[_Item]] = {}
    for item in items:
        groups.setdefault(item.wanted.topic, []).append(item)
    return [item for group in groups.values() for item in group]
