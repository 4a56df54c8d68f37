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
import re
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from appliance.protocol.apis.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance_client.aio_producer import Producer
from appliance_client.arrow_on_demand import reader_and_schema
from appliance_client.consumer import OnCommit, tell_committed
from appliance_client.consumer_core import ConsumerCore, RebalanceListener, Records
from appliance_client.core import Core, NotCopied, logger
from appliance_client.deaths import REASON
from appliance_client.errors import (
    ClientError,
    ClosedError,
    IllegalStateError,
    RecordDeserializationError,
    TimedOutError,
)
from appliance_client.handing_back import AsyncHandBack
from appliance_client.local_logs import local_logs
from appliance_client.loop import LoopIo
from appliance_client.options import ConsumerOptions, check_topics, options_of, records_max_of
from appliance_client.parallel_aio import ParallelConsumer
from appliance_client.producer import offsets_and_group
from appliance_client.reading import Reading
from appliance_client.values import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    offset_of,
    place_of,
    time_of,
)

__all__ = ["Consumer", "ParallelConsumer", "Producer"]

T = TypeVar("T")

_CLOSE_S: Final = 30.0


class Consumer(NotCopied):
    """Reads records. Options as `appliance_client.Consumer`; `async for record in consumer`."""

    def __init__(self, *topics: str, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        check_topics(topics)
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
        self._woken = False
        self._columns: Any = None
        self._ends: dict[TopicPartition, int] = {}
        self._core.start()
        self._io = LoopIo(self._core)
        self._local = local_logs(self._options.data_directory)
        if self._local is not None:
            self._consumer.fetching.local = self._local
            self._io.watch(self._local.descriptor, self._consumer.fetching.heard)
        self._io.kick()
        if topics:
            try:
                self.subscribe(topics)
            except BaseException:
                self._closed = True
                self._io.abandon()
                raise

    def subscribe(
        self,
        topics: Iterable[str] | str = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics as a member of the group; `pattern` is a regular expression of names."""
        self._check()
        self._consumer.subscribe(topics, pattern, listener)
        self._io.kick()

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions, without the group's help."""
        self._check()
        self._take_back()
        self._consumer.assign([place_of(each) for each in partitions])
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
        most = self._options.max_poll_records if max_records is None else records_max_of(max_records)
        self._take_back()
        records = await self._poll(timeout_ms, lambda: self._take(most)) or {}
        interceptors = self._consumer.interceptors
        if self._handing_back is not None:
            records = await self._for_retry(records, self._handing_back)
        return interceptors.consumed(records) if interceptors and records else records

    async def poll_arrow(
        self, timeout_ms: float = 0, max_records: int | None = None, columns: Sequence[str] | None = None
    ) -> Any:
        """Records as a `pyarrow.Table`; as `appliance_client.Consumer.poll_arrow`. Decodes in a thread."""
        if max_records is not None:
            max_records = records_max_of(max_records)
        self._consumer.refuse_columns()
        self._take_back()
        if self._columns is None:
            self._columns = await asyncio.to_thread(
                reader_and_schema, self._consumer.fetching, check_crcs=self._options.check_crcs
            )
        reader, schema = self._columns
        reader.ends = self._ends
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

    def read_until(self, ends: Mapping[TopicPartition, int]) -> None:
        """Have `poll_arrow` leave out what lies at these offsets and behind."""
        self._ends = dict(ends)

    @property
    def default_timeout_s(self) -> float:
        """`default.api.timeout.ms`."""
        return self._options.default_api_timeout_ms / 1000

    def _take(self, most: int) -> Records:
        try:
            records = self._consumer.take(most)
        except RecordDeserializationError as error:
            if self._handing_back is not None:
                self._handing_back.give_to((error.record,))
            raise
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
                if self._woken:
                    self._woken = False
                    return None
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
            self._core.scheduler.advance(time.monotonic())
            self._consumer.poll_ends()
            try:
                done = turn.call()
                if inspect.isawaitable(done):
                    await done
            finally:
                self._consumer.turn_ends()
                turn.outcome.resolve(None)
                self._io.kick()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record; waits for ever."""
        while not self._given:
            if self._closed:
                raise StopAsyncIteration
            try:
                polled = await self.poll(1000)
            except ClosedError:
                raise StopAsyncIteration from None
            self._given.extend(record for records in polled.values() for record in records)
        return self._given.popleft()

    def wakeup(self) -> None:
        """From another task: have a poll that waits return at once."""
        self._woken = True
        self._news.set()

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
        return self._not_given().get(partition, at)  # the iterator may have taken more than it has given

    def highwater(self, partition: TopicPartition) -> int | None:
        """The end of the partition as the last fetch saw it."""
        end = self._reading(partition).high_watermark
        return None if end < 0 else end

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each."""
        return await self._edges(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record of each."""
        return await self._edges(partitions, LATEST_TIMESTAMP)

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms since 1970); None where there is none.

        With MAX_TIMESTAMP instead of a time: the record with the largest time.
        """
        found = await self._list({place_of(place): time_of(at) for place, at in times_ms.items()})
        return {place: None if each.offset < 0 else each for place, each in found.items()}

    async def _edges(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        found = await self._list({place_of(each): which for each in partitions})
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

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: OnCommit | None = None,
    ) -> None:
        """Commit without waiting. `callback(offsets, error)` runs on the loop."""
        self._check()
        consumer = self._consumer
        limit_s = self._options.default_api_timeout_ms / 1000
        if offsets is None:
            what = consumer.positions(consumer.fetching.readings, self._not_given())
        else:
            what, _ = offsets_and_group(offsets, "")
        who = None if consumer.coordinator is None else consumer.owner()
        task = self._core.scheduler.spawn(consumer.commit(what, limit_s, who))
        task.when_done(lambda done: tell_committed(callback, what, done.error))
        self._io.kick()

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
        listed = [place_of(each) for each in partitions]
        return await self._io.call(self._consumer.committed(listed, limit_s), limit_s + 1, "committed")

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group."""
        return self._consumer.group_metadata()

    async def partitions_for_topic(self, topic: str, timeout_ms: float | None = None) -> set[int]:
        """The indexes of a topic's partitions. `timeout_ms`: default.api.timeout.ms, or less."""
        limit_s = self._options.default_api_timeout_ms / 1000
        if timeout_ms is not None:
            limit_s = min(limit_s, timeout_ms / 1000)
        found = await self._io.call(
            self._core.metadata.topic(topic, time.monotonic() + limit_s), limit_s + 1, f"metadata of {topic}"
        )
        return set(range(found.partitions))

    async def close(self, timeout_ms: float = _CLOSE_S * 1000) -> None:
        """Commit (with enable.auto.commit), leave the group and close the sockets."""
        if self._closed or self._io.forked:
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

    def __del__(self) -> None:
        io = getattr(self, "_io", None)
        if io is not None and not self._closed and not io.closed and not io.forked:
            warnings.warn("a consumer was not closed", ResourceWarning, stacklevel=2)
            io.abandon()

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
