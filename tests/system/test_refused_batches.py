"""Batches in flight behind one that was refused while its worker was dead: no gap where the client has made none."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_record, frame_batch
from appliance.requests.log_handlers.refused_batches import BEHIND_MAX
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, new_producer_id, produce, suspend, wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("refused") / "data")
    appliance.start()
    yield appliance
    appliance.stop()


@pytest.fixture
def topic(broker: Appliance, request: pytest.FixtureRequest) -> str:
    name: str = request.function.__name__
    assert create_topic(broker.port, name) == 0
    return name


def batch(producer: tuple[int, int] = (-1, -1), sequence: int = -1) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    return frame_batch(
        encode_record(Record(b"%d" % sequence), offset_delta=0, timestamp_delta_ms=0),
        count=1,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
    )


def refuse_one(broker: Appliance, connection: WireSocket, topic: str, refused: bytes) -> None:
    """Has the worker die and a batch be refused meanwhile; returns when the partition is served again."""
    (controller,), (worker,) = broker.pids("controller"), broker.pids("ioproc")
    suspend(controller)  # nobody tells the next worker what it leads
    try:
        suspend(worker)
        os.kill(worker, signal.SIGKILL)
        answer = produce(connection, topic, refused)
        assert answer.error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
    finally:
        os.kill(controller, signal.SIGCONT)
    await_served(connection, topic)


def await_served(connection: WireSocket, topic: str) -> None:
    """By batches without a number, which are behind nobody."""
    wait_until(lambda: produce(connection, topic, batch()).error == 0, "the partition is served")


def test_what_was_in_flight_behind_a_refused_batch_is_no_gap(broker: Appliance, topic: str) -> None:
    producer = new_producer_id(broker.port)
    with WireSocket(broker.port) as connection:
        await_served(connection, topic)
        assert produce(connection, topic, batch(producer, 0)).error == 0
        refuse_one(broker, connection, topic, batch(producer, 1))
        # Sent before the answer was read, for all that anybody can tell.
        for sequence in (2, 3):
            answer = produce(connection, topic, batch(producer, sequence))
            assert answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        answers = [produce(connection, topic, batch(producer, sequence)) for sequence in (1, 2, 3)]
        assert [answer.error for answer in answers] == [0, 0, 0]
        offsets = [answer.base_offset for answer in answers]
        assert offsets == list(range(offsets[0], offsets[0] + 3))


def test_the_first_batch_of_a_producer_is_not_passed_by_the_second(broker: Appliance, topic: str) -> None:
    producer = new_producer_id(broker.port)
    with WireSocket(broker.port) as connection:
        await_served(connection, topic)
        refuse_one(broker, connection, topic, batch(producer, 0))
        assert produce(connection, topic, batch(producer, 1)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [produce(connection, topic, batch(producer, each)).error for each in (0, 1)] == [0, 0]


def test_a_producer_that_left_the_refused_batch_out_hears_of_the_gap(broker: Appliance, topic: str) -> None:
    producer = new_producer_id(broker.port)
    with WireSocket(broker.port) as connection:
        await_served(connection, topic)
        assert produce(connection, topic, batch(producer, 0)).error == 0
        refuse_one(broker, connection, topic, batch(producer, 1))
        answers = [
            produce(connection, topic, batch(producer, sequence)).error
            for sequence in range(2, 4 + BEHIND_MAX)
        ]
        assert answers[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answers[-1] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
