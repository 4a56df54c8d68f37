"""Requests of thousands of members, offsets or groups: worked on in pieces, while the offsets of others are told."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
)
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.apis.sync_group import SyncGroupAssignment, SyncGroupRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.offsets import commit, commit_request
from tests.system.raw import ask, create_topic
from tests.system.test_fairness import is_answered

TOPIC = "t"
MANY = 90_000
"""Just below what one request may hold."""
PARTITIONS = 300
ASKED_AT_ONCE = 4
"""Long requests that wait while the good client asks: together they take a second or more."""

Question = tuple[ApiKey, int, Any]

QUESTIONS: dict[str, Question] = {
    "offset fetch": (
        ApiKey.OFFSET_FETCH,
        5,
        OffsetFetchRequest("long", (OffsetFetchTopic(TOPIC, partition_indexes=tuple(range(MANY))),)),
    ),
    "offset commit": (
        ApiKey.OFFSET_COMMIT,
        6,
        OffsetCommitRequest(
            "long",
            topics=(
                OffsetCommitTopic(
                    TOPIC, partitions=tuple(OffsetCommitPartition(index, index) for index in range(MANY))
                ),
            ),
        ),
    ),
    "offset delete": (
        ApiKey.OFFSET_DELETE,
        0,
        OffsetDeleteRequest(
            "good", (OffsetDeleteTopic("absent", tuple(map(OffsetDeletePartition, range(MANY)))),)
        ),
    ),
    "leave group": (ApiKey.LEAVE_GROUP, 5, LeaveGroupRequest("long", members=(MemberIdentity("m"),) * MANY)),
    "sync group": (
        ApiKey.SYNC_GROUP,
        5,
        SyncGroupRequest("long", 1, "m", (SyncGroupAssignment("m", bytes(30)),) * MANY),
    ),
    "heartbeat": (
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        0,
        ConsumerGroupHeartbeatRequest(
            "long-consumer",
            "",
            0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=tuple(f"{number:04x}" for number in range(MANY)),
            topic_partitions=(),
        ),
    ),
    "describe groups": (
        ApiKey.DESCRIBE_GROUPS,
        5,
        DescribeGroupsRequest(tuple(f"{number:04x}" for number in range(MANY))),
    ),
    "delete groups": (
        ApiKey.DELETE_GROUPS,
        2,
        DeleteGroupsRequest(tuple(f"{number:04x}" for number in range(MANY))),
    ),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(
        tmp_path_factory.mktemp("long") / "data", settings={"offsets.topic.num.partitions": 4}
    )
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC, partitions=PARTITIONS) == 0
        with WireSocket(appliance.port) as connection:
            assert commit(connection, commit_request("good", TOPIC, 1)) == [0]
            assert commit(connection, commit_request("long", TOPIC, 1)) == [0]
        yield appliance
    finally:
        appliance.stop()


def offset(connection: WireSocket) -> int:
    wanted = OffsetFetchGroup("good", (OffsetFetchTopic(TOPIC, partition_indexes=(0,)),))
    response = ask(connection, ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=(wanted,)), version=8)
    committed: int = response.groups[0].topics[0].partitions[0].committed_offset
    return committed


def answer(sock: socket.socket, api: ApiKey, version: int) -> Any:
    length = SIZE.unpack(sock.recv(SIZE.size, socket.MSG_WAITALL))[0]
    frame = SIZE.pack(length) + sock.recv(length, socket.MSG_WAITALL)
    return messages.decode_response(api, version, memoryview(frame))[1]


def answers(broker: Appliance, kind: str) -> list[Any]:
    """What ASKED_AT_ONCE connections are answered. Fails where a good client waits for the whole of it."""
    api, version, request = QUESTIONS[kind]
    frame = messages.encode_request(api, version, request, 1)
    socks = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(ASKED_AT_ONCE)]
    try:
        with WireSocket(broker.port) as good:
            assert offset(good) == 1
            began = time.monotonic()
            for sock in socks:
                sock.sendall(frame)
            longest = 0.0
            while not all(map(is_answered, socks)):
                asked = time.monotonic()
                assert offset(good) == 1
                longest = max(longest, time.monotonic() - asked)
        # Both are as long as the machine is slow; whoever waited for the whole of it would have waited as long.
        assert longest < (time.monotonic() - began) / 2
        return [answer(sock, api, version) for sock in socks]
    finally:
        for sock in socks:
            sock.close()


def test_offsets_are_told_while_thousands_of_others_are_fetched(broker: Appliance) -> None:
    for response in answers(broker, "offset fetch"):
        (topic,) = response.topics
        assert [each.partition_index for each in topic.partitions] == list(range(MANY))
        assert [each.committed_offset for each in topic.partitions[:2]] == [1, -1]


def test_offsets_are_told_while_thousands_are_committed(broker: Appliance) -> None:
    for response in answers(broker, "offset commit"):
        (topic,) = response.topics
        told = [each.error_code for each in topic.partitions]
        assert told == [0] * PARTITIONS + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (MANY - PARTITIONS)
    wanted = OffsetFetchGroup("long", (OffsetFetchTopic(TOPIC, partition_indexes=(0, PARTITIONS - 1)),))
    with WireSocket(broker.port) as connection:
        response = ask(connection, ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=(wanted,)), version=8)
        committed = [each.committed_offset for each in response.groups[0].topics[0].partitions]
        assert committed == [0, PARTITIONS - 1]
        assert commit(connection, commit_request("long", TOPIC, 1)) == [0]


@pytest.mark.parametrize(
    ("kind", "errors"),
    [
        ("offset delete", {int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}),
        ("leave group", {int(ErrorCode.UNKNOWN_MEMBER_ID)}),
        ("describe groups", {0}),
        ("delete groups", {int(ErrorCode.GROUP_ID_NOT_FOUND)}),
    ],
)
def test_offsets_are_told_while_thousands_are_named_that_are_not_there(
    broker: Appliance, kind: str, errors: set[int]
) -> None:
    for response in answers(broker, kind):
        named: Any = {
            "offset delete": lambda told: told.topics[0].partitions,
            "leave group": lambda told: told.members,
            "describe groups": lambda told: told.groups,
            "delete groups": lambda told: told.results,
        }[kind](response)
        assert len(named) == MANY
        assert {each.error_code for each in named} == errors


def test_offsets_are_told_while_thousands_are_assigned_what_nobody_leads(broker: Appliance) -> None:
    assert {each.error_code for each in answers(broker, "sync group")} == {int(ErrorCode.UNKNOWN_MEMBER_ID)}


def test_offsets_are_told_while_members_subscribe_to_thousands_of_topics(broker: Appliance) -> None:
    """The first one has room in its group, and others like it have none."""
    errors = sorted(each.error_code for each in answers(broker, "heartbeat"))
    assert errors == [0] + [int(ErrorCode.GROUP_MAX_SIZE_REACHED)] * (ASKED_AT_ONCE - 1)


def test_what_a_closed_connection_has_asked_at_length_is_not_done(broker: Appliance) -> None:
    api, version, request = QUESTIONS["offset fetch"]
    frame = messages.encode_request(api, version, request, 1)
    socks = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(20)]
    for sock in socks:
        sock.sendall(frame)
    for sock in socks:
        sock.close()

    def dropped() -> int:
        return sum(
            row["counters"]["dropped_requests"] for row in broker._rows() if row["role"] == "coordinator"
        )

    with WireSocket(broker.port) as good:
        until = time.monotonic() + 30
        while not dropped():
            assert time.monotonic() < until
            assert offset(good) == 1
