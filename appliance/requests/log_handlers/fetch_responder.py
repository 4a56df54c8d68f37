"""The response to a Fetch: how much of what was found is sent, from segments that are held open until it has left.

    trim     `max_bytes` bounds all records, but the first batch always comes whole; later partitions get whole first
             batches or nothing
    hold     each segment is opened under the files version that its position was asked for with; one that is another
             file by now costs its partition the records, one that is gone is an error
    follow   what was cut short by what was asked for ends with a whole batch, where a cursor stays for the next fetch
    tell     an incremental session hears only of partitions with news; who asked a former leader hears of the new one

A response is bytes with `FilePiece`s between them: the outlet sends those from the open segment, and lets go of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from appliance.channels.partition_table import LOG_START, PartitionTable
from appliance.errors import StorageFault
from appliance.log.faults import is_gone, storage_fault
from appliance.protocol.errors import ErrorCode
from appliance.protocol.fetch_response import AbortedTransaction, encode_fetch_response
from appliance.protocol.node_endpoint import NodeEndpoint
from appliance.requests.aborted_transactions import AbortedTransactions
from appliance.requests.answer import FilePiece, Piece
from appliance.requests.cursors import Cursors
from appliance.requests.fetch_session import SessionTurn
from appliance.requests.leader_hints import MOVED, with_hints
from appliance.requests.log_handlers.fetch_item import FetchItem
from appliance.requests.log_handlers.finish import Finish
from appliance.requests.meter import Meter
from appliance.requests.segment_files import SegmentFile, SegmentFiles
from appliance.requests.segment_replaced import SegmentReplaced
from appliance.requests.session import Request
from appliance.requests.topic_routes import PartitionRoute, TopicRoutes
from appliance.requests.traffic import Traffic

HINTS_FROM_VERSION: Final = 12

PARTITION_BYTES: Final = 40
"""About what a partition takes of a response beside its records; a quota counts it."""

_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_STORAGE_ERROR: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)
_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)


class FetchResponder:
    """Answers the fetches of one network process; each response is handed to `finish`.

    Args:
        complain: hears of segments that the host does not let us read.
    """

    __slots__ = ("_aborted", "_complain", "_cursors", "_files", "_finish", "_routes", "_table", "traffic")

    def __init__(
        self,
        routes: TopicRoutes,
        table: PartitionTable,
        *,
        files: SegmentFiles,
        cursors: Cursors,
        finish: Finish,
        complain: Callable[[str], bool],
    ) -> None:
        self._routes = routes
        self._table = table
        self._files = files
        self._cursors = cursors
        self._aborted = AbortedTransactions(files)
        self._finish = finish
        self._complain = complain
        self.traffic: Traffic | None = None

    def refuse(self, pending: Request, error: int) -> None:
        """The request or its session is at fault: no partition is mentioned."""
        frames = encode_fetch_response(pending.version, pending.correlation_id, (), error_code=error)
        self._finish(pending, [piece for piece in frames.pieces if isinstance(piece, bytes)])

    def respond(
        self,
        pending: Request,
        turn: SessionTurn,
        *,
        items: Sequence[FetchItem],
        max_bytes: int,
        read_committed: bool,
    ) -> None:
        """Nothing more is asked or waited for: what was found is sent, and nothing else."""
        _trim(items, max_bytes=max_bytes)
        self._hold(items, max_bytes=max_bytes, read_committed=read_committed)
        self._send(pending, turn, items=items, read_committed=read_committed)

    def metered(self, meter: Meter) -> FetchResponder:
        """Return a responder that throttles, and is the same in all else."""
        responder = MeteredResponder(
            self._routes,
            self._table,
            files=self._files,
            cursors=self._cursors,
            finish=self._finish,
            complain=self._complain,
            meter=meter,
        )
        responder.traffic = self.traffic
        return responder

    def _send(
        self, pending: Request, turn: SessionTurn, *, items: Sequence[FetchItem], read_committed: bool
    ) -> None:
        if self.traffic is not None:
            self.traffic.fetched(items)
        chosen: list[FetchItem] = []
        has_moved = False
        for item in items:
            if item.error in MOVED:
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
        fetched = [item.fetched(read_committed=read_committed) for item in chosen]
        endpoints: Sequence[NodeEndpoint] = ()
        if has_moved and pending.version >= HINTS_FROM_VERSION:
            fetched, endpoints = with_hints(self._routes, fetched, pending.session)
        frames = encode_fetch_response(
            pending.version,
            pending.correlation_id,
            fetched,
            session_id=turn.session_id,
            node_endpoints=endpoints,
        )
        answer: list[Piece] = []
        for piece in frames.pieces:
            if isinstance(piece, bytes):
                answer.append(piece)
            else:
                item = chosen[piece[0]]
                assert item.held is not None
                answer.append(FilePiece(item.held, item.position, item.length_bytes, item.following_bytes))
        pending.drop = None
        self._finish(pending, answer)

    def _hold(self, items: Sequence[FetchItem], *, max_bytes: int, read_committed: bool) -> None:
        """Opens the segments of what will be sent; one that is gone makes its partition's answer an error."""
        for item in items:
            if item.length_bytes and item.route is not None:
                try:
                    held = self._files.hold(
                        item.route, item.segment, item.directory, version=item.files_version
                    )
                    if item.asks_owner:
                        self._follow(
                            item, item.route, held, max_bytes=max_bytes, read_committed=read_committed
                        )
                    if item.has_aborted:
                        item.aborted = self._aborted_among(item, item.route, held)
                    item.held = held
                except SegmentReplaced:
                    item.length_bytes = 0  # nothing now; the client asks again, and so do we
                except (OSError, StorageFault) as error:
                    item.error, item.length_bytes = self._why_not(item, item.route, error), 0

    def _aborted_among(
        self, item: FetchItem, route: PartitionRoute, held: SegmentFile
    ) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions that the item's records are among. If it raises, it has released `held`."""
        offset = item.wanted.fetch_offset
        try:
            if item.end_offset < 0:
                item.end_offset = self._cursors.end_offset(
                    route,
                    held,
                    directory=item.directory,
                    segment=item.segment,
                    position=item.position + item.length_bytes,
                )
            aborted = self._aborted.among(
                route,
                directory=item.directory,
                segment=item.segment,
                offset=offset,
                end_offset=item.end_offset,
                last_stable_offset=item.last_stable_offset,
                goes_on=item.on_older_segment,
                files_version=item.files_version,
            )
            if offset < self._table.cells[self._table.at(route.row) + LOG_START]:
                # Indexes go with their segments, and the one with its markers may have gone before it was read.
                raise FileNotFoundError(
                    f"{route.topic}-{route.partition} begins behind offset {offset} by now"
                )
        except (OSError, StorageFault, SegmentReplaced):
            held.release()
            raise
        return aborted

    def _follow(
        self,
        item: FetchItem,
        route: PartitionRoute,
        held: SegmentFile,
        *,
        max_bytes: int,
        read_committed: bool,
    ) -> None:
        """Of what was cut short by what was asked for, sends whole batches: the reader will go on behind them."""
        wanted, stable = item.wanted, item.last_stable_offset
        if (
            item.length_bytes < min(wanted.partition_max_bytes, max_bytes)
            or item.length_bytes <= item.first_batch_bytes
            or wanted.last_fetched_epoch >= 0
        ):
            return
        item.length_bytes, item.following_bytes, item.end_offset = self._cursors.follow(
            route,
            held,
            directory=item.directory,
            segment=item.segment,
            position=item.position,
            length_bytes=item.length_bytes,
            upper_bound=stable if read_committed else item.high_watermark,
            settled_below=stable if read_committed and not item.has_aborted else -1,
            has_aborted=read_committed and item.has_aborted,
            on_older_segment=item.on_older_segment,
        )

    def _why_not(self, item: FetchItem, route: PartitionRoute, error: OSError | StorageFault) -> int:
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


class MeteredResponder(FetchResponder):
    """Answers a client that is over its quota without a partition (KIP-219); the session's partitions stay as they are.

    Args:
        meter: decides.
    """

    __slots__ = ("_meter",)

    def __init__(
        self,
        routes: TopicRoutes,
        table: PartitionTable,
        *,
        files: SegmentFiles,
        cursors: Cursors,
        finish: Finish,
        complain: Callable[[str], bool],
        meter: Meter,
    ) -> None:
        super().__init__(routes, table, files=files, cursors=cursors, finish=finish, complain=complain)
        self._meter = meter

    def _send(
        self, pending: Request, turn: SessionTurn, *, items: Sequence[FetchItem], read_committed: bool
    ) -> None:
        size_bytes = sum(item.length_bytes + PARTITION_BYTES for item in items)
        throttle_ms = self._meter.fetch_delay_ms(pending.session, size_bytes)
        if not throttle_ms:
            super()._send(pending, turn, items=items, read_committed=read_committed)
            return
        for item in items:
            held, item.held = item.held, None
            if held is not None:
                held.release()
        frames = encode_fetch_response(
            pending.version, pending.correlation_id, (), throttle_ms=throttle_ms, session_id=turn.session_id
        )
        pending.drop = None
        self._finish(pending, [piece for piece in frames.pieces if isinstance(piece, bytes)])


def _trim(items: Sequence[FetchItem], *, max_bytes: int) -> None:
    """Applies `max_bytes`: whole for the first batch of all, then what fits."""
    left, first = max_bytes, True
    for item in items:
        if not item.length_bytes:
            continue
        allowed = min(item.length_bytes, max(left, 0), max(0, item.wanted.partition_max_bytes))
        if allowed < item.first_batch_bytes:
            allowed = item.first_batch_bytes if first else 0
        item.length_bytes = allowed
        left -= allowed
        first = first and not allowed


def _by_topic(items: list[FetchItem]) -> list[FetchItem]:
    """Partitions of a topic side by side, topics and partitions otherwise in the order they came."""
    groups: dict[object, list[FetchItem]] = {}
    for item in items:
        groups.setdefault(item.wanted.topic, []).append(item)
    return [item for group in groups.values() for item in group]
