"""Append to and read from the logs of any topic, through the workers that own them.

    append         batch → a block of our pool → PRODUCE, acks all, on the owner's ring → answered → done
    permit         PERMIT_TRANSACTION on the owner's ring → answered → done
    write_marker   WRITE_MARKER on the owner's ring → the owner makes and appends the marker → answered → done
    delete_records DELETE_RECORDS on the owner's ring → answered → done
    read           FETCH on the owner's ring → where the records lie → `pread` of the segment → done(records)
                   committed ones only: up to the last stable offset, and the aborted transactions beside them
                   if they fail a checksum: LOG_DAMAGED on the owner's ring, and done(the error): read again later

The owner takes what one process asks in the order of the calls. So a permit that was asked for before a marker never
outlives it.

The owner answers an append when the high watermark has passed the batch. If the owner dies first, or the replicas do
not follow in time, the batch may be in the log for good or not: UNKNOWN_OUTCOME.

`origin` tells the owner who appends. CLIENT is checked like any client's batch. COORDINATOR may append control batches,
and batches of a producer without sequence numbers; only processes of ours can say it, because a network process packs
the flags of a request itself and takes none from its client.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.channels.partition_table import HIGH_WATERMARK, LAST_STABLE_OFFSET, LOG_START, SLOT_LOG_END
from appliance.channels.request_channel import (
    ANSWER_LOG_START,
    ERROR,
    FETCH_DIRECTORY,
    FETCHED_BYTES,
    FETCHED_HIGH_WATERMARK,
    FETCHED_LAST_STABLE_OFFSET,
    FETCHED_POSITION,
    FETCHED_SEGMENT,
    FLAGS,
    NOTICE_ID,
    REQUEST_ID,
    REQUEST_ID_LIMIT,
    Op,
    ProduceFlag,
    Request,
    RequestFlag,
    ResponseFlag,
    fetch_request,
    marker_request,
    partition_request,
    permit_request,
    produce_request,
)
from appliance.channels.roles import Role
from appliance.channels.wiring import Attachment
from appliance.cluster import TopicPartition
from appliance.errors import CorruptFile, HostFault
from appliance.ipc.buffer_pool import Block, BufferPool
from appliance.log.chunks import Chunk, read_chunks, read_headers
from appliance.log.file_names import LOG, partition_directory_name, segment_file_name
from appliance.log.producer_state import AppendOrigin
from appliance.log.segment_file import Header
from appliance.log.transaction_index import AbortedTransaction, read_aborted
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode

READ_BYTES: Final = 4 << 20
HEADERS_MAX: Final = 4_096
COMMIT_TIMEOUT_MS: Final = 5_000
"""Kafka's offsets.commit.timeout.ms: how long an append waits for its replicas."""

_MIN_ONE_BATCH: Final = int(RequestFlag.MIN_ONE_BATCH)
_READ_COMMITTED: Final = int(RequestFlag.READ_COMMITTED)
_ABORTED: Final = int(ResponseFlag.ABORTED)
_LONE: Final = int(RequestFlag.LONE)
_COORDINATOR_ORIGIN: Final = int(RequestFlag.COORDINATOR_ORIGIN)
_TRANSACTION_VERIFIED: Final = int(RequestFlag.TRANSACTION_VERIFIED)
_NAMED: Final = int(ProduceFlag.NAMED)
_ACKS_ALL: Final = -1
_PRODUCE_VERSION: Final = 9

UNKNOWN_OUTCOME: Final = int(ErrorCode.REQUEST_TIMED_OUT)

Done = Callable[[int], None]


class Read(NamedTuple):
    """Batches that begin at, or just before, the offset that was asked for; none where the log has no more.

    `headers`: instead of `chunks`, if only headers were asked for. `error` is a Kafka error code. `replaced`: the
    segment came to be another file meanwhile, so ask again. `aborted`: transactions whose records in the batches do not
    count, if only committed ones were asked for. `end` is the offset below which records could be read: the high
    watermark, or the last stable offset.
    """

    chunks: tuple[Chunk, ...] = ()
    path: Path = Path()
    high_watermark: int = -1
    log_start: int = -1
    error: int = 0
    replaced: bool = False
    why: str = ""
    end: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()
    headers: tuple[Header, ...] = ()


class _Append:
    """A batch, a marker or a permit on its way; only a batch has a block."""

    __slots__ = ("block", "done", "place")

    def __init__(self, place: LogPlace, block: Block | None, done: Done) -> None:
        self.place = place
        self.block = block
        self.done = done


class _Reading:
    __slots__ = ("done", "files_version", "headers_only", "is_committed", "offset", "place")

    def __init__(
        self,
        place: LogPlace,
        offset: int,
        files_version: int,
        done: Callable[[Read], None],
        *,
        is_committed: bool,
        headers_only: bool,
    ) -> None:
        self.place = place
        self.is_committed = is_committed
        self.offset = offset
        self.files_version = files_version
        self.done = done
        self.headers_only = headers_only


class PartitionAccess:
    """The rings to and from the workers, and what waits for their answers.

    Args:
        pool: this process's own, shared with the answers to clients.
        directories: the log directories of each slot.
        is_lone: whether an append belongs to the only request that is in flight.
    """

    __slots__ = (
        "_attachment",
        "_directories",
        "_ids",
        "_is_lone",
        "_pool",
        "_touched",
        "_waiting",
    )

    def __init__(
        self,
        attachment: Attachment,
        pool: BufferPool,
        *,
        directories: Mapping[int, tuple[Path, ...]],
        is_lone: Callable[[], bool],
    ) -> None:
        self._attachment = attachment
        self._pool = pool
        self._directories = directories
        self._is_lone = is_lone
        self._ids = itertools.count()
        self._waiting: dict[int, _Append | _Reading] = {}
        self._touched: set[Role] = set()

    # Asking

    def serves(self, place: LogPlace) -> bool:
        """Return whether the owner serves the partition now."""
        return place.worker in self._attachment.outbound and self._attachment.partitions.serves(
            place.row, place.incarnation
        )

    def log_end(self, place: LogPlace) -> int:
        """Return the owner's log end; meaningful while `serves`."""
        table = self._attachment.partitions
        return table.cells[table.slot_at(place.row, place.leader) + SLOT_LOG_END]

    def high_watermark(self, place: LogPlace) -> int:
        table = self._attachment.partitions
        return table.cells[table.at(place.row) + HIGH_WATERMARK]

    def last_stable_offset(self, place: LogPlace) -> int:
        table = self._attachment.partitions
        return table.cells[table.at(place.row) + LAST_STABLE_OFFSET]

    def log_start(self, place: LogPlace) -> int:
        table = self._attachment.partitions
        return table.cells[table.at(place.row) + LOG_START]

    def unread(self, worker: Role) -> int:
        """Return how many messages are on the ring of the worker that it has not read; 0 where it has no ring."""
        writer = self._attachment.outbound.get(worker)
        return 0 if writer is None else writer.slots - writer.free_slots()

    def append(
        self,
        place: LogPlace,
        batch: bytes,
        done: Done,
        *,
        origin: AppendOrigin,
        transaction_verified: bool = False,
    ) -> bool:
        """Send a batch; `done` gets 0, or an error code. False: no room now, ask again.

        Args:
            origin: CLIENT or COORDINATOR.
            transaction_verified: the transaction coordinator knows the partition to be part of the producer's open
                transaction.
        """
        writer = self._attachment.outbound.get(place.worker)
        if writer is None:
            done(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return True
        block = self._pool.take(len(batch))
        if block is None:
            return False
        block.view[: len(batch)] = batch
        flags = _LONE if self._is_lone() else 0
        if origin is AppendOrigin.COORDINATOR:
            flags |= _COORDINATOR_ORIGIN
        else:
            flags |= _NAMED  # this process knows whose transaction it is
        if transaction_verified:
            flags |= _TRANSACTION_VERIFIED
        identity = next(self._ids) % (REQUEST_ID_LIMIT - 1) + 1
        append = produce_request(
            identity,
            0,
            place.row,
            place.incarnation,
            flags,
            _ACKS_ALL,
            block.position,
            len(batch),
            _PRODUCE_VERSION,
            COMMIT_TIMEOUT_MS,
            0,
        )
        if not writer.put(*append):
            self._pool.give(block)
            return False
        self._waiting[identity] = _Append(place, block, done)
        self._touched.add(place.worker)
        return True

    def permit(self, place: LogPlace, producer_id: int, producer_epoch: int, done: Done) -> bool:
        """Tell the owner that the producer may open a transaction. False: no room now, ask again.

        `done` gets 0, or an error code where the owner has not taken it. The producer's next batch is then refused as
        NOT_PERMITTED, and the network process asks the transaction coordinator again.
        """
        request = partial(
            permit_request,
            row=place.row,
            incarnation=place.incarnation,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        return self._ask(place, request, done)

    def write_marker(
        self,
        place: LogPlace,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
        done: Done,
    ) -> bool:
        """End the producer's transaction. False: no room now, ask again.

        `done` gets 0 when the in-sync replicas have the marker, else an error code; UNKNOWN_OUTCOME where it may be in
        the log. INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED are final.
        """
        request = partial(
            marker_request,
            row=place.row,
            incarnation=place.incarnation,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=commit,
            transaction_version=transaction_version,
            timeout_ms=COMMIT_TIMEOUT_MS,
        )
        return self._ask(place, request, done)

    def _ask(self, place: LogPlace, request: Callable[..., Request], done: Done) -> bool:
        """Send what has no payload; `request` packs it under the `request_id` that it gets. False: no room now."""
        writer = self._attachment.outbound.get(place.worker)
        if writer is None:
            done(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return True
        identity = next(self._ids) % (REQUEST_ID_LIMIT - 1) + 1
        if not writer.put(*request(request_id=identity)):
            return False
        self._waiting[identity] = _Append(place, None, done)
        self._touched.add(place.worker)
        return True

    def delete_records(self, place: LogPlace, offset: int, done: Done) -> bool:
        """Move the log start to `offset`, at most the high watermark. False: no room now, ask again."""
        request = partial(
            partition_request,
            Op.DELETE_RECORDS,
            row=place.row,
            incarnation=place.incarnation,
            offset=offset,
            length_bytes=COMMIT_TIMEOUT_MS,
        )
        return self._ask(place, request, done)

    def read(
        self,
        place: LogPlace,
        offset: int,
        done: Callable[[Read], None],
        *,
        bytes_max: int = READ_BYTES,
        is_committed: bool = False,
        headers_only: bool = False,
    ) -> bool:
        """Read on from `offset`, at most `bytes_max` or one batch. False: no room on the ring, ask again later.

        Args:
            is_committed: up to the last stable offset, with the aborted transactions.
            headers_only: at most HEADERS_MAX headers of batches. Records are not read, and checksums are not checked.
        """
        writer = self._attachment.outbound.get(place.worker)
        if writer is None:
            done(Read(error=int(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
            return True
        identity = next(self._ids) % (REQUEST_ID_LIMIT - 1) + 1
        files_version = self._attachment.partitions.files_version(place.row)
        flags = _MIN_ONE_BATCH | _READ_COMMITTED if is_committed else _MIN_ONE_BATCH
        fetch = fetch_request(identity, 0, place.row, place.incarnation, flags, -1, bytes_max, -1, offset)
        if not writer.put(*fetch):
            return False
        self._waiting[identity] = _Reading(
            place, offset, files_version, done, is_committed=is_committed, headers_only=headers_only
        )
        self._touched.add(place.worker)
        return True

    def publish(self) -> None:
        """Make what was asked visible, and wake the workers that sleep."""
        self.show()
        self.wake()

    def show(self) -> None:
        """Make what was asked visible. `wake` must follow, because the workers that sleep do not see it."""
        for worker in self._touched:
            writer = self._attachment.outbound.get(worker)
            if writer is not None:
                writer.publish()

    def wake(self) -> None:
        """Wake the workers to which something was shown."""
        for worker in self._touched:
            if worker in self._attachment.outbound:
                self._attachment.bells[worker].ring()
        self._touched.clear()

    # Answers

    @property
    def is_asked(self) -> bool:
        """Return whether a worker's answer is outstanding."""
        return bool(self._waiting)

    def take(self, answers: list[tuple[Any, ...]]) -> None:
        """Take answers of a worker, fields as in `channels.request_channel`."""
        for answer in answers:
            waiting = self._waiting.pop(answer[REQUEST_ID], None)
            if isinstance(waiting, _Append):
                if waiting.block is not None:
                    self._pool.give(waiting.block)
                waiting.done(answer[ERROR])
            elif waiting is not None:
                waiting.done(self._located(waiting, answer))
            elif answer[REQUEST_ID] != NOTICE_ID:
                raise AssertionError(f"an answer to request {answer[REQUEST_ID]}, which nobody made")

    def worker_down(self, worker: Role) -> None:
        """A worker died: what waits for it fails."""
        self._touched.discard(worker)
        for identity, waiting in list(self._waiting.items()):
            if waiting.place.worker != worker:
                continue
            del self._waiting[identity]
            if isinstance(waiting, _Append):
                if waiting.block is not None:
                    self._pool.give(waiting.block)
                waiting.done(UNKNOWN_OUTCOME)
            else:
                waiting.done(Read(error=int(ErrorCode.NOT_LEADER_OR_FOLLOWER)))

    def _located(self, reading: _Reading, answer: tuple[Any, ...]) -> Read:
        error, directory = answer[ERROR], answer[FLAGS] & FETCH_DIRECTORY
        base_offset, high_watermark, log_start = (
            answer[FETCHED_SEGMENT],
            answer[FETCHED_HIGH_WATERMARK],
            answer[ANSWER_LOG_START],
        )
        position, length_bytes = answer[FETCHED_POSITION], answer[FETCHED_BYTES]
        end = answer[FETCHED_LAST_STABLE_OFFSET] if reading.is_committed else high_watermark
        if error or not length_bytes:
            return Read((), Path(), high_watermark, log_start, error, end=end)
        place = reading.place
        name = partition_directory_name(TopicPartition(place.topic, place.partition))
        path = self._directories[place.leader][directory] / name / segment_file_name(base_offset, LOG)
        chunks: tuple[Chunk, ...] = ()
        aborted: tuple[AbortedTransaction, ...] = ()
        headers: tuple[Header, ...] = ()
        fault: HostFault | None = None
        stop = position + length_bytes
        try:
            if reading.headers_only:
                headers = tuple(read_headers(path, position, stop, count_max=HEADERS_MAX))
            else:
                chunks = tuple(read_chunks(path, position, stop, chunk_bytes=READ_BYTES, may_be_cut=True))
            if reading.is_committed and answer[FLAGS] & _ABORTED:
                aborted = tuple(
                    read_aborted(path.parent, segment=base_offset, offset=reading.offset, bound=end)
                )
        except HostFault as host_fault:
            fault = host_fault
        table = self._attachment.partitions
        if table.files_version(place.row) != reading.files_version or not self.serves(place):
            return Read(replaced=True)
        if fault is not None:
            if isinstance(fault, CorruptFile):
                self._report_damage(place, reading.offset)
            return Read(error=int(ErrorCode.KAFKA_STORAGE_ERROR), why=str(fault))
        return Read(chunks, path, high_watermark, log_start, end=end, aborted=aborted, headers=headers)

    def _report_damage(self, place: LogPlace, offset: int) -> None:
        """Have the owner repair the log. Without room on the ring nothing is sent: the next read finds it again."""
        request = partial(
            partition_request, Op.LOG_DAMAGED, row=place.row, incarnation=place.incarnation, offset=offset
        )
        self._ask(place, request, lambda _: None)

    def statistics(self) -> dict[str, int]:
        return {"under_way": len(self._waiting)}
