"""DescribeQuorum and UpdateFeatures as Apache Kafka answers them on one node. APPLIANCE_JUDGE=kafka asks the judge."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from appliance.protocol.apis.update_features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    UpdateFeaturesRequest,
)
from appliance.protocol.errors import ErrorCode
from tests.support.apache_kafka import tool
from tests.support.broker import Broker
from tests.support.judge import JUDGE, SLOTS, running_broker

METADATA = "__cluster_metadata"
VERSIONS = (0, 1, 2)
ALL_FAILED = "The update failed for all features since the following feature had an error: "


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("quorum") / "data") as started:
        yield started


def described(broker: Broker, version: int, *topics: tuple[str, tuple[int, ...]]) -> Any:
    wanted = tuple(TopicData(name, tuple(map(PartitionData, numbers))) for name, numbers in topics)
    return request(broker.address, ApiKey.DESCRIBE_QUORUM, version, DescribeQuorumRequest(wanted))


def updated(broker: Broker, version: int, *updates: FeatureUpdate, validate_only: bool = False) -> Any:
    asked = UpdateFeaturesRequest(updates, validate_only=validate_only)
    return request(broker.address, ApiKey.UPDATE_FEATURES, version, asked)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_quorum_is_one_voter_that_leads_and_has_all_of_the_metadata(broker: Broker, version: int) -> None:
    told = described(broker, version, (METADATA, (0,)))
    (topic,) = told.topics
    (partition,) = topic.partitions
    (voter,) = partition.current_voters
    assert (told.error_code, topic.topic_name) == (0, METADATA)
    said = "" if version >= 2 else None
    assert (partition.error_code, partition.error_message, told.error_message) == (0, said, said)
    assert voter.replica_id == partition.leader_id
    assert partition.leader_epoch >= 0
    assert 0 < partition.high_watermark <= voter.log_end_offset
    assert len(partition.observers) == SLOTS - 1
    if version >= 1:
        assert abs(voter.last_caught_up_timestamp_ms - time.time() * 1000) < 60_000
    if version >= 2:
        (node,) = told.nodes
        assert node.node_id == partition.leader_id
        assert node.listeners


@pytest.mark.parametrize("version", VERSIONS)
def test_no_other_topic_has_a_quorum(broker: Broker, version: int) -> None:
    for asked in (("t", (0,)), (METADATA, (1,))):
        told = described(broker, version, asked)
        assert told.error_code == 0
        errors = [each.error_code for topic in told.topics for each in topic.partitions]
        assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_feature_may_be_set_to_the_level_that_it_has(broker: Broker, version: int) -> None:
    told = updated(broker, version, FeatureUpdate("group.version", 1), FeatureUpdate("metadata.version", 30))
    assert (told.error_code, told.error_message) == (0, None)
    listed = [] if version >= 2 else [("group.version", 0, "NONE"), ("metadata.version", 0, "NONE")]
    assert [(each.feature, each.error_code, each.error_message) for each in told.results] == listed


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (FeatureUpdate("group.version", 2), "only supports versions 0-1"),
        (FeatureUpdate("metadata.version", 99), "only supports versions 7-"),
        (FeatureUpdate("nobody.version", 1), "does not support this feature."),
        (FeatureUpdate("nobody.version", 0), "Feature nobody.version not found."),
        (FeatureUpdate("group.version", -1), "A feature version cannot be less than 0."),
        (
            FeatureUpdate("group.version", 0),
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"
            " downgrade.",
        ),
        (
            FeatureUpdate("group.version", 1, upgrade_type=9),
            "The controller does not support the given upgrade type.",
        ),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_level_that_cannot_be_is_refused_in_kafkas_words(
    broker: Broker, update: FeatureUpdate, words: str, version: int
) -> None:
    told = updated(broker, version, update)
    assert told.error_code == ErrorCode.INVALID_UPDATE_VERSION
    why = f"Invalid update version {update.max_version_level} for feature {update.feature}. "
    assert told.error_message.startswith(ALL_FAILED + why)
    assert words in told.error_message
    assert told.results == ()


def test_one_feature_with_an_error_fails_them_all(broker: Broker) -> None:
    told = updated(broker, 2, FeatureUpdate("group.version", 1), FeatureUpdate("group.version", 7))
    assert told.error_code == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.skipif(JUDGE == "kafka", reason="Apache Kafka lowers group.version")
@pytest.mark.parametrize("how", [SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
def test_a_level_that_the_broker_does_not_serve_is_refused(broker: Broker, how: int) -> None:
    for update in (
        FeatureUpdate("group.version", 0, upgrade_type=how),
        FeatureUpdate("metadata.version", 29, upgrade_type=how),
    ):
        told = updated(broker, 2, update)
        assert told.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "serves version" in told.error_message
    assert updated(broker, 2, FeatureUpdate("group.version", 1, upgrade_type=UPGRADE)).error_code == 0


@pytest.mark.slow
def test_kafkas_own_tool_describes_the_quorum(broker: Broker) -> None:
    told = tool(
        "org.apache.kafka.tools.MetadataQuorumCommand",
        "--bootstrap-server",
        broker.address,
        "describe",
        "--status",
    )
    lines = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    leader = lines["LeaderId"].strip()
    assert lines["MaxFollowerLag"].strip() == "0"
    assert f'"id": {leader}' in lines["CurrentVoters"]
    assert len(lines["CurrentObservers"].strip("[] \t").split("}, {")) >= 1
