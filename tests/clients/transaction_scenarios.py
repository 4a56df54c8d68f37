"""What every library with transactions is asked to do. The table at the end is the contract: a library runs every row
of it, or names the row in its `left_out` with a reason.

Several rows are those of Apache Kafka's own `TransactionsTest`, which the row's comment names. Every partition that is
read to its end gets a last record from the witness, outside of any transaction: who reads it has read all before it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.client import MESSAGE_TOO_LARGE, RefusedError
from tests.clients.play import refused_with, within
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.clients.transactional.library import (
    FENCED,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    TransactionalLibrary,
    TransactionalProducer,
)
from tests.support.raw_fetch import is_served

END: Final = b"end"
LOOK_S: Final = 0.7
"""How long a reader looks at what it must not see. A broker that shows too much shows it at the first fetch."""

_numbers: Iterator[int] = itertools.count(1)


@dataclass(slots=True)
class Act:
    """One scenario under way: the library under judgement, the witness, and names of its own."""

    library: TransactionalLibrary
    admin: ConfluentClient
    witness: ConfluentTransactions
    name: str
    topic: str = field(init=False)

    def __post_init__(self) -> None:
        self.topic = f"{self.library.name}-{self.name}-{next(_numbers)}"

    def create(self, partitions: int = 1, *, also: str = "", settings: dict[str, str] | None = None) -> str:
        """Creates the scenario's topic, or another one, and waits until its leaders serve it."""
        topic = self.topic + also
        self.admin.create_topic(topic, partitions, settings=settings)
        assert within(20, partial(is_served, self.admin.address, topic, partitions))
        return topic

    def started(self, also: str = "", *, timeout_ms: int = 60_000) -> TransactionalProducer:
        """A producer after its InitProducerId. The same `also` is the same transactional id."""
        producer = self.library.producer(self.topic + also, timeout_ms=timeout_ms)
        producer.init()
        return producer

    def end(self, topic: str, partitions: int = 1) -> None:
        """The last record of each partition."""
        for partition in range(partitions):
            self.witness.send(topic, [END], partition)

    def all(self, topic: str, partition: int = 0) -> list[bytes]:
        """What a reader of committed records reads before the last record; a reader of all must end there, too."""
        read = self.library.read(topic, partition, until=END)
        assert read[-1:] == [END], read[-5:]
        return read[:-1]

    def ended(self, topic: str, partitions: int = 1) -> list[list[bytes]]:
        """Ends each partition; what is in it before."""
        self.end(topic, partitions)
        return [self.all(topic, partition) for partition in range(partitions)]


@dataclass(frozen=True, slots=True)
class TransactionScenario:
    """A row of the table."""

    name: str
    run: Callable[[Act], None]

    def play(self, kind: type[TransactionalLibrary], witness: ConfluentTransactions) -> None:
        """Runs it with a fresh library of that kind."""
        library = kind(witness.address)
        try:
            self.run(Act(library, ConfluentClient(witness.address), witness, self.name))
        finally:
            library.close()


def transaction_cells(kind: type[TransactionalLibrary]) -> list[object]:
    """The rows that a library runs, for `pytest.mark.parametrize`."""
    unknown = set(kind.left_out) - {scenario.name for scenario in TRANSACTION_SCENARIOS}
    assert not unknown, f"{kind.name} leaves out scenarios that do not exist: {unknown}"
    return [
        pytest.param(scenario, id=scenario.name)
        for scenario in TRANSACTION_SCENARIOS
        if scenario.name not in kind.left_out
    ]


# --- what is read ---


def commit(act: Act) -> None:
    topic = act.create(2)
    producer = act.started()
    producer.begin()
    producer.send(topic, [b"a", b"b"])
    producer.send(topic, [b"c"], 1)
    producer.commit()
    assert act.ended(topic, 2) == [[b"a", b"b"], [b"c"]]


def abort(act: Act) -> None:
    topic = act.create(2)
    producer = act.started()
    producer.begin()
    producer.send(topic, [b"a", b"b"])
    producer.send(topic, [b"c"], 1)
    producer.abort()
    assert act.ended(topic, 2) == [[], []]
    everything = [act.library.read(topic, number, until=END, committed=False) for number in range(2)]
    assert everything == [[b"a", b"b", END], [b"c", END]]


def commits_and_aborts(act: Act) -> None:
    """With records of no transaction between them."""
    topic = act.create()
    producer = act.started()
    expected = []
    for number in range(12):
        values = [b"%d/%d" % (number, each) for each in range(number + 1)]
        producer.begin()
        producer.send(topic, values)
        if number % 3 == 1:
            producer.abort()
        else:
            producer.commit()
            expected += values
        if number % 4 == 0:
            act.witness.send(topic, [b"plain %d" % number])
            expected.append(b"plain %d" % number)
    assert act.ended(topic) == [expected]


def at_once_after_another(act: Act) -> None:
    """The next transaction begins when the last one's answer is there, whether or not its markers are."""
    topic = act.create(3)
    producer = act.started()
    for number in range(100):
        producer.begin()
        producer.send(topic, [b"%d" % number], number % 3)
        producer.commit()
    read = act.ended(topic, 3)
    assert read == [[b"%d" % number for number in range(place, 100, 3)] for place in range(3)]


def empty_transactions(act: Act) -> None:
    topic = act.create()
    producer = act.started()
    for end in (producer.commit, producer.abort, producer.commit):
        producer.begin()
        end()
    producer.begin()
    producer.send(topic, [b"a"])
    producer.commit()
    producer.begin()
    producer.abort()
    assert act.ended(topic) == [[b"a"]]


def many_partitions(act: Act) -> None:
    """One transaction writes to all of them. Kafka's testMultipleMarkersOneLeader, with more of them."""
    topic = act.create(50)
    producer = act.started()
    for value, end in ((b"lost", producer.abort), (b"kept", producer.commit)):
        producer.begin()
        for partition in range(50):
            producer.send(topic, [value], partition)
        end()
    act.end(topic, 50)
    for partition in (0, 17, 49):
        assert act.all(topic, partition) == [b"kept"]
    for partition in range(50):
        assert act.witness.read(topic, partition, until=END) == [b"kept", END]


def many_records(act: Act) -> None:
    topic = act.create()
    producer = act.started()
    values = [b"%06d" % number for number in range(5_000)]
    for end in (producer.abort, producer.commit):
        producer.begin()
        producer.send(topic, values)
        end()
    assert act.ended(topic) == [values]


def undecided_is_unseen(act: Act) -> None:
    """Kafka's testReadCommittedConsumerShouldNotSeeUndecidedData."""
    topic = act.create()
    act.witness.send(topic, [b"before"])
    producer = act.started()
    producer.begin()
    producer.send(topic, [b"undecided"])
    act.witness.send(topic, [b"after"])
    assert act.library.read(topic, until=b"before") == [b"before"]
    # What is there has been read, and what is undecided hides what is behind it; a slow machine may see nothing yet.
    assert act.library.read(topic, until=b"after", timeout_s=LOOK_S) in ([b"before"], [])
    assert act.library.read(topic, until=b"after", committed=False) == [b"before", b"undecided", b"after"]
    producer.commit()
    assert act.ended(topic) == [[b"before", b"undecided", b"after"]]


def delayed_fetch(act: Act) -> None:
    """A reader waits for the first of two transactions, and gets the aborted one left out. Kafka's
    testDelayedFetchIncludesAbortedTransaction."""
    topic = act.create()
    first, second = act.started("-1"), act.started("-2")
    first.begin()
    second.begin()
    first.send(topic, [b"first"])
    second.send(topic, [b"second"])
    first.send(topic, [b"first again"])
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.extend(act.witness.read(topic, until=END)))
    reader.start()
    first.abort()
    second.commit()
    act.end(topic)
    reader.join(60)
    assert read == [b"second", END]
    assert act.all(topic) == [b"second"]


def interleaved(act: Act) -> None:
    """The oldest open transaction holds back what later ones have committed."""
    topic = act.create()
    long, short = act.started("-long"), act.started("-short")
    long.begin()
    long.send(topic, [b"long 1"])
    for number in range(5):
        short.begin()
        short.send(topic, [b"short %d" % number])
        if number % 2:
            short.abort()
        else:
            short.commit()
    assert act.library.read(topic, until=END, timeout_s=LOOK_S) == []
    long.send(topic, [b"long 2"])
    long.commit()
    expected = [b"long 1", b"short 0", b"short 2", b"short 4", b"long 2"]
    assert act.ended(topic) == [expected]


# --- who may write ---


def resume(act: Act) -> None:
    """What a producer that crashed has left open is aborted when the next one of its id begins."""
    topic = act.create(2)
    crashed = act.started()
    crashed.begin()
    crashed.send(topic, [b"whole"])
    crashed.commit()
    crashed.begin()
    crashed.send(topic, [b"half"])
    crashed.send(topic, [b"half"], 1)
    producer = act.started()
    producer.begin()
    producer.send(topic, [b"next"])
    producer.commit()
    assert act.ended(topic, 2) == [[b"whole", b"next"], []]


def _zombie(act: Act) -> tuple[str, TransactionalProducer, Callable[[], None]]:
    """A topic of two partitions, a producer in a transaction whose id has gone to another one, and the check
    that it has harmed nothing."""
    topic = act.create(2)
    zombie = act.started()
    zombie.begin()
    zombie.send(topic, [b"zombie"])
    successor = act.started()
    successor.begin()
    successor.send(topic, [b"successor 1"])

    def check() -> None:
        successor.send(topic, [b"successor 2"])
        successor.commit()
        assert act.ended(topic, 2) == [[b"successor 1", b"successor 2"], []]

    return topic, zombie, check


def fenced_on_commit(act: Act) -> None:
    """Kafka's testFencingOnCommit."""
    _, zombie, check = _zombie(act)
    with refused_with(*FENCED):
        zombie.commit()
    check()


def fenced_on_abort(act: Act) -> None:
    _, zombie, check = _zombie(act)
    with refused_with(*FENCED):
        zombie.abort()
    check()


def fenced_on_send(act: Act) -> None:
    """Kafka's testFencingOnSend. How the library tells it at `send` is its own affair: its transaction must fail."""
    topic, zombie, check = _zombie(act)
    with refused_with(*FENCED):
        zombie.send(topic, [b"late"])
        zombie.commit()
    check()


def fenced_on_add_partitions(act: Act) -> None:
    """Kafka's testFencingOnAddPartitions: the partition is a new one of the transaction."""
    topic, zombie, check = _zombie(act)
    with refused_with(*FENCED):
        zombie.send(topic, [b"late"], 1)
        zombie.commit()
    check()


def fenced_on_send_offsets(act: Act) -> None:
    """Kafka's testFencingOnSendOffsets."""
    topic, zombie, check = _zombie(act)
    with refused_with(*FENCED):
        zombie.send_offsets(topic, {(topic, 0): 1})
        zombie.commit()
    assert act.witness.committed(topic, topic) < 0
    check()


def fenced_on_expiration(act: Act) -> None:
    """The broker aborts what its producer has left open, and the producer cannot commit it any more. Kafka's
    testFencingOnTransactionExpiration."""
    topic = act.create()
    producer = act.started(timeout_ms=1_000)
    producer.begin()
    producer.send(topic, [b"too late"])
    act.end(topic)
    assert act.witness.read(topic, until=END) == [END]
    # Version 2 takes it for the late answer to a first EndTxn, of the other kind.
    with refused_with(*FENCED, INVALID_TXN_STATE):
        producer.commit()
    successor = act.started()
    successor.begin()
    successor.send(topic, [b"in time", END])
    successor.commit()
    assert act.witness.read(topic, until=b"in time") == [END, b"in time"]


def timeout_too_long(act: Act) -> None:
    with pytest.raises(RefusedError) as caught:
        act.started(timeout_ms=900_001)
    words = ("Error 50", "larger than the maximum")  # of those that tell no code
    told = any(each in str(caught.value) for each in words)
    assert caught.value.code == INVALID_TRANSACTION_TIMEOUT or told, str(caught.value)


def on_after_a_refused_record(act: Act) -> None:
    """A refused record costs its transaction and no more. Kafka's testBumpTransactionalEpoch is about this."""
    topic = act.create(settings={"max.message.bytes": "2000"})
    producer = act.started()
    producer.begin()
    producer.send(topic, [b"lost"])
    with refused_with(MESSAGE_TOO_LARGE):
        producer.send(topic, [bytes(10_000)])
    producer.abort()
    for number in range(3):
        producer.begin()
        producer.send(topic, [b"kept %d" % number])
        producer.commit()
    assert act.ended(topic) == [[b"kept 0", b"kept 1", b"kept 2"]]


# --- offsets ---


def offsets_committed(act: Act) -> None:
    """A group's offsets are committed with the records, and not before."""
    topic, group = act.create(2), act.topic
    producer = act.started()
    for number in (1, 2):
        producer.begin()
        producer.send(topic, [b"%d" % number])
        producer.send_offsets(group, {(topic, 0): 10 * number, (topic, 1): 7 * number})
        producer.commit()
        assert act.witness.committed(group, topic) == 10 * number
        assert act.witness.committed(group, topic, 1) == 7 * number
    assert act.ended(topic, 2) == [[b"1", b"2"], []]


def offsets_alone(act: Act) -> None:
    topic, group = act.create(), act.topic
    producer = act.started()
    producer.begin()
    producer.send_offsets(group, {(topic, 0): 5})
    producer.commit()
    assert act.witness.committed(group, topic) == 5


def offsets_aborted(act: Act) -> None:
    topic, group = act.create(), act.topic
    producer = act.started()
    producer.begin()
    producer.send_offsets(group, {(topic, 0): 5})
    producer.commit()
    producer.begin()
    producer.send(topic, [b"a"])
    producer.send_offsets(group, {(topic, 0): 6})
    producer.abort()
    assert act.witness.committed(group, topic) == 5
    assert act.ended(topic) == [[]]


def offsets_of_a_crash(act: Act) -> None:
    """The next producer of the id ends the pending offsets, too, so that its group does not wait for them."""
    topic, group = act.create(), act.topic
    crashed = act.started()
    crashed.begin()
    crashed.send(topic, [b"half"])
    crashed.send_offsets(group, {(topic, 0): 6})
    producer = act.started()
    assert act.witness.committed(group, topic) < 0
    producer.begin()
    producer.send_offsets(group, {(topic, 0): 7})
    producer.commit()
    assert act.witness.committed(group, topic) == 7


def copied(act: Act) -> None:
    """Consume, transform, produce: 600 records by 60, each third transaction is aborted and done again."""
    source, target, group = act.create(), act.create(also="-copy"), act.topic
    act.witness.send(source, [b"%d" % number for number in range(600)])
    act.end(source)
    records = act.all(source)
    producer = act.started()
    attempts = itertools.count(1)
    place = 0
    while place < len(records):
        producer.begin()
        producer.send(target, [b"copy of " + value for value in records[place : place + 60]])
        producer.send_offsets(group, {(source, 0): place + 60})
        if next(attempts) % 3 == 0:
            producer.abort()
        else:
            producer.commit()
            place += 60
        assert act.witness.committed(group, source) == place
    assert act.ended(target) == [[b"copy of %d" % number for number in range(600)]]


TRANSACTION_SCENARIOS: Final[Sequence[TransactionScenario]] = (
    TransactionScenario("commit", commit),
    TransactionScenario("abort", abort),
    TransactionScenario("commits-and-aborts", commits_and_aborts),
    TransactionScenario("at-once-after-another", at_once_after_another),
    TransactionScenario("empty-transactions", empty_transactions),
    TransactionScenario("many-partitions", many_partitions),
    TransactionScenario("many-records", many_records),
    TransactionScenario("undecided-is-unseen", undecided_is_unseen),
    TransactionScenario("delayed-fetch", delayed_fetch),
    TransactionScenario("interleaved", interleaved),
    TransactionScenario("resume", resume),
    TransactionScenario("fenced-on-commit", fenced_on_commit),
    TransactionScenario("fenced-on-abort", fenced_on_abort),
    TransactionScenario("fenced-on-send", fenced_on_send),
    TransactionScenario("fenced-on-add-partitions", fenced_on_add_partitions),
    TransactionScenario("fenced-on-send-offsets", fenced_on_send_offsets),
    TransactionScenario("fenced-on-expiration", fenced_on_expiration),
    TransactionScenario("timeout-too-long", timeout_too_long),
    TransactionScenario("on-after-a-refused-record", on_after_a_refused_record),
    TransactionScenario("offsets-committed", offsets_committed),
    TransactionScenario("offsets-alone", offsets_alone),
    TransactionScenario("offsets-aborted", offsets_aborted),
    TransactionScenario("offsets-of-a-crash", offsets_of_a_crash),
    TransactionScenario("copied", copied),
)
