"""Dispatch: a frame goes in, and its answer is handed to `finish`, at once or later. `api_table` says who answers.

    Produce, its bytes as last time     `ProduceMemo` knows them: nothing is parsed
    Produce, Fetch                      log_handlers/produce.py, log_handlers/fetch.py
    PARTITION, other keys               log_handlers/, in pieces (long_requests.py)
    COORDINATOR                         coordinator_line.py: the coordinator reads the frame itself
    TxnOffsetCommit                     transactional_commits.py: the transaction's coordinator, then the group's
    a row with a `route`                it looks at the request, and one of the two others takes it
    LOCAL, CONTROLLER                   local_requests.py, local_handlers/, in pieces

The same part in Apache Kafka: `KafkaApis.scala`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.errors import MalformedFrame
from appliance.ipc.agent import Timers
from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.group_requests import is_commit_of_nobody
from appliance.protocol.headers import RequestHeader, parse_request_header
from appliance.protocol.messages import encode_unsupported_api_versions
from appliance.protocol.produce import ProduceRequest, parse_produce
from appliance.requests.api_table import API_TABLE, Api, Route, Scope
from appliance.requests.auditing import Auditing
from appliance.requests.client_telemetry import ClientTelemetry
from appliance.requests.coordinator_lines import CoordinatorLines
from appliance.requests.fetch_session import FetchSessions
from appliance.requests.guards.guarding import Begin, Denied, Guarding
from appliance.requests.local_handlers.view import ProducerIds
from appliance.requests.local_requests import LocalHandler, LocalRequests
from appliance.requests.log_dirs import LogDirs
from appliance.requests.log_handlers.delayed_records import DelayedRecords
from appliance.requests.log_handlers.fetch import LARGE_BYTES, FetchHandler
from appliance.requests.log_handlers.finish import Finish, Refuse
from appliance.requests.log_handlers.leader_wait import LeaderWait
from appliance.requests.log_handlers.partitioned import PartitionedHandler
from appliance.requests.log_handlers.produce import ProduceHandler
from appliance.requests.log_handlers.session_transaction import SessionTransaction
from appliance.requests.long_requests import LongRequests
from appliance.requests.meter import Meter
from appliance.requests.observer import Observer
from appliance.requests.purgatory_line import PurgatoryLine
from appliance.requests.reauthentications import Reauthentications
from appliance.requests.rights import Rights
from appliance.requests.segment_files import SegmentFiles
from appliance.requests.session import Request, Session
from appliance.requests.steps import Steps, answering
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.traffic import Traffic
from appliance.requests.transaction_questions import TransactionQuestions
from appliance.requests.transactional_commits import TransactionalCommits
from appliance.requests.worker_lines import WorkerClient

_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)

SERVED_AFTER_CLOSE: Final = frozenset(
    map(int, (ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT))
)
"""Requests that a client may send last, without waiting for an answer: they are served although it has closed."""


class Apis:
    """The handlers of one network process.

    Args:
        finish: takes an answer. `finish_owed`: one that may be large where its request was small.
        auditing: takes what the audit journal records of requests; None where there is no journal.
        refuse: ends the connection of a request.
        failed: takes the address of a client whose authentication failed, and the time; returns how long its answer
            waits, in milliseconds.
    """

    def __init__(
        self,
        attachment: Attachment,
        routes: TopicRoutes,
        *,
        directories: dict[int, tuple[Path, ...]],
        files: SegmentFiles,
        pool: BufferPool,
        lines: WorkerClient,
        purgatory: PurgatoryLine,
        coordinator: CoordinatorLines,
        long: LongRequests,
        finish: Finish,
        finish_owed: Finish,
        refuse: Refuse,
        clock: Clock,
        complain: Callable[[str], bool],
        timers: Timers,
        failed: Callable[[str, int], int],
        auditing: Auditing | None = None,
    ) -> None:
        settings, table = attachment.wiring.settings, attachment.partitions
        self._pool = pool
        self._routes = routes
        self._partitions_max = settings.broker.max_partitions
        self._finish = finish
        self._coordinator = coordinator
        self._long = long
        rights = Rights(routes, settings) if settings.access.checks else None
        guarding: Guarding | None = None
        if rights is not None or auditing is not None:
            guarding = Guarding(
                rights, routes, long=long, timers=timers, finish=finish_owed, auditing=auditing
            )
            coordinator.answer_through(guarding.amending)
        self._rights = rights
        self._reauthentications = Reauthentications(
            frame_bytes_max=settings.sasl.max_receive_size,
            max_reauth_ms=settings.sasl.max_reauth_ms,
            failed=failed,
            pool=pool,
            timers=timers,
            clock=clock,
            finish=finish,
            refuse=refuse,
            auditing=auditing,
        )
        self._clock = clock
        self._meter: Meter | None = None
        self._traffic: Traffic | None = None
        self._is_watched = rights is not None
        questions = TransactionQuestions(coordinator, pool, timers, clock)
        self.delayed: Final = DelayedRecords(
            routes,
            lines,
            settings,
            pool=pool,
            clock=clock,
            bells=attachment.services_bells(),
            timers=timers,
            questions=questions,
        )
        self._produce = ProduceHandler(
            routes,
            lines,
            questions=questions,
            leader_wait=LeaderWait(routes, table, timers, clock, purgatory.deadlines),
            finish=finish,
            refuse=refuse,
            delayed=self.delayed,
            rights=rights,
            auditing=auditing,
        )
        self._fetch = FetchHandler(
            routes,
            lines,
            table,
            purgatory=purgatory,
            sessions=FetchSessions(
                settings.broker.fetch_session_slots,
                partitions_max=settings.broker.fetch_session_partitions_max,
                first_id=attachment.role.index + 1,
                stride=settings.network.processes,
            ),
            files=files,
            finish=finish_owed,
            clock=clock,
            max_bytes=settings.broker.fetch_max_bytes,
            partitions_max=settings.broker.max_partitions,
            complain=complain,
            rights=rights,
            auditing=auditing,
        )
        self._local = LocalRequests(
            settings,
            routes,
            handlers={int(api.key): cast(LocalHandler, api.handler) for api in API_TABLE if api.is_local},
            long=long,
            pool=pool,
            producer_ids=ProducerIds(),
            partitions=table,
            clock=clock,
            finish=finish_owed,
            guarding=guarding,
        )
        log_dirs = LogDirs(directories, attachment, lines)
        commits = TransactionalCommits(
            routes,
            coordinator,
            questions,
            workers=lines,
            pool=pool,
            finish=finish_owed if guarding is None else guarding.amending(finish_owed),
            refuse=refuse,
        )

        def begin_of(api: Api) -> Begin:
            """Return what takes the requests of a row."""
            if api.route is not None:
                return self._routed(api.route)
            if api.key is ApiKey.TXN_OFFSET_COMMIT:
                return commits.begin
            if api.scope is Scope.COORDINATOR:
                return self._begin_at_coordinator
            if api.is_local:
                return self._begin_local
            if api.handler is ProduceHandler:
                return self._begin_produce
            if api.handler is FetchHandler:
                return self._begin_fetch
            kind = cast(type[PartitionedHandler], api.handler)
            handler = kind(
                routes,
                lines,
                table,
                log_dirs=log_dirs,
                coordinators=coordinator,
                pool=pool,
                finish=finish_owed,
                resume=long.resume,
                guarding=guarding,
            )
            return _in_pieces(handler, long, finish_owed)

        self._begin: dict[int, Begin] = {int(api.key): begin_of(api) for api in API_TABLE}
        if guarding is not None:
            for api in API_TABLE:
                is_foreign = api.scope is Scope.COORDINATOR or api.route is not None
                if is_foreign and (
                    rights is not None or (auditing is not None and auditing.records_changes_by(api.key))
                ):
                    # Commits of members are the daily work of consumers: without rules nobody decodes them here.
                    is_commit = api.key is ApiKey.OFFSET_COMMIT and rights is None
                    self._begin[int(api.key)] = guarding.before(
                        self._begin[int(api.key)], only=is_commit_of_nobody if is_commit else None
                    )

    def set_traffic(self, traffic: Traffic) -> None:
        """Count requests from now on, for the metrics process or for the log."""
        self._traffic = self._produce.traffic = traffic
        self._fetch.set_traffic(traffic)

    def set_observer(self, observer: Observer) -> None:
        """Observe audited and traced topics. Call it before the first request."""
        self._produce.observer = self._fetch.observer = observer

    def set_telemetry(self, telemetry: ClientTelemetry) -> None:
        """Let clients push their metrics. Call it before the first request."""
        self._local.telemetry = telemetry

    def set_meter(self, meter: Meter | None) -> None:
        """Count what clients use from now on, or do not."""
        self._meter = meter
        self._is_watched = self._rights is not None or meter is not None
        self._local.meter = self._long.meter = meter
        self._fetch.set_meter(meter)
        self._begin[_FETCH] = self._begin_fetch if meter is None else self._begin_limited_fetch

    def _begin_produce(
        self, pending: Request, view: memoryview, header: RequestHeader, start: int, end: int
    ) -> None:
        request = self._parsed_produce(view, header.body_position, end, header.version)
        if request.transactional_id is not None and pending.session.transaction is None:
            pending.session.transaction = SessionTransaction()
        # Only what the session may do is remembered, because the next request of the same bytes is not looked at.
        pending.session.own_memo().remember(view, start, header=header, request=request)
        self._produce.place(pending, request)

    def _begin_fetch(
        self, pending: Request, view: memoryview, header: RequestHeader, _start: int, end: int
    ) -> None:
        position = header.body_position
        if end - position > LARGE_BYTES:
            self._long.begin(pending, self._fetch.begin_large(pending, view, position, end), end - position)
        else:
            self._fetch.begin(pending, view, position, end)
            pending.give_block(self._pool)  # a fetch that waits holds no payload

    def _begin_limited_fetch(
        self, pending: Request, view: memoryview, header: RequestHeader, _start: int, end: int
    ) -> None:
        meter, position = self._meter, header.body_position
        limit_bytes = 0 if meter is None else meter.fetch_max_bytes(pending.session)
        if end - position > LARGE_BYTES:
            steps = self._fetch.begin_large(pending, view, position, end, limit_bytes)
            self._long.begin(pending, steps, end - position)
        else:
            self._fetch.begin(pending, view, position, end, limit_bytes)
            pending.give_block(self._pool)

    def _begin_at_coordinator(
        self, pending: Request, view: memoryview, header: RequestHeader, start: int, end: int
    ) -> None:
        self._routes.look()  # some of these requests need no route, and would not see new quotas
        self._coordinator.begin(pending, view, header.body_position, end, start=start)
        pending.give_block(self._pool)

    def _routed(self, route: Route) -> Begin:
        """Return what takes the requests of a row with a `route`."""

        def begin(pending: Request, view: memoryview, header: RequestHeader, start: int, end: int) -> None:
            if route(header.version, view, header.body_position, end) is Scope.COORDINATOR:
                self._begin_at_coordinator(pending, view, header, start, end)
            else:
                self._begin_local(pending, view, header, start, end)

        return begin

    def _begin_local(
        self, pending: Request, view: memoryview, header: RequestHeader, _start: int, end: int
    ) -> None:
        self._local.begin(pending, view, header.body_position, end)

    def serve(  # noqa: PLR0912 (the hot path: a call costs more than a branch)
        self, session: Session, block: Any, start: int, end: int
    ) -> None:
        """Takes the request whose frame lies in [start, end) of `block`, which is held for it until it is parsed; a
        produce request's until its worker has answered. Parsing may go on in later turns.

        Raises:
            MalformedFrame: it does not parse.
        """
        if session.lifetime is not None and self._reauthentications.takes(session, block, start, end):
            return
        view = block.view
        began_ns = self._watched(session) if self._is_watched else 0
        memo = session.produce_memo
        # The usual request of a busy producer is recognised by its bytes, before anything is parsed.
        if (
            memo is not None
            and view[start : start + 2] == b"\x00\x00"
            and session.memo_rights_version == session.rights_version
        ):
            version = view[start + 2] << 8 | view[start + 3]
            produce = memo.parse(view, start, end, version)
            if produce is not None:
                correlation_id = int.from_bytes(view[start + 4 : start + 8], "big", signed=True)
                pending = Request(session, block, _PRODUCE, version, correlation_id)
                session.enqueue(pending)
                if self._traffic is not None:
                    self._traffic.arrived(pending, end - start)
                if began_ns:
                    self._count_arrival(session, _PRODUCE, end - start)
                self._produce.place(pending, produce)
                if began_ns:
                    self._count_time(session, began_ns)
                return
        try:
            header = parse_request_header(view, start, end)
        except MalformedFrame:
            self._pool.give(block)
            raise
        if header.client_id is not None:
            session.name_client(header.client_id)
        pending = Request(session, block, header.api_key, header.version, header.correlation_id)
        session.enqueue(pending)
        if self._traffic is not None:
            self._traffic.arrived(pending, end - start)
        try:
            if began_ns:
                self._count_arrival(session, header.api_key, end - start)
            if header.served:
                self._begin[header.api_key](pending, view, header, start, end)
            else:
                self._finish(pending, [encode_unsupported_api_versions(header.correlation_id)])
        except MalformedFrame:
            pending.give_block(self._pool)
            raise
        except Exception:
            # A worker may read a produce request's block already: that one is lost with this process's life.
            if header.api_key != _PRODUCE:
                pending.give_block(self._pool)
            raise
        if began_ns:
            self._count_time(session, began_ns)

    def _watched(self, session: Session) -> int:
        """Bring the rights of a session up to date. Return when its request began if it is metered, else 0."""
        if self._rights is not None:
            self._rights.refresh()
            session.rights_version = self._rights.version
        return 0 if self._meter is None else self._clock.monotonic_ns()

    def _count_arrival(self, session: Session, api_key: int, size_bytes: int) -> None:
        if self._meter is not None:
            self._meter.arrived(session, api_key, size_bytes)

    def _count_time(self, session: Session, began_ns: int) -> None:
        if self._meter is not None:
            self._meter.served(session, self._clock.monotonic_ns() - began_ns)

    def end_waits(self, session: Session) -> None:
        """Answer the fetches that wait for records with what there is, because the client seems to have left."""
        for request in list(session.queue or ()):
            if request.api_key == _FETCH and request.answer is None:
                self._fetch.end_wait(request)

    def _parsed_produce(self, view: memoryview, position: int, end: int, version: int) -> ProduceRequest:
        """The request. One for more partitions than can exist would hold up all others for nothing.

        Raises:
            MalformedFrame: it does not parse, or is one of those.
        """
        request = parse_produce(view, position, end, version)
        if len(request.partitions) > self._partitions_max:
            raise MalformedFrame(
                f"a produce request for {len(request.partitions)} partitions: no more than max.partitions ="
                f" {self._partitions_max} exist"
            )
        return request


def _in_pieces(handler: PartitionedHandler, long: LongRequests, finish: Finish) -> Begin:
    def steps(pending: Request, view: memoryview, position: int, end: int) -> Steps[None]:
        try:
            yield from handler.begin(pending, view, position, end)
        except Denied as denied:
            yield from answering(finish, pending, denied.response)

    def begin(pending: Request, view: memoryview, header: RequestHeader, _start: int, end: int) -> None:
        position = header.body_position
        long.begin(pending, steps(pending, view, position, end), end - position)

    return begin
