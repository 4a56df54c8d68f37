"""A request that no lane can take: the native client says so, sends nothing of it, and loses nothing else."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from appliance_client import Consumer, Producer
from appliance_client import shared_memory as shm
from appliance_client.errors import AbortableError, RecordTooLargeError
from tests.lane.lane_client import LaneClient, api_versions, produce
from tests.support.broker import Appliance
from tests.support.raw_fetch import fetched_batches, is_served
from tests.system.raw import create_topic, wait_until

MIB = 1 << 20
LIMIT = 2 * MIB
PARTITIONS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(
        tmp_path_factory.mktemp("lane") / "data",
        settings={"shared.memory.lanes.max": 20, "message.max.bytes": 16 * MIB},
    )
    appliance.start(180)
    try:
        yield appliance
    finally:
        appliance.stop()


@pytest.fixture
def topic(broker: Appliance, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.split("[")[0]
    assert create_topic(broker.port, name, partitions=PARTITIONS) == 0
    wait_until(partial(is_served, broker.address, name, PARTITIONS), name)
    return name


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every lane that the client asks for from here on."""
    asked: list[Path] = []
    say_hello = shm.say_hello

    def counted(path: Path) -> object:
        asked.append(path)
        return say_hello(path)

    monkeypatch.setattr(shm, "say_hello", counted)
    return asked


def producer_of(broker: Appliance, **options: object) -> Producer:
    return Producer(
        {"max.request.size": 8 * MIB, "delivery.timeout.ms": 60_000},
        bootstrap_servers=f"shm://{broker.data_dir}",
        **options,
    )


def values_of(broker: Appliance, topic: str, partition: int, count: int) -> list[bytes | None]:
    """Return the values of a partition, read over TCP."""
    with Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition)])
        seen: list[bytes | None] = []
        until_s = time.monotonic() + 60
        while len(seen) < count and time.monotonic() < until_s:
            seen += [record.value for listed in consumer.poll(1.0).values() for record in listed]
    return seen


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_a_record_larger_than_a_lane_takes_is_refused_with_the_limit_and_loses_nothing_else(
    broker: Appliance, lanes: list[Path], acks: str
) -> None:
    topic = f"refused-{acks}"
    assert create_topic(broker.port, topic) == 0
    wait_until(partial(is_served, broker.address, topic, 1), topic)
    with producer_of(broker, acks=acks) as producer:
        producer.send(topic, value=b"first").result(60)
        opened = len(lanes)
        before = [producer.send(topic, value=b"b%d" % number) for number in range(50)]
        large = producer.send(topic, value=b"x" * (LIMIT + MIB))
        after = [producer.send(topic, value=b"a%d" % number) for number in range(50)]
        with pytest.raises(RecordTooLargeError, match=rf"{LIMIT} .*shared\.memory\.pool\.bytes"):
            large.result(60)
        offsets = [each.result(60).offset for each in before + after]
        if acks != "0":
            assert offsets == list(range(1, 101))
        assert len(lanes) == opened
    expected = [
        b"first",
        *(b"b%d" % number for number in range(50)),
        *(b"a%d" % number for number in range(50)),
    ]
    assert values_of(broker, topic, 0, len(expected)) == expected


def test_records_that_a_lane_takes_one_by_one_are_sent_in_requests_that_fit(
    broker: Appliance, topic: str, lanes: list[Path]
) -> None:
    with producer_of(broker, linger_ms=200, batch_size=MIB) as producer:
        sent = [
            producer.send(topic, value=b"%d" % number * 700_000, partition=number % PARTITIONS)
            for number in range(8)
        ]
        for each in sent:
            each.result(60)
        assert len(lanes) <= 2  # the bootstrap connection's and the leader's
    for partition in range(PARTITIONS):
        values = [b"%d" % number * 700_000 for number in (partition, partition + PARTITIONS)]
        assert values_of(broker, topic, partition, 2) == values


def test_a_batch_larger_than_a_lane_takes_is_sent_in_parts_in_order(broker: Appliance, topic: str) -> None:
    with producer_of(broker, linger_ms=1000, batch_size=6 * MIB) as producer:
        sent = [producer.send(topic, value=b"%02d" % number * 50_000, partition=0) for number in range(50)]
        assert [each.result(60).offset for each in sent] == list(range(50))
    assert values_of(broker, topic, 0, 50) == [b"%02d" % number * 50_000 for number in range(50)]
    assert len(fetched_batches(broker.address, topic, 0)) > 1


def test_a_transaction_with_a_record_larger_than_a_lane_takes_aborts_and_the_next_one_commits(
    broker: Appliance, topic: str
) -> None:
    with producer_of(broker, transactional_id="large") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"lost", partition=0)
        large = producer.send(topic, value=b"x" * (LIMIT + 1), partition=0)
        with pytest.raises(RecordTooLargeError):
            large.result(60)
        with pytest.raises(AbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        sent = producer.send(topic, value=b"kept", partition=0)
        producer.commit_transaction()
        assert sent.result(0).offset > 0
    with Consumer(
        bootstrap_servers=broker.address, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([(topic, 0)])
        seen: list[bytes | None] = []
        until_s = time.monotonic() + 60
        while not seen and time.monotonic() < until_s:
            seen += [record.value for listed in consumer.poll(1.0).values() for record in listed]
    assert seen == [b"kept"]


def test_a_request_of_exactly_the_limit_is_served_and_one_byte_more_ends_the_lane(broker: Appliance) -> None:
    topic = "exact"
    assert create_topic(broker.port, topic) == 0
    wait_until(partial(is_served, broker.address, topic, 1), topic)
    with LaneClient(broker.data_dir) as other, LaneClient(broker.data_dir) as client:
        limit = client.lane.request_max
        spare = limit - len(produce(topic, b"e" * LIMIT)) + LIMIT
        request = produce(topic, b"e" * spare)
        assert len(request) == limit
        assert struct.unpack_from(">h", client.ask(request), 4 + 4 + 2 + len(topic) + 4 + 4)[0] == 0
        client.raw_slot(0, limit + 1)
        assert client.is_ended()
        assert other.ask(api_versions(9))[:4] == struct.pack(">i", 9)
    assert f"a request of {limit + 1} bytes at 0" in broker.output()


def test_no_request_may_be_larger_than_a_block_of_the_pool(tmp_path: Path) -> None:
    """A pool of 3 MiB has blocks of 2 MiB at most: a larger request would wait for one for ever."""
    settings = {
        "shared.memory.lanes.max": 1,
        "shared.memory.pool.bytes": 8 * MIB,
        "network.pool.bytes": 3 * MIB,
        "socket.request.max.bytes": 3 * MIB,
        "message.max.bytes": 3 * MIB,
    }
    appliance = Appliance(tmp_path / "data", settings=settings)
    appliance.start(180)
    try:
        assert create_topic(appliance.port, "large") == 0
        wait_until(partial(is_served, appliance.address, "large", 1), "large")
        with LaneClient(appliance.data_dir) as client:
            limit = client.lane.request_max
            head = len(produce("large", bytes(MIB))) - MIB
            assert client.ask(produce("large", bytes(limit - head)))
        assert limit == 2 * MIB
    finally:
        appliance.stop()
