"""What librdkafka would mend in silence voids a figure, and so does what a coordinator forgets.

Errors at will come from librdkafka's mock cluster; a lost connection also from a real appliance whose network processes
are killed, which are started again at once. Compiles the generators and the mock.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from benchmarks.brokers.broker import create_topics
from benchmarks.brokers.mock import Mock
from benchmarks.cases import CASES
from benchmarks.cases.case import QUICK, Bench
from benchmarks.load import generators
from benchmarks.load.generators import Requests
from benchmarks.machine import WarmMemory
from benchmarks.void import Void
from tests.benchmarks.stand_ins import StandIn
from tests.support.broker import Appliance

pytestmark = pytest.mark.slow

PRODUCE, FETCH, INIT_PRODUCER_ID = 0, 1, 22
COORDINATOR_LOADS, NOT_LEADER, REQUEST_TIMED_OUT, CONNECTION_LOST = 14, 6, 7, -195
RECORDS, RECORD_BYTES, PARTITIONS = 5000, 100, 2
KILLED_AFTER_S = 1.5
ENOUGH_RECORDS = 6_000_000
"""To be under way for longer than that: 3 s at two million a second."""

Load = Callable[[str, str], object]
"""A generator at an address and a topic."""


def client_latency(address: str, topic: str) -> object:
    return generators.client_latency(address, topic, seconds=KILLED_AFTER_S + 1)


def fixed_rate(address: str, topic: str) -> object:
    return generators.fixed_rate(
        address, [topic], partitions=PARTITIONS, records_s=1000, seconds=KILLED_AFTER_S + 1
    )


def stream_in(address: str, topic: str) -> object:
    return generators.stream_in(address, topic, records=RECORDS, record_bytes=RECORD_BYTES)


def long_stream_in(address: str, topic: str) -> object:
    return generators.stream_in(address, topic, records=ENOUGH_RECORDS, record_bytes=RECORD_BYTES)


def idempotent_stream_in(address: str, topic: str) -> object:
    settings = (generators.IDEMPOTENT,)
    return generators.stream_in(address, topic, records=RECORDS, record_bytes=RECORD_BYTES, settings=settings)


def stream_out(address: str, topic: str) -> object:
    return generators.stream_out(address, topic, records=RECORDS, record_bytes=RECORD_BYTES)


def stream_out_in_a_group(address: str, topic: str) -> object:
    return generators.streams_out(
        address, topic, readers=1, records=RECORDS, record_bytes=RECORD_BYTES, in_groups=True
    )


WRITERS = (client_latency, fixed_rate, stream_in, idempotent_stream_in)
READERS = (stream_out, stream_out_in_a_group)


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Mock]:
    broker = Mock(tmp_path)
    with broker:
        broker.create_topic("t", PARTITIONS)
        yield broker


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    broker = Appliance(tmp_path_factory.mktemp("data"), settings={"group.initial.rebalance.delay.ms": 0})
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def topic(appliance: Appliance, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)
    create_topics(appliance.address, [name], PARTITIONS)
    return name


def fail(mock: Mock, key: int, code: int) -> None:
    """The next request of this API."""
    assert mock.process is not None
    assert mock.process.stdin is not None
    mock.process.stdin.write(f"fail {key} {code}\n")
    mock.process.stdin.flush()
    assert mock.next_line(time.monotonic() + 10) == f"failing {key}\n"


@pytest.mark.parametrize("load", WRITERS)
def test_a_lost_connection_voids_what_was_written_all_the_same(mock: Mock, load: Load) -> None:
    fail(mock, PRODUCE, CONNECTION_LOST)
    with pytest.raises(Void, match=r"Disconnected|brokers are down"):
        load(mock.address, "t")


@pytest.mark.parametrize("load", [fixed_rate, stream_out])
def test_a_lost_connection_voids_what_was_read_all_the_same(mock: Mock, load: Load) -> None:
    if load is stream_out:
        stream_in(mock.address, "t")
    fail(mock, FETCH, CONNECTION_LOST)
    with pytest.raises(Void, match=r"Disconnected|brokers are down"):
        load(mock.address, "t")


@pytest.mark.parametrize("error", [NOT_LEADER, REQUEST_TIMED_OUT])
@pytest.mark.parametrize("load", WRITERS)
def test_a_record_that_was_sent_again_voids(mock: Mock, load: Load, error: int) -> None:
    fail(mock, PRODUCE, error)
    with pytest.raises(Void, match="some more than once"):
        load(mock.address, "t")


@pytest.mark.parametrize("load", [fixed_rate, idempotent_stream_in])
def test_producer_ids_that_are_not_loaded_yet_are_waited_for_before(mock: Mock, load: Load) -> None:
    """As Kafka's are not just after its start."""
    fail(mock, INIT_PRODUCER_ID, COORDINATOR_LOADS)
    load(mock.address, "t")


@pytest.mark.parametrize("load", [client_latency, fixed_rate, long_stream_in])
def test_network_processes_that_came_back_in_time_void(appliance: Appliance, topic: str, load: Load) -> None:
    def kill() -> None:
        for pid in appliance.pids("netproc"):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Timer(KILLED_AFTER_S, kill)
    killer.start()
    try:
        with pytest.raises(Void, match=r"Disconnected|brokers are down|reset by peer|refused"):
            load(appliance.address, topic)
    finally:
        killer.join()


@pytest.mark.parametrize("load", WRITERS)
def test_a_writer_without_an_error_counts(appliance: Appliance, topic: str, load: Load) -> None:
    load(appliance.address, topic)


@pytest.mark.parametrize("load", READERS)
def test_a_reader_without_an_error_counts(appliance: Appliance, topic: str, load: Load) -> None:
    stream_in(appliance.address, topic)
    load(appliance.address, topic)


def test_a_record_too_many_that_was_read_voids(appliance: Appliance, topic: str) -> None:
    generators.stream_in(appliance.address, topic, records=RECORDS + 1, record_bytes=RECORD_BYTES)
    with pytest.raises(Void, match=f"{RECORDS + 1} of {RECORDS} records read"):
        stream_out(appliance.address, topic)


@pytest.mark.parametrize("name", ["commits_1", "commits_50"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_the_last_commit_of_a_member_that_is_lost_voids(
    appliance: Appliance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_lost: bool
) -> None:
    running = StandIn(tmp_path)
    running.address = appliance.address
    generator = generators.one_record

    def forgetful(mode: str, address: str, *, topic: str, seconds: float, connections: int) -> Requests:
        asked = generator(mode, address, topic=topic, seconds=seconds, connections=connections)
        last = connections - 1
        before = generators.committed_offset(last) + asked.answered[last] - 2
        if is_lost:
            consumer = Consumer({"bootstrap.servers": address, "group.id": "bench-group-000000"})
            consumer.commit(offsets=[TopicPartition(topic, last, before)], asynchronous=False)
            consumer.close()
        return asked

    monkeypatch.setattr(generators, "one_record", forgetful)
    case = CASES[name]
    memory = WarmMemory(0, folder=tmp_path)
    # Its topics are named by a number, and the appliance is that of all these tests.
    bench = Bench(broker=running, scale=QUICK, memory=memory, made=time.monotonic_ns())
    if is_lost:
        with pytest.raises(Void, match="bench-group-000000 has lost"):
            case.run(bench)
    else:
        assert case.run(bench)["commits_s"] > 0
