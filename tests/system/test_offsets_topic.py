"""The topic that offsets are kept in, `__consumer_offsets`: compacted, replayed whole, readable by Kafka's own tool."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from appliance.log.chunks import Batch, SegmentGone, read_chunks
from appliance.partition_access.access import READ_BYTES
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
)
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.group_partition import group_partition
from appliance.protocol.records.batch import H_RECORDS_COUNT
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.offsets import SETTINGS, commit, commit_request, committed, find, topic_id
from tests.system.raw import ask, create_topic, wait_until

LONG_BYTES = 2 * READ_BYTES + 1


def kafka_uuid(identity: UUID) -> str:
    """As Kafka prints it: url-safe base64 without padding."""
    return base64.urlsafe_b64encode(identity.bytes).decode().rstrip("=")


def test_topic_of_offsets_is_compacted_and_nothing_committed_is_lost(tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.segment.bytes": 1 << 20,
        "log.cleaner.backoff.ms": 50,
    }
    appliance = Appliance(tmp_path, settings=settings)
    appliance.start()
    try:
        create_topic(appliance.port, "busy", partitions=200)
        with WireSocket(appliance.port, timeout_s=30) as connection:
            for number in range(150):
                assert not any(commit(connection, commit_request("busy", "busy", number, partitions=200)))
            assert commit(connection, commit_request("other", "busy", 7)) == [0]
            log = tmp_path / "slot-0" / "__consumer_offsets-0"
            written = 150 * 200

            def is_compacted() -> bool:
                kept = sum(
                    batch.header[H_RECORDS_COUNT] for path in log.glob("*.log") for batch in batches_of(path)
                )
                return kept < written // 2

            wait_until(is_compacted, "the cleaner has been through", timeout_s=30)
            appliance.kill_role("coordinator")
            assert {committed(connection, "busy", "busy", index) for index in (0, 77, 199)} == {149}
            assert committed(connection, "other", "busy") == 7
    finally:
        appliance.stop()


def test_long_log_is_replayed_whole(tmp_path: Path) -> None:
    """What a worker tells of at once ends in the midst of a batch, and the log of a partition is longer than that."""
    settings = {**SETTINGS, "offsets.topic.num.partitions": 1, "log.cleaner.backoff.ms": 600_000}
    appliance = Appliance(tmp_path, settings=settings)
    appliance.start()
    try:
        create_topic(appliance.port, "long", partitions=300)
        with WireSocket(appliance.port, timeout_s=30) as connection:
            find(connection, "long")
            log = tmp_path / "slot-0" / "__consumer_offsets-0"
            number = written = 0
            while written < LONG_BYTES:
                for _ in range(20):
                    number += 1
                    assert not any(commit(connection, commit_request("long", "long", number, partitions=300)))
                written = sum(b.end - b.position for path in log.glob("*.log") for b in batches_of(path))
            appliance.kill_role("coordinator")
            assert {committed(connection, "long", "long", index) for index in (0, 150, 299)} == {number}
    finally:
        appliance.stop()


def batches_of(path: Path) -> list[Batch]:
    """The batches of a segment; none where it is gone meanwhile."""
    with suppress(SegmentGone, FileNotFoundError):
        return [batch for chunk in read_chunks(path, 0, path.stat().st_size) for batch in chunk.batches]
    return []


def test_kafkas_own_tool_reads_our_offsets_and_so_does_the_next_start(tmp_path: Path) -> None:
    appliance = Appliance(tmp_path, settings=SETTINGS)
    appliance.start()
    create_topic(appliance.port, "read", partitions=3)
    with WireSocket(appliance.port, timeout_s=20) as connection:
        # Who looks at the topic before any group was there does not make another kind of topic of it.
        asked = MetadataRequest(
            (TopicSelector(name="__consumer_offsets"), TopicSelector(name="__transaction_state"))
        )
        offsets, transactions = ask(connection, ApiKey.METADATA, asked).topics
        assert (offsets.error_code, len(offsets.partitions)) == (0, 8)
        assert (transactions.error_code, len(transactions.partitions)) == (0, 50)
        resource = DescribedResource(2, "__consumer_offsets", ("cleanup.policy",))
        (described,) = ask(connection, ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest((resource,))).results
        assert [config.value for config in described.configs] == ["compact"]
        find(connection, "reader")
        assert commit(connection, commit_request("reader", "read", 42, partitions=3)) == [0, 0, 0]
        kept = commit_request("reader", "read", 43, retention_time_ms=3_600_000)
        assert commit(connection, kept, version=2) == [0]
        request = OffsetDeleteRequest("reader", (OffsetDeleteTopic("read", (OffsetDeletePartition(2),)),))
        assert ask(connection, ApiKey.OFFSET_DELETE, request).error_code == 0
    identity = topic_id(appliance.port, "read")
    appliance.stop()
    partition = group_partition("reader", 8)
    segment = tmp_path / "slot-0" / f"__consumer_offsets-{partition}" / f"{0:020d}.log"
    printed = tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--offsets-decoder",
        "--files",
        str(segment),
        "--print-data-log",
    )
    told = re.findall(r"key: (\{.*\}\}) payload: (\{.*\}\}|<DELETE>)", printed)
    assert len(told) == 5, printed
    keys = [(json.loads(key)["type"], json.loads(key)["data"]) for key, _ in told]
    assert {kind for kind, _ in keys} == {"1"}
    assert [data["partition"] for _, data in keys] == [0, 1, 2, 0, 2]
    assert all((data["group"], data["topic"]) == ("reader", "read") for _, data in keys)
    first, short = json.loads(told[0][1]), json.loads(told[3][1])
    assert (first["version"], first["data"]["offset"], first["data"]["metadata"]) == ("4", 42, "note 42")
    assert first["data"]["topicId"] == kafka_uuid(identity)
    assert (short["version"], short["data"]["offset"]) == ("1", 43)
    assert told[4][1] == "<DELETE>"
    appliance.start()
    try:
        with WireSocket(appliance.port, timeout_s=20) as connection:
            assert [committed(connection, "reader", "read", index) for index in range(3)] == [43, 42, -1]
    finally:
        appliance.stop()
