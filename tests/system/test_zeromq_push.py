"""Push subscriptions: what is committed comes without being asked for, as much as the client's window takes."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import zmq

from appliance.protocol.records.record import Record, encode_batch
from tests.support import zeromq_wire as wire
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.support.zeromq_wire import NothingCame, SessionEnded, ZeroMqSession
from tests.system.raw import MIB, produce
from tests.system.test_zeromq import (
    Context,
    Served,
    all_that_comes,
    fetched_offsets,
    new_topic,
    produce_request,
)

READ_COMMITTED = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_OUT_OF_RANGE = 1


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("zp")
    listener = f"ipc://{home}/s"
    appliance = Appliance(home / "data", settings={"listeners.zeromq": [listener], "network.processes": 1})
    appliance.start(180)
    try:
        yield Served(appliance, listener)
    finally:
        appliance.stop()


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


def write(served: Served, topic: str, value: bytes, *, times: int = 1, partition: int = 0) -> None:
    with WireSocket(served.broker.port) as connection:
        for _ in range(times):
            assert not produce(connection, topic, encode_batch([Record(value)]), partition=partition).error


def error_of(push: bytes, topic: str) -> int:
    return int(struct.unpack_from(">h", push, 4 + 8 + 2 + len(topic) + 8)[0])


def pushed_offsets(
    session: ZeroMqSession, topic: str, until: int, *, timeout_ms: int = wire.PATIENCE_MS
) -> list[int]:
    """Return the offsets of all pushes up to the record before `until`, in the order in which they came."""
    offsets: list[int] = []
    while not offsets or offsets[-1] < until - 1:
        _, push = session.push(timeout_ms)
        for first, last in fetched_offsets(push, topic):
            offsets += range(first, last + 1)
    return offsets


def test_what_is_there_and_what_comes_is_pushed_once_and_in_order(served: Served, context: Context) -> None:
    topic = new_topic(served, "pushed")
    write(served, topic, b"before", times=5)
    with ZeroMqSession(context, served.listener) as session:
        session.subscribe(7, topic, offset=2)
        assert pushed_offsets(session, topic, 5) == [2, 3, 4]
        with pytest.raises(NothingCame):
            session.receive(300)
        for offset in range(5, 25):
            write(served, topic, b"after")
            assert pushed_offsets(session, topic, offset + 1) == [offset]


def test_a_backlog_in_large_batches_is_pushed_whole(served: Served, context: Context) -> None:
    topic = new_topic(served, "backlog")
    write(served, topic, bytes(700_000), times=12)
    write(served, topic, b"small", times=50)
    with ZeroMqSession(context, served.listener, window=1 << 20) as session:
        session.subscribe(1, topic, max_bytes=3_000_000)
        assert pushed_offsets(session, topic, 62) == list(range(62))


def test_requests_and_pushes_share_a_session(served: Served, context: Context) -> None:
    topic = new_topic(served, "both")
    with ZeroMqSession(context, served.listener) as session:
        session.subscribe(1, topic)
        for _ in range(10):
            session.send(wire.REQUEST, *produce_request(topic, encode_batch([Record(b"mine")])))
        kinds: list[int] = []
        pushed = 0
        while kinds.count(wire.RESPONSE) < 10 or pushed < 10:
            message = session.receive()
            kinds.append(message.kind)
            if message.kind == wire.PUSH:
                pushed += len(fetched_offsets(message.body, topic))
        assert pushed == 10


def test_a_subscriber_that_does_not_acknowledge_is_sent_its_window(served: Served, context: Context) -> None:
    topic = new_topic(served, "slow")
    write(served, topic, bytes(500_000), times=20)
    with ZeroMqSession(context, served.listener, window=1 << 20, acknowledges=False) as session:
        session.subscribe(1, topic)
        received = all_that_comes(session)
        assert session.marks
        with ZeroMqSession(context, served.listener) as other:
            other.subscribe(1, topic)
            assert pushed_offsets(other, topic, 20) == list(range(20))  # nobody waits for the slow one
        assert received <= 3 * MIB
        session.acknowledges = True
        session.credit(session.marks[-1], 1 << 20)
        assert session.receive().kind == wire.PUSH


def test_a_subscriber_that_makes_its_window_smaller_is_not_stuck(served: Served, context: Context) -> None:
    """None of what it has not acknowledged may have a mark. Then the broker sends one."""
    topic = new_topic(served, "smaller")
    write(served, topic, bytes(99_000), times=30)
    with ZeroMqSession(context, served.listener, window=1 << 20, acknowledges=False) as session:
        session.subscribe(1, topic, max_bytes=100_000)
        unmarked = 0
        with suppress(NothingCame):
            while True:
                unmarked = 0 if session.receive(500).mark else unmarked + 1
        assert unmarked > 0  # of the bytes behind the last mark, nothing can be acknowledged yet
        session.window = unmarked * 50_000
        session.credit(session.marks[-1], session.window)
        asked = session.receive(5_000)
        assert asked.kind == wire.CREDIT
        assert asked.mark
        session.credit(asked.mark, session.window)
        assert session.receive().kind == wire.PUSH


def test_subscriptions_of_one_session_share_its_window(served: Served, context: Context) -> None:
    topic = new_topic(served, "several", partitions=4)
    for each in range(4):
        write(served, topic, bytes(300_000), times=10, partition=each)
    with ZeroMqSession(context, served.listener, window=300_000) as session:
        for each in range(4):
            session.subscribe(each + 1, topic, partition=each, max_bytes=300_000)
        order = [session.push()[0] for _ in range(40)]
    assert {order.count(number) for number in range(1, 5)} == {10}
    assert set(order[:16]) == {1, 2, 3, 4}  # nobody waits until another is done


def test_a_push_with_an_error_is_the_last(served: Served, context: Context) -> None:
    topic = new_topic(served, "errors")
    with ZeroMqSession(context, served.listener) as session:
        session.subscribe(1, "nowhere")
        assert error_of(session.push()[1], "nowhere") == UNKNOWN_TOPIC_OR_PARTITION
        session.subscribe(2, topic, offset=100)
        assert error_of(session.push()[1], topic) == OFFSET_OUT_OF_RANGE
        session.subscribe(2, topic)  # the number is free again
        write(served, topic, b"value")
        assert pushed_offsets(session, topic, 1) == [0]


def test_after_unsubscribed_nothing_comes(served: Served, context: Context) -> None:
    topic = new_topic(served, "left")
    with ZeroMqSession(context, served.listener) as session:
        session.subscribe(1, topic)
        session.send(wire.UNSUBSCRIBE, struct.pack(">Q", 1))
        gone = session.receive()
        assert (gone.kind, gone.subject) == (wire.UNSUBSCRIBED, 1)
        write(served, topic, b"value")
        with pytest.raises(NothingCame):
            session.receive(500)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack(">QiqBI", 0, 0, 0, 0, 1) + wire.string("t"),
        struct.pack(">QiqBI", 1, -1, 0, 0, 1) + wire.string("t"),
        struct.pack(">QiqBI", 1, 0, -1, 0, 1) + wire.string("t"),
        struct.pack(">QiqBI", 1, 0, 0, 2, 1) + wire.string("t"),
        struct.pack(">QiqBI", 1, 0, 0, 0, 1) + b"\xff\xff",
    ],
)
def test_a_subscription_that_cannot_be_ends_the_session(
    body: bytes, served: Served, context: Context
) -> None:
    with ZeroMqSession(context, served.listener) as session:
        session.send(wire.SUBSCRIBE, body)
        with pytest.raises(SessionEnded) as ended:
            session.receive()
        assert ended.value.code == wire.MALFORMED


def test_read_committed_pushes_end_where_an_open_transaction_begins(served: Served, context: Context) -> None:
    from kafka import KafkaProducer

    topic = new_topic(served, "transactions")
    producer = KafkaProducer(bootstrap_servers=served.broker.address, transactional_id="t", acks="all")
    producer.init_transactions()
    with (
        ZeroMqSession(context, served.listener) as committed,
        ZeroMqSession(context, served.listener) as all_of_it,
    ):
        committed.subscribe(1, topic, isolation=READ_COMMITTED)
        all_of_it.subscribe(1, topic)
        producer.begin_transaction()
        producer.send(topic, b"pending").get(30)
        assert pushed_offsets(all_of_it, topic, 1) == [0]
        with pytest.raises(NothingCame):
            committed.receive(700)
        producer.commit_transaction()
        assert pushed_offsets(committed, topic, 2) == [0, 1]  # the record, and the marker
    producer.close()


def test_a_record_is_pushed_as_soon_as_it_is_committed(served: Served, context: Context) -> None:
    """It does not wait for a poll: the median of the way from a producer to a subscriber is milliseconds."""
    topic = new_topic(served, "soon")
    with ZeroMqSession(context, served.listener) as session:
        session.subscribe(1, topic)
        taken_s = []
        for offset in range(15):
            begun = time.monotonic()
            writer = threading.Thread(target=write, args=(served, topic, b"value"))
            writer.start()
            assert pushed_offsets(session, topic, offset + 1) == [offset]
            taken_s.append(time.monotonic() - begun)
            writer.join()
    assert sorted(taken_s)[len(taken_s) // 2] < 2.0
