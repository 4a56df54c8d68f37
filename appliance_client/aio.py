"""The asyncio face: the same names as the sync one, over the same core, on the running event loop. No thread.

    from appliance_client import aio

    async with aio.Producer(bootstrap_servers="localhost:9092") as producer:
        sent = await producer.send("greetings", b"hello")   # waits only where buffer.memory is full
        print(await sent)                                   # acknowledged

A client belongs to its loop. Callbacks and interceptors run on the loop; a listener's methods may be coroutines.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from appliance.protocol.apis.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance_client.accumulator import Accumulator, RecordFuture
from appliance_client.arrow_batches import ColumnsFuture
from appliance_client.arrow_on_demand import columns_to_send, reader_and_schema
from appliance_client.consumer_core import ConsumerCore, RebalanceListener, Records
from appliance_client.core import Core, logger
from appliance_client.deaths import REASON
from appliance_client.errors import (
    BufferFullError,
    ClientError,
    ClosedError,
    IllegalStateError,
    TimedOutError,
)
from appliance_client.handing_back import AsyncHandBack
from appliance_client.local_logs import local_logs
from appliance_client.loop import LoopIo
from appliance_client.network import Topic
from appliance_client.options import ConsumerOptions, ProducerOptions, options_of
from appliance_client.parallel_aio import ParallelConsumer
from appliance_client.producer import ProducerPipeline, make_sender, offsets_and_group
from appliance_client.reading import Reading
from appliance_client.values import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    offset_of,
)

__all__ = ["Consumer", "ParallelConsumer", "Producer"]

T = TypeVar("T")

_CLOSE_S: Final = 30.0


class Producer:
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
        self._accumulator.on_room = self._notify_room
        self._core.start()
        self._io = LoopIo(self._core)
        self._io.before_sleep = self._accumulator.sleep_until
        self._intake = self._pipeline.intake(self._io.kick)
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
        if self._closed:
            raise ClosedError("the producer is closed")
        name, key, value, kept, partition, time_ms, told = self._pipeline.prepare(
            topic, value, key, headers, partition, timestamp_ms
        )
        known = self._pipeline.topic(name)
        if known is None:
            known = await self._learn(name)
        is_free = partition is None
        partition = self._pipeline.partition(known, key, partition)
        future, wake = self._accumulator.append(name, partition, key, value, time_ms, kept, told)
        if wake:
            self._io.kick()
        if future is None:
            future = await self._when_room(
                self._accumulator.append, name, partition, key, value, time_ms, kept, told
            )
        if is_free:
            self._pipeline.placed(name, key, value)
        return future

    async def _learn(self, name: str) -> Topic:
        limit_s = self._options.max_block_ms / 1000
        return await self._io.call(
            self._core.metadata.topic(name, time.monotonic() + limit_s), limit_s + 1, f"metadata of {name}"
        )

    async def _when_room(self, append: Callable[..., tuple[Any, bool]], *what: Any) -> Any:
        deadline_s = time.monotonic() + self._options.max_block_ms / 1000
        self._accumulator.waiters += 1
        try:
            while True:
                taken, _ = append(*what)
                if taken is not None:
                    return taken
                self._io.check()
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

    def _notify_room(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

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
        if self._closed:
            raise ClosedError("the producer is closed")
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
                        await self._when_room(self._accumulator.append_encoded, *batch)
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
        found = self._pipeline.topic(topic) or await self._learn(topic)
        return list(range(found.partitions))

    async def init_transactions(self) -> None:
        """Once, before the first transaction."""
        await self._io.call(self._sender.transactions.init(), None, "init_transactions")

    async def begin_transaction(self) -> None:
        """Begin a transaction."""
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
        if self._closed:
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
            self._sender.fail_all(ClosedError("the producer was closed"))
            await self._io.close()
            self._pipeline.close_interceptors()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close(None if kind is None else 0)


class Consumer:
    """Reads records. Options as `appliance_client.Consumer`; `async for record in consumer`."""

    def __init__(self, *topics: str, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        self._options = options_of(ConsumerOptions, config, options)
        may_create = self._options.allow_auto_create_topics and not self._options.retry_topics
        self._core = Core(self._options, now_s=time.monotonic(), auto_create=may_create)
        self._consumer = ConsumerCore(self._options, self._core)
        self._news = asyncio.Event()
        self._consumer.on_news = self._news.set
        self._closed = False
        retry_topics = self._consumer.retry_topics
        self._handing_back: AsyncHandBack | None = None
        if retry_topics is not None:
            self._handing_back = AsyncHandBack(self._options, retry_topics, Producer, self._keep)
        self._polls = False
        self._given: deque[ConsumerRecord] = deque()
        self._columns: Any = None
        self._core.start()
        self._io = LoopIo(self._core)
        self._local = local_logs(self._options.data_directory)
        if self._local is not None:
            self._consumer.fetching.local = self._local
            self._io.watch(self._local.descriptor, self._consumer.fetching.heard)
        self._io.kick()
        if topics:
            self.subscribe(topics)

    def subscribe(
        self,
        topics: Iterable[str] | str = (),
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics as a member of the group; `pattern` is a regular expression of names."""
        self._io.check()
        self._consumer.subscribe(topics, pattern, listener)
        self._io.kick()

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions, without the group's help."""
        self._io.check()
        self._take_back()
        self._consumer.assign([TopicPartition(*each) for each in partitions])
        self._io.kick()

    async def unsubscribe(self) -> None:
        """Give everything up and leave the group."""
        self._take_back()
        await self._io.call(self._consumer.unsubscribe(), None, "unsubscribe")

    def assignment(self) -> set[TopicPartition]:
        """What is read now."""
        return set(self._consumer.fetching.readings)

    def subscription(self) -> set[str]:
        """The topics subscribed to, patterns resolved."""
        return set(self._consumer.topics())

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these until `resume`."""
        for place in partitions:
            self._reading(place).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Hand these out again."""
        for place in partitions:
            self._reading(place).paused = False
        self._io.kick()

    def paused(self) -> set[TopicPartition]:
        """What is paused."""
        return {place for place, each in self._consumer.fetching.readings.items() if each.paused}

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Records by partition, as soon as there are any; an empty dict after `timeout_ms`."""
        self._take_back()
        most = self._options.max_poll_records if max_records is None else max_records
        records = await self._poll(timeout_ms, lambda: self._take(most)) or {}
        interceptors = self._consumer.interceptors
        if self._handing_back is not None:
            records = await self._for_retry(records, self._handing_back)
        return interceptors.consumed(records) if interceptors and records else records

    async def poll_arrow(
        self, timeout_ms: float = 0, max_records: int | None = None, columns: Sequence[str] | None = None
    ) -> Any:
        """Records as a `pyarrow.Table`; as `appliance_client.Consumer.poll_arrow`. Decodes in a thread."""
        self._consumer.refuse_columns()
        self._take_back()
        if self._columns is None:
            self._columns = await asyncio.to_thread(
                reader_and_schema, self._consumer.fetching, check_crcs=self._options.check_crcs
            )
        reader, schema = self._columns
        if columns is not None:
            from appliance_client.arrow_reading import schema_of

            schema = schema_of(columns)
        deadline_s = time.monotonic() + timeout_ms / 1000
        while True:
            left_ms = max(0.0, (deadline_s - time.monotonic()) * 1000)
            taken = await self._poll(left_ms, lambda: reader.begin(max_records))
            if not taken:
                return schema.empty_table()
            self._polls = True  # the positions stand still until all is decoded
            try:
                await asyncio.to_thread(reader.decode, taken, max_records, schema)
                table = reader.hand_out(taken, schema)
            except BaseException:
                reader.put_back(taken)
                raise
            finally:
                self._polls = False
            if table.num_rows:
                return table

    def _take(self, most: int) -> Records:
        records = self._consumer.take(most)
        if self._consumer.by_key and not records:
            self._io.kick()  # what was read waits for its key: there is room to fetch more
        return records

    async def _keep(self, record: ConsumerRecord) -> bool:
        marks = self._consumer.keep(record)
        if marks is not None:
            await self._io.call(self._consumer.mark(marks), None, "mark")
        return marks is not None

    async def _for_retry(self, records: Records, handing_back: AsyncHandBack) -> Records:
        handing_back.give_to(each for some in records.values() for each in some)
        plan = self._consumer.plan(records)
        if plan is None:
            return records
        dead = list(plan.dead)
        try:
            while dead:
                await dead[0].dead(REASON)
                del dead[0]
            await self._io.call(self._consumer.mark(plan.marks), None, "mark")
        except BaseException:  # cancelled, for example: the application gets nothing, so commit nothing
            self._consumer.put_back(plan, dead)
            raise
        return plan.given

    async def _poll(self, timeout_ms: float, take: Callable[[], T]) -> T | None:
        """What `take` gives, as soon as that is something; None after `timeout_ms`."""
        self._check()
        if self._polls:
            raise IllegalStateError("another task polls this consumer")
        deadline_s = time.monotonic() + timeout_ms / 1000
        consumer = self._consumer
        self._polls = True
        self._core.scheduler.advance(time.monotonic())
        consumer.poll_begins()
        try:
            while True:
                await self._run_turns()
                self._check()
                self._news.clear()
                records = take()
                if records or consumer.turns:
                    self._core.touch()
                    self._io.kick()
                    if records:
                        return records
                    continue
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    await asyncio.sleep(0)
                    return None
                try:
                    await asyncio.wait_for(self._news.wait(), left_s)
                except TimeoutError:
                    return None
        finally:
            self._polls = False
            self._core.scheduler.advance(time.monotonic())
            consumer.poll_ends()

    async def _run_turns(self) -> None:
        while self._consumer.turns:
            turn = self._consumer.turns.popleft()
            try:
                done = turn.call()
                if inspect.isawaitable(done):
                    await done
            finally:
                turn.outcome.resolve(None)
                self._io.kick()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record; waits for ever."""
        while not self._given:
            if self._closed:
                raise StopAsyncIteration
            polled = await self.poll(1000)
            self._given.extend(record for records in polled.values() for record in records)
        return self._given.popleft()

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on reading at `offset`."""
        at = offset_of(offset)
        self._reading(partition).seek(at.offset, at.leader_epoch)
        self._sought(partition)
        self._io.kick()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on where the log begins; of all assigned partitions where none is named."""
        self._seek_all(partitions, "earliest")

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on where the log ends."""
        self._seek_all(partitions, "latest")

    def _seek_all(self, places: Iterable[TopicPartition], where: str) -> None:
        for place in tuple(places) or tuple(self._consumer.fetching.readings):
            self._reading(place).seek_to(where)
            self._sought(place)
        self._io.kick()

    def _sought(self, place: TopicPartition) -> None:
        self._consumer.sought(place)
        self._given = deque(each for each in self._given if (each.topic, each.partition) != place)

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record; waits until it is known."""
        limit_ms = self._options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_s = time.monotonic() + limit_ms / 1000
        while (at := self._reading(partition).position) is None:
            if time.monotonic() > deadline_s:
                raise TimedOutError(f"no position of {partition} within {limit_ms} ms")
            self._check()
            await asyncio.sleep(0.005)
        return at

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each."""
        return await self._edges(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record of each."""
        return await self._edges(partitions, LATEST_TIMESTAMP)

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms since 1970); None where there is none."""
        found = await self._list({TopicPartition(*place): at for place, at in times_ms.items()})
        return {place: None if each.offset < 0 else each for place, each in found.items()}

    async def _edges(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        found = await self._list({TopicPartition(*each): which for each in partitions})
        return {place: each.offset for place, each in found.items()}

    async def _list(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        limit_s = self._options.default_api_timeout_ms / 1000
        return await self._io.call(
            self._consumer.fetching.list_offsets(wanted, limit_s), limit_s + 1, "offsets"
        )

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Commit positions, or `offsets`.

        Raises:
            CommitFailedError: the group has given the partitions to another member.
        """
        limit_s = (self._options.default_api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        given = None
        if offsets is not None:
            given, _ = offsets_and_group(offsets, "")
        elif self._given:
            given = self._consumer.positions(self._consumer.fetching.readings, self._not_given())
        await self._io.call(self._consumer.commit(given, limit_s), limit_s + 1, "commit")

    def _not_given(self) -> dict[TopicPartition, int]:
        """Where the partitions stand of which the iterator has taken more than it has given."""
        found: dict[TopicPartition, int] = {}
        for record in self._given:
            found.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return found

    def _take_back(self) -> None:
        """Have what the iterator has taken and not given be read again."""
        for place, offset in self._not_given().items():
            self._consumer.give_back(place, offset)
        self._given.clear()

    async def committed(
        self, *partitions: TopicPartition, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for each; None for nothing."""
        limit_s = (self._options.default_api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        listed = [TopicPartition(*each) for each in partitions]
        return await self._io.call(self._consumer.committed(listed, limit_s), limit_s + 1, "committed")

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group."""
        return self._consumer.group_metadata()

    async def close(self, timeout_ms: float = _CLOSE_S * 1000) -> None:
        """Commit (with enable.auto.commit), leave the group and close the sockets."""
        if self._closed:
            return
        self._take_back()
        self._closed = True
        self._news.set()
        try:
            if timeout_ms > 0:
                await self._io.call(self._consumer.close(), timeout_ms / 1000, "close")
        except ClientError as error:
            logger.warning("closing the consumer: %s", error)
        finally:
            if self._local is not None:
                self._io.unwatch(self._local.descriptor)
                self._local.close()
            if self._handing_back is not None:
                await self._handing_back.close()
            await self._io.close()
            self._consumer.interceptors.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed")
        self._io.check()

    def _reading(self, place: TopicPartition) -> Reading:
        self._check()
        found = self._consumer.fetching.readings.get(place)
        if found is None:
            raise IllegalStateError(f"{place} is not assigned")
        return found
