"""Transactional producers and copiers, a thread each. They write down what happens and judge nothing.

    written     by writers, several partitions in a transaction; each writer also reads it (read_committed) in between
    copied      what two members of a group copy from `written`, with the offsets in the same transaction
    recopied    the same by a producer of version 2 that is in no group

What a writer does with a transaction is a *deed*: commit it, abort it, walk away from it, come back to it after the
next producer of the same transactional id (a zombie), race its timeout, end it from two sides at once, and send old
requests again.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Protocol

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition

from tests.checker.library_transactions import LibraryProducer
from tests.checker.native_clients import (
    Lanes,
    NativeConsumer,
    NativeMessage,
    NativeTransactionalProducer,
    Turns,
)
from tests.checker.raw_transactions import Fenced, MustAbort, ProducerFailed, RawProducer
from tests.checker.transaction_history import (
    Copy,
    Outcome,
    Place,
    Transaction,
    TransactionHistory,
    Write,
    token_of,
)
from tests.checker.transaction_readers import (
    LibraryReader,
    NativeReader,
    PythonReader,
    Reader,
    ends_of,
    library_consumer,
    read_to,
    undecided,
)
from tests.checker.values import token_in, value_of

WRITTEN: Final = "written"
COPIED: Final = "copied"
RECOPIED: Final = "recopied"
TOPICS: Final = (WRITTEN, COPIED, RECOPIED)
COPIES: Final = (Copy("copiers", WRITTEN, COPIED), Copy("raw-copier", WRITTEN, RECOPIED))

DECIDED_S: Final = 60.0
SHORT_TIMEOUT_MS: Final = 1_500
STOP_S: Final = 150.0
_RACE_S: Final = 0.3
_AGAIN_S: Final = 0.2
_READ_MAX: Final = 20
_COPIED_MAX: Final = 50


class Producer(Protocol):
    """`RawProducer`, `LibraryProducer` or a native one, but for what they do with offsets."""

    def start(self) -> None: ...

    def begin(self) -> None: ...

    def write(self, place: Place, values: Sequence[bytes]) -> int: ...

    def end(self, *, commit: bool) -> None: ...

    def close(self) -> None: ...


class Moments:
    """What producers are about to do or have done, for a fault that waits for it."""

    NAMES: Final = ("began", "wrote", "ends", "ended")

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts: Counter[str] = Counter()

    def tell(self, name: str) -> None:
        with self._changed:
            self._counts[name] += 1
            self._changed.notify_all()

    def wait_for(self, name: str, timeout_s: float) -> bool:
        """Whether it happens once more in time."""
        with self._changed:
            before = self._counts[name]
            return self._changed.wait_for(lambda: self._counts[name] > before, timeout_s)


class Actor(threading.Thread):
    """A thread with one transactional id, whose producers come one after the other: its lives."""

    def __init__(
        self,
        name: str,
        history: TransactionHistory,
        make: Callable[[int], Producer],
        *,
        chance: random.Random,
        moments: Moments,
        stop: threading.Event,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.chance = chance
        self.moments = moments
        self.stop = stop
        self.commits = 0
        self.met: Counter[str] = Counter()
        """Deeds, and what producers were refused with."""
        self.failures: list[str] = []
        self.producer: Producer | None = None
        """The newest."""
        self._make = make
        self._life = -1

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    producer = self.new_life()
                except ProducerFailed as error:
                    self.met[f"no start: {error}"] += 1
                    time.sleep(_AGAIN_S)
                    continue
                try:
                    self.live(producer)
                except ProducerFailed as error:
                    self.met[f"{type(error).__name__}: {error}"[:120]] += 1
                finally:
                    producer.close()
        except Exception as error:
            # A C extension hides what a callback raised behind a SystemError.
            cause = "" if error.__cause__ is None else f", because of {error.__cause__!r}"
            self.failures.append(f"gave up: {self.name}: {error!r}{cause}")
        finally:
            self.leave()

    def live(self, producer: Producer) -> None:
        """Transactions with this producer, until `stop`, or an error after which there must be a new one."""
        raise NotImplementedError

    def leave(self) -> None: ...

    def new_life(self, timeout_ms: int = 30_000) -> Producer:
        """A producer that has fenced the one before.

        Raises:
            ProducerFailed: it could not.
        """
        producer = self._make(timeout_ms)
        try:
            producer.start()
        except ProducerFailed:
            producer.close()
            raise
        ready_ns = time.monotonic_ns()
        if self._life >= 0:
            self.history.fenced_ns[self.name, self._life] = ready_ns
        self._life += 1
        self.producer = producer
        return producer

    def begin(self, producer: Producer, reads: Iterable[int] = ()) -> Transaction:
        transaction = self.history.begin(self.name, self._life, reads)
        producer.begin()
        return transaction

    def write(
        self, producer: Producer, transaction: Transaction, place: Place, origins: Sequence[int] = (-1,)
    ) -> None:
        """One record for each of the origins."""
        first = len(transaction.writes)
        transaction.writes.extend(Write(place, origin=origin) for origin in origins)
        tokens = [token_of(transaction.number, first + each) for each in range(len(origins))]
        offset = producer.write(place, [value_of(place.topic, token) for token in tokens])
        if len(origins) == 1:
            transaction.writes[first].offset = offset

    def commit(self, producer: Producer, transaction: Transaction) -> None:
        """Asks for it, once all that was written has been acknowledged."""
        transaction.asked_ns = time.monotonic_ns()
        transaction.outcome = Outcome.UNKNOWN
        self.moments.tell("ends")
        try:
            producer.end(commit=True)
        except Fenced:
            transaction.outcome = Outcome.ABORTED
            raise
        transaction.ended_ns = time.monotonic_ns()
        transaction.outcome = Outcome.COMMITTED
        self.commits += 1
        self.moments.tell("ended")

    def abort(self, producer: Producer, transaction: Transaction) -> None:
        self.moments.tell("ends")
        producer.end(commit=False)
        transaction.ended_ns = time.monotonic_ns()
        self.moments.tell("ended")


class Writer(Actor):
    """Writes to several partitions of `written`. `deeds` are names of its methods and how often each comes."""

    DEEDS: ClassVar[dict[str, int]] = {
        "do_commit": 50,
        "do_abort": 12,
        "do_walk_away": 4,
        "do_zombie": 8,
        "do_race_timeout": 2,
    }

    def __init__(
        self,
        name: str,
        history: TransactionHistory,
        make: Callable[[int], Producer],
        addresses: str,
        *,
        chance: random.Random,
        moments: Moments,
        stop: threading.Event,
        pause_s: float,
    ) -> None:
        super().__init__(name, history, make, chance=chance, moments=moments, stop=stop)
        self._places = [place for place in history.places if place.topic == WRITTEN]
        self._pause_s = pause_s
        self._reader = library_consumer(addresses)
        self._reader.assign([TopicPartition(*place, 0) for place in self._places])

    def leave(self) -> None:
        self._reader.close()

    def live(self, producer: Producer) -> None:
        names, weights = list(self.DEEDS), list(self.DEEDS.values())
        while not self.stop.is_set():
            (name,) = self.chance.choices(names, weights)
            self.met[name] += 1
            goes_on = getattr(self, name)(producer)
            if goes_on is False:
                return
            time.sleep(self.chance.uniform(0.0, 2 * self._pause_s))

    def reads(self) -> list[int]:
        """Tokens of committed records that come now, from the start on."""
        found = []
        for message in self._reader.consume(_READ_MAX, timeout=0.0):
            if message.error() is None:
                token = token_in(WRITTEN, message.value())
                if token is not None:
                    found.append(token)
        return found

    def fill(self, producer: Producer) -> Transaction:
        """A transaction with some writes."""
        transaction = self.begin(producer, self.reads())
        self.moments.tell("began")
        for place in self.chance.sample(self._places, self.chance.randint(1, min(4, len(self._places)))):
            for _ in range(self.chance.choice((1, 1, 1, 2, 3))):
                self.write(producer, transaction, place)
        self.moments.tell("wrote")
        return transaction

    def do_commit(self, producer: Producer) -> None:
        self.commit(producer, self._filled(producer))

    def do_abort(self, producer: Producer) -> None:
        self.abort(producer, self._filled(producer))

    def _filled(self, producer: Producer) -> Transaction:
        """As `fill`; where a write fails, the transaction is aborted first, as an application would."""
        try:
            return self.fill(producer)
        except MustAbort:
            with suppress(ProducerFailed):
                producer.end(commit=False)
            raise

    def do_walk_away(self, producer: Producer) -> bool:
        """The next life ends what this one has left open."""
        self.fill(producer)
        return False

    def do_zombie(self, producer: Producer) -> bool:
        """Sleeps inside of a transaction, while its successor works; then goes on as if nothing had been."""
        transaction = self.fill(producer)
        successor = self.new_life()
        try:
            for _ in range(self.chance.randint(0, 2)):
                self.do_commit(successor)
            is_open = self.chance.random() < 0.5
            between = self.fill(successor) if is_open else None
            self._come_back(producer, transaction)
            if between is not None:
                self.commit(successor, between)
        finally:
            successor.close()
        return False

    def _come_back(self, producer: Producer, transaction: Transaction) -> None:
        """What is not refused stays in the history as it was answered."""
        try:
            if self.chance.random() < 0.5:
                self.write(producer, transaction, self.chance.choice(self._places))
            if self.chance.random() < 0.7:
                self.commit(producer, transaction)
            else:
                self.abort(producer, transaction)
        except ProducerFailed as error:
            self.met[f"zombie {type(error).__name__}: {error}"[:120]] += 1
        else:
            self.met["zombie was not refused"] += 1

    def do_race_timeout(self, _producer: Producer) -> bool:
        """Asks for the commit at about the time at which the coordinator aborts."""
        short = self.new_life(SHORT_TIMEOUT_MS)
        try:
            transaction = self.fill(short)
            began_s = transaction.began_ns / 1e9
            until_s = began_s + SHORT_TIMEOUT_MS / 1000 + self.chance.uniform(-_RACE_S, 2 * _RACE_S)
            time.sleep(max(0.0, until_s - time.monotonic()))
            self.commit(short, transaction)
            self.met["timeout lost the race"] += 1
        finally:
            short.close()
        return False


class RawWriter(Writer):
    """One that can send old requests."""

    DEEDS: ClassVar[dict[str, int]] = {**Writer.DEEDS, "do_two_ends": 6, "do_late_write": 6}

    def do_two_ends(self, producer: Producer) -> bool:
        """Commit and abort at once on two connections, or a commit and the next life."""
        assert isinstance(producer, RawProducer)
        transaction = self.fill(producer)
        other = producer.late_end(commit=False)
        fences = self.chance.random() < 0.5
        told: list[int | None] = []

        def end_it() -> None:
            told.append(other())

        rival = threading.Thread(target=end_it)
        if not fences:
            rival.start()
            self._commit_or_not(producer, transaction)
            rival.join()
            self.met[f"two ends: abort answered {told[0]}"] += 1
            return False
        rival = threading.Thread(target=self._commit_or_not, args=(producer, transaction))
        rival.start()
        try:
            self.new_life().close()
        finally:
            rival.join()
        return False

    def _commit_or_not(self, producer: Producer, transaction: Transaction) -> None:
        try:
            self.commit(producer, transaction)
        except ProducerFailed as error:
            self.met[f"two ends {type(error).__name__}: {error}"[:120]] += 1

    def do_late_write(self, producer: Producer) -> None:
        """A Produce of a transaction arrives when that has its marker and no other one is open (KIP-890).

        Before the marker a leader takes it, Kafka's too: no client sends it between its EndTxn and the answer.
        """
        assert isinstance(producer, RawProducer)
        transaction = self._filled(producer)
        place = transaction.writes[-1].place
        late = self.history.begin(self.name, self._life)
        late.writes.append(Write(place))
        send = producer.late_write(place, [value_of(place.topic, token_of(late.number, 0))])
        self.commit(producer, transaction)
        producer.await_marker(place, transaction.writes[-1].offset)
        error = send()
        self.met[f"late write answered {error}"] += 1
        if not error:
            raise MustAbort("a late write was taken")


class ModernWriter(RawWriter):
    """Of version 2: an old EndTxn must not end a later transaction. Under version 1 it may (see the README)."""

    DEEDS: ClassVar[dict[str, int]] = {**RawWriter.DEEDS, "do_late_end": 8}

    def do_late_end(self, producer: Producer) -> None:
        assert isinstance(producer, RawProducer)
        first = self._filled(producer)
        commits = self.chance.random() < 0.5
        send = producer.late_end(commit=commits)
        (self.commit if commits else self.abort)(producer, first)
        second = self._filled(producer)
        self.met[f"late end answered {send()}"] += 1
        (self.abort if commits else self.commit)(producer, second)


class Copier(Actor):
    """Copies from `written`. Offsets are committed in the same transaction, or with nothing of it."""

    def __init__(
        self,
        name: str,
        history: TransactionHistory,
        make: Callable[[int], Producer],
        addresses: str,
        copy: Copy,
        *,
        chance: random.Random,
        moments: Moments,
        stop: threading.Event,
        member_of_group: bool,
        place: str | None = None,
    ) -> None:
        super().__init__(name, history, make, chance=chance, moments=moments, stop=stop)
        self._place = place
        self._copy = copy
        self._is_member = member_of_group
        self._addresses = addresses
        self._places = [place for place in history.places if place.topic == copy.source]
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer | NativeConsumer:
        consumer: Consumer | NativeConsumer
        if self._place is None:
            consumer = library_consumer(self._addresses, group=self._copy.group)
        else:
            consumer = NativeConsumer(
                self._place, isolation="read_committed", group=self._copy.group, resets="earliest"
            )
        if self._is_member:
            consumer.subscribe([self._copy.source])
        return consumer

    def leave(self) -> None:
        self._consumer.close()

    def live(self, producer: Producer) -> None:
        self._go_to_committed()
        while not self.stop.is_set():
            messages = self._some()
            if not messages:
                continue
            tokens: dict[Place, list[int]] = {}
            offsets: dict[Place, int] = {}
            for message in messages:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None
                assert partition is not None
                assert offset is not None
                token = token_in(topic, message.value())
                if token is None:
                    self.failures.append(f"torn: {self.name} read at {topic}-{partition} what nobody wrote")
                    continue
                tokens.setdefault(Place(topic, partition), []).append(token)
                offsets[Place(topic, partition)] = offset + 1
            try:
                self._copy_in_one(producer, tokens, offsets)
            except MustAbort as error:
                self.met[f"MustAbort: {error}"[:120]] += 1
                producer.end(commit=False)
                self._go_to_committed()

    def _some(self) -> list[Message | NativeMessage]:
        came: list[Message | NativeMessage] = [
            *self._consumer.consume(self.chance.randint(1, _COPIED_MAX), timeout=0.3)
        ]
        for message in came:
            error = message.error()
            if isinstance(message, NativeMessage) and error is not None:
                kind = "torn" if error.code() == KafkaError._BAD_MSG else "gave up"
                self.failures.append(f"{kind}: {self.name}: {error}")
        return [message for message in came if message.error() is None]

    def _copy_in_one(
        self, producer: Producer, tokens: dict[Place, list[int]], offsets: dict[Place, int]
    ) -> None:
        reads = [token for each in tokens.values() for token in each]
        transaction = self.begin(producer, reads)
        for place, each in tokens.items():
            self.write(producer, transaction, Place(self._copy.target, place.partition), each)
        if isinstance(producer, RawProducer):
            producer.send_offsets(self._copy.group, offsets)
        elif isinstance(producer, NativeTransactionalProducer):
            assert isinstance(self._consumer, NativeConsumer)
            producer.send_offsets(self._consumer, offsets)
        else:
            assert isinstance(producer, LibraryProducer)
            assert isinstance(self._consumer, Consumer)
            producer.send_offsets(self._consumer, offsets)
        if self.chance.random() < 0.1:
            self.met["aborted a copy"] += 1
            self.abort(producer, transaction)
            self._go_to_committed()
        elif self._is_member and self.chance.random() < 0.02:
            self.met["slept inside a copy"] += 1
            self._sleep_inside(producer, transaction)
        else:
            self.commit(producer, transaction)

    def _sleep_inside(self, producer: Producer, transaction: Transaction) -> None:
        """Leaves the group meanwhile, so that another member takes its partitions; then asks for the commit."""
        self._consumer.close()
        self._consumer = self._new_consumer()
        time.sleep(self.chance.uniform(0.0, 1.0))
        self.commit(producer, transaction)

    def _go_to_committed(self) -> None:
        """Reads on from where the last committed transaction has ended."""
        if self._is_member:
            # A new member is told of committed offsets when it is given partitions, once they are stable.
            self._consumer.close()
            self._consumer = self._new_consumer()
            return
        while not self.stop.is_set():
            with suppress(KafkaException):
                wanted = [TopicPartition(*place) for place in self._places]
                there = self._consumer.committed(wanted, timeout=10)
                if all(each.error is None for each in there):
                    self._consumer.unassign()
                    self._consumer.assign(
                        [TopicPartition(each.topic, each.partition, max(0, each.offset)) for each in there]
                    )
                    return
            time.sleep(_AGAIN_S)


class TransactionWorkload:
    """Runs from `start` to `judge_from`. `failures` are sentences about what no client may meet.

    Args:
        ports: where the brokers listen.
        pause_s: of each writer between two transactions, on average.
        timeout_max_ms: the longest `transaction.timeout.ms` of a producer.
        lanes: of the writers and copiers that are a library's, and of a reader; none for librdkafka.
    """

    def __init__(
        self,
        ports: Sequence[int],
        *,
        partitions: int,
        seed: int,
        pause_s: float = 0.05,
        timeout_max_ms: int = 30_000,
        lanes: Lanes | None = None,
    ) -> None:
        lanes = lanes or Lanes()
        turns = Turns(lanes)
        self._addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        places = tuple(Place(topic, number) for topic in TOPICS for number in range(partitions))
        self.history = TransactionHistory(places, COPIES)
        self.moments = Moments()
        self._stop = threading.Event()
        self._readers: list[Reader] = [
            LibraryReader("librdkafka", self._addresses, places),
            *(NativeReader(f"native {place}", place, places) for place in lanes.native),
        ]
        if not lanes.native:
            self._readers.append(PythonReader("kafka-python", self._addresses, places))
        ports = tuple(ports)
        chosen: dict[str, str | None] = {}

        def at(name: str) -> str | None:
            if name not in chosen:
                chosen[name] = turns.next()
            return chosen[name]

        def library(name: str) -> Callable[[int], Producer]:
            place = at(name)
            if place is not None:
                return lambda ms: NativeTransactionalProducer(place, name, timeout_ms=min(ms, timeout_max_ms))
            return lambda ms: LibraryProducer(self._addresses, name, timeout_ms=min(ms, timeout_max_ms))

        def raw(name: str, protocol: int) -> Callable[[int], Producer]:
            return lambda ms: RawProducer(ports, name, protocol=protocol, timeout_ms=min(ms, timeout_max_ms))

        def chance(name: str) -> random.Random:
            return random.Random(f"{seed} {name}")

        self.actors: list[Actor] = []
        kinds: tuple[tuple[str, type[Writer], Callable[[str], Callable[[int], Producer]]], ...] = (
            ("library-writer", Writer, library),
            ("old-writer", RawWriter, lambda name: raw(name, 1)),
            ("new-writer", ModernWriter, lambda name: raw(name, 2)),
        )
        for kind, role, maker in kinds:
            for number in range(2):
                name = f"{kind}-{number}"
                self.actors.append(
                    role(
                        name,
                        self.history,
                        maker(name),
                        self._addresses,
                        chance=chance(name),
                        moments=self.moments,
                        stop=self._stop,
                        pause_s=pause_s,
                    )
                )
        for name, copy, make in (
            ("library-copier-0", COPIES[0], library("library-copier-0")),
            ("library-copier-1", COPIES[0], library("library-copier-1")),
            ("raw-copier", COPIES[1], raw("raw-copier", 2)),
        ):
            self.actors.append(
                Copier(
                    name,
                    self.history,
                    make,
                    self._addresses,
                    copy,
                    chance=chance(name),
                    moments=self.moments,
                    stop=self._stop,
                    member_of_group=copy is COPIES[0],
                    place=at(name) if copy is COPIES[0] else None,
                )
            )

    def start(self) -> None:
        for thread in (*self._readers, *self.actors):
            thread.start()

    @property
    def failures(self) -> list[str]:
        """`kind: sentence` each, of producers."""
        return [failure for each in self.actors for failure in each.failures]

    @property
    def reader_failures(self) -> list[str]:
        """The same of readers."""
        return [failure for each in self._readers for failure in each.failures]

    def write_history(self, directory: Path) -> Path:
        """All transactions, a line each, and what is visible at the end, for whoever looks for a cause."""
        path = directory / "transactions.log"
        with path.open("w") as out:
            for each in self.history.transactions:
                out.write(f"{each.number} {each} {each.began_ns} {each.asked_ns} {each.ended_ns}")
                out.writelines(f" {write.place}@{write.offset}" for write in each.writes)
                out.write("\n")
            for name, sights in (("log", self.history.log), ("visible", self.history.visible)):
                for place, sight in sights.items():
                    found = zip(sight.offsets, sight.tokens, strict=True)
                    shown = (f"{offset}:{token >> 12}.{token & 0xFFF}" for offset, token in found)
                    out.write(f"{name} {place} {' '.join(shown)}\n")
        return path

    def commits(self) -> dict[str, int]:
        """How much each writer has committed by now."""
        return {actor.name: actor.commits for actor in self.actors if isinstance(actor, Writer)}

    def await_progress(self, before: Mapping[str, int], timeout_s: float) -> list[str]:
        """Waits until every writer has committed more than `before`; the names of those that have not."""
        deadline = time.monotonic() + timeout_s
        while True:
            late = [
                actor.name
                for actor in self.actors
                if actor.name in before and actor.commits <= before[actor.name]
            ]
            if not late or self.failures or time.monotonic() > deadline:
                return late
            time.sleep(0.02)

    def doing(self, names: Collection[str]) -> list[str]:
        """What the actors of these names are doing now, and what they have met last."""
        return [
            f"{actor.name} {_doing(actor)}, and its transactions were {self._last_of(actor.name)}"
            for actor in self.actors
            if actor.name in names
        ]

    def _last_of(self, name: str) -> list[str]:
        now_ns = time.monotonic_ns()
        last = [each for each in self.history.transactions if each.writer == name][-3:]
        return [f"{each.outcome.value}, begun {(now_ns - each.began_ns) / 1e9:.0f} s ago" for each in last]

    def stop_producing(self) -> None:
        """What has been left open is decided by its timeout."""
        self._stop.set()
        deadline = time.monotonic() + STOP_S
        for actor in self.actors:
            actor.join(max(0.0, deadline - time.monotonic()))
            if actor.is_alive():
                actor.failures.append(f"stuck: {actor.name} does not come to its end; it {_doing(actor)}")

    def idle(self, timeout_s: float) -> list[str]:
        """Waits until everyone has committed something; as `failures`, those who have not, and so were not checked."""
        deadline = time.monotonic() + timeout_s
        while True:
            names = [actor.name for actor in self.actors if not actor.commits]
            if not names or self.failures or time.monotonic() > deadline:
                return [f"stuck: {name} has committed nothing" for name in names]
            time.sleep(0.1)

    def read_everything(self) -> list[str]:
        """Fills what the history needs to be judged; what was wrong on the way, as `failures`."""
        history = self.history
        history.undecided = undecided(self._addresses, history.places, within_s=DECIDED_S)
        stable = ends_of(self._addresses, history.places, IsolationLevel.READ_COMMITTED)
        high = ends_of(self._addresses, history.places, IsolationLevel.READ_UNCOMMITTED)
        history.log, wrong = read_to(self._addresses, high, isolation="read_uncommitted")
        history.visible, more = read_to(self._addresses, stable, isolation="read_committed")
        for reader in self._readers:
            reader.finish(stable)
        for reader in self._readers:
            reader.join(90)
            history.readings[reader.name] = reader.sights
        for copy in COPIES:
            asking = library_consumer(self._addresses, group=copy.group)
            places = [place for place in history.places if place.topic == copy.source]
            for each in asking.committed([TopicPartition(*place) for place in places], timeout=60):
                assert each.error is None, each.error
                history.committed[copy.group, Place(each.topic, each.partition)] = max(0, each.offset)
            asking.close()
        return [*wrong, *more]

    def told(self) -> str:
        """How much was done of what, so that a check of nothing is seen."""
        counts = {outcome.value: self.history.count(outcome) for outcome in Outcome}
        met: Counter[str] = Counter()
        for actor in self.actors:
            met.update(actor.met)
        rows = "".join(f"\n    {count:6} {what}" for what, count in sorted(met.items()))
        copied = {actor.name: actor.commits for actor in self.actors}
        return f"transactions {counts}; commits {copied}{rows}"


def _doing(actor: Actor) -> str:
    """Where its thread is, and what its producer has met."""
    frame = sys._current_frames().get(actor.ident or 0)
    where = [f"{each.name}:{each.lineno}" for each in traceback.extract_stack(frame)[-5:]]
    return f"is in {where} after {list(getattr(actor.producer, 'trouble', ()))}"
