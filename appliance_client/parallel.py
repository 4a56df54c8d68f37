"""Several threads process the records of one consumer: more workers than partitions, with offsets committed in order.

    run (one thread): poll ─→ window ─→ workers (threads): process(record) ─→ done ─→ commit what is contiguous

`window.py` says what may run at once and what may be committed. At least once: after a crash, records that were done
behind an older one that was not are processed again. Broadcast, where each consumer gets every record, is an assignor
(`assignors.py`).

A rebalance waits for the records of the partitions that go away (`drain_ms` at most), commits what is contiguous of
them, and drops what has not started: their next owner begins there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from appliance_client.consumer import Consumer
from appliance_client.consumer_core import RebalanceListener
from appliance_client.core import logger
from appliance_client.errors import (
    ClientError,
    IllegalStateError,
    OptionError,
    ProcessingError,
    RecordDeserializationError,
)
from appliance_client.values import ConsumerRecord, TopicPartition
from appliance_client.window import Order, Task, Window

POLL_MS: Final = 200
Process = Callable[[ConsumerRecord], Any]
OnFailure = Callable[[ConsumerRecord, Exception], Any]


class ParallelConsumer(RebalanceListener):
    """Processes topics with several threads.

        with Consumer(bootstrap_servers="localhost:9092", group_id="billing", enable_auto_commit=False) as consumer:
            ParallelConsumer(consumer, ["orders"], bill, workers=16).run()

    Args:
        consumer: of a group, with enable.auto.commit false. It belongs to `run` from now on.
        process: called with each record, on any of the threads.
        workers: how many threads.
        order: which records wait for each other: `key`, `partition` or `unordered`.
        window: records of a partition between the first that is not done and the last that was fetched; of a full
            partition none are fetched, so this bounds what a restart repeats.
        commit_interval_ms: time between two commits.
        retries: how often a record is tried again, `retry_pause_ms` apart, before it has failed.
        on_failure: called with a record that has failed, and the error. If it returns, the record counts as done; so
            it may store the record elsewhere. Without it, or if it raises, `run` ends with ProcessingError. A record
            that a deserializer refuses has failed, too: here it has key and value as bytes.
        drain_ms: how long a rebalance, or the end, waits for the records that are being processed.

    Raises:
        OptionError: the consumer commits by itself, or a number is too small.
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
        self._changed = threading.Condition()
        self._stops = threading.Event()
        self._failure: ProcessingError | None = None

    def stop(self) -> None:
        """From any thread: have `run` return when the records that are being processed are done and committed."""
        self._stops.set()
        self._consumer.wakeup()
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        """Process records until `stop`.

        Raises:
            ProcessingError: a record has failed. What is contiguous before it is committed.
            ClientError: the consumer cannot read on.
        """
        threads = [
            threading.Thread(target=self._work, name=f"worker {number}", daemon=True)
            for number in range(self._workers)
        ]
        for thread in threads:
            thread.start()
        try:
            self._consumer.subscribe(self._topics, listener=self)
            self._poll_on()
        finally:
            deadline_s = time.monotonic() + self._drain_s
            self._end()
            for thread in threads:
                thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._failure is not None:
            raise self._failure

    def _poll_on(self) -> None:
        next_commit_s = time.monotonic() + self._commit_interval_s
        while not self._stops.is_set():
            try:
                polled = self._consumer.poll(POLL_MS)
            except RecordDeserializationError as error:
                self._step_over(error)
                continue
            refuse_ordered(self._consumer, polled)
            with self._changed:
                for place, records in polled.items():
                    self._window.add(TopicPartition(*place), records)
                self._changed.notify_all()
            self._pause_full()
            if time.monotonic() >= next_commit_s:
                self._commit(self._window.committable)
                next_commit_s = time.monotonic() + self._commit_interval_s

    def _step_over(self, error: RecordDeserializationError) -> None:
        """A record that the deserializer refuses has failed: `process` cannot get it."""
        if self._on_failure is None:
            raise error
        try:
            self._on_failure(error.record, error)
        except Exception as failed:
            raise failure_of(error.record, failed) from failed
        with suppress(IllegalStateError):  # it is another consumer's by now
            self._consumer.seek(error.partition, error.offset + 1)

    def _pause_full(self) -> None:
        paused, assigned = self._consumer.paused(), self._consumer.assignment()
        with self._changed:
            full = {place for place in assigned if self._window.is_full(place)}
        if more := full - paused:
            self._consumer.pause(*more)
        if fewer := (paused & assigned) - full:
            self._consumer.resume(*fewer)

    def _commit(self, offsets_of: Callable[[], dict[TopicPartition, int]]) -> None:
        """Commit what is contiguous. A commit that fails is tried again with the next one."""
        with self._changed:
            offsets = offsets_of()
        if not offsets:
            return
        try:
            self._consumer.commit(dict(offsets))
        except ClientError as error:
            logger.warning("the offsets of %d partitions were not committed: %s", len(offsets), error)
            return
        with self._changed:
            self._window.committed(offsets)

    def _end(self) -> None:
        """Wait for what is being processed, and commit."""
        self._stops.set()
        with self._changed:
            self._window.take_back(self._window.places)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._window.running(), self._drain_s)
        self._commit(self._window.committable)

    # The workers

    def _work(self) -> None:
        while True:
            with self._changed:
                task = self._window.next()
                while task is None and not self._stops.is_set():
                    self._changed.wait()
                    task = self._window.next()
            if task is None:
                return
            self._take(task)

    def _take(self, task: Task) -> None:
        failure: ProcessingError | None = None
        is_done = False
        try:
            is_done = self._is_processed(task.record)
        except ProcessingError as error:
            failure = error
        except (
            BaseException
        ) as error:  # SystemExit, too: a worker that ends without a word would hold its lane for ever
            failure = failure_of(task.record, error)
        with self._changed:
            if is_done:
                has_room = self._window.done(task)
            else:
                has_room = True
                self._window.give_up(task)
                self._failure = self._failure or failure
                self._stops.set()
            self._changed.notify_all()
        if has_room:
            self._consumer.wakeup()

    def _is_processed(self, record: ConsumerRecord) -> bool:
        """Process a record. False: `stop` came between two attempts, and the record is left to the next owner.

        Raises:
            ProcessingError: the record has failed.
        """
        for attempt in range(self._retries + 1):
            try:
                self._process(record)
                return True
            except Exception as error:
                failed = error
            if attempt < self._retries and self._stops.wait(self._retry_pause_s):
                return False
        if self._on_failure is None:
            raise failure_of(record, failed)
        try:
            self._on_failure(record, failed)
        except Exception as error:
            raise failure_of(record, error) from error
        return True

    # The group

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Finish what is being processed of these partitions, and commit."""
        places = [TopicPartition(*place) for place in revoked]
        with self._changed:
            self._window.take_back(places)
            self._changed.wait_for(lambda: not self._window.running(places), self._drain_s)
        self._commit(lambda: self._window.committable(places))
        with self._changed:
            self._window.forget(places)

    def on_partitions_lost(self, lost: Sequence[TopicPartition]) -> None:
        """Drop these partitions: another consumer has them."""
        places = [TopicPartition(*place) for place in lost]
        with self._changed:
            self._window.take_back(places)
            self._window.forget(places)

    def statistics(self) -> dict[str, int]:
        """Records in the window, ready, and being processed; lanes."""
        with self._changed:
            return self._window.statistics()


def refuse_wrong(consumer: Any, *, at_least_1: Mapping[str, int], at_least_0: Mapping[str, int]) -> None:
    """Raises:
    OptionError: the consumer commits by itself, or a number is too small.
    """
    if consumer._options.enable_auto_commit:
        raise OptionError(
            "enable.auto.commit must be false: the consumer would commit records that are not processed yet"
        )
    for least, numbers in ((1, at_least_1), (0, at_least_0)):
        for name, value in numbers.items():
            if value < least:
                raise OptionError(f"{name} = {value}: must be at least {least}")


def refuse_ordered(consumer: Any, polled: Iterable[TopicPartition]) -> None:
    """Raises:
    OptionError: the group asks for the order of one of these topics (retry.ordered).

    Such a consumer gives a record that was kept again at its own position. Here, later records are in process by then,
    and their commit would pass the kept one.
    """
    ordered = consumer._consumer.ordered
    if ordered is None or not ordered.rules:
        return
    for topic, _ in polled:
        if topic in ordered.rules:
            raise OptionError(
                f"{topic}: its retries keep the order (retry.ordered), which several workers cannot; use Consumer"
            )


def failure_of(record: ConsumerRecord, error: BaseException) -> ProcessingError:
    """Return the error of `run` for a record that has failed."""
    failure = ProcessingError(
        f"{record.topic}-{record.partition}, offset {record.offset}: {type(error).__name__}: {error}"
    )
    failure.record = record
    failure.__cause__ = error
    return failure
