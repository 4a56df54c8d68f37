"""A network process between a worker and a coordinator, both played by the test, over real rings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.serial import entity_reader

from appliance.channels.request_channel import (
    ITEM,
    LENGTH_BYTES,
    OP,
    POSITION,
    REQUEST_ID,
    ROW,
    Op,
    RejectReason,
    refusal,
)
from appliance.channels.roles import COORDINATOR, Role
from appliance.channels.wiring import Attachment
from appliance.cluster import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    AclBinding,
    PartitionImage,
    TopicImage,
)
from appliance.control.coordinator.request_lines import RequestLines
from appliance.control.coordinator.request_queue import Received
from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.headers import REQUEST_START
from appliance.protocol.messages import decode_request, decode_response, encode_response
from appliance.protocol.primitives import INT32, compact_string_bytes, string_bytes, uvarint_bytes
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.record import Record, decode_records, encode_batch
from appliance.requests.session import Request, Session
from tests.protocol import judges
from tests.requests.serving import INCARNATION, IOPROC, NETPROC, TOPIC, Serving

ID: Final = "tx"
PRODUCER: Final = 7
EPOCH: Final = 3
TOPIC_ID: Final = UUID(int=5)
PARTITIONS: Final = 4
INVALID_TXN_STATE: Final = int(ErrorCode.INVALID_TXN_STATE)


class Placed(NamedTuple):
    """A Produce operation as the worker got it."""

    operation: tuple[Any, ...]
    value: bytes
    """Of the only record."""

    @property
    def partition(self) -> int:
        return int(self.operation[ROW])


class Question(NamedTuple):
    """An AddPartitionsToTxn as the coordinator got it."""

    received: Received
    request: AddPartitionsToTxnRequest

    @property
    def partitions(self) -> list[tuple[str, int]]:
        (transaction,) = self.request.transactions
        return [(topic.name, number) for topic in transaction.topics for number in topic.partitions]

    @property
    def verifies(self) -> bool:
        (transaction,) = self.request.transactions
        return transaction.verify_only

    @property
    def producer(self) -> tuple[str, int, int]:
        (transaction,) = self.request.transactions
        return transaction.transactional_id, transaction.producer_id, transaction.producer_epoch


class Transacting(Serving):
    """Slot 0 leads everything."""

    peers: Mapping[Role, int] = {IOPROC: 1, COORDINATOR: 1}

    def __init__(
        self,
        data_dir: Path,
        *,
        acls: tuple[AclBinding, ...] | None = None,
        audit_events: tuple[str, ...] = (),
    ) -> None:
        super().__init__(data_dir, acls=acls, audit_events=audit_events)
        self._coordinator = Attachment(self._wiring, COORDINATOR, 1, {NETPROC: 1})
        assert self._coordinator.pool is not None
        self.coordinator = RequestLines(self._coordinator, BufferPool(self._coordinator.pool.view))

    def topics(self) -> dict[str, TopicImage]:
        partitions = tuple(PartitionImage(n, n, INCARNATION, 0, 0, (0,), (0,)) for n in range(PARTITIONS))
        internal = tuple(
            PartitionImage(n, PARTITIONS + n, INCARNATION, 0, 0, (0,), (0,)) for n in range(PARTITIONS)
        )
        return {
            TOPIC: TopicImage(TOPIC, TOPIC_ID, partitions),
            TRANSACTION_STATE: TopicImage(TRANSACTION_STATE, UUID(int=6), internal, internal=True),
            CONSUMER_OFFSETS: TopicImage(CONSUMER_OFFSETS, UUID(int=7), internal, internal=True),
        }

    # The client

    def produce(self, session: Session, frame: bytes) -> Request:
        """Hand over a Produce frame, unless it must wait by the session's own rule."""
        assert not session.must_wait(is_produce=True)
        return self.serve(session, frame)

    def errors(self, pending: Request) -> list[int] | None:
        """Return the error of each partition in the answer to a Produce request; None while there is no answer."""
        if pending not in self.answers:
            return None
        frame = self.answers[pending]
        read = entity_reader(judges.kio_class(ApiKey.PRODUCE, pending.version, "Response"))
        response, _ = read(frame[9 if pending.version >= 9 else 8 :], 0)
        return [int(each.error_code) for topic in response.responses for each in topic.partition_responses]

    def told(self, pending: Request) -> Any:
        """Return the response to a request of any other API."""
        return decode_response(ApiKey(pending.api_key), pending.version, memoryview(self.answers[pending]))[1]

    # The worker

    def worker_got(self) -> list[Placed]:
        """Return the Produce operations since the last time."""
        self.lines.publish()
        pool = self._worker.pools[NETPROC].view
        placed = []
        for operation in self._worker.inbound[NETPROC].drain():
            if operation[OP] == Op.PRODUCE:
                at = operation[POSITION]
                (record,) = decode_records(bytes(pool[at : at + operation[LENGTH_BYTES]]))
                assert record.value is not None
                placed.append(Placed(operation, record.value))
        return placed

    def worker_answers(self, placed: Placed, error: int = 0, *, reason: int = 0) -> None:
        asked = placed.operation
        answer = list(refusal(asked, error, reason=reason))
        writer = self._worker.outbound[NETPROC]
        assert writer.put(*answer)
        writer.publish()
        self.lines.take_answers()

    def worker_refuses(self, placed: Placed) -> None:
        """The worker knows of no transaction of the producer."""
        self.worker_answers(placed, INVALID_TXN_STATE, reason=int(RejectReason.NOT_PERMITTED))

    def worker_describes(self, open_transaction: tuple[int, int, int] | None = None) -> int:
        """Answer the questions for a producer since the last time with one that has (id, epoch, first offset of its
        transaction), or with none; how many there were."""
        self.lines.publish()
        asked = list(self._worker.inbound[NETPROC].drain())
        producer, epoch, first_offset = open_transaction or (-1, -1, -1)
        writer = self._worker.outbound[NETPROC]
        for operation in asked:
            assert operation[OP] == Op.DESCRIBE_PRODUCER
            head = (operation[OP], 0, 0, operation[REQUEST_ID], operation[ITEM], operation[ROW])
            assert writer.put(*head, producer, 0, first_offset, 0, 0, 0, epoch, -1)
        writer.publish()
        self.lines.take_answers()
        return len(asked)

    def worker_dies(self) -> None:
        self.attachment.peer_down(IOPROC)
        self.lines.worker_down(IOPROC)

    # The coordinator

    def coordinator_got(self) -> list[Received]:
        """Return the requests since the last time."""
        self.coordinators.turn()
        lines = self.coordinator
        lines.receive(NETPROC, self._coordinator.inbound[NETPROC].drain())
        received = []
        while (each := lines.queue.next_cheap() or lines.queue.next_costly()) is not None:
            lines.take(each.reply)
            received.append(each)
        return received

    def questions(self) -> list[Question]:
        """Return what the coordinator was asked of transactions since the last time."""
        return [Question(each, self.read(each)) for each in self.coordinator_got()]

    @staticmethod
    def read(received: Received) -> Any:
        header = received.reply.header
        return decode_request(
            header.api_key, header.version, received.view, header.body_position, received.end
        )

    def reply(self, received: Received, response: Any) -> None:
        header = received.reply.header
        frame = encode_response(header.api_key, header.version, response, header.correlation_id)
        self.coordinator.answer(received.reply, frame)
        self.coordinator.publish()
        self.coordinators.turn()

    def coordinator_says(self, question: Question, errors: int | Mapping[int, int] = 0) -> None:
        """Answer with an error for all partitions, or one by partition."""
        (transaction,) = question.request.transactions
        told = AddPartitionsToTxnResult(
            transaction.transactional_id,
            tuple(
                AddPartitionsToTxnTopicResult(
                    topic.name,
                    tuple(
                        AddPartitionsToTxnPartitionResult(
                            number, errors if isinstance(errors, int) else errors.get(number, 0)
                        )
                        for number in topic.partitions
                    ),
                )
                for topic in transaction.topics
            ),
        )
        self.reply(question.received, AddPartitionsToTxnResponse(results_by_transaction=(told,)))

    def coordinator_dies(self) -> None:
        self.attachment.peer_down(COORDINATOR)
        self.coordinators.coordinator_down(COORDINATOR)

    # Time

    def run(self) -> None:
        """Do the work that is in pieces, as far as it goes now."""
        while not self.long.is_empty():
            self.long.run()

    def wait_ms(self, duration_ms: int) -> None:
        """The clock moves on, and what is due is done."""
        self.clock.advance(duration_ms)
        self.timers.run_due(self.clock.monotonic_ns())

    @property
    def holds_nothing(self) -> bool:
        return self.pool.free_bytes() == self.free_bytes

    free_bytes = 0


@contextmanager
def transacting(
    data_dir: Path, *, acls: tuple[AclBinding, ...] | None = None, audit_events: tuple[str, ...] = ()
) -> Iterator[Transacting]:
    """Yield one that is closed afterwards."""
    made = Transacting(data_dir, acls=acls, audit_events=audit_events)
    made.free_bytes = made.pool.free_bytes()
    try:
        yield made
    finally:
        made.close()


def batch(
    value: bytes,
    *,
    sequence: int = 0,
    producer: int = PRODUCER,
    epoch: int = EPOCH,
    is_transactional: bool = True,
) -> bytes:
    """Return one batch of one record."""
    return encode_batch(
        [Record(value=value)],
        attributes=TRANSACTIONAL if is_transactional else 0,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def produce(
    version: int,
    batches: Mapping[int, bytes],
    *,
    transactional_id: str | None = ID,
    acks: int = -1,
    correlation_id: int = 1,
    topic: str = TOPIC,
) -> bytes:
    """Return the frame of a Produce request for one topic, from version 13 on for TOPIC: the batch by partition."""
    body = bytearray(REQUEST_START.pack(int(ApiKey.PRODUCE), version, correlation_id, -1))
    is_flexible = version >= 9
    if is_flexible:
        body += b"\0"
        body += uvarint_bytes(0) if transactional_id is None else compact_string_bytes(transactional_id)
    else:
        body += b"\xff\xff" if transactional_id is None else string_bytes(transactional_id)
    body += acks.to_bytes(2, "big", signed=True) + INT32.pack(30_000)
    if is_flexible:
        body += uvarint_bytes(2)
        body += TOPIC_ID.bytes if version >= 13 else compact_string_bytes(topic)
        body += uvarint_bytes(len(batches) + 1)
        for partition, records in batches.items():
            body += INT32.pack(partition) + uvarint_bytes(len(records) + 1) + records + b"\0"
        body += b"\0\0"
    else:
        body += INT32.pack(1) + string_bytes(topic) + INT32.pack(len(batches))
        for partition, records in batches.items():
            body += INT32.pack(partition) + INT32.pack(len(records)) + records
    return INT32.pack(len(body)) + bytes(body)
