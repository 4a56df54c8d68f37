"""Clients that ask for lists of groups without end, and leave: nobody waits for what they asked."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.offsets import commit, commit_request
from tests.system.raw import ask, create_topic, wait_until

TOPIC = "t"
GROUPS = 1_000
CONNECTIONS = 30
LISTS = 64
WAIT_S = 3.0
"""The first fetch waited for 12 seconds when what closed connections had asked for was still done."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """With GROUPS groups that have an offset each."""
    appliance = Appliance(
        tmp_path_factory.mktemp("listings") / "data", settings={"offsets.topic.num.partitions": 4}
    )
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        with WireSocket(appliance.port) as connection:
            assert commit(connection, commit_request("good", TOPIC, 1)) == [0]
            for at in range(0, GROUPS, 50):
                names = [f"group-{number}" for number in range(at, at + 50)]
                connection.send(
                    b"".join(
                        messages.encode_request(
                            ApiKey.OFFSET_COMMIT, 8, commit_request(name, TOPIC, 1), number
                        )
                        for number, name in enumerate(names)
                    )
                )
                for _ in names:
                    connection.read_frame()
        yield appliance
    finally:
        appliance.stop()


def fetch(connection: WireSocket, group: str = "good") -> int:
    """The group's offset."""
    wanted = OffsetFetchGroup(group, (OffsetFetchTopic(TOPIC, partition_indexes=(0,)),))
    response = ask(connection, ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=(wanted,)), version=8)
    offset: int = response.groups[0].topics[0].partitions[0].committed_offset
    return offset


def dropped(broker: Appliance) -> int:
    """Requests that were not served, because their connections had closed."""
    return sum(row["counters"]["dropped_requests"] for row in broker._rows() if row["role"] == "coordinator")


def test_what_closed_connections_asked_for_is_not_done(broker: Appliance) -> None:
    one = messages.encode_request(ApiKey.LIST_GROUPS, 4, ListGroupsRequest(), 1)
    hostile = [WireSocket(broker.port) for _ in range(CONNECTIONS)]
    for connection in hostile:
        connection.send(one * LISTS)
    for connection in hostile:
        connection.close()
    with WireSocket(broker.port) as good:
        began = time.monotonic()
        assert fetch(good) == 1
        assert time.monotonic() - began < WAIT_S
    wait_until(lambda: dropped(broker) > 0, "requests of closed connections are dropped")


def test_lists_that_many_wait_for_are_whole_and_each_has_its_own_number(broker: Appliance) -> None:
    connections = [WireSocket(broker.port) for _ in range(CONNECTIONS)]
    for number, connection in enumerate(connections):
        for version in (4, 5):
            request = messages.encode_request(ApiKey.LIST_GROUPS, version, ListGroupsRequest(), number)
            connection.send(request * 2)
    expected = {"good", *(f"group-{number}" for number in range(GROUPS))}
    for number, connection in enumerate(connections):
        for version in (4, 4, 5, 5):
            body = connection.read_frame()
            frame = memoryview(len(body).to_bytes(4) + body)
            correlation_id, response = messages.decode_response(ApiKey.LIST_GROUPS, version, frame)
            assert (correlation_id, response.error_code) == (number, 0)
            assert {group.group_id for group in response.groups} == expected
        connection.close()


def test_many_groups_are_described_fetched_and_deleted_at_once(broker: Appliance) -> None:
    names = tuple(f"group-{number}" for number in range(GROUPS))
    with WireSocket(broker.port) as connection:
        described = ask(connection, ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(names)).groups
        assert [group.group_id for group in described] == list(names)
        wanted = OffsetFetchRequest(groups=tuple(OffsetFetchGroup(name) for name in names))
        fetched = ask(connection, ApiKey.OFFSET_FETCH, wanted, version=8).groups
        assert [group.group_id for group in fetched] == list(names)
        assert all(group.topics[0].partitions[0].committed_offset == 1 for group in fetched)
        some = (*names[: GROUPS // 2], "nobody")
        deleted = ask(connection, ApiKey.DELETE_GROUPS, DeleteGroupsRequest(some)).results
        assert [result.error_code for result in deleted] == [0] * (GROUPS // 2) + [69]
        assert len(ask(connection, ApiKey.LIST_GROUPS, ListGroupsRequest()).groups) == GROUPS // 2 + 1
        assert fetch(connection, names[0]) == -1
