"""The sync producer: interceptors → serializer → partitioner → accumulator on the caller's thread, the rest on its own.

What a record goes through on the caller's thread takes about a microsecond. It waits only where `buffer.memory` is
full or the topic is not known yet, for at most `max.block.ms`.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from operator import index
from types import TracebackType
from typing import Any, Final, Self

from appliance_client.accumulator import Accumulator, OnDone, RecordFuture, header_bytes
from appliance_client.arrow_batches import ColumnsFuture
from appliance_client.core import Core, NotCopied
from appliance_client.errors import (
    BufferFullError,
    ClientError,
    ClosedError,
    ForkedError,
    RecordTooLargeError,
    SerializationError,
)
from appliance_client.intake import Intake
from appliance_client.kernel import NO_HEADERS, RECORD_OVERHEAD_BYTES, Headers, partition_of_key
from appliance_client.network import Topic
from appliance_client.options import INT64_MAX, ProducerOptions, Serializer, options_of
from appliance_client.partitioners import Sticky, partitioner_of
from appliance_client.sender import Sender
from appliance_client.thread import IoThread
from appliance_client.values import (
    GroupMetadata,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
    offset_of,
)

logger = logging.getLogger("appliance_client")

_JOIN_S: Final = 5.0
_NOT_LARGE_BYTES: Final = 4096


class ProducerRecord:
    """A record on its way through interceptors. They may change any field, or return another one."""

    __slots__ = ("headers", "key", "partition", "timestamp_ms", "topic", "value")

    def __init__(  # noqa: PLR0917
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        self.topic = topic
        self.value = value
        self.key = key
        self.headers = headers
        self.partition = partition
        self.timestamp_ms = timestamp_ms


class ProducerPipeline:
    """What a record goes through before it lies in the accumulator; both faces have one. Waits for nothing."""

    def __init__(
        self, options: ProducerOptions, core: Core, accumulator: Accumulator, sender: Sender
    ) -> None:
        self.options = options
        self.accumulator = accumulator
        self.sender = sender
        self._metadata = core.metadata
        self._topics = core.metadata.topics
        self._partitioner, self._sticky, self._by_murmur2 = partitioner_of(
            options.partitioner, options.batch_size
        )
        self._key_serializer = options.key_serializer
        self._value_serializer = options.value_serializer
        self._interceptors = options.interceptors
        self._is_transactional = options.transactional_id is not None
        self._sure_bytes = min(_NOT_LARGE_BYTES, options.max_request_size, options.buffer_memory)

    def intake(self, wake: Callable[[], None]) -> Intake:
        """The short way, for the records that may take it."""
        made = Intake(self.accumulator, self._topics, self._sticky, self._by_murmur2, self._sure_bytes, wake)
        made.is_on = not (
            self._interceptors or self._key_serializer or self._value_serializer or self._is_transactional
        )
        return made

    def topic(self, name: str) -> Topic | None:
        """The topic, where it can be written to."""
        found = self._topics.get(name)
        return found if found is not None and found.leaders and not found.error_code else None

    def prepare(  # noqa: PLR0917 - called for each record, by position
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> tuple[str, bytes | None, bytes | None, Any, int | None, int, OnDone | None]:
        """Interceptors and serializers. Returns topic, key, value, headers, partition, time and who is told."""
        if self._is_transactional:
            self.sender.transactions.check_send()
        if not self._interceptors:
            return self._serialized(topic, value, key, headers, partition, timestamp_ms, None)
        record = self._intercept(ProducerRecord(topic, value, key, headers, partition, timestamp_ms))
        try:
            return self._serialized(
                record.topic,
                record.value,
                record.key,
                record.headers,
                record.partition,
                record.timestamp_ms,
                self._acknowledged,
            )
        except BaseException as error:
            self._acknowledged(None, error)
            raise

    def _serialized(  # noqa: PLR0917
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
        told: OnDone | None,
    ) -> tuple[str, bytes | None, bytes | None, Any, int | None, int, OnDone | None]:
        if self._key_serializer is not None and key is not None:
            key = _by_serializer(self._key_serializer, key, "key")
        if self._value_serializer is not None and value is not None:
            value = _by_serializer(self._value_serializer, value, "value")
        if timestamp_ms is not None:
            timestamp_ms = _checked_time(timestamp_ms)
        size = RECORD_OVERHEAD_BYTES
        if key is not None:
            if type(key) is not bytes:
                key = _bytes(key, "key")
            size += len(key)
        if value is not None:
            if type(value) is not bytes:
                value = _bytes(value, "value")
            size += len(value)
        kept = NO_HEADERS
        if headers:
            kept = headers_of(headers)
            size += header_bytes(kept)
        if size > self._sure_bytes:
            self._check_size(size)
        return (
            topic,
            key,
            value,
            kept,
            partition,
            int(time.time() * 1000) if timestamp_ms is None else timestamp_ms,
            told,
        )

    def partition(self, topic: Topic, key: bytes | None, named: Any = None) -> int:
        """The partition of a record: `named`, or what the partitioner chooses.

        Raises:
            SerializationError: the topic has no such partition.
        """
        chosen = named
        if named is None:
            if key is not None and self._by_murmur2:
                return partition_of_key(key, len(topic.leaders))
            chosen = self._partitioner(topic.name, key, len(topic.leaders), topic.available)
        return checked_partition(topic, chosen)

    @property
    def sticky(self) -> Sticky | None:
        """What keeps records without a key together; None where each has its own partition."""
        return self._sticky

    @property
    def by_murmur2(self) -> bool:
        """Whether a key decides as with Kafka's default partitioner."""
        return self._by_murmur2

    def check_transaction(self) -> None:
        """Raise where a transaction is needed and there is none."""
        if self._is_transactional:
            self.sender.transactions.check_send()

    def placed(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """A record that named no partition was appended: a sticky partitioner counts it."""
        if self._sticky is not None and (key is None or not self._by_murmur2):
            size = RECORD_OVERHEAD_BYTES + (0 if value is None else len(value))
            self._sticky.used(topic, size if key is None else size + len(key))

    def _intercept(self, record: ProducerRecord) -> ProducerRecord:
        for each in self._interceptors:
            on_send = getattr(each, "on_send", None)
            if on_send is None:
                continue
            try:
                record = on_send(record) or record
            except Exception:
                logger.exception("on_send of an interceptor raised; the record goes on as it was")
        return record

    def _acknowledged(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        for each in self._interceptors:
            on_acknowledgement = getattr(each, "on_acknowledgement", None)
            if on_acknowledgement is not None:
                try:
                    on_acknowledgement(metadata, error)
                except Exception:
                    logger.exception("on_acknowledgement of an interceptor raised")

    def close_interceptors(self) -> None:
        """Tell interceptors that nothing more will come."""
        for each in self._interceptors:
            close = getattr(each, "close", None)
            if close is not None:
                try:
                    close()
                except Exception:
                    logger.exception("close of an interceptor raised")

    def _check_size(self, size: int) -> None:
        if size > self.options.max_request_size:
            raise RecordTooLargeError(
                f"a record of {size} bytes is larger than max.request.size ({self.options.max_request_size})"
            )
        if size > self.options.buffer_memory:
            raise RecordTooLargeError(
                f"a record of {size} bytes is larger than buffer.memory ({self.options.buffer_memory})"
            )


class Producer(NotCopied):
    """Sends records, for any number of threads. `config` has Kafka's names, keyword arguments underscores.

    with Producer(bootstrap_servers="localhost:9092") as producer:
        producer.send("greetings", b"hello")
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self._options = options_of(ProducerOptions, config, options)
        self._closed = False
        self._core = Core(self._options, now_s=time.monotonic(), auto_create=True)
        self._accumulator = Accumulator(
            max(1, self._options.batch_size), self._options.buffer_memory, self._options.linger_ms / 1000
        )
        self._sender = make_sender(self._options, self._core, self._accumulator)
        self._pipeline = ProducerPipeline(self._options, self._core, self._accumulator, self._sender)
        self._room = threading.Condition()
        # Nothing that the thread holds may hold the producer, or a forgotten one would live as long as the process.
        self._accumulator.on_room = partial(_notify, self._room)
        self._core.start()
        self._io = IoThread(self._core, "appliance-producer")
        self._io.before_sleep = self._accumulator.sleep_until
        self._io.after_sleep = self._accumulator.woken
        self._intake = self._pipeline.intake(self._io.ring)
        self._io.after_fork = partial(after_fork, self._intake, self._accumulator)
        self._io.on_failure = partial(_give_up, self._intake, self._accumulator)
        self._offer = self._intake.offer

    def send(  # noqa: PLR0917 - the order that users of kafka-python know
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Hand a record over and return its future. Waits at most `max.block.ms`, and usually not at all.

        Raises:
            BufferFullError: `buffer.memory` stayed full, or nothing is known of the topic.
            BrokerError: the topic cannot be written to.
            RecordTooLargeError, SerializationError: the record cannot be sent.
        """
        if not headers:
            future = self._offer(topic, value, key, partition, timestamp_ms)
            if future is not None:
                return future
        self._io.check()
        if self._closed:
            raise ClosedError("the producer is closed")
        name, key, value, kept, partition, time_ms, told = self._pipeline.prepare(
            topic, value, key, headers, partition, timestamp_ms
        )
        is_free = partition is None
        try:
            known = self._pipeline.topic(name)
            deadline_s: float | None = None
            if known is None:
                deadline_s = time.monotonic() + self._options.max_block_ms / 1000
                known = self._learn(name)
            partition = self._pipeline.partition(known, key, partition)
            future, wake = self._accumulator.append(name, partition, key, value, time_ms, kept, told)
            if wake:
                self._io.ring()
            if future is None:
                future = self._when_room(
                    deadline_s, self._accumulator.append, name, partition, key, value, time_ms, kept, told
                )
        except BaseException as error:
            if told is not None:
                told(None, error)
            raise
        if is_free:
            self._pipeline.placed(name, key, value)
        return future

    def send_arrow(
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
        """Send the rows of an Arrow table or data frame, and return the future of all of them (docs/columns.md).

        Each argument names a column; "*" is the column of that name where the table has it, None is none. `partition`
        is a number or a column; None asks the partitioner. Waits while `buffer.memory` is full, each time at most
        `max.block.ms`. Needs the extra `arrow`.

        Raises:
            SerializationError, RecordTooLargeError: the table cannot be sent. Nothing of it was.
            BufferFullError, BrokerError: as `send`. What was handed over before is sent.
        """
        from appliance_client.arrow_sending import ColumnsToSend

        if self._closed or self._io.forked:
            self._io.check()
            raise ClosedError("the producer is closed")
        columns = ColumnsToSend(self._pipeline, table, key, value, timestamp, headers, partition)
        known = self._pipeline.topic(topic) or self._learn(topic)
        columns.check(known)
        future = ColumnsFuture()
        fault: BaseException | None = None
        try:
            for batches in columns.encoded(known):
                for place, payload, room, count, times_ms in batches:
                    batch = (topic, place, payload, room, count, times_ms, future.part(count))
                    taken, wake = self._accumulator.append_encoded(*batch)
                    if wake:
                        self._io.ring()
                    if taken is None:
                        self._when_room(None, self._accumulator.append_encoded, *batch)
        except BaseException as error:
            fault = error
            raise
        finally:
            future.settle(fault)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Send all that was handed over before, and wait until each record is acknowledged or has failed.

        Raises:
            TimedOutError: not done within `timeout` seconds; `delivery.timeout.ms` bounds it in any case.
        """
        self._io.call(self._sender.flush(), timeout, "flush")

    def partitions_for(self, topic: str) -> list[int]:
        """The indexes of a topic's partitions."""
        self._io.check()
        found = self._pipeline.topic(topic) or self._learn(topic)
        return list(range(found.partitions))

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────

    def init_transactions(self) -> None:
        """Once, before the first transaction: fence earlier producers of this `transactional.id`."""
        self._io.call(self._sender.transactions.init(), None, "init_transactions")

    def begin_transaction(self) -> None:
        """Begin a transaction; every record until its end belongs to it."""
        self._io.call(_later(self._sender.transactions.begin), None, "begin_transaction")

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: GroupMetadata | str,
    ) -> None:
        """Commit a group's offsets with the transaction; `group` is `consumer.group_metadata()` or a group id."""
        listed, member = offsets_and_group(offsets, group)
        self._io.call(
            self._sender.transactions.send_offsets(listed, member), None, "send_offsets_to_transaction"
        )

    def commit_transaction(self) -> None:
        """Flush, and commit the transaction.

        Raises:
            AbortableError: a record failed; call `abort_transaction`.
            FatalTransactionError: close the producer.
            TimedOutError: call it again.
        """
        self._io.call(self._sender.transactions.commit(), None, "commit_transaction")

    def abort_transaction(self) -> None:
        """Drop what is not sent, and abort the transaction."""
        self._io.call(self._sender.transactions.abort(), None, "abort_transaction")

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────

    def _fail_the_rest(self) -> None:
        self._accumulator.close()
        self._sender.fail_all(ClosedError("the producer was closed"))

    def close(self, timeout: float | None = None) -> None:
        """Flush for at most `timeout` seconds (None: `delivery.timeout.ms`), then drop what is left. Never hangs."""
        if self._closed or self._io.forked:
            return
        self._closed = True
        self._intake.close()
        limit_s = self._options.delivery_timeout_ms / 1000 + 1 if timeout is None else timeout
        try:
            if limit_s > 0:
                self._io.call(self._sender.flush(), limit_s, "close")
        except ClientError as error:
            logger.warning("closing the producer: %s", error)
        finally:
            self._io.submit(self._fail_the_rest)
            self._io.stop(_JOIN_S)
            self._pipeline.close_interceptors()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close(None if kind is None else 0)

    def __del__(self) -> None:
        io = getattr(self, "_io", None)
        if io is not None and not self._closed and not io.forked:
            warnings.warn(
                "a producer was not closed; what it had not sent is lost", ResourceWarning, stacklevel=2
            )
            io.stop(0)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────

    def _learn(self, name: str) -> Topic:
        limit_s = self._options.max_block_ms / 1000
        return self._io.call(
            self._core.metadata.topic(name, time.monotonic() + limit_s), limit_s + 1, f"metadata of {name}"
        )

    def _when_room(
        self, deadline_s: float | None, append: Callable[..., tuple[Any, bool]], *what: Any
    ) -> Any:
        """Append, as soon as there is room. `deadline_s`: what is left of `max.block.ms`; None: all of it."""
        if deadline_s is None:
            deadline_s = time.monotonic() + self._options.max_block_ms / 1000
        with self._room:
            self._accumulator.waiters += 1
            try:
                while True:
                    taken, _ = append(*what)
                    if taken is not None:
                        return taken
                    self._io.check()
                    if self._io.is_current():
                        raise BufferFullError(
                            f"buffer.memory ({self._options.buffer_memory} bytes) is full; "
                            "a callback must not wait for room, because no room comes before it returns"
                        )
                    self._io.ring()
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        raise BufferFullError(
                            f"buffer.memory ({self._options.buffer_memory} bytes) stayed full for "
                            f"{self._options.max_block_ms} ms"
                        )
                    self._room.wait(min(left_s, 1.0))
            finally:
                self._accumulator.waiters -= 1


def make_sender(options: ProducerOptions, core: Core, accumulator: Accumulator) -> Sender:
    """The sender of a core, hooked into its `run`."""
    sender = Sender(options, core.scheduler, core.network, core.metadata, accumulator)
    core.pump = sender.pump
    core.metadata.in_use = accumulator.topics
    sender.touch = core.touch
    return sender


def offsets_and_group(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata | str
) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
    """What callers may write shorter: an offset alone, a group id alone."""
    listed = {TopicPartition(*place): offset_of(each) for place, each in offsets.items()}
    return listed, GroupMetadata(group) if isinstance(group, str) else group


def _notify(room: threading.Condition) -> None:
    with room:
        room.notify_all()


def after_fork(intake: Intake, accumulator: Accumulator) -> None:
    """In the child of a fork: nothing more is taken, and nobody waits for what the parent sends."""
    intake.close()
    accumulator.forked(ForkedError("the process was forked; the parent knows what became of the record"))


def _give_up(intake: Intake, accumulator: Accumulator) -> None:
    """The thread has failed: nothing that waits will be sent."""
    intake.close()
    accumulator.close()
    for batch in list(accumulator.incomplete.values()):
        accumulator.finish(batch, -1, -1, ClosedError("internal error of the client, see its log"))


def checked_partition(topic: Topic, chosen: Any) -> int:
    """Return a partition of the topic.

    Raises:
        SerializationError: `chosen` is none.
    """
    try:
        found = index(chosen)
    except TypeError:
        found = -1
    if not 0 <= found < len(topic.leaders):
        raise SerializationError(f"{topic.name} has partitions 0 to {len(topic.leaders) - 1}, not {chosen!r}")
    return found


def _checked_time(given: Any) -> int:
    try:
        time_ms = index(given)
    except TypeError:
        raise SerializationError(f"timestamp_ms: {given!r} is no whole number of milliseconds") from None
    if time_ms < 0:
        raise SerializationError(f"timestamp_ms: {time_ms} is before 1970, so no broker can look it up")
    if time_ms > INT64_MAX:
        raise SerializationError(f"timestamp_ms: {time_ms} does not fit 64 bits")
    return time_ms


def headers_of(given: Any) -> Headers:
    """Record headers as they are kept, from a dict or a sequence of (name, bytes or None).

    Raises:
        SerializationError: they are not such.
    """
    kept: list[tuple[str, bytes | None]] = []
    try:
        for name, content in given.items() if isinstance(given, Mapping) else given:
            if not isinstance(name, str) or not isinstance(content, bytes | bytearray | memoryview | None):
                raise SerializationError(
                    f"headers: the name must be text and the value bytes or None, not {repr((name, content))[:200]}"
                )
            name.encode("utf-8", "surrogateescape")  # as a consumer decodes it
            kept.append((name, None if content is None else bytes(content)))
    except (TypeError, ValueError) as fault:
        raise SerializationError(f"headers: {fault}; give a dict, or pairs of a name and a value") from None
    return tuple(kept)


async def _later(call: Any) -> Any:
    return call()


def _by_serializer(serializer: Serializer, given: Any, what: str) -> Any:
    try:
        return serializer(given)
    except SerializationError:
        raise
    except Exception as error:
        raise SerializationError(f"the {what}_serializer raised {type(error).__name__}: {error}") from error


def _bytes(value: Any, what: str) -> bytes:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise SerializationError(f"the {what} is {type(value).__name__}, not bytes; give a {what}_serializer")
