"""Transactional ids under random clients, failures, timeouts and deaths of their coordinator.

Markers reach the partitions one by one, so a death may come between any two of them. The model is what the partitions
have seen. What holds in every history:

- a transaction ends one way: no partition sees a commit and an abort for the same producer id and epoch;
- what was answered as committed ends with a commit in each partition that was added, and nothing else does;
- an id and an epoch are given to one client only, unless it repeats its request;
- no client gets an epoch above 32,766;
- a producer that nobody has fenced is told to come again at worst, also where the epochs of its id end;
- a replay of the log gives the state that the dead coordinator had committed.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.cluster import TopicPartition
from appliance.control.coordinator.transaction.effects import Marker
from appliance.control.coordinator.transaction.transaction import LAST_CLIENT_EPOCH, Transaction
from appliance.control.coordinator.transaction.transaction_record import (
    read_transaction_record,
    transaction_record,
)
from appliance.control.coordinator.transaction.transaction_state import PREPARED, STATES, TransactionState
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.transaction.scene import A0, A1, B0, Scene

IDS = ("t", "u")
ids = st.sampled_from(IDS)
mostly = st.sampled_from((True, True, True, False))
partitions_of = st.sets(st.sampled_from((A0, A1, B0)), min_size=1).map(frozenset)
versions = st.sampled_from((1, 2))

Producer = tuple[int, int]

NOT_FATAL = (
    ErrorCode.NONE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class Client:
    """A producer as it sees itself; it may be a zombie."""

    def __init__(self, transactional_id: str, producer: Producer, version: int) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.version = version
        self.added: set[TopicPartition] = set()


class ManyClients(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene()
        self.clients: list[Client] = []
        self.given: dict[Producer, str] = {}
        self.seen: dict[tuple[TopicPartition, int, int], bool] = {}
        self.committed: list[tuple[Producer, frozenset[TopicPartition], int]] = []
        self.current: dict[str, Client] = {}
        """The client of an id whom neither a successor nor a timeout can have fenced."""

    @initialize(epochs_left=st.dictionaries(ids, st.integers(0, 4)))
    def ids_are_old(self, epochs_left: dict[str, int]) -> None:
        """Some ids have used up nearly all epochs of their producer ids."""
        for number, (name, left) in enumerate(epochs_left.items()):
            old = Transaction(number, LAST_CLIENT_EPOCH - left, 10_000)
            self.scene.log.append(transaction_record(name, old, server_version=2))
            self.scene.transactions.replay(0, name, old)

    # ── clients ───────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: len(self.clients) < 3)
    @rule(transactional_id=ids, version=versions)
    def a_producer_starts(self, transactional_id: str, version: int) -> None:
        self.current.pop(transactional_id, None)
        answers = self.scene.initialize(transactional_id, timeout_ms=10_000)
        self.finish_appends()
        for error, producer_id, epoch in answers:
            if error is ErrorCode.NONE:
                self.give((producer_id, epoch), transactional_id)
                client = Client(transactional_id, (producer_id, epoch), version)
                self.clients.append(client)
                self.current[transactional_id] = client

    def give(self, producer: Producer, transactional_id: str) -> None:
        assert 0 <= producer[1] <= LAST_CLIENT_EPOCH
        assert producer not in self.given
        self.given[producer] = transactional_id

    @precondition(lambda self: self.clients)
    @rule(
        data=st.data(),
        sets=st.lists(partitions_of, max_size=3),
        settles=mostly,
        ends=mostly,
        commit=mostly,
        delivers=mostly,
    )
    def a_client_works(
        self,
        *,
        data: st.DataObject,
        sets: list[frozenset[TopicPartition]],
        settles: bool,
        ends: bool,
        commit: bool,
        delivers: bool,
    ) -> None:
        client = data.draw(st.sampled_from(self.clients))
        for partitions in sets:
            self.add(client, partitions, settles=settles)
        if ends:
            self.end(client, commit=commit, settles=settles)
        if delivers:
            self.deliver()

    def add(self, client: Client, partitions: frozenset[TopicPartition], *, settles: bool) -> None:
        answers = self.scene.add(
            client.producer,
            *partitions,
            transactional_id=client.transactional_id,
            client_version=client.version,
        )
        self.finish_appends(ErrorCode.NONE if settles else ErrorCode.NOT_ENOUGH_REPLICAS)
        if self.current.get(client.transactional_id) is client:
            assert answers[0] in NOT_FATAL
        if answers == [ErrorCode.NONE]:
            client.added |= partitions

    def end(self, client: Client, *, commit: bool, settles: bool) -> None:
        before = self.scene.transactions.get(client.transactional_id)
        answers = self.scene.end(
            client.producer,
            commit=commit,
            transactional_id=client.transactional_id,
            client_version=client.version,
        )
        begun = bool(self.scene.appends)
        self.finish_appends(ErrorCode.NONE if settles else ErrorCode.NOT_ENOUGH_REPLICAS)
        ((error, producer_id, epoch),) = answers
        if error is not ErrorCode.NONE:
            return
        if begun and commit:
            assert before is not None
            assert before.partitions == client.added
            self.committed.append((client.producer, frozenset(client.added), client.version))
        if client.version >= 2 and (producer_id, epoch) != client.producer:
            if (producer_id, epoch) not in self.given:
                self.give((producer_id, epoch), client.transactional_id)
            client.producer = (producer_id, epoch)
        if begun:
            client.added = set()

    @precondition(lambda self: len(self.clients) > 1)
    @rule(data=st.data())
    def a_client_disappears(self, data: st.DataObject) -> None:
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    # ── the parts around the coordinator ──────────────────────────────────────────────────────────────────

    def finish_appends(self, error: ErrorCode = ErrorCode.NONE) -> None:
        while self.scene.appends:
            self.scene.commit(error)

    def take(self, partition: TopicPartition, marker: Marker) -> None:
        key = (partition, marker.producer_id, marker.producer_epoch)
        if marker.transaction_version >= 2:
            assert self.seen.setdefault(key, marker.commit) is marker.commit
        else:
            self.seen[key] = marker.commit  # version 1 keeps its epoch over many transactions

    @precondition(lambda self: self.scene.markers)
    @rule(data=st.data(), all_of_them=st.booleans())
    def markers_arrive(self, data: st.DataObject, all_of_them: bool) -> None:
        effect = self.scene.markers[0]
        for partition in sorted(effect.partitions):
            if not all_of_them and data.draw(st.booleans()):
                return
            self.take(partition, effect.marker)
        self.scene.mark()
        self.finish_appends()

    def deliver(self) -> None:
        """Every partition takes its markers, and every transaction is completed."""
        while self.scene.markers or self.scene.delayed or self.scene.appends:
            self.finish_appends()
            while self.scene.markers:
                effect = self.scene.markers[0]
                for partition in effect.partitions:
                    self.take(partition, effect.marker)
                self.scene.mark()
                self.finish_appends()
            delayed, self.scene.delayed = self.scene.delayed, []
            for each in delayed:
                self.scene.carry_out(each.then())

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def a_client_raises_its_epoch(self, data: st.DataObject) -> None:
        """KIP-360, by a client that nobody has fenced. An open transaction is aborted first, and fences it."""
        name = data.draw(st.sampled_from(sorted(self.current)))
        client = self.current[name]
        before = self.scene.transactions.get(name)
        answers = self.scene.initialize(name, expected=client.producer, timeout_ms=10_000)
        self.finish_appends()
        ((error, producer_id, epoch),) = answers
        assert error in NOT_FATAL
        if error is ErrorCode.NONE:
            self.give((producer_id, epoch), name)
            client.producer, client.added = (producer_id, epoch), set()
        elif before is not None and before.state is TransactionState.ONGOING:
            del self.current[name]

    @rule(advance_ms=st.sampled_from((1_000, 10_001)))
    def time_goes_by(self, advance_ms: int) -> None:
        self.current.clear()
        self.scene.clock.advance(advance_ms)
        self.scene.carry_out(self.scene.transactions.abort_timed_out())
        self.finish_appends()
        delayed, self.scene.delayed = self.scene.delayed, []
        for each in delayed:
            self.scene.carry_out(each.then())
        self.finish_appends()

    @rule()
    def the_coordinator_dies(self) -> None:
        before = dict(self.scene.transactions)
        self.scene.crash()
        after = dict(self.scene.transactions)
        assert {name: logged(each) for name, each in before.items()} == {
            name: logged(each) for name, each in after.items()
        }

    # ── what holds ────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def a_decided_transaction_has_its_markers_under_way(self) -> None:
        under_way = {(each.marker.producer_id, each.marker.producer_epoch) for each in self.scene.markers}
        for _, transaction in self.scene.transactions:
            if transaction.state in PREPARED:
                assert (transaction.producer_id, transaction.producer_epoch) in under_way

    @invariant()
    def ids_are_counted(self) -> None:
        assert len(self.scene.transactions) == len(self.scene.transactions.ids(0))

    @invariant()
    def one_state_follows_another_as_the_table_says(self) -> None:
        states: dict[bytes, TransactionState] = {}
        for record in self.scene.log:
            read = _read(record.key, record.value)
            if read is not None:
                before = states.get(record.key)
                assert before is None or read.state in STATES[before].next
                states[record.key] = read.state

    def teardown(self) -> None:
        self.deliver()
        for (producer_id, epoch), partitions, version in self.committed:
            if version >= 2:
                for partition in partitions:
                    assert self.seen[(partition, producer_id, epoch + 1)] is True
        assert all(each.state not in PREPARED for _, each in self.scene.transactions)


def logged(transaction: Transaction) -> tuple[object, ...]:
    """What of a transaction is in its record."""
    return (
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        transaction.state,
        transaction.partitions,
        transaction.started_ms,
        transaction.updated_ms,
        transaction.previous_producer_id,
        transaction.next_producer_id,
        transaction.client_version,
    )


def _read(key: bytes, value: bytes | None) -> Transaction | None:
    read = read_transaction_record(key, value)
    assert read is not None
    return read[1]


TestManyClients = ManyClients.TestCase
TestManyClients.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
