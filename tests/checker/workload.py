"""Producers and readers of one topic, a thread each. They write down what happens and judge nothing.

They are librdkafka's, or the native client's on one of its lanes. Who reads everything at the end is librdkafka's.

Besides the producers who wait for all replicas there is one who waits for the leader alone, and writes only when it is
told to (`burst`): what it writes while no follower copies is what a follower cuts off later. Its records may be there
or not; but what of it was read stays.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.checker.client_log import ClientLog
from tests.checker.history import NOT_KNOWN, History, Reading, token_of
from tests.checker.native_clients import Lanes, NativeConsumer, NativeProducer, Turns
from tests.checker.values import key_of, token_in, value_of

FLUSH_TIMEOUT_S: Final = 120.0
READ_TIMEOUT_S: Final = 60.0
_DELIVERY_TIMEOUT_MS: Final = 600_000  # nothing is given up while a fault lasts
_FETCH_WAIT_MS: Final = 100
_BURST_RECORDS: Final = 60
_BURST_TIMEOUT_MS: Final = 3_000


class Workload:
    """Runs from `start` to `stop`. `failures` are sentences about what no client may meet.

    Where `is_trimmed`, records are deleted from the log's start on.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        history: History,
        *,
        records_per_s: float,
        is_trimmed: bool = False,
        turns: Turns | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._turns = turns or Turns(Lanes())
        self.topic = topic
        self.history = history
        self._reset = "earliest" if is_trimmed else "error"
        patient = len(history.acknowledged)
        self._bursting = NOT_KNOWN
        self._pause_s = patient / records_per_s
        self._stop_producing = threading.Event()
        self._stop_reading = threading.Event()
        self._progressed = threading.Condition()
        self._acknowledged = [0] * history.partitions
        self.failures: list[str] = []
        self._told = [ClientLog(f"producer {number}") for number in range(patient)]
        self._producers = [
            threading.Thread(target=self._produce, args=(number,), daemon=True) for number in range(patient)
        ]
        self._readers = [
            threading.Thread(target=self._read, args=(number,), daemon=True)
            for number in range(len(history.readings))
        ]

    def start(self) -> None:
        for thread in (*self._readers, *self._producers):
            thread.start()

    def acknowledged(self) -> list[int]:
        """How many records each partition has acknowledged by now."""
        with self._progressed:
            return list(self._acknowledged)

    def await_progress(self, since: list[int], timeout_s: float) -> list[int]:
        """Waits until every partition acknowledged something new; the partitions that did not."""
        deadline = time.monotonic() + timeout_s
        with self._progressed:
            while True:
                late = [number for number, count in enumerate(since) if self._acknowledged[number] <= count]
                left_s = deadline - time.monotonic()
                if not late or left_s <= 0:
                    return late
                self._progressed.wait(left_s)

    def burst(self) -> None:
        """Large records to every partition, acknowledged by their leaders alone; returns when they are written or not.

        Nothing is sent again: what was refused is gone.
        """
        if self._bursting == NOT_KNOWN:
            self._bursting = len(self.history.acknowledged)
            self.history.acknowledged.append(array("q"))
        number = self._bursting
        offsets = self.history.acknowledged[number]
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "acks": 1,
                "message.send.max.retries": 0,
                "message.timeout.ms": _BURST_TIMEOUT_MS,
                "batch.num.messages": 1,  # each is worth an index entry
                # A batch refused with NOT_LEADER_OR_FOLLOWER goes out again, whatever the number of retries, and with
                # several in flight it lands behind later ones: only an idempotent producer is promised an order then.
                "max.in.flight": 1,
                "log_level": 0,
            }
        )
        for _ in range(_BURST_RECORDS * self.history.partitions):
            sequence = len(offsets)
            offsets.append(NOT_KNOWN)
            self._send(producer, number, sequence, is_long=True)
        producer.flush(2 * _BURST_TIMEOUT_MS / 1000)

    def _send(
        self,
        producer: Producer | NativeProducer,
        number: int,
        sequence: int,
        *,
        answered: Callable[[KafkaError | None, Message], None] | None = None,
        is_long: bool = False,
    ) -> None:
        token, partitions, keys = token_of(number, sequence), self.history.partitions, self.history.keys
        key = b"%d" % key_of(token, partitions=partitions, keys=keys) if keys else None
        producer.produce(
            self.topic,
            value_of(self.topic, token, is_long=is_long),
            key,
            partition=sequence % partitions,
            on_delivery=answered,
        )

    def stop_producing(self) -> None:
        """What was sent is acknowledged, or given up, when this returns."""
        self._stop_producing.set()
        for thread in self._producers:
            thread.join(FLUSH_TIMEOUT_S + 10)

    def stop_reading(self, ends: list[int]) -> None:
        """Lets readers come to the end of each partition, and no longer than READ_TIMEOUT_S."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        for readings in self.history.readings:
            while not all(map(_has_come_to, readings, ends)) and time.monotonic() < deadline:
                time.sleep(0.05)
        self._stop_reading.set()
        for thread in self._readers:
            thread.join(30)

    def read_everything(self) -> list[int]:
        """Fills the history's `log` and `starts`; the end offset of each partition."""
        consumer = self._consumer()
        partitions = self.history.partitions
        ends = [0] * partitions
        for number in range(partitions):
            try:
                _, ends[number] = _limits_of(consumer, self.topic, number)
            except KafkaException as error:
                self.failures.append(f"unreadable: partition {number}: {error}")
        _read_until(
            consumer,
            self.history.log,
            lambda: all(map(_has_come_to, self.history.log, ends)),
            self.failures,
            is_open_afterwards=True,
        )
        for number in range(partitions):
            # Behind the reading: what is deleted meanwhile was there or not.
            self.history.starts[number], _ = _limits_of(consumer, self.topic, number)
        consumer.close()
        return ends

    def write_client_logs(self, directory: Path) -> list[Path]:
        """What each producer's library said, a file each; when producing has been stopped."""
        paths = [directory / f"{self.topic}-producer-{number}.log" for number in range(len(self._told))]
        for path, told in zip(paths, self._told, strict=True):
            told.write(path)
        return paths

    def _produce(self, number: int) -> None:
        offsets = self.history.acknowledged[number]
        place = self._turns.next()
        producer = (
            NativeProducer(place, delivery_ms=_DELIVERY_TIMEOUT_MS)
            if place is not None
            else self._library_producer(number)
        )

        def answers_to(sequence: int) -> Callable[[KafkaError | None, Message], None]:
            def answered(error: KafkaError | None, message: Message) -> None:
                if error is not None:
                    self.failures.append(f"gave up: producer {number}, record {sequence}: {error}")
                    return
                offset = message.offset()
                offsets[sequence] = NOT_KNOWN if offset is None else offset
                with self._progressed:
                    self._acknowledged[sequence % self.history.partitions] += 1
                    self._progressed.notify_all()

            return answered

        try:
            while not self._stop_producing.is_set():
                sequence = len(offsets)
                offsets.append(NOT_KNOWN)
                try:
                    self._send(producer, number, sequence, answered=answers_to(sequence))
                except BufferError:
                    offsets.pop()
                producer.poll(self._pause_s)
            if producer.flush(FLUSH_TIMEOUT_S):
                doing = producer.doing() if isinstance(producer, NativeProducer) else ""
                self.failures.append(
                    f"gave up: producer {number} cannot end: {len(producer)} records wait {doing}"
                )
        except KafkaException as error:
            self.failures.append(f"gave up: producer {number}: {error}")
        finally:
            if isinstance(producer, NativeProducer):
                producer.close()

    def _library_producer(self, number: int) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 1,
                "debug": "eos,msg",
            },
            logger=self._told[number].logger,
        )

    def _read(self, number: int) -> None:
        place = self._turns.next()
        consumer: Consumer | NativeConsumer
        if place is None:
            consumer = self._consumer()
        else:
            consumer = NativeConsumer(place, resets=self._reset)
            consumer.assign(self._places())
        _read_until(
            consumer, self.history.readings[number], self._stop_reading.is_set, self.failures, timeout_s=None
        )

    def _places(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, each, 0) for each in range(self.history.partitions)]

    def _consumer(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "not used",
                "enable.auto.commit": False,
                "auto.offset.reset": self._reset,
                "check.crcs": True,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
                "fetch.error.backoff.ms": 50,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        consumer.assign(self._places())
        return consumer


def _has_come_to(reading: Reading, end: int) -> bool:
    return end == 0 or (bool(reading.offsets) and reading.offsets[-1] >= end - 1)


def _limits_of(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """(log start, high watermark)."""
    deadline = time.monotonic() + READ_TIMEOUT_S
    while True:
        try:
            limits = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        else:
            assert limits is not None
            return limits


def _read_until(
    consumer: Consumer | NativeConsumer,
    readings: list[Reading],
    is_done: Callable[[], bool],
    failures: list[str],
    *,
    timeout_s: float | None = READ_TIMEOUT_S,
    is_open_afterwards: bool = False,
) -> None:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not is_done() and (deadline is None or time.monotonic() < deadline):
        for message in consumer.consume(1000, timeout=0.2):
            error, value = message.error(), message.value()
            if error is not None:
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    failures.append(f"went back: a reader's offset was refused: {error}")
                elif error.code() == KafkaError._BAD_MSG:
                    failures.append(f"torn: a reader was given what is no record: {error}")
                elif error.code() == KafkaError._FATAL:
                    failures.append(f"gave up: a reader: {error}")
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            topic = message.topic()
            assert topic is not None
            token = token_in(topic, value)
            if token is None:
                failures.append(
                    f"torn: what was read at offset {offset} of partition {partition} was never sent"
                )
                continue
            readings[partition].add(offset, token)
    if not is_open_afterwards:
        consumer.close()
