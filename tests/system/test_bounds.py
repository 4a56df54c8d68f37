"""What clients can make a broker remember is bounded: others go on, and `appliance status` tells of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.cli.status import processes_of
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.join_group import JoinGroupProtocol, JoinGroupRequest
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.offsets import commit, commit_request
from tests.system.raw import ask, create_topic, new_producer_id, produce, wait_until

TOPIC = "bounded"
GROUPS = 5
PENDING = 10
PRODUCERS = 100
SETTINGS = {
    "group.max.count": GROUPS,
    "group.pending.members.max": PENDING,
    "group.initial.rebalance.delay.ms": 0,
    "group.request.max.bytes": 4096,
    "producer.ids.per.partition.max": PRODUCERS,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "offsets.topic.num.partitions": 4,
    "network.closed.lines.per.minute": 3,
}


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("bounds") / "data", settings=SETTINGS)
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        yield appliance
    finally:
        appliance.stop()


def counted(broker: Appliance, role: str, name: str) -> int:
    rows = processes_of(broker.data_dir.resolve()) or []
    return sum(row["counters"][name] for row in rows if row["role"].split()[0] == role)


def join(connection: WireSocket, group: str, member_id: str = "") -> Any:
    protocols = (JoinGroupProtocol("range", b""),)
    request = JoinGroupRequest(
        group, 1_800_000, member_id, "consumer", protocols, rebalance_timeout_ms=60_000
    )
    return ask(connection, ApiKey.JOIN_GROUP, request)


def test_groups_beyond_the_bound_are_refused_and_those_that_are_there_go_on(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:
        for number in range(GROUPS):
            assert commit(connection, commit_request(f"g{number}", TOPIC, 1)) == [0]
        assert commit(connection, commit_request("one-more", TOPIC, 1)) == [ErrorCode.POLICY_VIOLATION]
        assert join(connection, "one-more").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        for number in range(GROUPS):
            assert commit(connection, commit_request(f"g{number}", TOPIC, 2)) == [0]
        assert join(connection, "g0").error_code == ErrorCode.MEMBER_ID_REQUIRED
    wait_until(lambda: counted(broker, "coordinator", "refused_groups") == 2, "both are counted")
    assert counted(broker, "coordinator", "groups") == GROUPS
    broker.kill_role("coordinator")
    with WireSocket(broker.port) as connection:
        assert commit(connection, commit_request("g0", TOPIC, 3)) == [0]
        assert commit(connection, commit_request("one-more", TOPIC, 1)) == [ErrorCode.POLICY_VIOLATION]


def test_groups_that_nobody_needs_make_room_for_new_ones(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:
        assert commit(connection, commit_request("kept", TOPIC, 1)) == [0]
        for number in range(GROUPS - 1):
            group = f"came-and-went-{number}"
            member = join(connection, group).member_id
            assert join(connection, group, member).error_code == 0
            leave = LeaveGroupRequest(group, members=(MemberIdentity(member),))
            assert ask(connection, ApiKey.LEAVE_GROUP, leave).error_code == 0
        assert len(ask(connection, ApiKey.LIST_GROUPS, ListGroupsRequest()).groups) == GROUPS
        assert join(connection, "new").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED

        def has_room() -> bool:
            return bool(join(connection, "new").error_code == ErrorCode.MEMBER_ID_REQUIRED)

        wait_until(has_room, "the next try finds room")
        listed = ask(connection, ApiKey.LIST_GROUPS, ListGroupsRequest()).groups
        assert {group.group_id for group in listed} == {"kept", "new"}


def test_ids_that_are_given_out_are_few_and_the_newest_is_good(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:
        assert commit(connection, commit_request("g", TOPIC, 1)) == [0]
        first = join(connection, "g").member_id
        for _ in range(50 * PENDING):
            last = join(connection, "g").member_id
        assert join(connection, "g", first).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        wait_until(
            lambda: counted(broker, "coordinator", "forgotten_member_ids") == 49 * PENDING + 1,
            "the forgotten ones are counted",
        )
        described = ask(connection, ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(("g",))).groups
        assert described[0].error_code == 0
    assert last


def test_long_request_about_groups_closes_its_connection_only(broker: Appliance) -> None:
    with WireSocket(broker.port) as good:
        assert commit(good, commit_request("g", TOPIC, 1)) == [0]
        join = JoinGroupRequest(
            "g", 10_000, "", "consumer", (JoinGroupProtocol("range", bytes(5000)),), 60_000
        )
        describe = DescribeGroupsRequest(("name" * 10,) * 200)
        long: tuple[tuple[ApiKey, Any], ...] = ((ApiKey.JOIN_GROUP, join), (ApiKey.DESCRIBE_GROUPS, describe))
        for api, request in long * 3:
            with WireSocket(broker.port) as hostile, pytest.raises(ConnectionEnded):
                ask(hostile, api, request)
        assert commit(good, commit_request("g", TOPIC, 2)) == [0]
    closed = [line for line in broker.output().splitlines() if "group.request.max.bytes" in line]
    assert 3 <= len(closed) <= 6  # of each of two network processes at most three


def test_producers_beyond_the_bound_are_forgotten_by_age_and_go_on(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:

        def send(producer_id: int, epoch: int, sequence: int) -> int:
            now_ms = time.time_ns() // 1_000_000  # an old one would be forgotten for its age
            batch = encode_batch(
                [Record(b"x", timestamp_ms=now_ms)],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            return produce(connection, TOPIC, batch).error

        ids = [new_producer_id(broker.port) for _ in range(3 * PRODUCERS)]
        for producer_id, epoch in ids:
            assert send(producer_id, epoch, 0) == 0
        assert send(*ids[0], 1) == 0
        assert send(*ids[-1], 1) == 0
        assert send(*ids[-1], 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    wait_until(
        lambda: counted(broker, "ioproc", "forgotten_producer_ids") >= 2 * PRODUCERS, "forgotten: counted"
    )
    assert counted(broker, "ioproc", "producer_ids") <= PRODUCERS


def test_find_coordinator_is_not_refused_for_want_of_room(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:
        for number in range(GROUPS):
            assert commit(connection, commit_request(f"g{number}", TOPIC, 1)) == [0]
        found = ask(
            connection, ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=("one-more",))
        )
        assert found.coordinators[0].error_code == 0
