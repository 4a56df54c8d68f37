"""Records that consumers hand back, under faults: each ends processed or dead, and comes again once for each failure.

    sender        5 of 6 records fail, 1 to 5 times; the group delivers a record again RETRIES_MAX times
    two workers   members of a group: hand back, or process, then commit. Now and then one dies before its commit

| anomaly | is |
|---|---|
| lost | acknowledged, and neither processed nor dead at the end; or handed back, and never delivered again |
| duplicated | a delivery is in the retry topic twice, or a record among the dead twice |
| phantom | dead, though it did not fail often enough; or delivered again more often than it failed |
| early | delivered again before its level's delay |

The last one is not looked for if somebody has set the clock. If a worker dies before its commit, another one gets its
records again, as from each consumer, and hands them back again. This must not count.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.checker.anomalies import Anomaly

TOPIC: Final = "retried"
GROUP: Final = "checker"
RETRY: Final = f"{TOPIC}.{GROUP}.retry"
DEAD: Final = f"{TOPIC}.{GROUP}.dlq"
LEVELS_MS: Final = (300, 800)
RETRIES_MAX: Final = 3
FAILURES_MAX: Final = 5
CONFIGS: Final = {
    RETRY: {
        "delivery.delay.enable": "true",
        "delivery.delay.mode": "exact",
        "retry.enable": "true",
        "retry.group": GROUP,
        "retry.topic": TOPIC,
        "retry.levels": ",".join(f"{each}ms" for each in LEVELS_MS),
        "retry.max": str(RETRIES_MAX),
        "retry.dead.letter.topic": DEAD,
    },
    DEAD: {"dead.letter.retry.topic": RETRY},
}
RECORDS_PER_S: Final = 40
TIMEOUT_S: Final = 600.0
SILENCE_S: Final = 90.0
"""For so long nothing comes before what is missing counts as lost."""
_DEATH: Final = 0.02


class Delivery(NamedTuple):
    """A record, and how often it had failed when it was delivered; -1: as a dead letter."""

    value: bytes
    attempts: int


class RetriedHistory:
    """What is known of each value. Times are ms of the host's clock."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.processed: Counter[bytes] = Counter()
        self.handed_back_ms: dict[Delivery, float] = {}
        """When each next delivery was asked for first."""
        self.lock = threading.Lock()


def failures_of(value: bytes) -> int:
    """Return how often a record fails."""
    return int(value) % (FAILURES_MAX + 1)


def find(history: RetriedHistory, found: list[tuple[Delivery, int]], *, is_clock_kept: bool) -> list[Anomaly]:
    """Return what may not be. `found`: (delivery, its time in ms) of all that is in both topics of the group."""
    times = Counter(delivery for delivery, _ in found)
    wrong = [Anomaly("duplicated", f"{each} is there {n} times") for each, n in times.items() if n > 1]
    wanted = {
        Delivery(value, attempts)
        for value in history.acknowledged
        for attempts in range(1, min(failures_of(value), RETRIES_MAX) + 1)
    }
    dead = {Delivery(value, -1) for value in history.acknowledged if failures_of(value) > RETRIES_MAX}
    wrong += [Anomaly("lost", f"{each} is not there") for each in sorted((wanted | dead) - times.keys())]
    wrong += [Anomaly("phantom", f"{each}") for each in sorted(times.keys() - wanted - dead)]
    done = {value for value in history.acknowledged if failures_of(value) <= RETRIES_MAX}
    wrong += [
        Anomaly("lost", f"{each!r} is not processed") for each in sorted(done - history.processed.keys())
    ]
    wrong += [
        Anomaly("phantom", f"{each!r} is processed") for each in sorted(history.processed.keys() - done)
    ]
    if is_clock_kept:
        for delivery, at_ms in found:
            asked_ms = history.handed_back_ms.get(delivery)
            level_ms = LEVELS_MS[min(delivery.attempts, len(LEVELS_MS)) - 1] if delivery.attempts > 0 else 0
            if asked_ms is not None and at_ms < asked_ms + level_ms - 1:
                wrong.append(Anomaly("early", f"{delivery} came {asked_ms + level_ms - at_ms:.0f} ms early"))
    return wrong


class RetriedWorkload:
    """Args:
    addresses: of the slots.
    """

    def __init__(self, addresses: str, *, partitions: int, seed: int) -> None:
        self.history = RetriedHistory()
        self.failures: list[str] = []
        self.deaths = 0
        self._addresses = addresses
        self._partitions = partitions
        self._seed = seed
        self._stop = threading.Event()
        self._ends = threading.Event()
        self._sender = threading.Thread(target=self._guarded(self._send), daemon=True)
        self._workers = [
            threading.Thread(target=self._guarded(partial(self._work, number)), daemon=True)
            for number in range(2)
        ]

    def start(self) -> None:
        for each in (self._sender, *self._workers):
            each.start()

    def finish(self) -> list[tuple[Delivery, int]]:
        """Stop producing, and return all that is in the retry and dead-letter topics when each record is done."""
        self._stop.set()
        self._sender.join(TIMEOUT_S)
        found = self._read()
        self._ends.set()
        for each in self._workers:
            each.join(TIMEOUT_S)
            if each.is_alive():
                self.failures.append("stuck: a worker of retried records does not end")
        return found

    def told(self) -> str:
        """Return how much of it there was."""
        history = self.history
        return (
            f"{len(history.acknowledged)} records that fail 0 to {FAILURES_MAX} times: {len(history.handed_back_ms)} "
            f"hand-backs, {len(history.processed)} processed; {self.deaths} deaths of workers"
        )

    def _guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                run()
            except BaseException as fault:
                self.failures.append(f"gave up: retried records: {fault!r}")
                raise

        return guarded

    def _producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._addresses,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
                "retry.backoff.ms": 50,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )

    def _send(self) -> None:
        client = self._producer()

        def acknowledged(error: KafkaError | None, message: Any) -> None:
            if error is None:
                self.history.acknowledged.add(message.value())
            else:
                self.failures.append(f"gave up: a record was refused: {error}")

        number = 0
        while not self._stop.is_set():
            client.produce(
                TOPIC, b"%d" % number, partition=number % self._partitions, on_delivery=acknowledged
            )
            client.poll(1 / RECORDS_PER_S)
            number += 1
        if client.flush(TIMEOUT_S):
            self.failures.append("stuck: records that fail have no answer")

    # The group

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed}-{number}")
        client = self._producer()
        while not self._ends.is_set():
            consumer = Consumer(
                {
                    "bootstrap.servers": self._addresses,
                    "group.id": GROUP,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "log_level": 0,
                    "session.timeout.ms": 6_000,
                    "topic.metadata.refresh.interval.ms": 1000,
                }
            )
            consumer.subscribe([TOPIC, RETRY])
            try:
                self._live(consumer, client, chance)
            finally:
                with suppress(RuntimeError, KafkaException):
                    consumer.close()

    def _live(self, consumer: Consumer, client: Producer, chance: random.Random) -> None:
        """Until the end, or a death between handing back and the commit."""
        while not self._ends.is_set():
            messages = [each for each in consumer.consume(20, 0.2) if each.error() is None]
            for message in messages:
                self._take(client, message)
            if client.flush(TIMEOUT_S):
                raise RuntimeError("what was handed back has no answer")
            if messages and chance.random() < _DEATH:
                self.deaths += 1
                return
            if messages:
                with suppress(KafkaException):  # the next member of the group gets the records again
                    consumer.commit(asynchronous=False)

    def _take(self, client: Producer, message: Any) -> None:
        headers = list(message.headers() or [])
        value = message.value()
        attempts = int(dict(headers).get("retry.attempts", b"0"))
        if attempts >= failures_of(value):
            with self.history.lock:
                self.history.processed[value] += 1
            return
        if not attempts:
            headers += [
                ("retry.topic", message.topic().encode()),
                ("retry.partition", b"%d" % message.partition()),
                ("retry.offset", b"%d" % message.offset()),
            ]
        following = Delivery(value, attempts + 1 if attempts < RETRIES_MAX else -1)
        with self.history.lock:
            self.history.handed_back_ms.setdefault(following, time.time() * 1000)

        def answered(error: KafkaError | None, _message: Any) -> None:
            if error is not None:
                self.failures.append(f"gave up: a hand-back was refused: {error}")

        client.produce(RETRY, value, message.key(), headers=headers, on_delivery=answered)

    # The end

    def _read(self) -> list[tuple[Delivery, int]]:
        """Read until each record is processed or dead, and for as long as the largest level after that."""
        client = Consumer(
            {"bootstrap.servers": self._addresses, "group.id": "none", "enable.auto.commit": False}
        )
        client.assign(
            [TopicPartition(topic, each, 0) for topic in (RETRY, DEAD) for each in range(self._partitions)]
        )
        found: list[tuple[Delivery, int]] = []
        dead: set[bytes] = set()
        last_s, until_s = time.monotonic(), None
        while until_s is None or time.monotonic() < until_s:
            messages = [each for each in client.consume(500, 0.2) if each.error() is None]
            for each in messages:
                headers: dict[str, Any] = dict(each.headers() or ())
                value = each.value() or b""
                attempts = -1 if each.topic() == DEAD else int(headers["retry.attempts"])
                found.append((Delivery(value, attempts), each.timestamp()[1]))
                dead |= {value} if attempts < 0 else set()
            last_s = time.monotonic() if messages else last_s
            missing = self.history.acknowledged - dead - self.history.processed.keys()
            if until_s is None and (not missing or time.monotonic() - last_s > SILENCE_S):
                until_s = time.monotonic() + 2 * LEVELS_MS[-1] / 1000
        with suppress(RuntimeError):
            client.close()
        return found
