"""Delayed records of a transaction in a network process: what it places, and what it asks the coordinator."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.channels.request_channel import FLAGS, LENGTH_BYTES, OP, POSITION, ROW, Op, RequestFlag
from appliance.clock import NS_PER_MS
from appliance.cluster import DELAYED_TRANSACTIONS, PartitionImage, TopicImage
from appliance.delivery.levels import Levels
from appliance.delivery.waiting import Origin, delay_partition, waiting_of
from appliance.ipc.doorbell import Doorbell
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL, read_header
from appliance.protocol.records.record import Record, decode_records, encode_batch
from appliance.requests.log_handlers.delayed_records import AGAIN_MS, DelayedRecords
from appliance.requests.transaction_questions import TransactionQuestions
from tests.requests.serving import INCARNATION, NETPROC, TOPIC
from tests.requests.transacting import (
    EPOCH,
    INVALID_TXN_STATE,
    PARTITIONS,
    PRODUCER,
    TOPIC_ID,
    Placed,
    Transacting,
    produce,
)

FIRST_ROW = 2 * PARTITIONS
ROW_OF_TRANSACTIONS = FIRST_ROW + delay_partition(TOPIC_ID, 0, PARTITIONS)


class Delaying(Transacting):
    """TOPIC has delayed delivery; `bell` wakes the services process."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.eventfd = Doorbell.create_eventfd()
        self.apis._produce._delayed = DelayedRecords(
            self.routes,
            self.lines,
            self.settings,
            pool=self.pool,
            clock=self.clock,
            bells=(Doorbell(self.eventfd, memoryview(array("q", [0]))),),
            timers=self.timers,
            questions=TransactionQuestions(self.coordinators, self.pool, self.timers, self.clock),
        )
        self.free_bytes = self.pool.free_bytes()

    def topics(self) -> dict[str, TopicImage]:
        made = super().topics()
        configs = {"delivery.delay.enable": "true"}
        made[TOPIC] = TopicImage(TOPIC, TOPIC_ID, made[TOPIC].partitions, configs)
        rows = tuple(
            PartitionImage(n, FIRST_ROW + n, INCARNATION, 0, 0, (0,), (0,)) for n in range(PARTITIONS)
        )
        services = self.settings.services
        levels = Levels(services.delay_levels, services.delay_exact_levels)
        for number, name in enumerate(levels.topics):
            made[name] = TopicImage(name, type(TOPIC_ID)(int=100 + number), rows, internal=True)
        return made

    def close(self) -> None:
        os.close(self.eventfd)
        super().close()

    def batches(self) -> list[tuple[Placed, bytes]]:
        """Return the batches that the worker got since the last time."""
        self.lines.publish()
        pool = self._worker.pools[NETPROC].view
        found = []
        for operation in self._worker.inbound[NETPROC].drain():
            if operation[OP] == Op.PRODUCE:
                at = operation[POSITION]
                found.append((Placed(operation, b""), bytes(pool[at : at + operation[LENGTH_BYTES]])))
        return found

    def pause_ends(self) -> None:
        """The pause before something is stored again is over. It is measured by the host's clock."""
        self.timers.run_due(time.monotonic_ns() + 2 * AGAIN_MS * NS_PER_MS)

    def up_to_storing(self) -> tuple[Any, Placed, bytes]:
        """Produce a delayed record of a transaction that has its partition; return what is to be stored."""
        batch = encode_batch(
            [Record(b"x", headers=(("delivery.delay", b"5000"),), timestamp_ms=self.clock.now_ms())],
            attributes=TRANSACTIONAL,
            producer_id=PRODUCER,
            producer_epoch=EPOCH,
            base_sequence=0,
        )
        pending = self.produce(self.session(), produce(11, {0: batch}))
        ((kept, _),) = self.batches()
        assert kept.operation[ROW] == 0
        self.worker_answers(kept)
        ((stored, delayed),) = self.batches()
        return pending, stored, delayed


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Delaying]:
    made = Delaying(tmp_path)
    yield made
    made.close()


def test_delayed_records_are_stored_as_records_of_their_transaction(house: Delaying) -> None:
    pending, stored, batch = house.up_to_storing()
    header = read_header(batch)
    assert (stored.operation[ROW], header.is_transactional) == (ROW_OF_TRANSACTIONS, True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER, EPOCH, -1)
    assert stored.operation[FLAGS] & RequestFlag.COORDINATOR_ORIGIN
    (waiting,) = map(waiting_of, decode_records(batch))
    assert waiting.origin == Origin(PRODUCER, EPOCH, 0)
    assert house.errors(pending) is None, "it is answered when they are stored"
    house.worker_answers(stored)
    assert house.errors(pending) == [0]
    assert house.questions() == [], "the transaction is open there"
    assert house.holds_nothing


def test_the_coordinator_is_asked_where_the_transaction_is_not_open_yet(house: Delaying) -> None:
    pending, stored, _ = house.up_to_storing()
    house.worker_refuses(stored)
    (question,) = house.questions()
    added = DELAYED_TRANSACTIONS, ROW_OF_TRANSACTIONS - FIRST_ROW
    assert (question.partitions, question.verifies) == ([(TOPIC, 0), added], True)
    house.coordinator_says(question)
    ((again, _),) = house.batches()
    house.worker_answers(again)
    assert house.errors(pending) == [0]
    assert house.holds_nothing


def test_records_of_a_transaction_that_has_ended_are_stored_nowhere(house: Delaying) -> None:
    pending, stored, _ = house.up_to_storing()
    house.worker_refuses(stored)
    (question,) = house.questions()
    house.coordinator_says(question, int(ErrorCode.TRANSACTION_ABORTABLE))
    assert house.errors(pending) == [ErrorCode.TRANSACTION_ABORTABLE]
    house.pause_ends()
    assert house.batches() == []
    assert house.holds_nothing


@pytest.mark.parametrize("error", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_cannot_say_yet_is_asked_again(house: Delaying, error: ErrorCode) -> None:
    pending, stored, _ = house.up_to_storing()
    house.worker_refuses(stored)
    (question,) = house.questions()
    house.coordinator_says(question, int(error))
    assert (house.errors(pending), house.batches()) == (None, [])
    house.pause_ends()
    ((again, _),) = house.batches()
    house.worker_answers(again, INVALID_TXN_STATE)
    assert house.errors(pending) == [INVALID_TXN_STATE], "not for want of a permit"
    assert house.holds_nothing


def test_nothing_is_stored_for_a_client_that_has_gone(house: Delaying) -> None:
    pending, stored, _ = house.up_to_storing()
    pending.session.closed = True
    house.worker_refuses(stored)
    for question in house.questions():
        house.coordinator_says(question, int(ErrorCode.CONCURRENT_TRANSACTIONS))
    house.pause_ends()
    assert house.batches() == []
    assert house.holds_nothing


def test_records_that_are_ahead_of_a_clock_that_was_set_back_are_made_again(house: Delaying) -> None:
    pending, stored, batch = house.up_to_storing()
    before_ms = read_header(batch).base_timestamp_ms
    house.clock.set_wall(house.clock.now_ms() - 5 * 3_600_000)
    house.worker_answers(stored, int(ErrorCode.INVALID_TIMESTAMP))
    house.pause_ends()
    ((again, made),) = house.batches()
    assert read_header(made).base_timestamp_ms == before_ms - 5 * 3_600_000
    house.worker_answers(again)
    assert house.errors(pending) == [0]
    assert house.holds_nothing
