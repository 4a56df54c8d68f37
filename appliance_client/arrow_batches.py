"""Batches that were encoded from columns: what the sender does otherwise with them, and who is told. No pyarrow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX, Codec, decompress
from appliance_client.accumulator import Batch
from appliance_client.errors import TimedOutError
from appliance_client.kernel import Unsent, decode_records
from appliance_client.values import RecordMetadata, TopicPartition
from appliance_client.wire import batch_header

logger = logging.getLogger("appliance_client")

_BATCHES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Delivered:
    """Where a call's records of one partition lie.

    `base_offset` is the first one's offset, `count` how many there are. `batches` has (base offset, count) of each
    batch, in order; others may have written between them. Offsets are -1 with acks=0.
    """

    base_offset: int
    count: int
    batches: tuple[tuple[int, int], ...]

    def __repr__(self) -> str:
        shown = self.batches
        some = repr(shown) if len(shown) <= _BATCHES_SHOWN else f"{len(shown)} of them"
        return f"Delivered(base_offset={self.base_offset}, count={self.count}, batches={some})"


class ColumnsFuture:
    """What the records of one `send_arrow` will come to. `get` waits, `await` waits in asyncio.

    The result is a `Delivered` for each partition that was written to.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._open = 1
        """Batches that are not done, and one for the call until it has handed over all."""
        self._order = 0
        self._found: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any, Any], object]] = []
        self.rows = 0
        """Rows that were handed over."""

    def part(self, count: int) -> ColumnsPart:
        """Another batch belongs to the call."""
        with self._lock:
            self._open += 1
            self._order += 1
            self.rows += count
            return ColumnsPart(self, self._order, count)

    def more(self, order: int, count: int) -> ColumnsPart:
        """A batch became two."""
        with self._lock:
            self._open += 1
            return ColumnsPart(self, order, count)

    def settle(self, error: BaseException | None = None) -> None:
        """A batch is done, or the call has handed over all of them."""
        with self._lock:
            self._error = self._error or error
            self._open -= 1
            if self._open:
                return
            callbacks, self._callbacks = self._callbacks, []
        self._event.set()
        for each in callbacks:
            try:
                each(self._result(), self._error)
            except Exception:
                logger.exception("a callback of a sent table raised")

    def found(self, metadata: RecordMetadata, order: int, count: int) -> None:
        """A batch was acknowledged."""
        place = TopicPartition(metadata.topic, metadata.partition)
        with self._lock:
            self._found.setdefault(place, []).append((order, metadata.offset, count))

    def _result(self) -> dict[TopicPartition, Delivered]:
        result = {}
        for place in sorted(self._found):
            batches = tuple((offset, count) for _, offset, count in sorted(self._found[place]))
            result[place] = Delivered(batches[0][0], sum(count for _, count in batches), batches)
        return result

    def done(self) -> bool:
        """Whether every record was acknowledged or has failed."""
        return self._event.is_set()

    def exception(self) -> BaseException | None:
        """The first error; None where nothing has failed yet."""
        return self._error

    @property
    def delivered(self) -> dict[TopicPartition, Delivered]:
        """What was acknowledged so far, also where another batch has failed."""
        with self._lock:
            return self._result()

    def get(self, timeout: float | None = None) -> dict[TopicPartition, Delivered]:
        """Wait until all records are acknowledged, and say where they lie. `timeout` in seconds.

        Raises:
            TimedOutError: not all is known after `timeout`. The records may still be delivered.
            ClientError: the first error of a batch. `delivered` says what was acknowledged all the same.
        """
        began_s = time.monotonic()
        if not self._event.wait(timeout):
            raise TimedOutError(f"not all was acknowledged within {time.monotonic() - began_s:.1f} s")
        if self._error is not None:
            raise self._error
        return self._result()

    def result(self, timeout: float | None = None) -> dict[TopicPartition, Delivered]:
        """As `get`, by the name that `concurrent.futures` has for it."""
        return self.get(timeout)

    def add_callback(self, callback: Callable[[Any, Any], object]) -> None:
        """Call `callback(result, error)` once, at once where it is known already. It must not wait."""
        with self._lock:
            if self._open:
                self._callbacks.append(callback)
                return
        callback(self._result(), self._error)

    def __await__(self) -> Generator[Any, None, dict[TopicPartition, Delivered]]:
        import asyncio

        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self.add_callback(lambda _result, _error: loop.call_soon_threadsafe(_wake, waiter))
        yield from waiter.__await__()
        return self.get(0)


def _wake(waiter: Any) -> None:
    if not waiter.done():
        waiter.set_result(None)


class ColumnsPart:
    """The callback of one batch: counts it for the future of its call."""

    __slots__ = ("_future", "_order", "count")

    def __init__(self, future: ColumnsFuture, order: int, count: int) -> None:
        self._future = future
        self._order = order
        self.count = count

    def __call__(self, metadata: Any, error: Any) -> None:
        if error is None:
            self._future.found(metadata, self._order, self.count)
        self._future.settle(error)

    def split(self, at: int) -> ColumnsPart:
        """The batch goes on as two, this one with its first `at` records. Returns who is told of the second."""
        second = self._future.more(self._order, self.count - at)
        self.count = at
        return second


def framed_in_place(batch: Batch, flags: int) -> b.Buffer:
    """The batch with its header, written into the room in front of its records."""
    room: memoryview = batch.room
    times_ms = batch.records.times_ms
    room[: b.HEADER_BYTES] = batch_header(
        room[b.HEADER_BYTES :],
        count=batch.count,
        attributes=flags,
        first_ms=times_ms[0],
        max_ms=times_ms[-1],
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        sequence=batch.sequence,
    )
    return room


def split_encoded(batch: Batch, codec: Codec) -> None:
    """Before a batch is split: give it back its records one by one, and its second half somebody who is told.

    The broker takes smaller batches than `batch.size`; that is rare, so this may be slow.
    """
    if not batch.callbacks or not isinstance(batch.callbacks[0][1], ColumnsPart):
        return
    if len(batch.records.keys) != batch.count:
        raw = decompress(codec, batch.payload, DECOMPRESSED_BYTES_MAX) if codec else batch.payload
        found = decode_records(bytes(raw), batch.count, "", 0, 0, batch.records.times_ms[0], -1, 0, 0)
        records = Unsent()
        records.times_ms = [each.timestamp for each in found]
        records.keys = [each.key for each in found]
        records.values = [each.value for each in found]
        records.headers = {index: each.headers for index, each in enumerate(found) if each.headers}
        batch.records = records
    half = batch.count // 2
    batch.callbacks.append((half, batch.callbacks[0][1].split(half)))
