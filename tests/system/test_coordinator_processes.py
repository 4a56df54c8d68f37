"""Several coordinator processes: each serves its partitions of `__consumer_offsets`, and its death is theirs alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE
from appliance.protocol.group_partition import group_partition
from appliance.protocol.messages import decode_response, encode_request
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.offsets import RETRIED, SETTINGS, commit, commit_request, committed, find
from tests.system.raw import ask, create_topic, suspend, wait_until

PROCESSES = 2
PARTITIONS = 8
TOPIC = "shared"
GROUPS = 100
THREADS = 10
KILL_EVERY_S = 1.0


def owner(group: str) -> int:
    """Which coordinator process serves the group."""
    return group_partition(group, PARTITIONS) % PROCESSES


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    settings = {
        **SETTINGS,
        "coordinator.processes": PROCESSES,
        "offsets.topic.num.partitions": PARTITIONS,
        "group.initial.rebalance.delay.ms": 0,
    }
    appliance = Appliance(tmp_path, settings=settings)
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        yield appliance
    finally:
        appliance.stop()


def names(count: int) -> list[str]:
    return [f"group-{number}" for number in range(count)]


def commit_all(port: int, groups: list[str], offset: int) -> None:
    with WireSocket(port, timeout_s=30) as connection:
        find(connection, groups[0])
        for group in groups:
            assert commit(connection, commit_request(group, TOPIC, offset)) == [0]


def until_served(connection: WireSocket, api: ApiKey, request: Any, groups: str, name: str) -> dict[str, Any]:
    """The answer's groups by name, once none of them says "come again"."""
    found: dict[str, Any] = {}

    def is_served() -> bool:
        each = getattr(ask(connection, api, request), groups)
        found.clear()
        found.update({getattr(one, name): one for one in each})
        assert len(found) == len(each), "no group twice"
        return not any(one.error_code in RETRIED for one in each if hasattr(one, "error_code"))

    wait_until(is_served, "every group is served", timeout_s=30)
    return found


def test_requests_of_many_groups_are_answered_for_all_of_them_by_all_coordinators(broker: Appliance) -> None:
    groups = names(20)
    assert {owner(group) for group in groups} == {0, 1}
    commit_all(broker.port, groups, 5)
    with WireSocket(broker.port, timeout_s=30) as connection:
        listed = until_served(connection, ApiKey.LIST_GROUPS, ListGroupsRequest(), "groups", "group_id")
        assert set(listed) == set(groups)
        wanted = OffsetFetchRequest(groups=tuple(OffsetFetchGroup(group) for group in groups))
        fetched = until_served(connection, ApiKey.OFFSET_FETCH, wanted, "groups", "group_id")
        offsets = {
            name: one.topics[0].partitions[0].committed_offset for name, one in fetched.items() if one.topics
        }
        assert offsets == dict.fromkeys(groups, 5)
        asked = DescribeGroupsRequest((*groups, "nobody"))
        described = until_served(connection, ApiKey.DESCRIBE_GROUPS, asked, "groups", "group_id")
        assert set(described) == {*groups, "nobody"}
        assert {described[group].group_state for group in groups} == {"Empty"}
        modern = until_served(
            connection,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            ConsumerGroupDescribeRequest(tuple(groups)),
            "groups",
            "group_id",
        )
        assert {one.error_code for one in modern.values()} == {ErrorCode.GROUP_ID_NOT_FOUND}
        deleted = until_served(
            connection, ApiKey.DELETE_GROUPS, DeleteGroupsRequest(tuple(groups)), "results", "group_id"
        )
        assert {name: one.error_code for name, one in deleted.items()} == dict.fromkeys(groups, 0)
        assert ask(connection, ApiKey.LIST_GROUPS, ListGroupsRequest()).groups == ()


def test_request_that_is_worked_on_in_pieces_is_answered_once_for_each_group(broker: Appliance) -> None:
    groups = names(1000)
    commit_all(broker.port, groups[:20], 5)
    with WireSocket(broker.port, timeout_s=30) as connection:
        asked = DescribeGroupsRequest(tuple(groups))
        described = until_served(connection, ApiKey.DESCRIBE_GROUPS, asked, "groups", "group_id")
        assert set(described) == set(groups)
        wanted = OffsetFetchRequest(groups=tuple(OffsetFetchGroup(group) for group in groups))
        fetched = until_served(connection, ApiKey.OFFSET_FETCH, wanted, "groups", "group_id")
        assert set(fetched) == set(groups)
        assert {name for name, one in fetched.items() if one.topics} == set(groups[:20])
        deleted = until_served(
            connection, ApiKey.DELETE_GROUPS, DeleteGroupsRequest(tuple(groups)), "results", "group_id"
        )
        assert {name for name, one in deleted.items() if not one.error_code} == set(groups[:20])


def test_groups_of_one_coordinator_are_served_while_another_stands_still_and_dies(broker: Appliance) -> None:
    groups = names(20)
    commit_all(broker.port, groups, 1)
    rows = {row.role: row.pid for row in broker.processes() if row.role.startswith("coordinator")}
    assert list(rows) == ["coordinator", "coordinator 1"]
    others = [group for group in groups if owner(group) == 0]
    concerned = [group for group in groups if owner(group) == 1]
    suspend(rows["coordinator 1"])
    with WireSocket(broker.port, timeout_s=30) as waiting, WireSocket(broker.port, timeout_s=30) as served:
        request = commit_request(concerned[0], TOPIC, 2)
        waiting.send(encode_request(ApiKey.OFFSET_COMMIT, 9, request, 5, client_id="waits"))
        for group in others:
            assert commit(served, commit_request(group, TOPIC, 2)) == [0]
        broker.kill_role("coordinator", 1)
        frame = waiting.read_frame()
        _, answer = decode_response(ApiKey.OFFSET_COMMIT, 9, memoryview(SIZE.pack(len(frame)) + frame))
        told = [each.error_code for topic in answer.topics for each in topic.partitions]
        assert told == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        for group in concerned:
            assert commit(served, commit_request(group, TOPIC, 3)) == [0]
        assert {group: committed(served, group, TOPIC) for group in groups} == {
            **dict.fromkeys(others, 2),
            **dict.fromkeys(concerned, 3),
        }
    after = {row.role: row.pid for row in broker.processes()}
    assert after["coordinator"] == rows["coordinator"]
    assert after["coordinator 1"] != rows["coordinator 1"]


class Members(threading.Thread):
    """Some groups with a member each, of a real client, that commits 1, 2, 3 …; what was acknowledged is `acked`."""

    def __init__(self, port: int, groups: list[str]) -> None:
        super().__init__(daemon=True)
        self.groups = groups
        self.acked = dict.fromkeys(groups, 0)
        self.tried = dict.fromkeys(groups, 0)
        self.fault: Exception | None = None
        self.stop = threading.Event()
        self._port = port

    def run(self) -> None:
        consumers: dict[str, Consumer] = {}
        try:
            for group in self.groups:
                consumer = Consumer(
                    {
                        "bootstrap.servers": f"127.0.0.1:{self._port}",
                        "group.id": group,
                        "enable.auto.commit": False,
                        "log_level": 0,
                        "reconnect.backoff.max.ms": 200,
                        "coordinator.query.interval.ms": 100,
                        "socket.timeout.ms": 5000,
                    }
                )
                consumer.subscribe([TOPIC])
                consumers[group] = consumer
            while not self.stop.is_set():
                for group, consumer in consumers.items():
                    self._commit(group, consumer)
                time.sleep(0.01)
        except Exception as fault:
            self.fault = fault
        finally:
            for consumer in consumers.values():
                consumer.close()

    def _commit(self, group: str, consumer: Consumer) -> None:
        consumer.poll(0)
        if not consumer.assignment():
            return
        number = self.tried[group] = self.tried[group] + 1
        try:
            (done,) = consumer.commit(offsets=[TopicPartition(TOPIC, 0, number)], asynchronous=False)
        except KafkaException:
            return
        if done.error is None:
            self.acked[group] = number


def killed_while_they_commit(broker: Appliance, kills: int) -> None:
    groups = names(GROUPS)
    per_thread = GROUPS // THREADS
    threads = [Members(broker.port, groups[at : at + per_thread]) for at in range(0, GROUPS, per_thread)]
    for thread in threads:
        thread.start()

    def acked() -> dict[str, int]:
        assert [thread.fault for thread in threads] == [None] * len(threads)
        return {group: number for thread in threads for group, number in thread.acked.items()}

    def every_group_commits(what: str) -> None:
        before = acked()
        wait_until(
            lambda: all(number > before[group] for group, number in acked().items()), what, timeout_s=120
        )

    every_group_commits("every group has a member that commits")
    for kill in range(kills):
        time.sleep(KILL_EVERY_S)
        broker.kill_role("coordinator", kill % PROCESSES)
    every_group_commits("every group commits after the last death")
    for thread in threads:
        thread.stop.set()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    tried = {group: number for thread in threads for group, number in thread.tried.items()}
    with WireSocket(broker.port, timeout_s=30) as connection:
        for group, number in acked().items():
            assert number <= committed(connection, group, TOPIC) <= tried[group], group


def test_hundred_groups_lose_no_commit_while_a_coordinator_is_killed_each_second(broker: Appliance) -> None:
    killed_while_they_commit(broker, kills=6)


@pytest.mark.slow
def test_hundred_groups_lose_no_commit_in_a_minute_of_coordinators_deaths(broker: Appliance) -> None:
    killed_while_they_commit(broker, kills=60)
