"""The producer of the asyncio face (aio.py has the consumer)."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from appliance_client.accumulator import Accumulator, RecordFuture
from appliance_client.arrow_batches import ColumnsFuture
from appliance_client.arrow_on_demand import columns_to_send
from appliance_client.core import Core, NotCopied, logger
from appliance_client.errors import BufferFullError, ClientError, ClosedError
from appliance_client.loop import LoopIo
from appliance_client.network import Topic
from appliance_client.options import ProducerOptions, options_of
from appliance_client.producer import ProducerPipeline, after_fork, make_sender, offsets_and_group
from appliance_client.values import GroupMetadata, OffsetAndMetadata, TopicPartition


class Producer(NotCopied):
    """Sends records. Options as `appliance_client.Producer`."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self._options = options_of(ProducerOptions, config, options)
        self._core = Core(self._options, now_s=time.monotonic(), auto_create=True)
        self._accumulator = Accumulator(
            max(1, self._options.batch_size), self._options.buffer_memory, self._options.linger_ms / 1000
        )
        self._sender = make_sender(self._options, self._core, self._accumulator)
        self._pipeline = ProducerPipeline(self._options, self._core, self._accumulator, self._sender)
        self._closed = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        # Nothing that the loop holds may hold the producer, or a forgotten one would live as long as the loop.
        self._accumulator.on_room = partial(_notify_room, self._waiting)
        self._core.start()
        self._io = LoopIo(self._core)
        self._io.before_sleep = self._accumulator.sleep_until
        self._intake = self._pipeline.intake(self._io.kick)
        self._io.after_fork = partial(after_fork, self._intake, self._accumulator)
        self._io.kick()

    async def send(  # noqa: PLR0917 - the order that users of kafka-python know
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Hand a record over; await the future that is returned to know that it is acknowledged.

        Raises:
            BufferFullError: `buffer.memory` stayed full, or nothing is known of the topic.
            BrokerError: the topic cannot be written to.
            RecordTooLargeError, SerializationError: the record cannot be sent.
        """
        if not headers:
            offered = self._intake.offer(topic, value, key, partition, timestamp_ms)
            if offered is not None:
                return offered
        self._check()
        name, key, value, kept, partition, time_ms, told = self._pipeline.prepare(
            topic, value, key, headers, partition, timestamp_ms
        )
        is_free = partition is None
        try:
            known = self._pipeline.topic(name)
            deadline_s: float | None = None
            if known is None:
                deadline_s = time.monotonic() + self._options.max_block_ms / 1000
                known = await self._learn(name)
            partition = self._pipeline.partition(known, key, partition)
            future, wake = self._accumulator.append(name, partition, key, value, time_ms, kept, told)
            if wake:
                self._io.kick()
            if future is None:
                future = await self._when_room(
                    deadline_s, self._accumulator.append, name, partition, key, value, time_ms, kept, told
                )
        except BaseException as error:
            if told is not None:
                told(None, error)
            raise
        if is_free:
            self._pipeline.placed(name, key, value)
        return future

    async def _learn(self, name: str) -> Topic:
        limit_s = self._options.max_block_ms / 1000
        return await self._io.call(
            self._core.metadata.topic(name, time.monotonic() + limit_s), limit_s + 1, f"metadata of {name}"
        )

    async def _when_room(
        self, deadline_s: float | None, append: Callable[..., tuple[Any, bool]], *what: Any
    ) -> Any:
        """Append, as soon as there is room. `deadline_s`: what is left of `max.block.ms`; None: all of it."""
        if deadline_s is None:
            deadline_s = time.monotonic() + self._options.max_block_ms / 1000
        self._accumulator.waiters += 1
        try:
            while True:
                taken, _ = append(*what)
                if taken is not None:
                    return taken
                self._check()
                self._io.kick()
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise BufferFullError(
                        f"buffer.memory ({self._options.buffer_memory} bytes) stayed full for "
                        f"{self._options.max_block_ms} ms"
                    )
                waiter: asyncio.Future[None] = self._io.loop.create_future()
                self._waiting.append(waiter)
                await asyncio.wait((waiter,), timeout=left_s)
        finally:
            self._accumulator.waiters -= 1

    async def send_arrow(
        self,
        topic: str,
        table: Any,
        *,
        key: str | None = "*",
        value: str | None = "*",
        timestamp: str | None = "*",
        headers: str | None = "*",
        partition: int | str | None = None,
    ) -> ColumnsFuture:
        """As `appliance_client.Producer.send_arrow`; await the future that is returned. Encodes in a thread."""
        self._check()
        columns = await asyncio.to_thread(
            columns_to_send, self._pipeline, table, key, value, timestamp, headers, partition
        )
        known = self._pipeline.topic(topic) or await self._learn(topic)
        await asyncio.to_thread(columns.check, known)
        future = ColumnsFuture()
        fault: BaseException | None = None
        pieces = columns.encoded(known)
        try:
            while batches := await asyncio.to_thread(next, pieces, None):
                for place, payload, room, count, times_ms in batches:
                    batch = (topic, place, payload, room, count, times_ms, future.part(count))
                    taken, wake = self._accumulator.append_encoded(*batch)
                    if wake:
                        self._io.kick()
                    if taken is None:
                        await self._when_room(None, self._accumulator.append_encoded, *batch)
        except BaseException as error:
            fault = error
            raise
        finally:
            future.settle(fault)
        return future

    async def flush(self, timeout: float | None = None) -> None:
        """Send all that was handed over before, and wait until each record is acknowledged or has failed."""
        await self._io.call(self._sender.flush(), timeout, "flush")

    async def partitions_for(self, topic: str) -> list[int]:
        """The indexes of a topic's partitions."""
        self._check()
        found = self._pipeline.topic(topic) or await self._learn(topic)
        return list(range(found.partitions))

    async def init_transactions(self) -> None:
        """Once, before the first transaction."""
        await self._io.call(self._sender.transactions.init(), None, "init_transactions")

    async def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._check()
        self._sender.transactions.begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata | str
    ) -> None:
        """Commit a group's offsets with the transaction."""
        listed, member = offsets_and_group(offsets, group)
        await self._io.call(
            self._sender.transactions.send_offsets(listed, member), None, "send_offsets_to_transaction"
        )

    async def commit_transaction(self) -> None:
        """Flush, and commit the transaction."""
        await self._io.call(self._sender.transactions.commit(), None, "commit_transaction")

    async def abort_transaction(self) -> None:
        """Drop what is not sent, and abort the transaction."""
        await self._io.call(self._sender.transactions.abort(), None, "abort_transaction")

    async def close(self, timeout: float | None = None) -> None:
        """Flush for at most `timeout` seconds (None: `delivery.timeout.ms`), then drop what is left."""
        if self._closed or self._io.forked:
            return
        self._closed = True
        self._intake.close()
        limit_s = self._options.delivery_timeout_ms / 1000 + 1 if timeout is None else timeout
        try:
            if limit_s > 0:
                await self._io.call(self._sender.flush(), limit_s, "close")
        except ClientError as error:
            logger.warning("closing the producer: %s", error)
        finally:
            self._accumulator.close()
            self._sender.fail_all(ClosedError("the producer was closed"))
            _notify_room(self._waiting)
            await self._io.close()
            self._pipeline.close_interceptors()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close(None if kind is None else 0)

    def __del__(self) -> None:
        io = getattr(self, "_io", None)
        if io is not None and not self._closed and not io.closed and not io.forked:
            warnings.warn(
                "a producer was not closed; what it had not sent is lost", ResourceWarning, stacklevel=2
            )
            io.abandon()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed")
        self._io.check()


def _notify_room(waiting: deque[asyncio.Future[None]]) -> None:
    while waiting:
        waiter = waiting.popleft()
        if not waiter.done():
            waiter.set_result(None)
