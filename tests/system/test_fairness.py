"""Costly requests are worked on between others, in parts that nobody can tell from the answer, and bounded."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from appliance.protocol.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket, nullable_string
from tests.system.raw import ask, create_topic, produce, wait_until

MANY = 90_000
"""Just below what one request may hold."""
PARTITIONS_MAX = 2000
"""max.request.partition.size.limit"""
AUTO_CREATED_MAX = 7
BATCH = encode_batch([Record(b"value")])
TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """One network process, so that all connections share it."""
    appliance = Appliance(
        tmp_path_factory.mktemp("fair") / "data",
        settings={"network.processes": 1, "auto.create.topics.request.max": AUTO_CREATED_MAX},
    )
    appliance.start()
    try:
        assert create_topic(appliance.port, "wide", partitions=300) == 0
        yield appliance
    finally:
        appliance.stop()


def long_question() -> bytes:
    """A request that takes a second or more."""
    keys = tuple(f"group-{number}" for number in range(MANY))
    request = FindCoordinatorRequest(coordinator_keys=keys)
    return bytes(messages.encode_request(ApiKey.FIND_COORDINATOR, 6, request, 1, client_id="raw"))


def is_answered(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])


def test_others_are_served_while_a_long_request_is_worked_on(broker: Appliance) -> None:
    question = long_question()
    with WireSocket(broker.port) as good, socket.create_connection(("127.0.0.1", broker.port)) as long:
        produce(good, "wide", BATCH)
        began = time.monotonic()
        long.sendall(question)
        longest = 0.0
        while not is_answered(long):
            asked = time.monotonic()
            assert produce(good, "wide", BATCH).error == 0
            longest = max(longest, time.monotonic() - asked)
        # Both are as long as the machine is slow; who had to wait for the whole of it would have waited nearly as long.
        assert longest < (time.monotonic() - began) / 2
        length = SIZE.unpack(long.recv(4, socket.MSG_WAITALL))[0]
        answer = SIZE.pack(length) + long.recv(length, socket.MSG_WAITALL)
    _, response = messages.decode_response(ApiKey.FIND_COORDINATOR, 6, memoryview(answer))
    assert [each.key for each in response.coordinators] == [f"group-{number}" for number in range(MANY)]


def validated(broker: Appliance, topics: list[CreatableTopic]) -> CreateTopicsResponse:
    with WireSocket(broker.port, timeout_s=120) as connection:
        request = CreateTopicsRequest(tuple(topics), TIMEOUT_MS, True)
        response: CreateTopicsResponse = ask(connection, ApiKey.CREATE_TOPICS, request)
    return response


def test_creation_asked_for_in_parts_has_the_bound_of_one_request(broker: Appliance) -> None:
    topics = [CreatableTopic(f"part-{number}", 2, 1) for number in range(PARTITIONS_MAX // 2 + 300)]
    results = validated(broker, topics).topics
    assert {each.name for each in results} == {each.name for each in topics}
    errors = Counter(each.error_code for each in results)
    assert errors == {0: PARTITIONS_MAX // 2, ErrorCode.POLICY_VIOLATION: 300}


def test_a_topic_named_twice_is_refused_however_far_apart(broker: Appliance) -> None:
    topics = [CreatableTopic(f"twice-{number % 900}", 1, 1) for number in range(901)]
    errors = {each.name: each.error_code for each in validated(broker, topics).topics}
    assert errors.pop("twice-0") == ErrorCode.INVALID_REQUEST
    assert set(errors.values()) == {0}
    assert len(errors) == 899


def test_deletion_and_settings_asked_for_in_parts_are_answered_for_each(broker: Appliance) -> None:
    with WireSocket(broker.port, timeout_s=120) as connection:
        made = tuple(CreatableTopic(f"gone-{number}", 1, 1) for number in range(3))
        assert not any(
            t.error_code
            for t in ask(
                connection, ApiKey.CREATE_TOPICS, CreateTopicsRequest(made, TIMEOUT_MS, False)
            ).topics
        )
        unknown = tuple(f"unknown-{number}" for number in range(1200))
        names = (*unknown[:600], *(topic.name for topic in made), *unknown[600:], "unknown-5")
        change = (AlterableConfig("retention.ms", 0, "1000"),)
        altered = tuple(AlterConfigsResource(2, name, change) for name in names)
        asked = IncrementalAlterConfigsRequest(altered, False)
        responses = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, asked).responses
        assert [each.resource_name for each in responses] == list(names)
        configured = {each.resource_name: each.error_code for each in responses}
        doomed = DeleteTopicsRequest(tuple(TopicSelector(name=name) for name in names), TIMEOUT_MS)
        deleted = ask(connection, ApiKey.DELETE_TOPICS, doomed).responses
    for errors in (configured, {each.name: each.error_code for each in deleted}):
        assert {errors.pop(topic.name) for topic in made} == {0}
        assert errors.pop("unknown-5") == ErrorCode.INVALID_REQUEST
        assert set(errors.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert len(errors) == 1199


def test_offsets_of_more_partitions_than_are_asked_for_at_once_come_in_the_order_asked(
    broker: Appliance,
) -> None:
    with WireSocket(broker.port) as connection:
        partitions = tuple(ListOffsetsPartition(number, 1) for number in reversed(range(300)))
        request = ListOffsetsRequest(-1, (ListOffsetsTopic("wide", partitions),))
        (topic,) = ask(connection, ApiKey.LIST_OFFSETS, request).topics
    assert [each.partition_index for each in topic.partitions] == list(reversed(range(300)))
    assert {each.error_code for each in topic.partitions} == {0}


def test_a_worker_does_not_sleep_while_lookups_wait_and_nobody_else_asks(broker: Appliance) -> None:
    partitions = tuple(ListOffsetsPartition(number, 1) for number in range(20))
    request = ListOffsetsRequest(-1, (ListOffsetsTopic("wide", partitions),))
    # A worker looks at its sockets in every eighth round: one of these rounds comes in between.
    for _ in range(8):
        with WireSocket(broker.port) as connection:
            (topic,) = ask(connection, ApiKey.LIST_OFFSETS, request).topics
        assert {each.error_code for each in topic.partitions} == {0}


def test_a_fetch_of_more_partitions_than_there_can_be_is_refused(broker: Appliance) -> None:
    for count, error in ((9_000, 0), (11_000, int(ErrorCode.INVALID_REQUEST))):
        partitions = b"".join(struct.pack(">iiqqi", number, -1, 0, -1, 1) for number in range(count))
        topics = struct.pack(">i", 1) + nullable_string("wide") + struct.pack(">i", count) + partitions
        head = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1)
        with WireSocket(broker.port) as connection:
            body = head + topics + struct.pack(">i", 0) + nullable_string("")
            connection.send_request(int(ApiKey.FETCH), 11, body, flexible=False)
            answer = connection.read_frame()
            assert struct.unpack_from(">h", answer, 8)[0] == error
            assert produce(connection, "wide", BATCH).error == 0


def test_one_metadata_request_creates_so_many_topics_and_the_next_one_the_others(broker: Appliance) -> None:
    names = tuple(f"auto-{number}" for number in range(2 * AUTO_CREATED_MAX + 1))
    request = MetadataRequest(tuple(TopicSelector(name=name) for name in names), True)
    created = []
    with WireSocket(broker.port) as connection:
        for _ in range(3):
            topics = ask(connection, ApiKey.METADATA, request).topics
            errors = Counter(each.error_code for each in topics)
            assert set(errors) <= {0, ErrorCode.LEADER_NOT_AVAILABLE}
            created.append(errors[0])
    assert created == [AUTO_CREATED_MAX, 2 * AUTO_CREATED_MAX, 2 * AUTO_CREATED_MAX + 1]


def test_a_stop_does_not_wait_for_long_requests(tmp_path_factory: pytest.TempPathFactory) -> None:
    appliance = Appliance(tmp_path_factory.mktemp("stop") / "data")
    appliance.start()
    socks = [socket.create_connection(("127.0.0.1", appliance.port)) for _ in range(12)]
    try:
        question = long_question()
        for sock in socks:
            sock.setblocking(False)
            try:
                sock.send(question)
            except BlockingIOError:
                continue
        wait_until(appliance.is_whole, "all live")
        time.sleep(0.2)
    finally:
        appliance.stop()  # fails where a process had to be killed
        for sock in socks:
            sock.close()
