"""What no good client asks, answered as Apache Kafka answers it. APPLIANCE_JUDGE=kafka asks the judge the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest, ReplicaAssignment
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource, ResourceType
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from tests.support.broker import Broker
from tests.support.judge import JUDGE, running_broker
from tests.support.raw_fetch import is_served
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic, wait_until

TOPIC, PARTITIONS = "t", 4
TIMES = 3_000


def asked(broker: Broker, api: ApiKey, request: Any) -> Any:
    with WireSocket(int(broker.address.rpartition(":")[2]), timeout_s=60) as connection:
        return ask(connection, api, request)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("odd") / "data") as started:
        port = int(started.address.rpartition(":")[2])
        assert create_topic(port, TOPIC, partitions=PARTITIONS) == 0
        wait_until(partial(is_served, started.address, TOPIC, PARTITIONS), TOPIC)
        yield started


def test_a_topic_that_is_asked_for_many_times_is_told_once(broker: Broker) -> None:
    """Else a request of a megabyte is worth gigabytes where a topic has many partitions."""
    by_name = asked(broker, ApiKey.METADATA, MetadataRequest((TopicSelector(name=TOPIC),) * TIMES, False))
    assert [(topic.name, len(topic.partitions)) for topic in by_name.topics] == [(TOPIC, PARTITIONS)]
    selector = TopicSelector(name=None, topic_id=by_name.topics[0].topic_id)
    by_id = asked(broker, ApiKey.METADATA, MetadataRequest((selector,) * TIMES, False))
    assert [(topic.name, len(topic.partitions)) for topic in by_id.topics] == [(TOPIC, PARTITIONS)]


@pytest.mark.skipif(JUDGE == "kafka", reason="Apache Kafka tells it as many times as it was asked")
def test_settings_that_are_asked_for_many_times_are_told_once(broker: Broker) -> None:
    wanted = (DescribedResource(ResourceType.TOPIC, TOPIC), DescribedResource(ResourceType.BROKER, "0"))
    told = asked(broker, ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(wanted * TIMES))
    assert [each.resource_type for each in told.results] == [ResourceType.TOPIC, ResourceType.BROKER]


def test_two_assignments_of_one_partition_are_refused(broker: Broker) -> None:
    (node,) = asked(broker, ApiKey.METADATA, MetadataRequest((), False)).brokers
    twice = (ReplicaAssignment(0, (node.node_id,)),) * 2
    request = CreateTopicsRequest((CreatableTopic("twice", assignments=twice), CreatableTopic("once", 1)))
    told = asked(broker, ApiKey.CREATE_TOPICS, request)
    assert {topic.name: topic.error_code for topic in told.topics} == {
        "twice": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "once": 0,
    }


def test_a_deletion_of_nothing_by_name_is_refused(broker: Broker) -> None:
    request = DeleteTopicsRequest((TopicSelector(name=None), TopicSelector(name="nowhere")), 10_000)
    told = asked(broker, ApiKey.DELETE_TOPICS, request)
    assert {topic.name: topic.error_code for topic in told.responses} == {
        None: ErrorCode.INVALID_REQUEST,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_topic_that_is_to_be_deleted_twice_is_refused_once_and_stays(broker: Broker) -> None:
    request = DeleteTopicsRequest((TopicSelector(name=TOPIC),) * TIMES, 10_000)
    told = asked(broker, ApiKey.DELETE_TOPICS, request)
    assert [(topic.name, topic.error_code) for topic in told.responses] == [
        (TOPIC, ErrorCode.INVALID_REQUEST)
    ]
    assert (
        asked(broker, ApiKey.METADATA, MetadataRequest((TopicSelector(name=TOPIC),), False))
        .topics[0]
        .partitions
    )


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 3)])
def test_half_of_a_producers_identity_is_refused(broker: Broker, producer_id: int, epoch: int) -> None:
    request = InitProducerIdRequest(None, 1_000, producer_id, epoch)
    assert asked(broker, ApiKey.INIT_PRODUCER_ID, request).error_code == ErrorCode.INVALID_REQUEST


def test_what_is_allowed_on_the_cluster_is_what_a_cluster_has(broker: Broker) -> None:
    told = asked(broker, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(True))
    assert told.cluster_authorized_operations == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_brokers_answer_as_brokers_whomever_is_asked_for(
    broker: Broker, endpoint_type: int, error: ErrorCode
) -> None:
    told = asked(broker, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(False, endpoint_type))
    assert (told.error_code, told.brokers, told.endpoint_type) == (error, (), 1)
