"""librdkafka through confluent-kafka; also the witness of the transactional scenarios."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.clients.adapters.confluent import refused
from tests.clients.transactional.library import TransactionalLibrary, TransactionalProducer

T = TypeVar("T")

PATIENCE_S: Final = 60.0
COORDINATOR_COMES: Final = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
"""What the witness meets while `__consumer_offsets` is created."""


class ConfluentProducer(TransactionalProducer):
    """A producer of librdkafka."""

    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "broker.address.family": "v4",
            "log_level": 0,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": min(timeout_ms, 60_000),
            "linger.ms": 0,
        }
        self._producer: Producer | None = _raising(lambda: Producer(settings))
        self._address = address
        self._told: list[Any] = []

    @property
    def _open(self) -> Producer:
        assert self._producer is not None
        return self._producer

    def init(self) -> None:
        _raising(lambda: self._open.init_transactions(PATIENCE_S))

    def begin(self) -> None:
        _raising(self._open.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        told: list[Any] = []

        def delivered(error: Any, _message: Message) -> None:
            told.append(error)

        for value in values:
            produce = partial(self._open.produce, topic, value, partition=partition, on_delivery=delivered)
            _raising(produce)
        assert _raising(lambda: self._open.flush(90)) == 0, "records left in the queue"
        assert len(told) == len(values), "a record without a delivery report"
        for error in told:
            if error is not None:
                raise refused(error)

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": group, "log_level": 0})
        places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        try:
            metadata = consumer.consumer_group_metadata()
            _raising(lambda: self._open.send_offsets_to_transaction(places, metadata, PATIENCE_S))
        finally:
            consumer.close()

    def commit(self) -> None:
        _raising(lambda: self._open.commit_transaction(PATIENCE_S))

    def abort(self) -> None:
        _raising(lambda: self._open.abort_transaction(PATIENCE_S))

    def close(self) -> None:
        self._producer = None


class ConfluentTransactions(TransactionalLibrary):
    """librdkafka's transactions: version 1 of the protocol."""

    name: ClassVar[str] = "confluent-kafka"
    left_out: ClassVar[Mapping[str, str]] = {
        "on-after-a-refused-record": "purges the first record of the next transaction",
    }

    def _make(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        return ConfluentProducer(self.address, transactional_id, timeout_ms)

    def read(
        self, topic: str, partition: int = 0, *, until: bytes, committed: bool = True, timeout_s: float = 60.0
    ) -> list[bytes]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "broker.address.family": "v4",
                "log_level": 0,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + timeout_s
        try:
            while until not in values[-1:] and time.monotonic() < deadline:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    raise refused(error)
                values.append(message.value() or b"")
        finally:
            consumer.close()
        return values

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        """Records outside of any transaction."""
        producer = Producer(
            {"bootstrap.servers": self.address, "broker.address.family": "v4", "linger.ms": 0}
        )
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(60) == 0

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """A group's committed offset; negative where there is none. Waits for a pending one."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "broker.address.family": "v4",
                "group.id": group,
                "isolation.level": "read_committed",
            }
        )
        deadline = time.monotonic() + PATIENCE_S
        try:
            while True:
                try:
                    (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=PATIENCE_S)
                    break
                except KafkaException as exception:
                    code = exception.args[0].code()
                    if code not in COORDINATOR_COMES or time.monotonic() > deadline:
                        raise refused(exception.args[0]) from None
                    time.sleep(0.05)
        finally:
            consumer.close()
        if found.error is not None:
            raise refused(found.error)
        return found.offset


def _raising(call: Callable[[], T]) -> T:
    try:
        return call()
    except KafkaException as exception:
        raise refused(exception.args[0]) from None
