"""The JSON in the tree, byte by byte as Kafka writes and reads it."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from appliance.control.store.znode_tree import (
    BrokerRecord,
    ClusterIdRecord,
    ConfigRecord,
    ControllerRecord,
    FeatureRecord,
    PartitionStateRecord,
    ProducerIdBlockRecord,
    TopicRecord,
    decode,
    encode,
    id_from_text,
    id_text,
    topic_record,
)
from appliance.errors import CorruptFile

TOPIC_ID = UUID(bytes=bytes(range(16)))


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (
            topic_record(TOPIC_ID, {1: (1, 0), 0: (0, 1)}),
            '{"partitions":{"0":[0,1],"1":[1,0]},"topic_id":"AAECAwQFBgcICQoLDA0ODw",'
            '"adding_replicas":{},"removing_replicas":{},"version":3}',
        ),
        (
            PartitionStateRecord(controller_epoch=3, leader=1, leader_epoch=7, isr=(1, 0)),
            '{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":7,"isr":[1,0]}',
        ),
        (ClusterIdRecord("abc"), '{"version":"1","id":"abc"}'),
        (
            ControllerRecord(brokerid=0, timestamp="1700000000000"),
            '{"version":2,"brokerid":0,"timestamp":"1700000000000","kraftControllerEpoch":-1}',
        ),
        (ConfigRecord({"segment.bytes": "1"}), '{"version":1,"config":{"segment.bytes":"1"}}'),
        (
            ProducerIdBlockRecord(0, "1000", "1999"),
            '{"version":1,"broker":0,"block_start":"1000","block_end":"1999"}',
        ),
        (
            BrokerRecord("h", 9092, ("PLAINTEXT://h:9092",), {"PLAINTEXT": "PLAINTEXT"}, "1", rack="r"),
            '{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://h:9092"],'
            '"jmx_port":-1,"features":{},"host":"h","timestamp":"1","port":9092,"version":5,"rack":"r"}',
        ),
        (
            BrokerRecord("h", 9092, ("PLAINTEXT://h:9092",), {"PLAINTEXT": "PLAINTEXT"}, "1"),
            '{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://h:9092"],'
            '"jmx_port":-1,"features":{},"host":"h","timestamp":"1","port":9092,"version":5}',
        ),
        (FeatureRecord(), '{"features":{},"version":2,"status":1}'),
    ],
)
def test_record_is_kafkas_json_and_reads_back(record: object, text: str) -> None:
    assert json.loads(encode(record)) == json.loads(text)
    assert decode(type(record), text.encode(), path="/x") == record  # type: ignore[type-var]


def test_field_of_a_later_version_is_passed_over() -> None:
    data = (
        b'{"controller_epoch":1,"leader":0,"leader_epoch":0,"isr":[0],"leader_recovery_state":1,"version":1}'
    )
    assert decode(PartitionStateRecord, data, path="/x").isr == (0,)


def test_partitions_come_in_the_order_of_their_numbers() -> None:
    record = TopicRecord("id", {"10": (2,), "9": (1,), "0": (0,)})
    assert record.replicas == [(0,), (1,), (2,)]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"leader":"x"}', b"\xff"])
def test_what_is_no_record_is_damage_that_names_its_node(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="/brokers/topics/t"):
        decode(PartitionStateRecord, data, path="/brokers/topics/t")


def test_id_is_kafkas_text() -> None:
    assert id_text(TOPIC_ID) == "AAECAwQFBgcICQoLDA0ODw"
    assert id_from_text("AAECAwQFBgcICQoLDA0ODw", path="/x") == TOPIC_ID
    for wrong in ("", "short", "AAECAwQFBgcICQoLDA0ODwAA"):
        with pytest.raises(CorruptFile):
            id_from_text(wrong, path="/x")
