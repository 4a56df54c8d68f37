"""The record accumulator: records wait here in batches by partition until the sender takes them.

    send ─▶ append ─▶ queue of its partition: [batch, batch, …, open batch] ─▶ sender

Callers of any thread append; the sender takes from the other end. Both hold `lock` while they do, for less than a
microsecond. A batch leaves when it is full (`batch.size`), old enough (`linger.ms`), flushed, or when somebody waits
for room in `buffer.memory`. This file is compiled by mypyc: `append` is what a record costs.

Rules:
1. `used_bytes` is what all batches hold that are not done; it never exceeds `buffer.memory`, but one record larger than
   what is left of it may be taken when nothing else waits.
2. A batch that was taken once is closed: no record is added.
3. A record's future names its batch and its index there. A batch that was split names the batches it became.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

from appliance_client.errors import TimedOutError
from appliance_client.kernel import RECORD_OVERHEAD_BYTES, Headers, Unsent
from appliance_client.values import RecordMetadata

BATCH_OVERHEAD_BYTES: Final = 61
NO_SEQUENCE: Final = -1
OnDone = Callable[[Any, Any], None]
"""Called with a record's metadata and None, or with None and the error."""


def header_bytes(headers: Headers) -> int:
    """The most that the headers of a record take."""
    size = 0
    for name, content in headers:
        size += 10 + 4 * len(name) + (0 if content is None else len(content))
    return size


class Batch:
    """Records of one partition that are sent, acknowledged and retried together."""

    def __init__(self, queue: PartitionQueue, number: int, now_s: float) -> None:
        self.queue = queue
        self.number = number
        self.created_s = now_s
        self.records = Unsent()
        self.count = 0
        self.size_bytes = 0
        self.is_open = True
        self.payload: Any = None
        self.room: Any = None
        """Of columns that are not compressed: the memory of header and records, the records as in `payload`."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.sequence = NO_SEQUENCE
        self.place = 0
        """Which batch of its partition it is, once it has a sequence: `PartitionQueue.numbered` at that time."""
        self.attempts = 0
        self.done = False
        self.base_offset = -1
        self.append_time_ms = -1
        self.error: BaseException | None = None
        self.parts: list[tuple[int, Batch]] = []
        self.event: threading.Event | None = None
        self.callbacks: list[tuple[int, OnDone]] = []
        self.times_ms: list[int] | None = None

    def metadata(self, index: int) -> RecordMetadata:
        """Where the record lies; only of a batch that was acknowledged."""
        offset = -1 if self.base_offset < 0 else self.base_offset + index
        time_ms = self.append_time_ms
        if time_ms < 0 and self.times_ms is not None:
            time_ms = self.times_ms[index]
        return RecordMetadata(self.queue.topic, self.queue.partition, offset, time_ms)

    def tell(self, index: int, callback: OnDone) -> None:
        """Call back about the record at `index`."""
        if self.error is not None:
            callback(None, self.error)
        else:
            callback(self.metadata(index), None)


class PartitionQueue:
    """The batches of one partition, and how far its producer's sequence has come. Written by the sender alone, but for
    what `Accumulator.append` adds."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.last: Batch | None = None
        """The batch that was begun last; records are added to it while it is open, which it is only in `batches`."""
        self.in_flight: list[Batch] = []
        self.next_sequence = 0
        self.numbered = 0
        """How many batches have got a sequence."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.acked_sequence = -1
        """The sequence of the last record that was acknowledged, of the present id; -1 for none."""
        self.retry_at_s = 0.0
        self.failures = 0
        self.is_active = False


class RecordFuture:
    """What a sent record will come to. `get` waits, `await` waits in asyncio, `add_callback` does not wait."""

    __slots__ = ("_batch", "_index", "_lock")

    def __init__(self, batch: Batch, index: int, lock: threading.Lock) -> None:
        self._batch = batch
        self._index = index
        self._lock = lock

    def _settle(self) -> Batch:
        """Follow the batches that this one was split into."""
        while self._batch.parts:
            for start, part in reversed(self._batch.parts):
                if self._index >= start:
                    self._index -= start
                    self._batch = part
                    break
        return self._batch

    def done(self) -> bool:
        """Whether the record was acknowledged or has failed."""
        return self._settle().done

    def exception(self) -> BaseException | None:
        """The error of a record that has failed; None where it has not, or not yet."""
        return self._settle().error

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged, and say where it lies. `timeout` in seconds.

        Raises:
            TimedOutError: nothing is known after `timeout`. The record may still be delivered.
            ClientError: the record was not delivered.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (event := self._awaited()) is not None:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if (left_s is not None and left_s <= 0) or not event.wait(left_s):
                raise TimedOutError(f"the record was not acknowledged within {timeout} s")
        batch = self._settle()
        if batch.error is not None:
            raise batch.error
        return batch.metadata(self._index)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """As `get`, by the name that `concurrent.futures` has for it."""
        return self.get(timeout)

    def _awaited(self) -> threading.Event | None:
        """The event that is set when more is known; None where all is."""
        with self._lock:
            batch = self._settle()
            if batch.done:
                return None
            if batch.event is None:
                batch.event = threading.Event()
            return batch.event

    def add_callback(self, callback: OnDone) -> None:
        """Call `callback(metadata, None)` or `callback(None, error)` once, at once where it is known already.

        It is called on the thread that reads from the brokers: it must not wait.
        """
        with self._lock:
            batch = self._settle()
            if not batch.done:
                batch.callbacks.append((self._index, callback))
                return
        batch.tell(self._index, callback)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        import asyncio

        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[RecordMetadata] = loop.create_future()

        def settle(metadata: Any, error: Any) -> None:
            if waiter.done():
                return
            if error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(metadata)

        def told(metadata: Any, error: Any) -> None:
            loop.call_soon_threadsafe(settle, metadata, error)

        self.add_callback(told)
        return (yield from waiter.__await__())


class Accumulator:
    """All batches that are not done.

    Args:
        batch_bytes: a batch takes no further record beyond this.
        memory_bytes: what all batches may hold together.
        linger_s: how long a batch that is not full waits for more.
    """

    def __init__(self, batch_bytes: int, memory_bytes: int, linger_s: float) -> None:
        self.lock = threading.Lock()
        self.batch_bytes = batch_bytes
        self.memory_bytes = memory_bytes
        self.linger_s = linger_s
        self.used_bytes = 0
        self.waiters = 0
        self.is_closed = False
        """Whether nothing more is taken: what came now would never be sent, nor would its future be told."""
        self.has_news = False
        """Whether a batch was begun or filled since the sender last looked."""
        self.active: list[PartitionQueue] = []
        self.incomplete: dict[int, Batch] = {}
        self.wakes_at_s = 0.0
        """When the sender looks by itself; 0 while it is at work, and looks anyway."""
        self.on_room: Callable[[], None] | None = None
        """Called when memory was given back and somebody waits for it."""
        self._queues: dict[str, list[PartitionQueue]] = {}
        self._next_number = 0

    def queues(self) -> list[PartitionQueue]:
        """Every queue there is."""
        return [queue for row in self._queues.values() for queue in row]

    def append(  # noqa: PLR0912, PLR0915, PLR0917 - one call for a record, because calls are what it costs
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: Headers,
        callback: OnDone | None,
    ) -> tuple[RecordFuture | None, bool]:
        """Add a record. Returns its future, or None where there is no room, and whether the sender must be woken.

        There is no room for anything after `close`.
        """
        size = RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if headers:
            size += header_bytes(headers)
        wake = False
        self.lock.acquire()
        try:
            row = self._queues.get(topic)
            if row is None:
                row = self._queues[topic] = []
            while len(row) <= partition:
                row.append(PartitionQueue(topic, len(row)))
            queue = row[partition]
            batch: Batch | None = None
            last = queue.last
            if last is not None and last.is_open:
                if last.size_bytes + size <= self.batch_bytes:
                    batch = last
                else:
                    last.is_open = False
                    wake = self.wakes_at_s > 0.0
            added = size
            if batch is None:
                added += BATCH_OVERHEAD_BYTES
            if self.is_closed or (self.used_bytes + added > self.memory_bytes and self.used_bytes > 0):
                return None, wake
            if batch is None:
                now_s = time.monotonic()
                batch = Batch(queue, self._next_number, now_s)
                batch.size_bytes = BATCH_OVERHEAD_BYTES
                self._next_number += 1
                queue.batches.append(batch)
                queue.last = batch
                self.incomplete[batch.number] = batch
                if not queue.is_active:
                    queue.is_active = True
                    self.active.append(queue)
                self.has_news = True
                wake = wake or now_s + self.linger_s < self.wakes_at_s
            self.used_bytes += added
            batch.size_bytes += size
            index = batch.count
            batch.count = index + 1
            records = batch.records
            records.times_ms.append(time_ms)
            records.keys.append(key)
            records.values.append(value)
            if headers:
                records.headers[index] = headers
            if callback is not None:
                batch.callbacks.append((index, callback))
            if batch.size_bytes >= self.batch_bytes:
                batch.is_open = False
                self.has_news = True
                wake = wake or self.wakes_at_s > 0.0
            if wake:
                self.wakes_at_s = 0.0
            return RecordFuture(batch, index, self.lock), wake
        finally:
            self.lock.release()

    def append_encoded(  # noqa: PLR0917 - the order of `append`
        self,
        topic: str,
        partition: int,
        payload: Any,
        room: Any,
        count: int,
        times_ms: list[int],
        callback: OnDone,
    ) -> tuple[Batch | None, bool]:
        """Add a batch whose records are encoded; `times_ms` are the first and the largest time. Results as `append`."""
        added = BATCH_OVERHEAD_BYTES + len(payload)
        wake = False
        with self.lock:
            row = self._queues.get(topic)
            if row is None:
                row = self._queues[topic] = []
            while len(row) <= partition:
                row.append(PartitionQueue(topic, len(row)))
            queue = row[partition]
            batches = queue.batches
            if batches:
                # What was appended one by one goes first.
                batches[-1].is_open = False
            if self.is_closed or (self.used_bytes + added > self.memory_bytes and self.used_bytes > 0):
                return None, self.wakes_at_s > 0.0
            batch = Batch(queue, self._next_number, time.monotonic())
            batch.is_open = False
            batch.size_bytes = added
            batch.count = count
            batch.payload = payload
            batch.room = room
            batch.records.times_ms = times_ms
            batch.callbacks.append((0, callback))
            self._next_number += 1
            batches.append(batch)
            self.incomplete[batch.number] = batch
            self.used_bytes += added
            if not queue.is_active:
                queue.is_active = True
                self.active.append(queue)
            self.has_news = True
            wake = self.wakes_at_s > 0.0
            self.wakes_at_s = 0.0
        return batch, wake

    def topics(self) -> set[str]:
        """The topics of all batches that are not done."""
        with self.lock:
            return {batch.queue.topic for batch in self.incomplete.values()}

    def close(self) -> None:
        """Take nothing more; what waits for room gets none. The caller then finishes what is there."""
        with self.lock:
            self.is_closed = True

    def forked(self, error: BaseException) -> None:
        """In the child of a fork: what waits is sent by the parent alone, so nobody here may wait for it."""
        # Another thread of the parent may have held it, and that thread is not here.
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]
        self.is_closed = True
        for batch in self.incomplete.values():
            batch.error = error
            batch.done = True

    def sleep_until(self, wake_s: float) -> bool:
        """The sender will look again at `wake_s`, or when it is woken. False where it must look at once."""
        with self.lock:
            if self.has_news:
                return False
            self.wakes_at_s = wake_s
            return True

    def woken(self) -> None:
        """The sender is at work, and looks anyway."""
        self.wakes_at_s = 0.0

    def finish(
        self, batch: Batch, base_offset: int, append_time_ms: int, error: BaseException | None
    ) -> None:
        """A batch was acknowledged or has failed: tell everybody, and give its memory back."""
        with self.lock:
            if batch.done:
                return
            batch.done = True
            batch.base_offset = base_offset
            batch.append_time_ms = append_time_ms
            batch.error = error
            batch.times_ms = batch.records.times_ms
            batch.records = Unsent()
            batch.payload = None
            batch.room = None
            self.incomplete.pop(batch.number, None)
            self.used_bytes -= batch.size_bytes
            callbacks = batch.callbacks
            batch.callbacks = []
            event = batch.event
            on_room = self.on_room if self.waiters else None
        if event is not None:
            event.set()
        if on_room is not None:
            on_room()
        for index, callback in callbacks:
            try:
                batch.tell(index, callback)
            except Exception:
                self.log_failed_callback()

    def log_failed_callback(self) -> None:
        """A callback of the application's raised: it must not stop the sender."""
        import logging

        logging.getLogger("appliance_client").exception("a callback of a sent record raised")

    def split(self, batch: Batch) -> list[Batch]:
        """Two batches with the records of one that is too large, in its place and with its sequence."""
        with self.lock:
            half = batch.count // 2
            old = batch.records
            parts: list[tuple[int, Batch]] = []
            for start, stop in ((0, half), (half, batch.count)):
                part = Batch(batch.queue, self._next_number, batch.created_s)
                self._next_number += 1
                part.is_open = False
                part.count = stop - start
                part.records.times_ms = old.times_ms[start:stop]
                part.records.keys = old.keys[start:stop]
                part.records.values = old.values[start:stop]
                part.records.headers = {
                    index - start: old.headers[index] for index in old.headers if start <= index < stop
                }
                part.callbacks = [
                    (index - start, call) for index, call in batch.callbacks if start <= index < stop
                ]
                part.attempts = batch.attempts
                if batch.sequence != NO_SEQUENCE:
                    part.producer_id = batch.producer_id
                    part.producer_epoch = batch.producer_epoch
                    part.sequence = (batch.sequence + start) & 0x7FFF_FFFF
                parts.append((start, part))
            first = parts[0][1]
            second = parts[1][1]
            second.size_bytes = batch.size_bytes // 2
            first.size_bytes = batch.size_bytes - second.size_bytes
            self.incomplete.pop(batch.number, None)
            self.incomplete[first.number] = first
            self.incomplete[second.number] = second
            batch.parts = parts
            batch.callbacks = []
            event = batch.event
        if event is not None:
            event.set()
        return [first, second]

    def put_back(self, queue: PartitionQueue, batches: list[Batch]) -> None:
        """Batches that are to be sent again go to the head of their queue, oldest first."""
        with self.lock:
            waiting = list(queue.batches)
            merged = sorted(batches + [each for each in waiting if each.attempts], key=_order)
            queue.batches.clear()
            queue.batches.extend(merged + [each for each in waiting if not each.attempts])
            if not queue.is_active and queue.batches:
                queue.is_active = True
                self.active.append(queue)


def _order(batch: Batch) -> tuple[float, int]:
    return (batch.created_s, batch.number)
