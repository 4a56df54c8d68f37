"""What a client is told by a slot that does not lead, and what one that leads does not show yet."""

from __future__ import annotations

import os
import signal
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import bootstrap, create, in_sync, leaders
from tests.system.raw import suspend, wait_until

SLOTS: Final = 3
ANSWERED_S: Final = 60.0
VALUE: Final = b"not with all of them yet"
PATIENT: Final = {"worker.hang.timeout.ms": 0, "replica.lag.time.max.ms": 600_000}
"""Who stands still is neither ended nor taken out of the ISR."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    broker = Appliance(tmp_path_factory.mktemp("wrong") / "data", slots=SLOTS, settings=PATIENT)
    broker.start()
    yield broker
    broker.stop()


def ask(port: int, request: Any, answer: Any, version: int) -> Any:
    """The decoded answer of a slot."""
    request.with_header(correlation_id=5, client_id="wrong")
    with WireSocket(port, timeout_s=ANSWERED_S) as connection:
        connection.send(request.encode(version=version, header=True, framed=True))
        body = connection.read_frame()
    return answer.decode(len(body).to_bytes(4) + body, version=version, header=True, framed=True)


def produced(port: int, topic: str, value: bytes, *, acks: int = -1) -> Any:
    """A slot's whole answer to one record."""
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=bytes(encode_batch([Record(value)])))
    request = ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=30_000,
        topic_data=[data(name=topic, partition_data=[partition])],
    )
    return ask(port, request, ProduceResponse, 12)


def fetched(broker: Appliance, slot: int, topic: str, *, isolation_level: int = 0) -> Any:
    """A slot's whole answer to who reads from the beginning."""
    admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
    described = admin.describe_topics(TopicCollection([topic]), request_timeout=30)[topic].result(30)
    topic_id = UUID(bytes=urlsafe_b64decode(f"{described.topic_id}=="))
    wanted = FetchRequest.FetchTopic
    partition = wanted.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=[wanted(topic_id=topic_id, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
    return ask(broker.port + slot, request, FetchResponse, 16)


def test_a_slot_that_does_not_lead_names_the_leader_and_where_it_listens(broker: Appliance) -> None:
    create(broker, "led", 1, replicas=SLOTS)
    (leader,) = leaders(broker, "led").values()
    for slot in range(SLOTS):
        written, read = produced(broker.port + slot, "led", b"x"), fetched(broker, slot, "led")
        (taken,) = written.responses[0].partition_responses
        (given,) = read.responses[0].partitions
        if slot == leader:
            assert (taken.error_code, given.error_code) == (0, 0)
            continue
        assert not given.records
        for answer, partition in ((written, taken), (read, given)):
            assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            told = partition.current_leader
            assert (told.leader_id, told.leader_epoch) == (leader, 0)
            (at,) = answer.node_endpoints
            assert (at.node_id, at.host, at.port) == (leader, "127.0.0.1", broker.port + leader)


def test_nobody_is_shown_a_record_that_not_all_in_sync_have(broker: Appliance) -> None:
    create(broker, "hidden", 1, replicas=SLOTS)
    (leader,) = leaders(broker, "hidden").values()
    wait_until(lambda: len(in_sync(broker, "hidden")[0]) == SLOTS, "all in sync", timeout_s=30)
    stopped = [broker.pids(f"replica {slot}")[0] for slot in range(SLOTS) if slot != leader]

    def shown(isolation_level: int) -> tuple[int, bool]:
        (topic,) = fetched(broker, leader, "hidden", isolation_level=isolation_level).responses
        (partition,) = topic.partitions
        assert partition.error_code == 0
        return partition.high_watermark, bool(partition.records)

    for pid in stopped:
        suspend(pid)
    try:
        (topic,) = produced(broker.port + leader, "hidden", VALUE, acks=1).responses
        assert topic.partition_responses[0].error_code == 0
        assert [shown(0), shown(1)] == [(0, False), (0, False)]
        # One of two is not enough: what one lacks may be lost.
        os.kill(stopped[0], signal.SIGCONT)
        follower = next(slot for slot in range(SLOTS) if slot != leader)
        copy = broker.data_dir / f"slot-{follower}" / "hidden-0" / f"{0:020d}.log"
        wait_until(lambda: copy.exists() and VALUE in copy.read_bytes(), "one has it", timeout_s=30)
        assert [shown(0), shown(1)] == [(0, False), (0, False)]
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: shown(0) == (1, True), "it is shown", timeout_s=30)
    assert shown(1) == (1, True)
