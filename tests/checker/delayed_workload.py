"""Delayed records, alone and in transactions, a thread each. They write down what happens; `find` judges it.

    sender         idempotent; delays of whole levels, or exact ones; cancels one in CANCELLED of its records,
                   once it is acknowledged
    transactor     version 1 of transactions; every third one is aborted
    watcher        reads the topic from the start, and notes by the host's clock when each record is there

| anomaly | is |
|---|---|
| lost | acknowledged or committed, not cancelled, and not in the topic at the end |
| duplicated | twice in the topic |
| phantom | in the topic, though its transaction was aborted, or never sent |
| torn | a part of a transaction of which nobody knows the outcome |
| early | delivered before its time |
| cancelled | delivered, though its cancellation was acknowledged before it was due |

If somebody has set the clock, the watcher says when a record came. The last two are not looked for in records that
waited while the clock was set forward: they may come by its new time.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.checker.anomalies import Anomaly

TOPIC: Final = "delayed"
LEVELS_MS: Final = (500, 1000, 2000)
LEVELS: Final = tuple(f"{each}ms" for each in LEVELS_MS)
CANCELLED: Final = 5
RECORDS_PER_S: Final = 100
TIMEOUT_S: Final = 600.0
SILENCE_S: Final = 90.0
"""For so long nothing comes before what is missing counts as lost."""
TRANSACTION: Final = 3
_PAUSE_S: Final = 0.05


class DelayedHistory:
    """What is known of each value. Times are ms of the host's clock."""

    def __init__(self) -> None:
        self.sent_ms: dict[bytes, int] = {}
        self.due_ms: dict[bytes, int] = {}
        self.seen_ms: dict[bytes, int] = {}
        """When the watcher has read it; not of all, and not before it was there."""
        self.certain: set[bytes] = set()
        """Acknowledged, or committed: must come once."""
        self.aborted: set[bytes] = set()
        self.open: list[frozenset[bytes]] = []
        """Transactions of which nobody knows the outcome."""
        self.cancelling: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        """Cancelled before they were due."""
        self.lock = threading.Lock()


def find(
    history: DelayedHistory, found: list[tuple[bytes, int]], *, set_forward_ms: list[int] | None
) -> list[Anomaly]:
    """Return what may not be.

    Args:
        found: (value, time of delivery in ms) of all that is in the topic.
        set_forward_ms: when the clock was set forward; None: it was never set, so `found` has times of the host.
    """
    times = Counter(value for value, _ in found)
    wrong = [Anomaly("duplicated", f"{value!r} is there {n} times") for value, n in times.items() if n > 1]
    must = history.certain - history.cancelling
    wrong += [Anomaly("lost", f"{value!r} is not there") for value in sorted(must - times.keys())]
    known = history.due_ms.keys() - history.aborted
    wrong += [Anomaly("phantom", f"{value!r}") for value in sorted(times.keys() - known)]
    for each in history.open:
        there = each & times.keys()
        if there and there != each:
            wrong.append(Anomaly("torn", f"of {sorted(each)} only {sorted(there)} is there"))
    came_ms = came(history, found, is_clock_kept=set_forward_ms is None)
    for value in sorted(known & came_ms.keys()):
        at_ms, due_ms = came_ms[value], history.due_ms[value]
        until_ms = max(at_ms, due_ms)
        if any(history.sent_ms[value] <= each <= until_ms for each in set_forward_ms or ()):
            continue
        if at_ms < due_ms - 1:
            wrong.append(Anomaly("early", f"{value!r} came {due_ms - at_ms} ms early"))
        if value in history.cancelled:
            wrong.append(Anomaly("cancelled", f"{value!r}"))
    return wrong


def came(history: DelayedHistory, found: list[tuple[bytes, int]], *, is_clock_kept: bool) -> dict[bytes, int]:
    """Return when records came, by the host's clock."""
    return dict(found) if is_clock_kept else history.seen_ms


def lateness(history: DelayedHistory, came_ms: dict[bytes, int]) -> str:
    """Return how late records came, without those that were due before their transaction ended."""
    late = sorted(at_ms - history.due_ms[value] for value, at_ms in came_ms.items() if value.startswith(b"s"))
    if not late:
        return "no delayed record came"
    median, most = late[len(late) // 2], late[len(late) * 99 // 100]
    return f"{len(came_ms)} delayed records; late p50 {median} ms, p99 {most} ms, at most {late[-1]} ms"


class DelayedWorkload:
    """Args:
    addresses: of the slots.
    is_exact: the topic has exact delays, so they have any length.
    """

    def __init__(self, addresses: str, *, partitions: int, seed: int, is_exact: bool = False) -> None:
        self.history = DelayedHistory()
        self.failures: list[str] = []
        self._addresses = addresses
        self._partitions = partitions
        self._delays_ms = range(1, LEVELS_MS[-1] + 1) if is_exact else LEVELS_MS
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._is_read = threading.Event()
        self._watcher, *self._threads = (
            threading.Thread(target=self._guarded(each), name=each.__name__, daemon=True)
            for each in (self._watch, self._send, self._transact)
        )

    def start(self) -> None:
        for each in (self._watcher, *self._threads):
            each.start()

    def finish(self) -> list[tuple[bytes, int]]:
        """Stop producing, and return all that is in the topic when everything has been delivered."""
        self._stop.set()
        for each in self._threads:
            each.join(TIMEOUT_S)
            if each.is_alive():
                self.failures.append(f"stuck: {each.name} does not end")
        found = self._read()
        self._is_read.set()
        self._watcher.join(TIMEOUT_S)
        return found

    def _guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                run()
            except BaseException as fault:
                self.failures.append(f"gave up: {run.__name__}: {fault!r}")
                raise

        return guarded

    def _producer(self, **options: Any) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._addresses,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "retry.backoff.ms": 50,
                "topic.metadata.refresh.interval.ms": 1000,
                **options,
            }
        )

    # Alone

    def _send(self) -> None:
        client = self._producer(**{"message.timeout.ms": int(TIMEOUT_S * 1000)})
        number = 0
        while not self._stop.is_set():
            self._send_one(client, number)
            client.poll(1 / RECORDS_PER_S)
            number += 1
        left = client.flush(TIMEOUT_S)
        if left:
            self.failures.append(f"stuck: {left} delayed records have no answer")

    def _send_one(self, client: Producer, number: int) -> None:
        value, delay_ms = b"s%d" % number, self._chance.choice(self._delays_ms)
        sent_ms = self.history.sent_ms[value] = int(time.time() * 1000)
        due_ms = sent_ms + delay_ms
        partition = number % self._partitions
        self.history.due_ms[value] = due_ms
        is_cancelled = number % CANCELLED == 0

        def acknowledged(error: KafkaError | None, _message: Any) -> None:
            if error is not None:
                self.failures.append(f"gave up: a delayed record was refused: {error}")
                return
            self.history.certain.add(value)
            if is_cancelled:
                self.history.cancelling.add(value)
                client.produce(
                    TOPIC, partition=partition, headers=[("delivery.cancel", value)], on_delivery=cancelled
                )

        def cancelled(error: KafkaError | None, _message: Any) -> None:
            if error is not None:
                self.failures.append(f"gave up: a cancellation was refused: {error}")
            elif time.time() * 1000 < due_ms - 1:
                self.history.cancelled.add(value)

        headers: list[tuple[str, str | bytes | None]] = [("delivery.delay", b"%d" % delay_ms)]
        headers += [("delivery.id", value)] if is_cancelled else []
        client.produce(TOPIC, value, partition=partition, headers=headers, on_delivery=acknowledged)

    # In transactions

    def _transact(self) -> None:
        client: Producer | None = None
        number = 0
        while not self._stop.is_set():
            values = frozenset(b"t%d-%d" % (number, each) for each in range(TRANSACTION))
            try:
                if client is None:
                    client = self._producer(
                        **{"transactional.id": "delayed", "transaction.timeout.ms": 60_000}
                    )
                    client.init_transactions(TIMEOUT_S)
                outcome = self._transaction(client, number, sorted(values))
            except KafkaException as error:
                if not error.args[0].fatal():
                    raise
                client, outcome = None, None  # the next producer of this id ends the transaction
            with self.history.lock:
                if outcome is None:
                    self.history.open.append(values)
                else:
                    (self.history.certain if outcome else self.history.aborted).update(values)
            number += 1
            time.sleep(_PAUSE_S)

    def _transaction(self, client: Producer, number: int, values: list[bytes]) -> bool:
        """Return whether it is committed."""
        client.begin_transaction()
        for at, value in enumerate(values):
            delay_ms = self._chance.choice(self._delays_ms)
            sent_ms = self.history.sent_ms[value] = int(time.time() * 1000)
            self.history.due_ms[value] = sent_ms + delay_ms
            client.produce(
                TOPIC,
                value,
                partition=(number + at) % self._partitions,
                headers=[("delivery.delay", b"%d" % delay_ms)],
            )
        try:
            if number % 3 == 2:
                client.flush(TIMEOUT_S)
                _repeated(lambda: client.abort_transaction(TIMEOUT_S))
                return False
            _repeated(lambda: client.commit_transaction(TIMEOUT_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _repeated(lambda: client.abort_transaction(TIMEOUT_S))
            return False
        return True

    # Reading

    def _consumer(self) -> Consumer:
        client = Consumer(
            {
                "bootstrap.servers": self._addresses,
                "group.id": "checker",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        client.assign([TopicPartition(TOPIC, each, 0) for each in range(self._partitions)])
        return client

    def _watch(self) -> None:
        client = self._consumer()
        while not self._is_read.is_set():
            for each in client.consume(500, 0.05):
                value = each.value()
                if each.error() is None and value in self.history.due_ms:
                    self.history.seen_ms.setdefault(value, int(time.time() * 1000))
        client.close()

    def _read(self) -> list[tuple[bytes, int]]:
        """Read until all that must come is there, and for as long as the largest level after that."""
        client = self._consumer()
        found: list[tuple[bytes, int]] = []
        missing = self.history.certain - self.history.cancelling
        last_s = time.monotonic()
        until_s: float | None = None
        while until_s is None or time.monotonic() < until_s:
            messages = [each for each in client.consume(500, 0.2) if each.error() is None]
            for each in messages:
                value = each.value() or b""
                found.append((value, each.timestamp()[1]))
                missing.discard(value)
            last_s = time.monotonic() if messages else last_s
            is_silent = time.monotonic() - last_s > SILENCE_S
            if until_s is None and (not missing or is_silent):
                until_s = time.monotonic() + 2 * LEVELS_MS[-1] / 1000
        with suppress(RuntimeError):
            client.close()
        return found


def _repeated(step: Callable[[], object]) -> None:
    """Repeat a step of a transaction while the client says that it may be repeated."""
    while True:
        try:
            step()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
