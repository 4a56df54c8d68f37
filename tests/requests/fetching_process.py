"""What of a network process takes part in a Fetch, in the test's own process; the test is its duty cycle, its workers
and its purgatory. Requests are written, and responses read, by kafka-python.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from kafka.protocol.consumer import FetchRequest as StrangerFetchRequest
from kafka.protocol.consumer import FetchResponse as StrangerFetchResponse

from appliance.channels.metadata_image import POINTER_BYTES, ImagePublisher, ImageReader
from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    LOG_START,
    SERVING_INCARNATION,
    SLOT_LOG_END,
    PartitionTable,
    table_size_bytes,
)
from appliance.channels.purgatory_channel import COMPLETION, WATCH, PurgatoryOp
from appliance.channels.request_channel import ITEM, REQUEST, REQUEST_ID, RESPONSE, ROW, Op
from appliance.channels.roles import PURGATORY, Role, workers_of
from appliance.channels.wiring import Attachment
from appliance.clock import ManualClock
from appliance.cluster import BrokerSlot, ClusterImage, PartitionImage, TopicImage
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.ring import RingReader, RingWriter, ring_size_bytes
from appliance.netproc.connection import Connection
from appliance.protocol.headers import parse_request_header
from appliance.requests.answer import FilePiece, Piece
from appliance.requests.fetch_session import FetchSessions
from appliance.requests.log_handlers.fetch import FetchHandler
from appliance.requests.purgatory_line import PurgatoryLine
from appliance.requests.segment_files import SegmentFiles
from appliance.requests.session import Request
from appliance.requests.topic_routes import PartitionRoute, TopicRoutes
from appliance.requests.worker_lines import WorkerClient
from tests.support.private_directory import private_directory

FETCH: Final = 1
INCARNATION: Final = 9
LEADER_EPOCH: Final = 4
MIB: Final = 1 << 20
RING_SLOTS: Final = 256
PARTITIONS_MAX: Final = 500
"""Of the fetches that wait in the purgatory."""
SEGMENT_BYTES: Final = 10_000
WORKERS: Final = workers_of(0, workers=2)
OTHER_WORKERS: Final = workers_of(1, workers=2)
ENDPOINTS: Final = (BrokerSlot(0, "left", 9092), BrokerSlot(1, "right", 9093))

Operation = tuple[Any, ...]


class Wanted(NamedTuple):
    """One partition of a request."""

    topic: str | UUID
    partition: int
    offset: int = 0
    max_bytes: int = MIB
    leader_epoch: int = -1
    last_fetched_epoch: int = -1


class Wait(NamedTuple):
    """What the purgatory was asked: (row, offset, within) of each watch, and when it is enough."""

    watches: list[tuple[int, int, bool]]
    deadline_ns: int
    needed_bytes: int


class NetworkProcess:
    """Slot 0 leads every partition of topic `t` in epoch 4, its two workers serve them; all are empty at first.

    Slot 1 has its workers too. Of each partition there is a segment of SEGMENT_BYTES; `content` is what lies in it.
    """

    def __init__(self, memory: Path, directory: Path, *, partitions: int) -> None:
        pointer = memoryview(bytearray(POINTER_BYTES))
        self.publisher = ImagePublisher(memory, pointer)
        self.topic_ids = {"t": UUID(int=5), "u": UUID(int=6)}
        self._leaders = [0] * partitions
        self.table = PartitionTable(memoryview(bytearray(table_size_bytes(2 * partitions, 2))), slots=2)
        self.publish()
        self.routes = TopicRoutes(ImageReader(memory, pointer), workers=len(WORKERS))
        self.directory = directory
        self.content: dict[int, bytes] = {}
        for partition in range(partitions):
            row = self.route(partition).row
            self.table.cells[self.table.at(row) + SERVING_INCARNATION] = INCARNATION
            self.content[partition] = random.Random(partition).randbytes(SEGMENT_BYTES)
            (directory / f"t-{partition}").mkdir()
            self.segment(partition).write_bytes(self.content[partition])
        self.files = SegmentFiles(
            {0: (directory,)},
            is_served=lambda route: self.table.serves(route.row, route.incarnation),
            version=lambda route: self.table.files_version(route.row),
        )
        self._wire()
        self.clock = ManualClock()
        self.pool = BufferPool(memoryview(bytearray(MIB)))
        ours, self._client = socket.socketpair()
        self._sockets = (ours, self._client)
        self.connection = Connection(ours, connection_id=1, slot=0, peer_host="h", peer_port=1, now_ns=0)
        self.finished: list[tuple[Request, list[Piece]]] = []
        self.complaints: list[str] = []
        self.fetches = FetchHandler(
            self.routes,
            self.lines,
            self.table,
            purgatory=self.purgatory,
            sessions=FetchSessions(10),
            files=self.files,
            finish=self.finish,
            clock=self.clock,
            partitions_max=10_000,
            max_bytes=MIB,
            complain=self.complain,
        )

    def _wire(self) -> None:
        peers = dict.fromkeys((*WORKERS, *OTHER_WORKERS), (REQUEST, RESPONSE)) | {
            PURGATORY: (WATCH, COMPLETION)
        }
        self._eventfd = os.eventfd(0)
        awake = memoryview(bytearray(8)).cast("q")
        self.attachment = SimpleNamespace(outbound={}, inbound={}, bells={})
        self.received: dict[Role, RingReader] = {}
        self.told: dict[Role, RingWriter] = {}
        for peer, (there, back) in peers.items():
            to, fro = (memoryview(bytearray(ring_size_bytes(RING_SLOTS))) for _ in range(2))
            self.attachment.outbound[peer] = RingWriter(to, there)
            self.attachment.inbound[peer] = RingReader(fro, back)
            self.attachment.bells[peer] = Doorbell(self._eventfd, awake)
            self.received[peer] = RingReader(to, there)
            self.told[peer] = RingWriter(fro, back)
        attachment = cast("Attachment", self.attachment)
        self.lines = WorkerClient(attachment, brief_wait=BriefWait(lambda: 0))
        self.purgatory = PurgatoryLine(attachment, partitions_max=PARTITIONS_MAX)

    def close(self) -> None:
        self.files.close()
        os.close(self._eventfd)
        for sock in self._sockets:
            sock.close()

    # The controller

    def publish(self) -> None:
        """Both topics have as many partitions; nobody serves those of `u`."""
        topics = {}
        for number, (name, topic_id) in enumerate(self.topic_ids.items()):
            first = number * len(self._leaders)
            partitions = tuple(
                PartitionImage(index, first + index, INCARNATION, leader, LEADER_EPOCH, (0, 1), (0, 1))
                for index, leader in enumerate(self._leaders)
            )
            topics[name] = TopicImage(name, topic_id, partitions)
        self.publisher.publish(ClusterImage(self.publisher.version + 1, "c", 0, 0, ENDPOINTS, topics))

    def lead(self, partition: int, slot: int) -> None:
        self._leaders[partition] = slot
        self.publish()

    def route(self, partition: int, topic: str = "t") -> PartitionRoute:
        topic_route = self.routes.by_name(topic)
        assert topic_route is not None
        route = topic_route.partition(partition)
        assert route is not None
        return route

    def segment(self, partition: int, base_offset: int = 0, suffix: str = "log") -> Path:
        return self.directory / f"t-{partition}" / f"{base_offset:020d}.{suffix}"

    # The workers

    def word(self, partition: int, word: int, value: int) -> None:
        """A word of the partition's row in the table."""
        self.table.cells[self.table.at(self.route(partition).row) + word] = value

    def grow(
        self,
        partition: int,
        high_watermark: int,
        *,
        last_stable_offset: int = -1,
        log_start: int = 0,
        log_end: int = -1,
    ) -> None:
        """The log ends, and is stable up to, its high watermark where nothing else is said."""
        self.word(partition, HIGH_WATERMARK, high_watermark)
        self.word(
            partition, LAST_STABLE_OFFSET, high_watermark if last_stable_offset < 0 else last_stable_offset
        )
        self.word(partition, LOG_START, log_start)
        at = self.table.slot_at(self.route(partition).row, 0) + SLOT_LOG_END
        self.table.cells[at] = max(high_watermark, log_end)

    def asked(self) -> list[Operation]:
        """What the workers were asked since the last time, in the order of the request's partitions."""
        self.lines.publish()
        operations = [operation for worker in WORKERS for operation in self.received[worker].drain()]
        return sorted(operations, key=lambda operation: int(operation[ITEM]))

    def answer(
        self,
        operation: Operation,
        length_bytes: int = 0,
        *,
        first_batch_bytes: int = 1,
        op: Op = Op.FETCH,
        flags: int = 0,
        error: int = 0,
        segment: int = 0,
        position: int = 0,
        leader_epoch: int = 0,
        times: int = 1,
    ) -> None:
        """The owner's answer, its offsets those of the table; it is delivered."""
        partition = operation[ROW]
        route = self.route(partition)
        assert route.worker is not None
        cells, at = self.table.cells, self.table.at(route.row)
        ring = self.told[route.worker]
        for _ in range(times):
            assert ring.put(
                int(op),
                flags,
                error,
                operation[REQUEST_ID],
                operation[ITEM],
                operation[ROW],
                segment,
                cells[at + HIGH_WATERMARK],
                cells[at + LOG_START],
                position,
                length_bytes,
                first_batch_bytes,
                leader_epoch,
                cells[at + LAST_STABLE_OFFSET],
            )
        ring.publish()
        self.lines.take_answers()

    def die(self, worker: Role) -> None:
        for ends in (self.attachment.outbound, self.attachment.inbound, self.attachment.bells):
            del ends[worker]
        self.lines.worker_down(worker)

    # The purgatory

    def waits(self) -> list[Wait]:
        """What waits since the last time; asserts that nothing was cancelled."""
        self.purgatory.publish()
        found: list[Wait] = []
        watches: list[tuple[int, int, bool]] = []
        for op, within, _, _, row, count, offset, deadline_ns, needed_bytes, *_ in self.received[
            PURGATORY
        ].drain():
            if op == PurgatoryOp.WATCH:
                watches.append((row, offset, bool(within)))
            else:
                assert op == PurgatoryOp.ARM
                assert count == len(watches)
                found.append(Wait(watches, deadline_ns, needed_bytes))
                watches = []
        return found

    def cancelled(self) -> list[int]:
        """The request ids that were cancelled since the last time."""
        self.purgatory.publish()
        return [each[3] for each in self.received[PURGATORY].drain() if each[0] == PurgatoryOp.CANCEL]

    def complete(self, request_id: int, *, times: int = 1) -> None:
        """The purgatory ends a wait."""
        ring = self.told[PURGATORY]
        for _ in range(times):
            assert ring.put(int(PurgatoryOp.COMPLETE), 0, 0, request_id, 0, 0, 0, 0, 0, 0, 0)
        ring.publish()
        self.purgatory.take_completions()

    # The clients

    def pending(self, version: int) -> Request:
        block = self.pool.take(4096)
        assert block is not None
        return Request(self.connection, block, FETCH, version, 41)

    def fetch(
        self,
        *wanted: Wanted,
        version: int = 12,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = MIB,
        read_committed: bool = False,
        session_id: int = 0,
        session_epoch: int = -1,
        replica_id: int = -1,
    ) -> Request:
        """Begins a request."""
        frame = fetch_frame(
            wanted,
            version,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=int(read_committed),
            replica_id=replica_id,
            **({"session_id": session_id, "session_epoch": session_epoch} if version >= 7 else {}),
        )
        pending = self.pending(version)
        self.fetches.begin(
            pending, frame, parse_request_header(frame, 4, len(frame)).body_position, len(frame)
        )
        return pending

    def finish(self, pending: Request, answer: list[Piece]) -> None:
        pending.give_block(self.pool)
        self.finished.append((pending, answer))

    def complain(self, complaint: str) -> bool:
        self.complaints.append(complaint)
        return True

    def responses(self) -> list[Any]:
        """What was answered since the last time, as kafka-python reads it; the segments are let go as after sending."""
        read = []
        for pending, answer in self.finished:
            frame = b"".join(map(sent, answer))
            version = pending.version
            read.append(StrangerFetchResponse.decode(frame, version=version, header=True, framed=True))
        self.finished.clear()
        return read

    def response(self) -> Any:
        """The one response."""
        (response,) = self.responses()
        return response

    def told_partitions(self) -> dict[tuple[str | UUID, int], Any]:
        """The partitions of the one response."""
        return partitions_of(self.response())

    def at_rest(self) -> bool:
        """Whether nobody is owed an answer or keeps a file from being closed."""
        return (
            self.lines.statistics()["listeners"] == 0
            and not any(self.purgatory.statistics()[count] for count in ("waiting", "partitions", "unplaced"))
            and not any(segment.holders for segment in self.files._open.values())  # nor -1: let go twice
        )


@contextmanager
def network_process(directory: Path, *, partitions: int = 4) -> Iterator[NetworkProcess]:
    with private_directory() as memory:
        made = NetworkProcess(memory, directory, partitions=partitions)
        yield made
        made.close()


def fetch_frame(wanted: Sequence[Wanted], version: int, *, replica_id: int, **fields: int) -> memoryview:
    stranger = StrangerFetchRequest
    if version < 15:
        fields["replica_id"] = replica_id
    topics = []
    for topic, group in groupby(wanted, lambda one: one.topic):
        name = {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}
        partitions = []
        for one in group:
            epochs = {"current_leader_epoch": one.leader_epoch} if version >= 9 else {}
            if version >= 12:
                epochs["last_fetched_epoch"] = one.last_fetched_epoch
            partitions.append(
                stranger.FetchTopic.FetchPartition(
                    version=version,
                    partition=one.partition,
                    fetch_offset=one.offset,
                    partition_max_bytes=one.max_bytes,
                    **epochs,
                )
            )
        topics.append(stranger.FetchTopic(version=version, **name, partitions=partitions))
    message = stranger(version=version, topics=topics, **fields)
    message.with_header(correlation_id=41, client_id="stranger")
    return memoryview(message.encode(version=version, header=True, framed=True))


def sent(piece: Piece) -> bytes:
    """The bytes of a piece, which is let go."""
    if not isinstance(piece, FilePiece):
        return piece
    try:
        return os.pread(piece.file.fd, piece.remaining, piece.position)
    finally:
        piece.file.release()


def partitions_of(response: Any) -> dict[tuple[str | UUID, int], Any]:
    """By topic and index, in the order of the response; asserts that none is told of twice."""
    told = [
        ((topic.topic or topic.topic_id, one.partition_index), one)
        for topic in response.responses
        for one in topic.partitions
    ]
    assert len(dict(told)) == len(told)
    return dict(told)
