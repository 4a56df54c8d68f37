"""No transaction is open in a partition that its coordinator will not end: late batches, late permits, dying workers.

The coordinator decides, and what it says travels one ring to the owner of the partition: permits and markers, in the
order of its decisions. Batches come at any time, of the current transaction, of one that has ended, or of a fenced
producer. A network process whose batch was refused for want of a permit asks, and places the batch again whenever.

- A transaction that is open in the partition is the coordinator's, or its marker is on the ring.
- A batch of transaction version 2 is in no transaction but its own.
- When the coordinator has ended all of them, none is open.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.protocol.errors import ErrorCode
from tests.ioproc.test_transaction_checks import NOT_PERMITTED, TV2, V1, Owner

versions = st.sampled_from((1, 2))


class Batch:
    """Sent by a producer in the coordinator's `transaction`."""

    def __init__(self, epoch: int, sequence: int, version: int, transaction: int) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.version = version
        self.transaction = transaction


class Permits(RuleBasedStateMachine):
    """One producer id, one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="permits-"))
        self.owner = Owner(self.path)
        self.version = 1
        self.epoch = 0
        self.sequence = 0
        self.transaction = 0
        self.is_ongoing = False
        self.has_partition = False
        self.prepared: tuple[int, bool, int] | None = None  # marker epoch, commit, version
        self.next_epoch = 0
        self.ring: deque[tuple[str, int, bool, int]] = deque()
        self.sent: list[Batch] = []
        self.in_log: list[int] = []  # transactions of the batches since the last marker

    def teardown(self) -> None:
        try:
            if self.is_ongoing:
                self.prepare(commit=False)
            while self.prepared is not None:
                self.ring.append(("marker", *self.prepared))
                self.deliver_all()
            for batch in list(self.sent):
                self.place(batch, asks=True)
                self.deliver_all()
                self.place(batch, asks=False)
            assert self.owner.partition.log.producers.first_open_offset is None
        finally:
            self.owner.partition.log.close(clean=False)
            shutil.rmtree(self.path)

    # The coordinator

    @precondition(lambda self: not self.is_ongoing and self.prepared is None)
    @rule(version=versions)
    def a_transaction_begins(self, version: int) -> None:
        if version != self.version:
            # A client that changes its version initializes itself anew.
            self.epoch += 1
            self.sequence = 0
        self.version = version
        self.is_ongoing, self.has_partition = True, False
        self.transaction += 1

    @precondition(lambda self: self.is_ongoing)
    @rule()
    def the_partition_is_added(self) -> None:
        self.has_partition = True
        self.ring.append(("permit", self.epoch, False, 0))

    @precondition(lambda self: self.is_ongoing)
    @rule(commit=st.booleans())
    def it_ends(self, commit: bool) -> None:
        self.prepare(commit=commit)

    @precondition(lambda self: self.is_ongoing)
    @rule()
    def it_times_out(self) -> None:
        """The epoch is fenced, and markers have the fence's epoch."""
        self.epoch += 1
        self.sequence = 0
        self.prepare(commit=False)

    def prepare(self, *, commit: bool) -> None:
        self.is_ongoing = False
        if self.version == 2:
            self.epoch += 1
            self.sequence = 0
        if self.has_partition:
            self.prepared = self.epoch, commit, self.version
            self.ring.append(("marker", *self.prepared))

    @precondition(lambda self: not self.is_ongoing and self.prepared is None)
    @rule(
        version=versions,
        batches=st.integers(0, 2),
        arrives=st.booleans(),
        commit=st.booleans(),
        delivered=st.sampled_from((False, True, True)),
    )
    def a_whole_transaction(
        self, *, version: int, batches: int, arrives: bool, commit: bool, delivered: bool
    ) -> None:
        """As most are; its batches come in time or are late."""
        self.a_transaction_begins(version)
        self.the_partition_is_added()
        if delivered:
            self.deliver_all()
        for _ in range(batches):
            self.the_producer_sends()
            if arrives:
                self.place(self.sent.pop(), asks=False)
        self.prepare(commit=commit)
        if delivered:
            self.deliver_all()

    # The ring and its owner

    @precondition(lambda self: self.ring)
    @rule()
    def the_owner_takes_one(self) -> None:
        what, epoch, commit, version = self.ring.popleft()
        if what == "permit":
            self.owner.permit(epoch=epoch)
            return
        assert self.owner.end(epoch=epoch, commit=commit, version=version) == ErrorCode.NONE
        self.in_log.clear()
        self.prepared = None

    def deliver_all(self) -> None:
        while self.ring:
            self.the_owner_takes_one()

    @rule()
    def the_worker_dies(self) -> None:
        self.ring.clear()
        self.owner.lead_again()
        if self.prepared is not None:
            self.ring.append(("marker", *self.prepared))

    @precondition(lambda self: self.prepared is not None)
    @rule()
    def the_coordinator_dies_and_sends_the_marker_again(self) -> None:
        assert self.prepared is not None
        self.ring.clear()
        self.ring.append(("marker", *self.prepared))

    # Batches

    @precondition(lambda self: self.is_ongoing)
    @rule()
    def the_producer_sends(self) -> None:
        self.sent.append(Batch(self.epoch, self.sequence, self.version, self.transaction))
        self.sequence += 1

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), asks=st.booleans(), stays=st.booleans())
    def a_batch_comes(self, data: st.DataObject, asks: bool, stays: bool) -> None:
        batch = data.draw(st.sampled_from(self.sent))
        self.place(batch, asks=asks)
        if not stays:
            self.sent.remove(batch)

    def place(self, batch: Batch, *, asks: bool) -> None:
        before = self.owner.log_end
        answer = self.owner.produce(
            batch.sequence, epoch=batch.epoch, version=TV2 if batch.version == 2 else V1
        )
        if self.owner.log_end > before:
            self.in_log.append(batch.transaction)
            if batch.version == 2:
                assert set(self.in_log) == {batch.transaction}
        if answer == NOT_PERMITTED and asks and self.is_ongoing and batch.epoch == self.epoch:
            if batch.version == 2:
                self.has_partition = True
            if self.has_partition:
                self.ring.append(("permit", self.epoch, False, 0))

    # What holds

    @invariant()
    def what_is_open_will_be_ended(self) -> None:
        if self.owner.partition.log.producers.first_open_offset is None:
            return
        assert (self.is_ongoing and self.has_partition) or self.prepared is not None
        if self.prepared is not None:
            assert ("marker", *self.prepared) in self.ring

    @invariant()
    def producers_and_transactions_agree(self) -> None:
        self.owner.partition.log.producers.check()
        assert len(self.owner.partition.log.permits) <= 1


TestPermits = Permits.TestCase
TestPermits.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
