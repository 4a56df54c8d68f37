"""The asyncio face of `parallel.py`: several tasks process one consumer's records, offsets are committed in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from appliance_client.consumer_core import RebalanceListener
from appliance_client.core import logger
from appliance_client.errors import (
    ClientError,
    IllegalStateError,
    ProcessingError,
    RecordDeserializationError,
)
from appliance_client.parallel import POLL_MS, failure_of, refuse_ordered, refuse_wrong
from appliance_client.values import ConsumerRecord, TopicPartition
from appliance_client.window import Order, Task, Window

if TYPE_CHECKING:
    from appliance_client.aio import Consumer

Process = Callable[[ConsumerRecord], Awaitable[Any]]
OnFailure = Callable[[ConsumerRecord, Exception], Awaitable[Any]]


class ParallelConsumer(RebalanceListener):
    """As `appliance_client.ParallelConsumer`, with tasks instead of threads; `process` and `on_failure` are awaited.

    async with aio.Consumer(bootstrap_servers="localhost:9092", group_id="g", enable_auto_commit=False) as consumer:
        await aio.ParallelConsumer(consumer, ["orders"], bill, workers=200).run()
    """

    def __init__(
        self,
        consumer: Consumer,
        topics: Iterable[str] | str,
        process: Process,
        *,
        workers: int = 8,
        order: Order | str = Order.KEY,
        window: int = 1000,
        commit_interval_ms: int = 1000,
        retries: int = 0,
        retry_pause_ms: int = 100,
        on_failure: OnFailure | None = None,
        drain_ms: int = 30_000,
    ) -> None:
        refuse_wrong(
            consumer,
            at_least_1={"workers": workers, "window": window},
            at_least_0={
                "commit_interval_ms": commit_interval_ms,
                "retries": retries,
                "retry_pause_ms": retry_pause_ms,
                "drain_ms": drain_ms,
            },
        )
        self._consumer = consumer
        self._topics = topics
        self._process = process
        self._workers = workers
        self._window = Window(order=Order(order), size=window)
        self._commit_interval_s = commit_interval_ms / 1000
        self._retries = retries
        self._retry_pause_s = retry_pause_ms / 1000
        self._on_failure = on_failure
        self._drain_s = drain_ms / 1000
        self._changed = asyncio.Condition()
        self._stops = False
        self._failure: ProcessingError | None = None

    def stop(self) -> None:
        """Have `run` return when the records that are being processed are done and committed."""
        self._stops = True
        self._consumer.wakeup()

    async def run(self) -> None:
        """Process records until `stop`. Raises as `parallel.ParallelConsumer.run`."""
        tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        try:
            self._consumer.subscribe(self._topics, listener=self)
            await self._poll_on()
        finally:
            await self._end(tasks)
        if self._failure is not None:
            raise self._failure

    async def _poll_on(self) -> None:
        next_commit_s = time.monotonic() + self._commit_interval_s
        while not self._stops:
            try:
                polled = await self._consumer.poll(POLL_MS)
            except RecordDeserializationError as error:
                await self._step_over(error)
                continue
            refuse_ordered(self._consumer, polled)
            async with self._changed:
                for place, records in polled.items():
                    self._window.add(TopicPartition(*place), records)
                self._changed.notify_all()
            self._pause_full()
            if time.monotonic() >= next_commit_s:
                await self._commit(self._window.committable())
                next_commit_s = time.monotonic() + self._commit_interval_s

    async def _step_over(self, error: RecordDeserializationError) -> None:
        """As `parallel.ParallelConsumer._step_over`."""
        if self._on_failure is None:
            raise error
        try:
            await self._on_failure(error.record, error)
        except Exception as failed:
            raise failure_of(error.record, failed) from failed
        with suppress(IllegalStateError):  # it is another consumer's by now
            self._consumer.seek(error.partition, error.offset + 1)

    def _pause_full(self) -> None:
        paused, assigned = self._consumer.paused(), self._consumer.assignment()
        full = {place for place in assigned if self._window.is_full(place)}
        if more := full - paused:
            self._consumer.pause(*more)
        if fewer := (paused & assigned) - full:
            self._consumer.resume(*fewer)

    async def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        if not offsets:
            return
        try:
            await self._consumer.commit(dict(offsets))
        except ClientError as error:
            logger.warning("the offsets of %d partitions were not committed: %s", len(offsets), error)
            return
        self._window.committed(offsets)

    async def _drain(self, places: Sequence[TopicPartition]) -> None:
        """Begin nothing more of these partitions, and wait for what runs."""
        async with self._changed:
            self._window.take_back(places)
            self._changed.notify_all()
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: not self._window.running(places)), self._drain_s
                )
            except TimeoutError:
                logger.warning("records are still being processed after %.0f s", self._drain_s)

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        self._stops = True
        await self._drain(self._window.places)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._commit(self._window.committable())

    # The workers

    async def _work(self) -> None:
        while True:
            async with self._changed:
                task = self._window.next()
                while task is None:
                    if self._stops:
                        return  # `process` may have swallowed the cancellation
                    await self._changed.wait()
                    task = self._window.next()
            await self._take(task)

    async def _take(self, task: Task) -> None:
        failure: ProcessingError | None = None
        is_done = False
        try:
            is_done = await self._is_processed(task.record)
        except ProcessingError as error:
            failure = error
        except asyncio.CancelledError as error:
            worker = asyncio.current_task()
            if worker is None or worker.cancelling():
                raise
            # What `process` waited for was cancelled. The worker goes on; it would hold its lane for ever.
            failure = failure_of(task.record, error)
        async with self._changed:
            has_room = True
            if is_done:
                has_room = self._window.done(task)
            else:
                self._window.give_up(task)
                self._failure = self._failure or failure
                self._stops = True
            self._changed.notify_all()
        if has_room:
            self._consumer.wakeup()

    async def _is_processed(self, record: ConsumerRecord) -> bool:
        """As `parallel.ParallelConsumer._is_processed`."""
        for attempt in range(self._retries + 1):
            try:
                await self._process(record)
                return True
            except Exception as error:
                failed = error
            if attempt < self._retries:
                await asyncio.sleep(self._retry_pause_s)
                if self._stops:
                    return False
        if self._on_failure is None:
            raise failure_of(record, failed)
        try:
            await self._on_failure(record, failed)
        except Exception as error:
            raise failure_of(record, error) from error
        return True

    # The group

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Finish what is being processed of these partitions, and commit."""
        places = [TopicPartition(*place) for place in revoked]
        await self._drain(places)
        await self._commit(self._window.committable(places))
        self._window.forget(places)

    async def on_partitions_lost(self, lost: Sequence[TopicPartition]) -> None:
        """Drop these partitions: another consumer has them."""
        places = [TopicPartition(*place) for place in lost]
        self._window.take_back(places)
        self._window.forget(places)

    def statistics(self) -> dict[str, int]:
        """Records in the window, ready, and being processed; lanes."""
        return self._window.statistics()
