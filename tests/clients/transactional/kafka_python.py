"""kafka-python 3."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.clients.client import RefusedError
from tests.clients.transactional.library import TransactionalLibrary, TransactionalProducer


class KafkaPythonProducer(TransactionalProducer):
    """A producer of kafka-python."""

    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=60_000,
        )

    def init(self) -> None:
        _raising(self._producer.init_transactions)

    def begin(self) -> None:
        _raising(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        futures = [_raising(self._producer.send, topic, value=each, partition=partition) for each in values]
        for future in futures:
            _raising(future.get, timeout=60)

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        places = {TopicPartition(*place): OffsetAndMetadata(each, "", -1) for place, each in offsets.items()}
        _raising(self._producer.send_offsets_to_transaction, places, group)

    def commit(self) -> None:
        _raising(self._producer.commit_transaction)

    def abort(self) -> None:
        _raising(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=0)


class KafkaPythonTransactions(TransactionalLibrary):
    """kafka-python's transactions: version 1 of the protocol."""

    name: ClassVar[str] = "kafka-python"
    left_out: ClassVar[Mapping[str, str]] = {
        "fenced-on-send": "takes its id back from its successor when a record is refused for its epoch",
        "on-after-a-refused-record": "goes on with the sequence after the refused record, which is out of order",
    }

    def _make(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        return KafkaPythonProducer(self.address, transactional_id, timeout_ms)

    def read(
        self, topic: str, partition: int = 0, *, until: bytes, committed: bool = True, timeout_s: float = 60.0
    ) -> list[bytes]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        values: list[bytes] = []
        deadline = time.monotonic() + timeout_s
        home = TopicPartition(topic, partition)
        try:
            consumer.assign([home])
            consumer.seek(home, 0)
            while until not in values[-1:] and time.monotonic() < deadline:
                polled = _raising(consumer.poll, timeout_ms=100)
                values += [each.value for each in polled.get(home, ())]
        finally:
            consumer.close()
        return values


def _raising(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return call(*arguments, **named)
    except KafkaError as error:
        raise RefusedError(getattr(error, "errno", None) or -1, repr(error)) from None
