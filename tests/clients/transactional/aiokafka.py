"""aiokafka: its senders work in the background, so its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from tests.clients.client import RefusedError
from tests.clients.transactional.library import (
    PRODUCER_FENCED,
    TransactionalLibrary,
    TransactionalProducer,
)

T = TypeVar("T")

PATIENCE_S: Final = 90.0


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs to the end; the library's errors become refusals in Kafka's numbers."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)
        except ProducerFenced as error:  # has no number
            raise RefusedError(PRODUCER_FENCED, repr(error)) from None
        except KafkaError as error:
            raise RefusedError(getattr(error, "errno", None) or -1, repr(error)) from None

    def end(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AiokafkaProducer(TransactionalProducer):
    """A producer of aiokafka, made and started by `init`."""

    def __init__(self, loop: Loop, address: str, transactional_id: str, timeout_ms: int) -> None:
        self._loop = loop
        self._settings = {
            "bootstrap_servers": address,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": timeout_ms,
        }
        self._producer: Any = None

    def init(self) -> None:
        async def run() -> None:
            self._producer = AIOKafkaProducer(**self._settings)
            await self._producer.start()

        self._loop.run(run())

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        async def run() -> None:
            await asyncio.gather(
                *[await self._producer.send(topic, value=value, partition=partition) for value in values]
            )

        self._loop.run(run())

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        places = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._loop.run(self._producer.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction())

    def close(self) -> None:
        if self._producer is not None:
            self._loop.run(self._producer.stop())


class AiokafkaTransactions(TransactionalLibrary):
    """aiokafka's transactions: version 0 of every request."""

    name: ClassVar[str] = "aiokafka"
    left_out: ClassVar[Mapping[str, str]] = {
        "on-after-a-refused-record": "goes on with the sequence after the refused record, which is out of order",
    }

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._loop = Loop()

    def _make(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        return AiokafkaProducer(self._loop, self.address, transactional_id, timeout_ms)

    def read(
        self, topic: str, partition: int = 0, *, until: bytes, committed: bool = True, timeout_s: float = 60.0
    ) -> list[bytes]:
        async def run() -> list[bytes]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.address,
                group_id=None,
                auto_offset_reset="none",
                fetch_max_wait_ms=100,
                isolation_level="read_committed" if committed else "read_uncommitted",
            )
            await consumer.start()
            values: list[bytes] = []
            deadline = time.monotonic() + timeout_s
            home = TopicPartition(topic, partition)
            try:
                consumer.assign([home])
                consumer.seek(home, 0)
                while until not in values[-1:] and time.monotonic() < deadline:
                    polled = await consumer.getmany(timeout_ms=100)
                    values += [each.value for each in polled.get(home, ())]
            finally:
                await consumer.stop()
            return values

        return self._loop.run(run())

    def close(self) -> None:
        super().close()
        self._loop.end()
