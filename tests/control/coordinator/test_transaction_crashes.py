"""A coordinator or an owner dies between any two steps of a transaction: each of them ends once, and all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.control.coordinator.transaction.transaction_state import TransactionState
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import CONTROL, TRANSACTIONAL, read_header
from appliance.protocol.records.control import decode_marker
from appliance.protocol.records.record import Record, encode_batch
from tests.control.coordinator.transaction_host import DATA, TICK_MS, TransactionHost

NAME = "payments"
STEPS_MAX = 2_000
RETRIABLE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
}


class Client:
    """A producer of `transaction.version` 2 that commits one transaction and aborts the next, and never gives up.

    Where the owner has no permit for its batch, it does what the network process does: it has the partition added.
    """

    def __init__(self, host: TransactionHost) -> None:
        self.host = host
        self.producer_id, self.epoch = -1, -1
        self.todo: list[Callable[[], None]] = []
        for commit in (True, False):
            self.todo += [self.add, lambda: self.write(0), lambda: self.write(1), self.ender(commit=commit)]
        self.todo.insert(0, self.initialize)
        self.waits_for: int | None = None
        self.take: Callable[[object], bool] = lambda _: True
        self.outcomes: list[int] = []
        self.is_writing = False

    def step(self) -> bool:
        """Ask, or take an answer; whether everything is done."""
        if self.is_writing:
            if self.outcomes:
                self.is_writing = False
                self.written(self.outcomes.pop())
        elif self.waits_for is None:
            if not self.todo:
                return True
            self.todo[0]()
        elif self.waits_for in self.host.answered.answers:
            response = self.host.answered.answers.pop(self.waits_for)
            self.waits_for = None
            if self.take(response):
                self.todo.pop(0)
        return False

    def coordinator_died(self) -> None:
        """Nobody answers what was asked."""
        self.waits_for = None
        self.is_writing = False
        self.outcomes = []

    def is_done(self, error: int) -> bool:
        assert not error or error in RETRIABLE, ErrorCode(error).name
        return not error

    def initialize(self) -> None:
        self.waits_for = self.host.ask(ApiKey.INIT_PRODUCER_ID, 5, InitProducerIdRequest(NAME, 60_000))

        def take(response: object) -> bool:
            if not self.is_done(response.error_code):  # type: ignore[attr-defined]
                return False
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch  # type: ignore[attr-defined]
            return True

        self.take = take

    def add(self) -> None:
        topics = (AddPartitionsToTxnTopic(DATA, (0, 1)),)
        of = AddPartitionsToTxnTransaction(NAME, self.producer_id, self.epoch, False, topics)
        self.waits_for = self.host.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, AddPartitionsToTxnRequest((of,)))

        def take(response: object) -> bool:
            (result,) = response.results_by_transaction  # type: ignore[attr-defined]
            return self.is_done(result.topic_results[0].results_by_partition[0].partition_error_code)

        self.take = take

    def write(self, partition: int) -> None:
        batch = encode_batch(
            [Record(b"%d" % self.epoch, b"v")],
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=0,
        )
        self.is_writing = True
        place = self.host.data_place(partition)
        outcomes = self.outcomes = []
        assert self.host.access.append(place, batch, outcomes.append, origin=AppendOrigin.CLIENT)

    def written(self, error: int) -> None:
        if error == ErrorCode.INVALID_TXN_STATE:
            self.todo.insert(0, self.add)
        elif self.is_done(error):
            self.todo.pop(0)

    def ender(self, *, commit: bool) -> Callable[[], None]:
        def end() -> None:
            request = EndTxnRequest(NAME, self.producer_id, self.epoch, commit)
            self.waits_for = self.host.ask(ApiKey.END_TXN, 5, request)

            def take(response: object) -> bool:
                if not self.is_done(response.error_code):  # type: ignore[attr-defined]
                    return False
                self.producer_id = response.producer_id  # type: ignore[attr-defined]
                self.epoch = response.producer_epoch  # type: ignore[attr-defined]
                return True

            self.take = take

        return end


def run(host: TransactionHost, dies_at: int, victims: str) -> int:
    """Run both transactions step by step, with a death at one step; return how many steps it took."""
    client = Client(host)
    steps = 0

    def may_die() -> None:
        nonlocal steps
        steps += 1
        assert steps < STEPS_MAX, f"nothing goes on: {host.markers.statistics()}"
        if steps != dies_at:
            return
        if "owner" in victims:
            host.kill_worker()
        if "coordinator" in victims:
            host.kill_coordinator()
            client.coordinator_died()

    while not client.step():
        may_die()
        host.clock.advance(TICK_MS)
        host.turn()
        may_die()
        if not host.is_led:
            host.lead_again()
        host.fetch_requests()
        may_die()
        while host.asked:
            host.append_next()
            may_die()
        if host.is_led:
            host.answer()
        may_die()
    host.settle()
    return steps


def check(host: TransactionHost) -> None:
    """Both transactions are in both partitions once, ended as they were decided, and nothing is open."""
    current = host.machines.transactions.get(NAME)
    assert current is not None
    assert current.state is TransactionState.COMPLETE_ABORT
    for partition in (0, 1):
        seen = []
        for batch in host.batches(partition):
            header = read_header(batch)
            if not header.attributes & CONTROL:
                seen.append("batch")
                continue
            marker = decode_marker(batch, 0)
            assert marker is not None
            what = "commit" if marker.committed else "abort"
            if seen[-1] != what:  # a marker that was sent again changes nothing
                seen.append(what)
        assert seen == ["batch", "commit", "batch", "abort"]
        log = host.data_log(partition)
        assert log.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize("victims", ["coordinator", "owner", "owner and coordinator"])
def test_death_between_any_two_steps_leaves_no_transaction_half_ended(tmp_path: Path, victims: str) -> None:
    steps, dies_at = 1, 0
    while dies_at <= steps:
        host = TransactionHost(tmp_path / str(dies_at))
        try:
            host.settle()
            taken = run(host, dies_at, victims)
            check(host)
        finally:
            host.close()
        steps = taken if not dies_at else steps
        dies_at += 1
    assert steps > 50
