"""DescribeQuorum: the controller is the one voter of the metadata, the other slots observe it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    PartitionData,
    TopicData,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.describe_quorum import METADATA_TOPIC
from tests.requests.serving import Serving, serving


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as made:
        yield made


def described(
    house: Serving, *topics: tuple[str, tuple[int, ...]], version: int = 2
) -> DescribeQuorumResponse:
    wanted = tuple(TopicData(name, tuple(map(PartitionData, numbers))) for name, numbers in topics)
    response: DescribeQuorumResponse = house.ask(
        house.session(), ApiKey.DESCRIBE_QUORUM, version, DescribeQuorumRequest(wanted)
    )
    return response


def test_the_controller_leads_and_votes_and_the_other_slots_observe_without_lag(house: Serving) -> None:
    response = described(house, (METADATA_TOPIC, (0,)))
    (topic,) = response.topics
    (partition,) = topic.partitions
    assert (response.error_code, partition.error_code) == (0, 0)
    assert (partition.leader_id, partition.leader_epoch) == (0, 7)
    assert [voter.replica_id for voter in partition.current_voters] == [0]
    assert [observer.replica_id for observer in partition.observers] == [1]
    ends = {each.log_end_offset for each in partition.current_voters + partition.observers}
    assert ends == {partition.high_watermark}
    assert [(node.node_id, node.listeners) for node in response.nodes] == [
        (0, (Listener("PLAINTEXT", "left", 9092),))
    ]


def test_the_high_watermark_grows_with_each_change_of_the_metadata(house: Serving) -> None:
    before = described(house, (METADATA_TOPIC, (0,))).topics[0].partitions[0].high_watermark
    house.publish()
    assert described(house, (METADATA_TOPIC, (0,))).topics[0].partitions[0].high_watermark == before + 1


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "asked",
    [
        (("t", (0,)),),
        ((METADATA_TOPIC, (1,)),),
        ((METADATA_TOPIC, (0, 1)),),
        ((METADATA_TOPIC, (0,)), ("t", (0,))),
    ],
)
def test_a_question_for_anything_else_is_refused_partition_by_partition(
    house: Serving, asked: tuple[tuple[str, tuple[int, ...]], ...], version: int
) -> None:
    response = described(house, *asked, version=version)
    assert response.error_code == 0
    told = tuple(
        (topic.topic_name, tuple(each.partition_index for each in topic.partitions))
        for topic in response.topics
    )
    assert told == asked
    errors = {each.error_code for topic in response.topics for each in topic.partitions}
    assert errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
