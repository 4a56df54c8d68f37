"""Writes to the state machines of one topic, beside a coordinator and an owner that die between any two steps.

What must hold, whichever state machine it is:
  · nothing is in a machine's state before it is in the log, and committed values stay there
  · what was acknowledged is what the log says last, unless a later write's outcome is not known
  · a write that failed for good, because the owner refused it, is not in the log
  · a partition that is served, with nothing in flight, has the state that its log says
  · what was written in a transaction counts with its marker, and not before; a marker that was acknowledged is there
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.control.coordinator.runtime.effects import Append, Effects, Producer
from appliance.partition_access.access import UNKNOWN_OUTCOME
from appliance.protocol.records.control import EndTransactionMarker
from tests.control.coordinator.runtime.host import DISK, NOT_ENOUGH, TICK_MS, Host
from tests.control.coordinator.runtime.subjects import PARTITIONS, SUBJECTS, Subject, ends, logged, written

KEYS = 4
SHARED_KEYS = (KEYS, KEYS + 1)
"""Written in transactions, and beside them."""
PRODUCERS = 2
EPOCH = 0


class ShardModel(RuleBasedStateMachine):
    subject: Subject
    has_transactions = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.host = Host(self.folder, self.subject.topic, self.subject.service, partitions=PARTITIONS)
        self.possible: defaultdict[int, list[int | None]] = defaultdict(lambda: [None])
        self.refused: set[int] = set()
        self.acknowledged: set[tuple[int, int]] = set()
        self.marked: defaultdict[int, Counter[tuple[int, bool]]] = defaultdict(Counter)
        self.newest = 0

    def teardown(self) -> None:
        try:
            self.host.settle()
            for partition in range(PARTITIONS):
                state = self.subject.state(self.host, partition)
                assert state == logged(self.subject, self.host, partition)
            for key, possible in self.possible.items():
                assert self.subject.state(self.host, self.subject.partition(key)).get(key) in possible
        finally:
            self.host.close()
            shutil.rmtree(self.folder)

    # Writes

    @rule(key=st.integers(0, KEYS - 1), deletes=st.sampled_from((False, False, False, True)))
    def write(self, key: int, deletes: bool) -> None:
        partition = self.subject.partition(key)
        if not self.host.shards.shards:
            return
        self.newest += 1
        number = self.newest
        value = None if deletes else number
        possible = self.possible[key]
        possible.append(value)

        def ended(error: int) -> Effects:
            if not error:
                # Writes to one partition are committed in their order.
                del possible[: possible.index(value)]
            elif error != UNKNOWN_OUTCOME:
                possible.remove(value)
                if value is not None:
                    self.refused.add(number)
            return []

        record = self.subject.record(key, value)
        self.host.shards.carry_out([Append(partition, (record,), ended)])

    @rule(key=st.sampled_from(SHARED_KEYS), producer_id=st.integers(-1, PRODUCERS - 1))
    def write_shared(self, key: int, producer_id: int) -> None:
        """In a transaction, whose producer has a permit where somebody leads; outside of any where it is -1."""
        if producer_id >= 0 and not self.has_transactions:
            return
        partition = self.subject.partition(key)
        if not self.host.shards.shards:
            return
        self.newest += 1
        number = self.newest
        producer = Producer(producer_id, EPOCH) if producer_id >= 0 else None
        if producer is not None and self.host.is_led:
            self.host.led[partition].log.permit_transaction(producer_id, EPOCH)

        def ended(error: int) -> Effects:
            if not error:
                self.acknowledged.add((key, number))
            elif error != UNKNOWN_OUTCOME:
                self.refused.add(number)
            return []

        record = self.subject.record(key, number)
        self.host.shards.carry_out([Append(partition, (record,), ended, producer)])

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        producer_id=st.integers(0, PRODUCERS - 1),
        committed=st.sampled_from((True, True, False)),
    )
    def end_transaction(self, partition: int, producer_id: int, committed: bool) -> None:
        if not self.host.shards.shards:
            return

        def ended(error: int) -> None:
            if not error:
                self.marked[partition][producer_id, committed] += 1

        self.host.shards.shards[partition].write_marker(
            Producer(producer_id, EPOCH), EndTransactionMarker(committed, 0), ended, transaction_version=1
        )

    # Steps

    @rule()
    def turn(self) -> None:
        self.host.turn()

    @rule()
    def time_passes(self) -> None:
        self.host.clock.advance(TICK_MS)
        self.host.turn()

    @rule()
    def owner_takes(self) -> None:
        self.host.fetch_requests()

    @precondition(lambda self: self.host.asked)
    @rule(error=st.sampled_from((0, 0, 0, 0, DISK, NOT_ENOUGH)))
    def owner_works(self, error: int) -> None:
        self.host.append_next(error=error)

    @precondition(lambda self: self.host.held)
    @rule()
    def owner_answers(self) -> None:
        self.host.answer()

    @rule()
    def settle(self) -> None:
        self.host.settle()

    # Deaths and changes

    @rule()
    def coordinator_dies(self) -> None:
        self.host.kill_coordinator()

    @precondition(lambda self: self.host.is_led)
    @rule()
    def owner_dies(self) -> None:
        self.host.kill_worker()

    @precondition(lambda self: not self.host.is_led)
    @rule()
    def owner_is_back(self) -> None:
        self.host.lead_again()

    @rule()
    def leader_changes(self) -> None:
        self.host.new_epoch()

    # What holds

    @invariant()
    def state_is_in_the_log(self) -> None:
        if not self.host.shards.shards:
            return
        for partition in range(PARTITIONS):
            said = set(written(self.subject, self.host, partition))
            assert set(self.subject.state(self.host, partition).items()) <= said

    @invariant()
    def refused_writes_are_not_in_the_log(self) -> None:
        for partition in range(PARTITIONS):
            values = {value for _, value in written(self.subject, self.host, partition)}
            assert not values & self.refused

    @invariant()
    def what_was_acknowledged_in_transactions_is_in_the_log(self) -> None:
        for partition in range(PARTITIONS):
            said = set(written(self.subject, self.host, partition))
            assert {
                each for each in self.acknowledged if self.subject.partition(each[0]) == partition
            } <= said
            assert self.marked[partition] <= Counter(ends(self.subject, self.host, partition))

    @invariant()
    def an_idle_partition_has_the_state_of_its_log(self) -> None:
        for shard in self.host.shards.shards:
            statistics = shard.statistics()
            if self.host.is_active(shard.number) and not any(statistics.values()) and self.host.is_led:
                state = self.subject.state(self.host, shard.number)
                assert state == logged(self.subject, self.host, shard.number)


class OffsetsModel(ShardModel):
    subject = SUBJECTS["offsets"]


class TransactionsModel(ShardModel):
    """Nobody writes to `__transaction_state` in a transaction, so its machine looks at no marker."""

    subject = SUBJECTS["transactions"]
    has_transactions = False


class ToyModel(ShardModel):
    subject = SUBJECTS["toy"]


TestOffsets = OffsetsModel.TestCase
TestOffsets.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestTransactions = TransactionsModel.TestCase
TestTransactions.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestToy = ToyModel.TestCase
TestToy.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
