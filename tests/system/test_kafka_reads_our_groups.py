"""Apache Kafka's own dump tool reads every kind of record that groups write, field by field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

from appliance.control.coordinator.group.consumer_records import (
    Change,
    ClassicProtocols,
    CurrentAssignment,
    CurrentChange,
    GroupEpochChange,
    MemberState,
    MemberSubscription,
    RegexChange,
    ResolvedRegex,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
    read_change,
    record_of,
)
from appliance.control.coordinator.runtime.effects import Record
from appliance.protocol.apis.join_group import JoinGroupProtocol
from appliance.protocol.records.record import Record as LogRecord
from appliance.protocol.records.record import encode_batch
from tests.control.coordinator.group.scene import GROUP, Scene
from tests.support.apache_kafka import tool

TOPIC_ID = UUID(int=7)
OWNED = {TOPIC_ID: frozenset({0, 3})}
CHANGES: tuple[Change, ...] = (
    SubscriptionChange(
        "m",
        MemberSubscription(
            "i",
            "r",
            client_id="c",
            client_host="/h",
            topic_names=("a", "b"),
            regex="o.*",
            rebalance_timeout_ms=5,
            assignor="range",
            classic=ClassicProtocols(9, (JoinGroupProtocol("range", b"\x01"),)),
        ),
    ),
    SubscriptionChange("n", MemberSubscription(client_id="c", client_host="/h", rebalance_timeout_ms=6)),
    RegexChange("o.*", ResolvedRegex(("orders",), 4, timestamp_ms=5)),
    GroupEpochChange(3, metadata_hash=-77),
    TargetChange("m", OWNED),
    TargetEpochChange(3),
    CurrentChange(
        "m", CurrentAssignment(2, 1, state=MemberState.UNREVOKED_PARTITIONS, assigned=OWNED, revoking=OWNED)
    ),
    CurrentChange("m", None),
    TargetChange("m", None),
    TargetEpochChange(None),
    SubscriptionChange("m", None),
    RegexChange("o.*", None),
    GroupEpochChange(None),
)


def told_by_kafka(records: list[Record], directory: Path) -> list[tuple[int, Any, Any]]:
    """(type, key, value; None for a tombstone) of each record as the dump tool tells them."""
    segment = directory / "__consumer_offsets-0" / f"{0:020d}.log"
    segment.parent.mkdir()
    batch = encode_batch([LogRecord(one.value, key=one.key) for one in records])
    segment.write_bytes(batch)
    printed = tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--offsets-decoder",
        "--files",
        str(segment),
        "--print-data-log",
    )
    lines = re.findall(r"key: (\{.*\}\}) payload: (\{.*\}|<DELETE>)", printed)
    assert len(lines) == len(records), printed
    told = []
    for key_text, value_text in lines:
        key = json.loads(key_text)
        value = None if value_text == "<DELETE>" else json.loads(value_text)["data"]
        told.append((int(key["type"]), key["data"], value))
    return told


def test_kafka_reads_every_record_of_both_kinds_of_groups(tmp_path: Path) -> None:
    scene = Scene()
    scene.static("one")
    classic = [record for _, record in scene.log]
    told = told_by_kafka([*classic, *(record_of("g", change) for change in CHANGES)], tmp_path)

    kind, key, value = told[len(classic) - 1]
    assert (kind, key) == (2, {"group": GROUP})
    assert (value["protocolType"], value["generation"], value["protocol"]) == ("consumer", 1, "range")
    (member,) = value["members"]
    assert (member["memberId"], member["groupInstanceId"], member["clientHost"]) == (
        "one-1",
        "one",
        "/127.0.0.1",
    )
    assert member["sessionTimeout"] == 10_000

    kinds = [kind for kind, _, _ in told[len(classic) :]]
    assert kinds == [5, 5, 16, 3, 7, 6, 8, 8, 7, 6, 5, 16, 3]
    values = [value for _, _, value in told[len(classic) :]]
    assert values[7:] == [None] * 6
    assert values[0]["classicMemberMetadata"]["supportedProtocols"] == [{"name": "range", "metadata": "AQ=="}]
    del values[0]["classicMemberMetadata"]
    assert values[0] == {
        "instanceId": "i",
        "rackId": "r",
        "clientId": "c",
        "clientHost": "/h",
        "subscribedTopicNames": ["a", "b"],
        "subscribedTopicRegex": "o.*",
        "rebalanceTimeoutMs": 5,
        "serverAssignor": "range",
    }
    assert values[2] == {"topics": ["orders"], "version": 4, "timestamp": 5}
    assert (values[3]["epoch"], values[3]["metadataHash"]) == (3, -77)
    assert values[4]["topicPartitions"][0]["partitions"] == [0, 3]
    assert values[5]["assignmentEpoch"] == 3
    assert (values[6]["memberEpoch"], values[6]["previousMemberEpoch"], values[6]["state"]) == (2, 1, 1)
    assert values[6]["partitionsPendingRevocation"][0]["partitions"] == [0, 3]


def test_we_read_every_record_that_we_write() -> None:
    for change in CHANGES:
        record = record_of("g", change)
        assert read_change(record.key, record.value) == ("g", change)
