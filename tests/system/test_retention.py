"""Old records go: on request and by limits; seen by real clients, through kills, and by the disk."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonTopicPartition

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from appliance.protocol.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.support.raw_fetch import FETCH, PARTITION, REQUEST, VERSION, fetch, parse_batches
from tests.support.wire import WireSocket, nullable_string
from tests.system.raw import MIB, ask, create_topic, produce, wait_until

EARLIEST = -2
WITHIN_S = 30.0
SMALL_SEGMENTS = {"segment.bytes": str(MIB), "file.delete.delay.ms": "0"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    started = Appliance(
        tmp_path / "data",
        settings={
            "log.retention.check.interval.ms": 50,
            "log.flush.start.offset.checkpoint.interval.ms": 0,
        },
    )
    started.start()
    try:
        yield started
    finally:
        started.stop()


def fill(broker: Appliance, topic: str, *, records: int, record_bytes: int = 300_000) -> None:
    with WireSocket(broker.port) as connection:
        for number in range(records):
            # Not one batch like the next, so that a wrong place is seen.
            value = b"%d:" % number + bytes(record_bytes)
            assert produce(connection, topic, encode_batch([Record(value)])).base_offset == number


def delete_records(
    broker: Appliance, topic: str, before: int, *, partition: int = 0, version: int = 2
) -> tuple[int, int]:
    """(error, low watermark)"""
    wanted = DeleteRecordsTopic(topic, (DeleteRecordsPartition(partition, before),))
    with WireSocket(broker.port) as connection:
        answer = ask(
            connection, ApiKey.DELETE_RECORDS, DeleteRecordsRequest((wanted,), 30_000), version=version
        )
    result = answer.topics[0].partitions[0]
    assert (answer.topics[0].name, result.partition_index) == (topic, partition)
    return result.error_code, result.low_watermark


def earliest(broker: Appliance, topic: str) -> int:
    wanted = ListOffsetsTopic(topic, (ListOffsetsPartition(0, EARLIEST),))
    with WireSocket(broker.port) as connection:
        answer = ask(connection, ApiKey.LIST_OFFSETS, ListOffsetsRequest(-1, (wanted,)))
    found: int = answer.topics[0].partitions[0].offset
    return found


def reads_the_oldest(broker: Appliance, connection: WireSocket) -> bool:
    """Fetches from the log start; False when retention was there between the question and the fetch."""
    try:
        return bool(fetch(connection, "t", 0, offset=earliest(broker, "t"), max_bytes=1))
    except AssertionError as refused:
        assert f"error {int(ErrorCode.OFFSET_OUT_OF_RANGE)}" in str(refused)  # noqa: PT017
        return False


def segments(broker: Appliance, topic: str) -> list[str]:
    directory = broker.data_dir / "slot-0" / f"{topic}-0"
    return sorted(name for name in os.listdir(directory) if ".log" in name)


def nameless_files(broker: Appliance) -> list[str]:
    """Files of the log that a process still holds although they are gone: room that does not come back."""
    return [
        target
        for process in broker.family()
        for target in links(process)
        if str(broker.data_dir) in target and target.endswith("(deleted)")
    ]


def links(process: psutil.Process) -> list[str]:
    found = []
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            found.append(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("version", [0, 1, 2])
def test_each_version_of_delete_records_answers_the_low_watermark_or_why_not(
    broker: Appliance, version: int
) -> None:
    assert create_topic(broker.port, "t") == 0
    assert create_topic(broker.port, "compacted", configs={"cleanup.policy": "compact"}) == 0
    fill(broker, "t", records=5, record_bytes=10)
    assert delete_records(broker, "t", 3, version=version) == (0, 3)
    assert delete_records(broker, "t", 2, version=version) == (0, 3)
    for topic, partition, before, error in (
        ("t", 0, 6, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("t", 0, -2, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("t", 1, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("compacted", 0, 0, ErrorCode.POLICY_VIOLATION),
    ):
        assert delete_records(broker, topic, before, partition=partition, version=version) == (error, -1)
    assert earliest(broker, "t") == 3
    assert delete_records(broker, "t", -1, version=version) == (0, 5)
    assert earliest(broker, "t") == 5


def test_a_partition_named_twice_is_answered_once_by_the_last_offset(broker: Appliance) -> None:
    assert create_topic(broker.port, "t") == 0
    fill(broker, "t", records=5, record_bytes=10)
    twice = (DeleteRecordsPartition(0, 99), DeleteRecordsPartition(0, 1))
    with WireSocket(broker.port) as connection:
        request = DeleteRecordsRequest((DeleteRecordsTopic("t", twice),), 30_000)
        (topic,) = ask(connection, ApiKey.DELETE_RECORDS, request).topics
    (result,) = topic.partitions
    assert (result.error_code, result.low_watermark) == (0, 1)


def test_confluent_kafka_deletes_records_and_its_consumer_is_told(broker: Appliance) -> None:
    assert create_topic(broker.port, "t") == 0
    fill(broker, "t", records=10, record_bytes=10)
    admin = AdminClient({"bootstrap.servers": broker.address})
    (deleted,) = admin.delete_records([TopicPartition("t", 0, 4)]).values()
    assert deleted.result(WITHIN_S).low_watermark == 4
    (refused,) = admin.delete_records([TopicPartition("t", 0, 11)]).values()
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        refused.result(WITHIN_S)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        assert consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=WITHIN_S) == (4, 10)
        consumer.assign([TopicPartition("t", 0, 3)])
        message = consumer.poll(WITHIN_S)
        assert message is not None
        error = message.error()
        assert error is not None
        assert "out of range" in error.str().lower()
        consumer.assign([TopicPartition("t", 0, 4)])
        message = consumer.poll(WITHIN_S)
        assert message is not None
        assert (message.error(), message.offset()) == (None, 4)
    finally:
        consumer.close()


def test_kafka_python_deletes_records(broker: Appliance) -> None:
    assert create_topic(broker.port, "t") == 0
    fill(broker, "t", records=10, record_bytes=10)
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        admin.delete_records({PythonTopicPartition("t", 0): 6})
    finally:
        admin.close()
    assert earliest(broker, "t") == 6


def test_the_command_line_deletes_records(broker: Appliance) -> None:
    assert create_topic(broker.port, "t", partitions=2) == 0
    fill(broker, "t", records=4, record_bytes=10)
    command = ("topics", "delete-records", "t", "--yes", "-b", broker.address)
    assert appliance(*command, "--before", "0=3").succeeded().text == "t-0 begins at 3\n"
    told = appliance(*command, "--before", "1=end", "--before", "0=end").succeeded().text
    assert told == "t-0 begins at 4\nt-1 begins at 0\n"
    refused = appliance(*command, "--before", "0=5")
    assert refused.code == 1
    assert "OFFSET_OUT_OF_RANGE" in refused.errors
    assert appliance(*command, "--before", "0=-5").code == 2


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_deleted_records_do_not_come_back_with_the_next_life(broker: Appliance, how: str) -> None:
    assert create_topic(broker.port, "t") == 0
    fill(broker, "t", records=10, record_bytes=10)
    assert delete_records(broker, "t", 7) == (0, 7)
    checkpoint = broker.data_dir / "slot-0" / "log-start-offset-checkpoint"
    if how == "stop":
        broker.stop()
    else:
        wait_until(
            lambda: checkpoint.exists() and "t 0 7" in checkpoint.read_text(),
            "the log start is written down",
            timeout_s=WITHIN_S,
        )
        broker.kill()
    assert checkpoint.read_text() == "0\n1\nt 0 7\n"
    broker.start()
    assert earliest(broker, "t") == 7
    with WireSocket(broker.port) as connection:
        kept = list(parse_batches(fetch(connection, "t", 0, offset=7)))
    assert [batch.base_offset for batch in kept] == [7, 8, 9]


def test_room_comes_back_although_network_processes_had_the_segments_open(broker: Appliance) -> None:
    configs = SMALL_SEGMENTS | {"retention.bytes": str(3 * MIB)}
    assert create_topic(broker.port, "t", configs=configs) == 0
    with WireSocket(broker.port) as reader:
        for _ in range(3):
            with WireSocket(broker.port) as connection:
                for _ in range(6):
                    assert produce(connection, "t", encode_batch([Record(bytes(300_000))])).error == 0
            wait_until(lambda: reads_the_oldest(broker, reader), "the oldest is read", timeout_s=WITHIN_S)
        wait_until(lambda: earliest(broker, "t") > 0, "retention by size", timeout_s=WITHIN_S)
        wait_until(lambda: reads_the_oldest(broker, reader), "the oldest is read", timeout_s=WITHIN_S)
        wait_until(
            lambda: (
                not nameless_files(broker) and not any("deleted" in name for name in segments(broker, "t"))
            ),
            "no process holds a file that is gone",
            timeout_s=WITHIN_S,
        )
    kept_bytes = sum(
        (broker.data_dir / "slot-0" / "t-0" / name).stat().st_size for name in segments(broker, "t")
    )
    assert kept_bytes >= 3 * MIB


def test_an_answer_that_is_being_sent_is_finished_although_its_segment_is_deleted(broker: Appliance) -> None:
    segment_bytes = 24 * MIB
    configs = SMALL_SEGMENTS | {"segment.bytes": str(segment_bytes)}
    assert create_topic(broker.port, "t", configs=configs) == 0
    fill(broker, "t", records=30, record_bytes=900_000)
    first = segments(broker, "t")[0]
    size_bytes = (broker.data_dir / "slot-0" / "t-0" / first).stat().st_size
    expected = (broker.data_dir / "slot-0" / "t-0" / first).read_bytes()
    with WireSocket(broker.port, timeout_s=WITHIN_S) as reader:
        wanted = REQUEST.pack(-1, 1000, 1, segment_bytes, 0) + struct.pack(">i", 1)
        wanted += nullable_string("t") + struct.pack(">i", 1) + PARTITION.pack(0, 0, segment_bytes)
        reader.send_request(FETCH, VERSION, wanted, flexible=False)
        wait_until(
            lambda: any(first in target for process in broker.family() for target in links(process)),
            "the answer is on its way",
            timeout_s=WITHIN_S,
        )
        # Nobody reads yet, and a socket holds less than the answer.
        assert delete_records(broker, "t", -1) == (0, 30)
        wait_until(lambda: first not in segments(broker, "t"), "the segment goes", timeout_s=WITHIN_S)
        answer = reader.read_frame()
    assert len(answer) > size_bytes
    assert answer.endswith(expected)
    wait_until(lambda: not nameless_files(broker), "the file is let go", timeout_s=WITHIN_S)


def test_expired_records_go_and_producing_goes_on(broker: Appliance) -> None:
    configs = SMALL_SEGMENTS | {"retention.ms": "300"}
    assert create_topic(broker.port, "t", configs=configs) == 0
    fill(broker, "t", records=8)
    wait_until(lambda: earliest(broker, "t") == 8, "all of it is too old", timeout_s=WITHIN_S)
    with WireSocket(broker.port) as connection:
        assert produce(connection, "t", encode_batch([Record(b"next")])).base_offset == 8
