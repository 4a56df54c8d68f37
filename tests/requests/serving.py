"""The requests of a network process without any socket: sessions of no transport, and a worker's end of the rings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import zmq

from appliance.audit.recorder import Recorder
from appliance.channels.controller_link import ControllerLink
from appliance.channels.partition_table import SERVING_INCARNATION
from appliance.channels.request_channel import OP, Op
from appliance.channels.roles import Role, RoleKind
from appliance.channels.wiring import Attachment, Wiring
from appliance.clock import ManualClock
from appliance.cluster import AclBinding, BrokerSlot, ClusterImage, PartitionImage, TopicImage
from appliance.config import Settings
from appliance.config.sections.access import STANDARD, AccessSettings
from appliance.config.sections.audit import AuditSettings
from appliance.ipc.agent import Timers
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.shared_memory import remove_directory
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.messages import decode_response, encode_request
from appliance.requests.answer import Piece
from appliance.requests.apis import Apis
from appliance.requests.auditing import Auditing
from appliance.requests.coordinator_lines import CoordinatorLines
from appliance.requests.local_handlers.view import ProducerIds
from appliance.requests.local_requests import LocalHandler, LocalRequests
from appliance.requests.long_requests import LongRequests
from appliance.requests.purgatory_line import PurgatoryLine
from appliance.requests.questions import ControllerRequests
from appliance.requests.segment_files import SegmentFiles
from appliance.requests.session import ANONYMOUS, Request, Session
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.worker_lines import WorkerClient
from tests.support.private_directory import new_private_directory
from tests.support.published import publisher_in

NETPROC: Final = Role(RoleKind.NETPROC)
IOPROC: Final = Role(RoleKind.IOPROC, 0, 0)
TOPIC: Final = "t"
INCARNATION: Final = 1


class Serving:
    """Slot 0 leads partition 0 of TOPIC; its worker is the test."""

    peers: Mapping[Role, int] = {IOPROC: 1}
    """What else there is, in which life."""

    def __init__(
        self,
        data_dir: Path,
        *,
        acls: tuple[AclBinding, ...] | None = None,
        audit_events: tuple[str, ...] = (),
    ) -> None:
        """With `acls` requests are checked against them; `journal` has the lines of the audit journal."""
        settings = Settings(data_dir=data_dir)
        settings = replace(settings, network=replace(settings.network, processes=1))
        if acls is not None:
            settings = replace(settings, access=AccessSettings(authorizer=STANDARD))
        self.acls = acls or ()
        self.settings = settings
        self._memory = new_private_directory()
        bells = {role: Doorbell.create_eventfd() for role in (NETPROC, *self.peers)}
        wiring = Wiring(settings, "appliance-test", self._memory, bells)
        wiring.create_standing_regions()
        wiring.create_for(NETPROC, 1, {})
        for peer in self.peers:
            wiring.create_for(peer, 1, {NETPROC: 1})
        self.attachment = Attachment(wiring, NETPROC, 1, self.peers)
        self._worker = Attachment(wiring, IOPROC, 1, {NETPROC: 1})
        self._wiring = wiring
        self._publisher = publisher_in(self._memory)
        self.publish()
        table = self._worker.partitions
        table.cells[table.at(0) + SERVING_INCARNATION] = INCARNATION
        assert self.attachment.pool is not None
        self.pool = BufferPool(self.attachment.pool.view)
        self.clock = ManualClock()
        self.timers = Timers()
        self.journal: list[bytes] = []
        self.recorder: Recorder | None = None
        if audit_events:
            self.recorder = Recorder(
                AuditSettings(events=audit_events),
                self.clock,
                process="netproc 0",
                after_ms=self.timers.after_ms,
                send=self._to_journal,
            )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._link = ControllerLink(wiring, NETPROC, 1, context=self._context)
        self.routes = TopicRoutes(self.attachment.image, workers=settings.io.workers)
        self.lines = WorkerClient(self.attachment, brief_wait=BriefWait(lambda: 0))
        self.answers: dict[Request, bytes] = {}
        self.faults: list[tuple[Session, str]] = []
        self.long = LongRequests(
            self.pool,
            ControllerRequests(self._link, self.timers),
            contain=lambda session, error: self.faults.append((session, str(error))),
            clock=self.clock,
        )
        directories = {0: settings.log_directories(0)}
        self._files = SegmentFiles(directories, is_served=lambda _: True)
        self.coordinators = CoordinatorLines(
            self.attachment,
            self.routes,
            processes=1,
            finish=self.finish,
            refuse=self._refuse,
            give=self.pool.give,
            brief_wait=BriefWait(lambda: 0, limit_ns=0),
        )
        self.apis = Apis(
            self.attachment,
            self.routes,
            directories=directories,
            files=self._files,
            pool=self.pool,
            lines=self.lines,
            purgatory=PurgatoryLine(self.attachment, partitions_max=100),
            coordinator=self.coordinators,
            long=self.long,
            finish=self.finish,
            finish_owed=self.finish,
            refuse=self._refuse,
            clock=self.clock,
            complain=lambda _: True,
            timers=self.timers,
            failed=lambda _host, _now_ns: 0,
            auditing=None if self.recorder is None else Auditing(self.recorder),
        )

    def _to_journal(self, lines: bytes) -> bool:
        self.journal.append(lines)
        return True

    def close(self) -> None:
        self._files.close()
        self._link.close()
        self._context.term()
        remove_directory(self._memory)

    def topics(self) -> dict[str, TopicImage]:
        """Return what the image names."""
        partition = PartitionImage(0, 0, INCARNATION, 0, 0, (0,), (0,))
        return {TOPIC: TopicImage(TOPIC, UUID(int=5), (partition,))}

    def publish(self) -> None:
        """Another version of the image, otherwise the same."""
        topics = self.topics()
        slots = (BrokerSlot(0, "left", 9092), BrokerSlot(1, "right", 9093))
        self._publisher.publish(
            ClusterImage(self._publisher.version + 1, "c", 0, 7, slots, topics, acls=self.acls)
        )

    def local_requests(self, handlers: Mapping[int, LocalHandler]) -> LocalRequests:
        return LocalRequests(
            self.settings,
            self.routes,
            handlers=handlers,
            long=self.long,
            pool=self.pool,
            producer_ids=ProducerIds(),
            partitions=self.attachment.partitions,
            clock=self.clock,
            finish=self.finish,
        )

    # A transport

    @staticmethod
    def session(number: int = 0, *, principal: str = ANONYMOUS) -> Session:
        made = Session(
            connection_id=number,
            number=number,
            slot=0,
            listener="PLAINTEXT",
            peer_host="h",
            peer_port=1,
            now_ns=0,
        )
        made.principal = principal
        return made

    def finish(self, pending: Request, answer: list[Piece]) -> None:
        pending.give_block(self.pool)
        self.answers[pending] = b"".join(piece for piece in answer if isinstance(piece, bytes))
        pending.answer = answer

    def _refuse(self, pending: Request, why: str) -> None:
        self.faults.append((pending.session, why))

    def serve(self, session: Session, frame: bytes) -> Request:
        """Hand over a frame, its size prefix included; return the request."""
        block = self.pool.take(len(frame))
        assert block is not None
        block.view[: len(frame) - 4] = frame[4:]
        self.apis.serve(session, block, 0, len(frame) - 4)
        assert session.queue is not None
        return session.queue[-1]

    def ask(self, session: Session, api: ApiKey, version: int, request: Any) -> Any:
        """Return the response to a request that needs no other process."""
        pending = self.serve(session, encode_request(api, version, request, 1))
        while not self.long.is_empty():
            self.long.run()
        return decode_response(api, version, memoryview(self.answers[pending]))[1]

    # The worker

    def placed(self) -> int:
        """Return how many Produce operations the worker has got since the last time."""
        self.lines.publish()
        return sum(operation[OP] == Op.PRODUCE for operation in self._worker.inbound[NETPROC].drain())


@contextmanager
def serving(data_dir: Path, *, acls: tuple[AclBinding, ...] | None = None) -> Iterator[Serving]:
    """Yield one that is closed afterwards."""
    made = Serving(data_dir, acls=acls)
    try:
        yield made
    finally:
        made.close()
