"""Readers of what transactions write: read_committed ones from the start to the end, and what is there at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, _listoffsets
from kafka import KafkaConsumer
from kafka import TopicPartition as OtherTopicPartition
from kafka import errors as kafka_errors

from appliance_client import TopicPartition as NativePartition
from tests.checker.native_clients import NativeConsumer
from tests.checker.transaction_history import Place, Sight, Sights
from tests.checker.values import token_in

READ_TIMEOUT_S: Final = 60.0
NOT_THERE: Final = 1 << 62
"""A token that nobody has: of a value that is not what anybody wrote."""


def library_consumer(
    addresses: str, *, isolation: str = "read_committed", group: str = "not used", resets: str = "earliest"
) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": resets,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 500,
            "session.timeout.ms": 6_000,
            "log_level": 0,
        }
    )


class Reader(threading.Thread):
    """One that follows the ends of all partitions from the start until `finish`."""

    def __init__(self, name: str, places: Sequence[Place]) -> None:
        super().__init__(name=name, daemon=True)
        self.sights: Sights = {place: Sight() for place in places}
        self.failures: list[str] = []
        self._places = tuple(places)
        self._positions: dict[Place, int] = dict.fromkeys(places, 0)
        self._ends: dict[Place, int] | None = None
        self._deadline = float("inf")

    def finish(self, ends: dict[Place, int]) -> None:
        """It ends once it has come to these offsets, or after READ_TIMEOUT_S."""
        self._deadline = time.monotonic() + READ_TIMEOUT_S
        self._ends = ends

    def run(self) -> None:
        try:
            self.open()
            while not self.is_done() and time.monotonic() < self._deadline:
                self.some()
            self.close()
        except Exception as error:
            self.failures.append(f"gave up: {self.name}: {error!r}")

    def is_done(self) -> bool:
        """Whether it has come to where it was to end."""
        ends = self._ends
        return ends is not None and all(self._positions[place] >= end for place, end in ends.items())

    def came_to(self, place: Place, position: int) -> None:
        self._positions[place] = max(position, self._positions[place])

    def got(self, place: Place, offset: int, value: bytes | None, time_ns: int) -> None:
        token = token_in(place.topic, value)
        if token is None:
            self.failures.append(
                f"torn: what {self.name} read at offset {offset} of {place} was never written"
            )
            token = NOT_THERE
        self.sights[place].add(offset, token, time_ns)
        self.came_to(place, offset + 1)

    def open(self) -> None: ...

    def some(self) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


class LibraryReader(Reader):
    """librdkafka."""

    def __init__(
        self, name: str, addresses: str, places: Sequence[Place], *, isolation: str = "read_committed"
    ) -> None:
        super().__init__(name, places)
        self._consumer = library_consumer(addresses, isolation=isolation, resets="error")

    def open(self) -> None:
        self._consumer.assign([TopicPartition(place.topic, place.partition, 0) for place in self._places])

    def some(self) -> None:
        messages = self._consumer.consume(1000, timeout=0.2)
        now_ns = time.monotonic_ns()
        for message in messages:
            error, topic, partition, offset = (
                message.error(),
                message.topic(),
                message.partition(),
                message.offset(),
            )
            if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.failures.append(f"went back: {self.name}'s offset was refused: {error}")
            if topic is None or partition is None or offset is None:
                continue
            if error is None:
                self.got(Place(topic, partition), offset, message.value(), now_ns)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.came_to(Place(topic, partition), offset)

    def close(self) -> None:
        self._consumer.close()


class PythonReader(Reader):
    """kafka-python."""

    def __init__(self, name: str, addresses: str, places: Sequence[Place]) -> None:
        super().__init__(name, places)
        self._addresses = addresses
        self._consumer: KafkaConsumer | None = None

    def open(self) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=self._addresses.split(","),
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=100,
            check_crcs=True,
            reconnect_backoff_max_ms=500,
            request_timeout_ms=10_000,
        )
        partitions = [OtherTopicPartition(*place) for place in self._places]
        self._consumer.assign(partitions)
        for each in partitions:
            self._consumer.seek(each, 0)

    def some(self) -> None:
        assert self._consumer is not None
        try:
            batches = self._consumer.poll(timeout_ms=200, max_records=1000)
        except (
            kafka_errors.OffsetOutOfRangeError,
            kafka_errors.NoOffsetForPartitionError,
        ) as error:
            self.failures.append(f"went back: {self.name}'s offset was refused: {error!r}")
            raise
        except kafka_errors.KafkaError:
            return
        now_ns = time.monotonic_ns()
        for records in batches.values():
            for record in records:
                self.got(Place(record.topic, record.partition), record.offset, record.value, now_ns)
        if self._ends is not None:
            for place in self._places:
                position = self._consumer.position(OtherTopicPartition(*place))
                if position is not None:
                    self.came_to(place, position)

    def close(self) -> None:
        assert self._consumer is not None
        self._consumer.close()


class NativeReader(Reader):
    """The native client, on one lane."""

    def __init__(self, name: str, place: str, places: Sequence[Place]) -> None:
        super().__init__(name, places)
        self._place = place
        self._consumer: NativeConsumer | None = None

    def open(self) -> None:
        self._consumer = NativeConsumer(self._place, isolation="read_committed")
        self._consumer.assign([TopicPartition(place.topic, place.partition, 0) for place in self._places])

    def some(self) -> None:
        assert self._consumer is not None
        messages = self._consumer.consume(1000, timeout=0.2)
        now_ns = time.monotonic_ns()
        for message in messages:
            error, topic = message.error(), message.topic()
            if error is not None:
                kind = "went back" if error.code() == KafkaError._AUTO_OFFSET_RESET else "torn"
                self.failures.append(f"{kind}: {self.name}: {error}")
                continue
            assert topic is not None
            self.got(Place(topic, message.partition()), message.offset(), message.value(), now_ns)
        if self._ends is not None:
            for place in self._places:
                home = NativePartition(*place)
                self.came_to(place, self._consumer.consumer.position(home))

    def close(self) -> None:
        assert self._consumer is not None
        self._consumer.close()


def ends_of(addresses: str, places: Iterable[Place], isolation: IsolationLevel) -> dict[Place, int]:
    """The last stable offset of each, or the high watermark; an answer with errors is asked for again."""
    admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
    offset_spec: Any = _listoffsets.OffsetSpec
    wanted = {TopicPartition(*place): offset_spec.latest() for place in places}
    deadline = time.monotonic() + READ_TIMEOUT_S
    while True:
        try:
            answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=10)
            return {Place(each.topic, each.partition): answers[each].result().offset for each in wanted}
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def undecided(addresses: str, places: Sequence[Place], *, within_s: float) -> dict[Place, tuple[int, int]]:
    """Waits until no partition has an open transaction; (last stable offset, high watermark) of those that have one."""
    deadline = time.monotonic() + within_s
    while True:
        stable = ends_of(addresses, places, IsolationLevel.READ_COMMITTED)
        high = ends_of(addresses, places, IsolationLevel.READ_UNCOMMITTED)
        open_ones = {place: (stable[place], high[place]) for place in places if stable[place] < high[place]}
        if not open_ones or time.monotonic() > deadline:
            return open_ones
        time.sleep(0.2)


def read_to(addresses: str, ends: dict[Place, int], *, isolation: str) -> tuple[Sights, list[str]]:
    """Everything from the start to these offsets, and what was wrong about it."""
    reader = LibraryReader(f"the last {isolation} reader", addresses, list(ends), isolation=isolation)
    reader.finish(ends)
    reader.run()
    return reader.sights, reader.failures


def values_in(addresses: str, places: Sequence[Place]) -> dict[Place, list[bytes]]:
    """All that a read_committed reader is given before the last stable offsets, in order."""
    reader = _ValueReader("values", addresses, places)
    reader.finish(ends_of(addresses, places, IsolationLevel.READ_COMMITTED))
    reader.run()
    assert not reader.failures, reader.failures
    assert reader.is_done(), "it did not come to the end"
    return reader.values


class _ValueReader(LibraryReader):
    """One that keeps values as they are."""

    def __init__(self, name: str, addresses: str, places: Sequence[Place]) -> None:
        super().__init__(name, addresses, places)
        self.values: dict[Place, list[bytes]] = {place: [] for place in places}

    def got(self, place: Place, offset: int, value: bytes | None, time_ns: int) -> None:
        self.values[place].append(value or b"")
        self.came_to(place, offset + 1)
