"""The internal topic of the audit journal: each line is the value of a record in `__audit_log`, partition 0.

    lines ─→ queue ─→ one batch at a time, through the ring of the partition's owner ─→ answered: the next one
               │ QUEUE_BYTES_MAX are there: dropped and counted
               ↓
             the topic does not exist ─→ the controller creates it, asked every CREATE_MS until it is there

A batch that is not answered in time is appended again, so a record may be there twice. The auditor is no client:
neither the creation of the topic nor an append makes an entry, so the journal never feeds itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from appliance.channels.control_channel import CreateTopics, NewTopic
from appliance.channels.roles import Role, RoleKind
from appliance.clock import NS_PER_MS
from appliance.cluster import AUDIT_LOG, ClusterImage
from appliance.ipc.buffer_pool import BufferPool
from appliance.log.producer_state import AppendOrigin
from appliance.partition_access.access import PartitionAccess
from appliance.partition_access.places import LogPlace, log_places
from appliance.process.agent import AgentProcess
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch

QUEUE_BYTES_MAX: Final = 2 << 20
BATCH_BYTES_MAX: Final = 256 << 10
RETRY_MS: Final = 500
CREATE_MS: Final = 5_000
REPLICAS_MAX: Final = 3

_TOO_LARGE: Final = frozenset({int(ErrorCode.MESSAGE_TOO_LARGE), int(ErrorCode.RECORD_LIST_TOO_LARGE)})


class AuditTopic:
    """The lines that wait for the topic, and the batch that is on its way.

    Args:
        complain: gets a line for the operator.
    """

    def __init__(self, process: AgentProcess, *, complain: Callable[[str], object]) -> None:
        attachment, settings = process.attachment, process.settings
        assert attachment.pool is not None
        self._process = process
        self._settings = settings
        self._attachment = attachment
        self._complain = complain
        self._controller = process.controller_link()
        self._logs = PartitionAccess(
            attachment,
            BufferPool(attachment.pool.view, discard=attachment.pool.discard),
            directories={slot: settings.log_directories(slot) for slot in range(settings.slots)},
            is_lone=lambda: False,
        )
        self._image: ClusterImage | None = None
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        self._in_flight = 0
        self._not_before_ns = 0
        self._asked_ns = -CREATE_MS * NS_PER_MS
        self._is_armed = False
        self.appended = 0
        self.lost = 0

    def add(self, lines: bytes) -> None:
        """Take lines for the topic, each with its line end."""
        for each in lines.splitlines():
            if self._queue_bytes + len(each) > QUEUE_BYTES_MAX:
                self.lost += 1
                self._complain(f"entries of the audit journal are lost for topic {AUDIT_LOG}: it takes none")
            else:
                self._queue.append(each)
                self._queue_bytes += len(each)

    def turn(self) -> None:
        """Take answers, and append what waits."""
        self._controller.receive()  # answers of no interest: the image says whether the topic is there
        for peer, reader in list(self._attachment.inbound.items()):
            if peer.kind is RoleKind.IOPROC:
                self._logs.take(reader.drain())
        if self._queue and not self._in_flight:
            self._append()
        self._logs.publish()

    @property
    def is_waiting(self) -> bool:
        """Whether there are lines that are not in the topic."""
        return bool(self._queue)

    def worker_down(self, worker: Role) -> None:
        """A worker died with what it was asked."""
        self._logs.worker_down(worker)

    def close(self) -> None:
        self._controller.close()

    def _append(self) -> None:
        now_ns = self._process.clock.monotonic_ns()
        if now_ns < self._not_before_ns:
            self._wake_in((self._not_before_ns - now_ns) // NS_PER_MS + 1)
            return
        place = self._place()
        if place is None or not self._logs.serves(place):
            self._wait(now_ns)
            return
        count = size_bytes = 0
        while count < len(self._queue) and (
            not count or size_bytes + len(self._queue[count]) <= BATCH_BYTES_MAX
        ):
            size_bytes += len(self._queue[count])
            count += 1
        now_ms = self._process.clock.now_ms()
        batch = encode_batch(
            [Record(value=self._queue[number], timestamp_ms=now_ms) for number in range(count)],
            leader_epoch=place.leader_epoch,
        )
        self._in_flight = count
        if not self._logs.append(place, batch, self._appended, origin=AppendOrigin.CLIENT):
            self._in_flight = 0
            self._wait(now_ns)

    def _appended(self, error: int) -> None:
        count, self._in_flight = self._in_flight, 0
        if error and error not in _TOO_LARGE:
            self._complain(
                f"topic {AUDIT_LOG} took no entries of the audit journal: {ErrorCode(error).name}; they are tried again"
            )
            self._wait(self._process.clock.monotonic_ns())
            return
        for _ in range(count):
            self._queue_bytes -= len(self._queue.popleft())
        if error:
            self.lost += count
        else:
            self.appended += count

    def _place(self) -> LogPlace | None:
        """Return where the partition is led; None where it is not, and then have the controller create the topic."""
        image = self._attachment.image.current()
        workers = self._settings.io.workers
        places = log_places(image, AUDIT_LOG, workers=workers)
        if not places and image is not None:
            self._create()
        return places[0] if places else None

    def _create(self) -> None:
        now_ns = self._process.clock.monotonic_ns()
        if now_ns - self._asked_ns < CREATE_MS * NS_PER_MS:
            return
        self._asked_ns = now_ns
        wanted = NewTopic(
            AUDIT_LOG,
            1,
            min(REPLICAS_MAX, self._settings.slots),
            configs={
                "cleanup.policy": "delete",
                "retention.ms": str(self._settings.audit.topic_retention_ms),
            },
        )
        self._controller.ask(CreateTopics((wanted,)))

    def _wait(self, now_ns: int) -> None:
        self._not_before_ns = now_ns + RETRY_MS * NS_PER_MS
        self._wake_in(RETRY_MS)

    def _wake_in(self, pause_ms: int) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._process.after_ms(pause_ms, self._woken)

    def _woken(self) -> None:
        self._is_armed = False
