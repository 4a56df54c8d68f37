"""What one turn of the coordinator sends: nothing that is ready waits for the next message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.channels.request_channel import OP, Op
from appliance.cluster import TopicPartition
from appliance.control.coordinator.coordinator import Coordinator
from appliance.control.coordinator.request_lines import RequestLines
from appliance.control.coordinator.runtime.runtime import Share
from appliance.control.coordinator.transaction.effects import TransactionEffects
from appliance.control.coordinator.transaction.transaction_state import TransactionState
from appliance.ipc.agent import Timers
from appliance.ipc.buffer_pool import BufferPool
from appliance.partition_access.producer_ids import ProducerIdBlocks
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.runtime.host import WORKER
from tests.control.coordinator.transaction_host import DATA, TICK_MS, TransactionHost

DATA_PLACE = TopicPartition(DATA, 0)


class Whole:
    """A whole coordinator in front of the host's owner of logs. Its own turns are all that it sends in."""

    def __init__(self, host: TransactionHost) -> None:
        self.host = host
        self.timers = Timers()
        self.ids = ProducerIdBlocks(lambda: host.controller, host.clock)
        assert host.coordinator.pool is not None
        pool = BufferPool(host.coordinator.pool.view)
        self.coordinator = Coordinator(
            host.settings,
            host.image,
            RequestLines(host.coordinator, pool),
            host.access,
            host.coordinator.partitions,
            timers=self.timers,
            clock=host.clock,
            share=Share(),
            producer_ids=self.ids,
        )
        self.answers: list[tuple[ErrorCode, int, int]] = []

    def turn(self) -> None:
        host = self.host
        host.clock.advance(TICK_MS)
        self.ids.hear()
        self.coordinator.follow_image()
        host.access.take(host.coordinator.inbound[WORKER].drain())
        self.timers.run_due(host.clock.monotonic_ns())
        self.coordinator.turn()
        host.access.publish()

    def work(self) -> None:
        """Turns of the coordinator and of the owner, until nobody has anything to do."""
        for _ in range(12):
            self.turn()
            self.host.worker_works()

    def with_id(self, error: ErrorCode, producer_id: int, epoch: int) -> TransactionEffects:
        self.answers.append((error, producer_id, epoch))
        return []


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    host = TransactionHost(tmp_path)
    made = Whole(host)
    made.work()
    yield made
    host.close()


def test_a_record_that_markers_bring_about_is_sent_in_their_turn(whole: Whole) -> None:
    """The partitions are gone: their markers end within the turn, and the end of the transaction is to be written."""
    host, transactional = whole.host, whole.coordinator.transactional
    transactions = transactional.transactions
    transactional.carry_out(
        transactions.initialize("t", timeout_ms=60_000, expected=None, then=whole.with_id)
    )
    whole.work()
    ((error, producer_id, producer_epoch),) = whole.answers
    assert error is ErrorCode.NONE
    transactional.carry_out(
        transactions.add_partitions(
            "t", producer_id, producer_epoch, frozenset({DATA_PLACE}), client_version=2, then=lambda _: []
        )
    )
    whole.work()
    host.has_data = False
    host.publish_image()
    transactional.carry_out(
        transactions.end("t", producer_id, producer_epoch, commit=True, client_version=2, then=whole.with_id)
    )
    whole.turn()
    host.worker_works()  # the decision
    whole.turn()
    host.fetch_requests()
    assert [message[OP] for message in host.asked] == [Op.PRODUCE], "the end of the transaction"
    host.append_next()
    host.answer()
    whole.turn()
    current = transactions.get("t")
    assert current is not None
    assert current.state is TransactionState.COMPLETE_COMMIT
