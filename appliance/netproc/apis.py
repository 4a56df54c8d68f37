"""Which handler serves which request. One frame goes in; its answer is handed to `finish`, at once or later.

    Produce, its bytes as last time     `ProduceMemo` knows them: nothing is parsed
    Produce, Fetch                      log_handlers/produce.py, log_handlers/fetch.py
    groups and committed offsets        coordinator_line.py: the coordinator reads the frame itself
    what else asks the workers          log_handlers/seldom.py
    everything else                     local_requests.py

The same part in Apache Kafka: `KafkaApis.scala`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.errors import MalformedFrame
from appliance.ipc.agent import Timers
from appliance.ipc.buffer_pool import BufferPool
from appliance.netproc.connection import Connection, Pending
from appliance.netproc.coordinator_lines import CoordinatorLines
from appliance.netproc.fetch_session import FetchSessions
from appliance.netproc.local_handlers.view import ProducerIds
from appliance.netproc.local_requests import LocalRequests
from appliance.netproc.log_dirs import LogDirs
from appliance.netproc.log_handlers.fetch import LARGE_BYTES, FetchHandler
from appliance.netproc.log_handlers.finish import Finish, Refuse
from appliance.netproc.log_handlers.leader_wait import LeaderWait
from appliance.netproc.log_handlers.produce import ProduceHandler
from appliance.netproc.log_handlers.seldom import seldom_handlers
from appliance.netproc.long_requests import LongRequests
from appliance.netproc.purgatory_line import PurgatoryLine
from appliance.netproc.segment_files import SegmentFiles
from appliance.netproc.topic_routes import TopicRoutes
from appliance.netproc.worker_lines import WorkerLines
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.coordinator_errors import COORDINATOR_APIS
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import encode_unsupported_api_versions
from appliance.protocol.produce import ProduceRequest, parse_produce

_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)


class Apis:
    """The handlers of one network process.

    Args:
        finish: takes an answer. `finish_owed`: one that may be large where its request was small.
        refuse: ends the connection of a request.
    """

    def __init__(
        self,
        attachment: Attachment,
        routes: TopicRoutes,
        *,
        directories: dict[int, tuple[Path, ...]],
        files: SegmentFiles,
        pool: BufferPool,
        lines: WorkerLines,
        purgatory: PurgatoryLine,
        coordinator: CoordinatorLines,
        long: LongRequests,
        finish: Finish,
        finish_owed: Finish,
        refuse: Refuse,
        clock: Clock,
        complain: Callable[[str], bool],
        timers: Timers,
    ) -> None:
        settings, table = attachment.wiring.settings, attachment.partitions
        self._pool = pool
        self._partitions_max = settings.broker.max_partitions
        self._finish = finish
        self._coordinator = coordinator
        self._long = long
        self._produce = ProduceHandler(
            routes,
            lines,
            leader_wait=LeaderWait(routes, table, timers, clock),
            finish=finish,
            refuse=refuse,
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
        )
        self._begin_seldom = seldom_handlers(
            attachment,
            routes,
            lines,
            log_dirs=LogDirs(directories, attachment, lines),
            pool=pool,
            finish=finish_owed,
            long=long,
        )
        self._local = LocalRequests(
            settings,
            routes,
            long=long,
            pool=pool,
            producer_ids=ProducerIds(),
            partitions=table,
            finish=finish_owed,
        )

    def _begin_fetch(self, pending: Pending, view: memoryview, position: int, end: int) -> None:
        if end - position > LARGE_BYTES:
            self._long.begin(pending, self._fetch.begin_large(pending, view, position, end), end - position)
        else:
            self._fetch.begin(pending, view, position, end)
            pending.give_block(self._pool)  # a fetch that waits holds no payload

    def serve(self, connection: Connection, block: Any, start: int, end: int) -> None:
        """Takes the request whose frame lies in [start, end) of `block`, which is held for it until it is parsed; a
        produce request's until its worker has answered. Parsing may go on in later turns.

        Raises:
            MalformedFrame: it does not parse.
        """
        view = block.view
        memo = connection.produce_memo
        # The usual request of a busy producer is recognised by its bytes, before anything is parsed.
        if memo is not None and view[start : start + 2] == b"\x00\x00":
            version = view[start + 2] << 8 | view[start + 3]
            produce = memo.parse(view, start, end, version)
            if produce is not None:
                correlation_id = int.from_bytes(view[start + 4 : start + 8], "big", signed=True)
                pending = Pending(connection, block, _PRODUCE, version, correlation_id)
                connection.enqueue(pending)
                self._produce.place(pending, produce)
                return
        try:
            header = parse_request_header(view, start, end)
        except MalformedFrame:
            self._pool.give(block)
            raise
        if header.client_id is not None:
            connection.name_client(header.client_id)
        pending = Pending(connection, block, header.api_key, header.version, header.correlation_id)
        connection.enqueue(pending)
        try:
            if not header.served:
                self._finish(pending, [encode_unsupported_api_versions(header.correlation_id)])
            elif header.api_key == _PRODUCE:
                request = self._parsed_produce(view, header.body_position, end, header.version)
                connection.own_memo().remember(view, start, header=header, request=request)
                self._produce.place(pending, request)
            elif header.api_key == _FETCH:
                self._begin_fetch(pending, view, header.body_position, end)
            elif header.api_key in COORDINATOR_APIS:
                self._coordinator.begin(pending, view, header.body_position, end, start=start)
                pending.give_block(self._pool)
            else:
                begin = self._begin_seldom.get(header.api_key, self._local.begin)
                begin(pending, view, header.body_position, end)
        except MalformedFrame:
            pending.give_block(self._pool)
            raise
        except Exception:
            # A worker may read a produce request's block already: that one is lost with this process's life.
            if header.api_key != _PRODUCE:
                pending.give_block(self._pool)
            raise

    def end_wait(self, pending: Pending) -> None:
        """Answer a fetch that waits for records with what there is: its client seems to have left."""
        self._fetch.end_wait(pending)

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
