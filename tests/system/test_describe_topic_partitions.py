"""DescribeTopicPartitions in pages, and cursors that lead nowhere. APPLIANCE_JUDGE=kafka asks the judge the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    PartitionCursor,
    TopicName,
)
from appliance.protocol.errors import ErrorCode
from tests.support.broker import Broker
from tests.support.judge import running_broker
from tests.support.raw_fetch import is_served
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic, wait_until

TOPICS = {"a": 3, "b": 2}


def port_of(broker: Broker) -> int:
    return int(broker.address.rpartition(":")[2])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("described") / "data") as started:
        for name, partitions in TOPICS.items():
            assert create_topic(port_of(started), name, partitions=partitions) == 0
            wait_until(partial(is_served, started.address, name, partitions), name)
        yield started


def described(
    broker: Broker, *names: str, limit: int = 2000, cursor: PartitionCursor | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(tuple(map(TopicName, names)), limit, cursor)
    with WireSocket(port_of(broker)) as connection:
        response = ask(connection, ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)
    assert isinstance(response, DescribeTopicPartitionsResponse)
    return response


def rows(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, int]]:
    return [(topic.name, each.partition_index) for topic in response.topics for each in topic.partitions]


def test_a_page_ends_where_its_limit_says_and_the_next_one_goes_on_there(broker: Broker) -> None:
    first = described(broker, "b", "a", limit=2)
    assert (rows(first), first.next_cursor) == ([("a", 0), ("a", 1)], PartitionCursor("a", 2))
    second = described(broker, "b", "a", limit=2, cursor=first.next_cursor)
    assert (rows(second), second.next_cursor) == ([("a", 2), ("b", 0)], PartitionCursor("b", 1))
    last = described(broker, "b", "a", limit=2, cursor=second.next_cursor)
    assert (rows(last), last.next_cursor) == ([("b", 1)], None)


def test_a_page_that_ends_with_its_topic_goes_on_with_the_next(broker: Broker) -> None:
    first = described(broker, "a", "b", limit=3)
    assert (len(rows(first)), first.next_cursor) == (3, PartitionCursor("b", 0))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_has_one_partition_at_least(broker: Broker, limit: int) -> None:
    assert rows(described(broker, "a", limit=limit)) == [("a", 0)]


def test_a_cursor_beyond_the_last_partition_goes_on_with_the_next_topic(broker: Broker) -> None:
    response = described(broker, "a", "b", cursor=PartitionCursor("a", 9))
    assert rows(response) == [("b", 0), ("b", 1)]


def test_who_asks_for_all_may_go_on_at_a_topic_that_has_gone(broker: Broker) -> None:
    assert rows(described(broker, cursor=PartitionCursor("aa", 1))) == [("b", 0), ("b", 1)]


@pytest.mark.parametrize(
    "cursor",
    [PartitionCursor("a", -1), PartitionCursor("elsewhere", 0)],
    ids=["negative partition", "topic that was not asked for"],
)
def test_a_cursor_that_leads_nowhere_is_refused_for_each_topic(
    broker: Broker, cursor: PartitionCursor
) -> None:
    response = described(broker, "a", "b", cursor=cursor)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.INVALID_REQUEST),
    ]
    assert rows(response) == []


def test_what_is_not_there_is_told_by_its_own_error(broker: Broker) -> None:
    response = described(broker, "a", "nowhere", "no/name")
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "a": 0,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "no/name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
