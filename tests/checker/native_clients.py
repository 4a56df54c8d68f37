"""The native client in the words that the checker's threads know from librdkafka, on one lane or on each in turn.

    tcp      kafka://127.0.0.1:PORT      one address for each slot
    zeromq   zmq+ipc://SOCKET            one address for all of them
    shm      shm://DATA-DIR              requests over shared memory; readers read the files themselves

An adapter only translates. It keeps the checker's rule that an error which passes is no error: librdkafka says nothing
of those, and the native client's `poll` does not raise them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from appliance_client import Consumer, Producer, TopicPartition
from appliance_client.accumulator import Batch
from appliance_client.consumer_core import Records
from appliance_client.errors import (
    AbortableError,
    ClientError,
    CorruptRecordsError,
    FatalTransactionError,
    NoOffsetError,
    OffsetOutOfRangeError,
)
from tests.checker import transaction_history
from tests.checker.raw_transactions import Fenced, InDoubt, MustAbort

LIBRDKAFKA: Final = "librdkafka"
LANES: Final = ("tcp", "zeromq", "shm")
CLIENTS: Final = (LIBRDKAFKA, *(f"native-{lane}" for lane in LANES), "mixed")
PATIENCE_S: Final = 60.0
CALL_MS: Final = 10_000
_SHARED: Final[dict[str, Any]] = {
    "request_timeout_ms": 10_000,
    "reconnect_backoff_max_ms": 500,
    "retry_backoff_ms": 20,
}


@dataclass(frozen=True, slots=True)
class Lanes:
    """Who is a native client, and where it goes. `places` are bootstrap addresses; None stands for librdkafka."""

    places: tuple[str | None, ...] = (None,)

    @classmethod
    def of(cls, client: str, addresses: Mapping[str, str]) -> Lanes:
        """`client` is one of CLIENTS; with `mixed` one client is librdkafka's, and the next three are on each lane."""
        if client == LIBRDKAFKA:
            return cls()
        if client == "mixed":
            return cls((None, *(addresses[lane] for lane in LANES)))
        return cls((addresses[client.removeprefix("native-")],))

    def at(self, number: int) -> str | None:
        """Where the client of that number goes."""
        return self.places[number % len(self.places)]

    @property
    def native(self) -> tuple[str, ...]:
        """The places of native clients."""
        return tuple(place for place in self.places if place is not None)


class NativeMessage:
    """A record, or an error of a partition, behind librdkafka's calls."""

    __slots__ = ("_error", "_offset", "_partition", "_topic", "_value")

    def __init__(
        self,
        topic: str | None,
        partition: int,
        offset: int,
        value: bytes | None,
        error: KafkaError | None = None,
    ) -> None:
        self._topic, self._partition, self._offset, self._value = topic, partition, offset, value
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str | None:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._value


class NativeProducer:
    """An idempotent producer whose records are not given up while a fault lasts.

    `delivery_ms` is `delivery.timeout.ms`.
    """

    def __init__(self, place: str, *, delivery_ms: int) -> None:
        self._producer = Producer(
            bootstrap_servers=place,
            enable_idempotence=True,
            delivery_timeout_ms=delivery_ms,
            linger_ms=1,
            max_block_ms=CALL_MS,
            **_SHARED,
        )
        self._waits = 0
        self._counting = threading.Lock()

    def __len__(self) -> int:
        with self._counting:
            return self._waits

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        *,
        partition: int,
        on_delivery: Callable[[KafkaError | None, Any], None] | None,
    ) -> None:
        """Raises BufferError where the record was not taken; it may be handed over again."""
        try:
            future = self._producer.send(topic, value, key, partition=partition)
        except ClientError as error:
            if error.retriable:
                raise BufferError(str(error)) from None
            raise KafkaException(KafkaError(error.code, str(error))) from None
        with self._counting:
            self._waits += 1

        def told(metadata: Any, error: BaseException | None) -> None:
            with self._counting:
                self._waits -= 1
            if on_delivery is not None:
                offset = -1 if metadata is None else metadata.offset
                refused = None if error is None else KafkaError(getattr(error, "code", -1), repr(error))
                on_delivery(refused, NativeMessage(topic, partition, offset, value))

        future.add_callback(told)

    def poll(self, timeout_s: float) -> None:
        """Callbacks run by themselves."""
        time.sleep(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """How many records still wait."""
        try:
            self._producer.flush(timeout_s)
        except ClientError as error:
            if not error.retriable:
                raise KafkaException(KafkaError(error.code, str(error))) from None
        return len(self)

    def doing(self) -> str:
        """What waits in the client, and for what: a look from another thread, for the search for a cause."""
        core, accumulator = self._producer._core, self._producer._accumulator
        now_s = time.monotonic()
        told = [
            f"{queue.topic}-{queue.partition}, led by {core.metadata.leader(queue.topic, queue.partition)}: "
            f"waiting {[_shown(each, now_s) for each in queue.batches]}, "
            f"in flight {[_shown(each, now_s) for each in queue.in_flight]}, "
            f"again in {queue.retry_at_s - now_s:.1f} s"
            for queue in accumulator.queues()
            if queue.batches or queue.in_flight
        ]
        told += [
            f"connection {each.node_id}: state {each.state}, waiting {len(each._waiting)}, "
            f"due in {[round(call.due_s - now_s, 1) for call in each._in_flight]} s, {each.link}"
            for each in core.network.connections()
        ]
        return "; ".join(told)

    def close(self) -> None:
        self._producer.close(0)


def _shown(batch: Batch, now_s: float) -> str:
    return (
        f"sequence {batch.sequence} of {batch.count} records, {batch.attempts} attempts, "
        f"{now_s - batch.created_s:.1f} s old, {'done' if batch.done else 'not done'}"
    )


class NativeConsumer:
    """A consumer of partitions that are assigned, or a member of a group. `resets` is `error` or `earliest`."""

    def __init__(
        self,
        place: str,
        *,
        isolation: str = "read_uncommitted",
        group: str | None = None,
        resets: str = "error",
        **options: Any,
    ) -> None:
        self.consumer = Consumer(
            bootstrap_servers=place,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none" if resets == "error" else resets,
            isolation_level=isolation,
            fetch_max_wait_ms=100,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            default_api_timeout_ms=CALL_MS,
            **_SHARED,
            **options,
        )

    def subscribe(self, topics: Sequence[str]) -> None:
        self.consumer.subscribe(topics)

    def assign(self, places: Iterable[Place]) -> None:
        """Reads these from their offsets on."""
        listed = list(places)
        self.consumer.assign([TopicPartition(each.topic, each.partition) for each in listed])
        for each in listed:
            home = TopicPartition(each.topic, each.partition)
            if each.offset == OFFSET_BEGINNING:
                self.consumer.seek_to_beginning(home)
            else:
                self.consumer.seek(home, each.offset)

    def unassign(self) -> None:
        self.consumer.unsubscribe()

    def committed(self, places: Sequence[Place], timeout: float) -> list[Place]:
        """Raises KafkaException."""
        listed = [TopicPartition(each.topic, each.partition) for each in places]
        try:
            found = self.consumer.committed(*listed, timeout_ms=timeout * 1000)
        except ClientError as error:
            raise KafkaException(KafkaError(error.code, str(error))) from None
        return [Place(*each, -1001 if (there := found[each]) is None else there.offset) for each in listed]

    def consume(self, records_max: int, timeout: float) -> list[NativeMessage]:
        """Records, or one message with an error: of a refused offset, of bytes that are none, or one that stays."""
        try:
            polled: Records = self.consumer.poll(timeout * 1000, records_max)
        except (OffsetOutOfRangeError, NoOffsetError) as error:
            return [_failed(KafkaError._AUTO_OFFSET_RESET, error)]
        except CorruptRecordsError as error:
            return [_failed(KafkaError._BAD_MSG, error)]
        except ClientError as error:
            return [] if error.retriable else [_failed(KafkaError._FATAL, error)]
        return [
            NativeMessage(each.topic, each.partition, each.offset, each.value)
            for records in polled.values()
            for each in records
        ]

    def close(self) -> None:
        self.consumer.close(CALL_MS)


def _failed(code: int, error: ClientError) -> NativeMessage:
    topic, partition = error.partition or (None, -1)
    return NativeMessage(topic, partition, -1, None, KafkaError(code, repr(error)))


class NativeTransactionalProducer:
    """Arguments as of `RawProducer`. It speaks version 2, because the appliance does."""

    def __init__(self, place: str, transactional_id: str, *, timeout_ms: int = 30_000) -> None:
        self.transactional_id = transactional_id
        self.trouble: deque[str] = deque(maxlen=5)
        self._producer = Producer(
            bootstrap_servers=place,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=1,
            max_block_ms=CALL_MS,
            **{**_SHARED, "request_timeout_ms": min(CALL_MS, timeout_ms)},
        )

    def start(self) -> None:
        self._retried(self._producer.init_transactions)

    def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except FatalTransactionError as error:
            raise Fenced(str(error)) from None

    def write(self, place: transaction_history.Place, values: Sequence[bytes]) -> int:
        """The offset of the first of them; the others follow it, maybe in another batch."""
        try:
            futures = [self._producer.send(place.topic, value, partition=place.partition) for value in values]
            offsets = [future.get(PATIENCE_S).offset for future in futures]
        except ClientError as error:
            raise _failure(error) from None
        return offsets[0]

    def send_offsets(self, consumer: NativeConsumer, offsets: dict[transaction_history.Place, int]) -> None:
        """Of a member of a group."""
        wanted = {TopicPartition(*place): offset for place, offset in offsets.items()}
        member = consumer.consumer.group_metadata()
        self._retried(lambda: self._producer.send_offsets_to_transaction(wanted, member))

    def end(self, *, commit: bool) -> None:
        """As of `RawProducer`, but each error of a commit leaves it in doubt, because lost answers are not told."""
        if not commit:
            self._retried(self._producer.abort_transaction)
            return
        try:
            self._retried(self._producer.commit_transaction)
        except (Fenced, MustAbort) as error:
            raise InDoubt(str(error)) from None

    def close(self) -> None:
        self._producer.close(0)

    def _retried(self, call: Callable[[], None]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            began = time.monotonic()
            try:
                call()
                return
            except ClientError as error:
                self.trouble.append(f"{error} after {time.monotonic() - began:.1f} s"[:150])
                if not error.retriable or time.monotonic() > deadline:
                    raise _failure(error) from None


def _failure(error: ClientError) -> Fenced | MustAbort:
    """An error that says neither is one after which an application aborts."""
    if isinstance(error, FatalTransactionError):
        return Fenced(str(error))
    kind = "" if isinstance(error, AbortableError) else f"{type(error).__name__}: "
    return MustAbort(f"{kind}{error}")


class Turns:
    """Gives each client that asks the next place of the lanes; for any number of threads."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._numbers = count()

    def next(self) -> str | None:
        return self._lanes.at(next(self._numbers))
