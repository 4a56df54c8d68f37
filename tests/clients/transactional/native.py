"""appliance_client: version 2 of the protocol where the broker has it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from appliance_client import Consumer, Producer, TopicPartition
from tests.clients.adapters.native import place_of, raising
from tests.clients.transactional.library import TransactionalLibrary, TransactionalProducer


class NativeProducer(TransactionalProducer):
    """A producer of the native client."""

    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = Producer(
            bootstrap_servers=address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_request_size=20_000_000,
        )

    def init(self) -> None:
        raising(self._producer.init_transactions)

    def begin(self) -> None:
        raising(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        futures = [raising(self._producer.send, topic, each, partition=partition) for each in values]
        for future in futures:
            raising(future.get, 60)

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        places = {TopicPartition(*place): each for place, each in offsets.items()}
        raising(self._producer.send_offsets_to_transaction, places, group)

    def commit(self) -> None:
        raising(self._producer.commit_transaction)

    def abort(self) -> None:
        raising(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(0)


class NativeTransactions(TransactionalLibrary):
    """The native client's transactions."""

    name: ClassVar[str] = "native"

    @property
    def bootstrap(self) -> str:
        """What the client is given."""
        return self.address

    def _make(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        return NativeProducer(self.bootstrap, transactional_id, timeout_ms)

    def read(
        self, topic: str, partition: int = 0, *, until: bytes, committed: bool = True, timeout_s: float = 60.0
    ) -> list[bytes]:
        values: list[bytes] = []
        deadline = time.monotonic() + timeout_s
        home = TopicPartition(topic, partition)
        with Consumer(
            bootstrap_servers=self.bootstrap,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            isolation_level="read_committed" if committed else "read_uncommitted",
        ) as consumer:
            consumer.assign([home])
            consumer.seek(home, 0)
            while until not in values[-1:] and time.monotonic() < deadline:
                polled = raising(consumer.poll, 100)
                values += [each.value for each in polled.get(home, ())]
        return values


class NativeZeroMqTransactions(NativeTransactions):
    """The same over ZeroMQ."""

    name: ClassVar[str] = "native-zeromq"

    @property
    def bootstrap(self) -> str:
        return place_of(self.address, "zmq+ipc")


class NativeShmTransactions(NativeTransactions):
    """The same over shared memory."""

    name: ClassVar[str] = "native-shm"

    @property
    def bootstrap(self) -> str:
        return place_of(self.address, "shm")
