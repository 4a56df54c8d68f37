"""Committed offsets over real processes: what was acknowledged is there after any kill, in Kafka's own bytes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.join_group import JoinGroupProtocol, JoinGroupRequest
from appliance.protocol.apis.metadata import MetadataRequest
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
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.records.offset_records import offset_key
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.offsets import SETTINGS, commit, commit_request, committed, find, topic_id
from tests.system.raw import ask, create_topic, produce, suspend, wait_until

COMMIT_VERSIONS = range(2, 11)
FETCH_VERSIONS = range(1, 11)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("offsets"), settings=SETTINGS)
    appliance.start()
    yield appliance
    appliance.stop()


def test_first_question_for_a_coordinator_creates_the_topic_as_kafka_does(tmp_path: Path) -> None:
    appliance = Appliance(tmp_path)
    appliance.start()
    try:
        with WireSocket(appliance.port, timeout_s=20) as connection:
            found = ask(
                connection, ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=("a", "b"))
            )
            assert [(c.key, c.node_id, c.port, c.error_code) for c in found.coordinators] == [
                ("a", 0, appliance.port, 0),
                ("b", 0, appliance.port, 0),
            ]
            (topic,) = ask(
                connection, ApiKey.METADATA, MetadataRequest((TopicSelector(name="__consumer_offsets"),))
            ).topics
            assert (topic.is_internal, len(topic.partitions)) == (True, 50)
            request = FindCoordinatorRequest("x", 9)
            refused = ask(connection, ApiKey.FIND_COORDINATOR, request, version=3)
            assert refused.error_code == ErrorCode.INVALID_REQUEST
            assert commit(connection, OffsetCommitRequest("g")) == []
    finally:
        appliance.stop()


def test_coordinator_sleeps_when_nobody_asks_any_more(tmp_path: Path) -> None:
    """It looks out for the next request of a member that commits again and again, but not for ever."""
    appliance = Appliance(tmp_path)
    appliance.start()
    try:
        create_topic(appliance.port, "quiet")
        with WireSocket(appliance.port, timeout_s=20) as connection:
            for offset in range(100):
                assert commit(connection, commit_request("quiet", "quiet", offset)) == [0]
            (pid,) = appliance.pids("coordinator")
            watched = [
                psutil.Process(each) for each in (pid, *appliance.pids("ioproc"), *appliance.pids("netproc"))
            ]

            def is_asleep() -> bool:
                before = [each.num_ctx_switches() for each in watched]
                time.sleep(0.3)
                return [each.num_ctx_switches() for each in watched] == before and all(
                    each.status() == psutil.STATUS_SLEEPING for each in watched
                )

            wait_until(is_asleep, "everybody sleeps while a member is connected and silent")
    finally:
        appliance.stop()


def test_every_version_commits_and_fetches_the_same(broker: Appliance) -> None:
    create_topic(broker.port, "versions", partitions=2)
    identity = topic_id(broker.port, "versions")
    with WireSocket(broker.port, timeout_s=20) as connection:
        for version in COMMIT_VERSIONS:
            by = {"topic_id": identity} if version >= 10 else {"name": "versions"}
            partitions = (OffsetCommitPartition(1, 100 + version, "said", 3),)
            request = OffsetCommitRequest(
                "versions", topics=(OffsetCommitTopic(**by, partitions=partitions),)
            )
            assert commit(connection, request, version=version) == [0]
            assert committed(connection, "versions", "versions", 1) == 100 + version
        for version in FETCH_VERSIONS:
            by = {"topic_id": identity} if version >= 10 else {"name": "versions"}
            topics = (OffsetFetchTopic(**by, partition_indexes=(0, 1)),)
            fetch = (
                OffsetFetchRequest(groups=(OffsetFetchGroup("versions", topics),))
                if version >= 8
                else OffsetFetchRequest("versions", topics)
            )
            response = ask(connection, ApiKey.OFFSET_FETCH, fetch, version=version)
            (topic,) = response.groups[0].topics if version >= 8 else response.topics
            never, told = topic.partitions
            assert (never.committed_offset, never.error_code) == (-1, 0)
            assert (told.committed_offset, told.metadata, told.error_code) == (110, "said", 0)
            assert told.committed_leader_epoch == (3 if version >= 5 else -1)
        batched = OffsetFetchRequest(groups=(OffsetFetchGroup("versions"), OffsetFetchGroup("nobody")))
        one, other = ask(connection, ApiKey.OFFSET_FETCH, batched, version=9).groups
        assert [topic.name for topic in one.topics] == ["versions"]
        assert (other.topics, other.error_code) == ((), 0)


def test_five_thousand_partitions_are_committed_in_one_request(broker: Appliance) -> None:
    # Three hundred real ones, named over and over: the last of each counts.
    create_topic(broker.port, "wide", partitions=300)
    each = tuple(OffsetCommitPartition(number % 300, number, "m") for number in range(5000))
    with WireSocket(broker.port, timeout_s=30) as connection:
        request = OffsetCommitRequest("wide", topics=(OffsetCommitTopic("wide", partitions=each),))
        assert commit(connection, request) == [0] * 5000
        fetch = OffsetFetchRequest(groups=(OffsetFetchGroup("wide"),))
        (group,) = ask(connection, ApiKey.OFFSET_FETCH, fetch, version=9).groups
        told = {p.partition_index: p.committed_offset for p in group.topics[0].partitions}
    assert told == {number % 300: number for number in range(4700, 5000)}


def test_commit_larger_than_a_batch_is_refused_and_holds_nobody_up(broker: Appliance) -> None:
    create_topic(broker.port, "huge")
    with WireSocket(broker.port, timeout_s=30) as connection:
        assert commit(connection, commit_request("huge", "huge", 1)) == [0]
        # The last one is larger than the pool that every batch goes through.
        for count in (300, 10_000):
            each = tuple(OffsetCommitPartition(0, 2, "m" * 4000) for _ in range(count))
            request = OffsetCommitRequest("huge", topics=(OffsetCommitTopic("huge", partitions=each),))
            assert set(commit(connection, request)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert committed(connection, "huge", "huge") == 1
        assert commit(connection, commit_request("huge", "huge", 3)) == [0]


def test_a_commit_may_be_as_large_as_the_brokers_largest_batch(broker: Appliance) -> None:
    create_topic(broker.port, "large")
    admin = AdminClient({"bootstrap.servers": broker.address})
    each = tuple(OffsetCommitPartition(0, 2, "m" * 4000) for _ in range(500))
    request = OffsetCommitRequest("large", topics=(OffsetCommitTopic("large", partitions=each),))

    def allow(length_bytes: int) -> None:
        resource = ConfigResource(ConfigResource.Type.BROKER, "0")
        resource.add_incremental_config(
            ConfigEntry("message.max.bytes", str(length_bytes), incremental_operation=AlterConfigOpType.SET)
        )
        admin.incremental_alter_configs([resource])[resource].result(30)

    with WireSocket(broker.port, timeout_s=30) as connection:
        assert set(commit(connection, request)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        allow(4_000_000)
        try:
            assert set(commit(connection, request)) == {0}
            assert committed(connection, "large", "large") == 2
        finally:
            allow(1_048_588)


def test_client_writes_no_internal_topic(broker: Appliance) -> None:
    batch = encode_batch([Record(b"v", b"k", (), 1)])
    with WireSocket(broker.port, timeout_s=20) as connection:
        find(connection, "any")
        assert produce(connection, "__consumer_offsets", batch).error == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_commit_of_a_generation_that_never_was_is_refused(broker: Appliance) -> None:
    create_topic(broker.port, "old-generation")
    request = commit_request("old", "old-generation", 1, generation_id_or_member_epoch=3, member_id="m")
    with WireSocket(broker.port, timeout_s=20) as connection:
        find(connection, "old")
        assert commit(connection, request, version=8) == [ErrorCode.ILLEGAL_GENERATION]
        assert commit(connection, request, version=9) == [ErrorCode.GROUP_ID_NOT_FOUND]
        assert committed(connection, "old", "old-generation") == -1


def test_deleted_offsets_are_gone_and_stay_gone(broker: Appliance) -> None:
    create_topic(broker.port, "deleted", partitions=2)
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert commit(connection, commit_request("deleted", "deleted", 5, partitions=2)) == [0, 0]
        request = OffsetDeleteRequest("deleted", (OffsetDeleteTopic("deleted", (OffsetDeletePartition(0),)),))
        response = ask(connection, ApiKey.OFFSET_DELETE, request)
        assert (response.error_code, response.topics[0].partitions[0].error_code) == (0, 0)
        assert [committed(connection, "deleted", "deleted", index) for index in (0, 1)] == [-1, 5]
        broker.kill_role("coordinator")
        assert [committed(connection, "deleted", "deleted", index) for index in (0, 1)] == [-1, 5]
        unknown = OffsetDeleteRequest("never", (OffsetDeleteTopic("deleted", (OffsetDeletePartition(0),)),))
        assert ask(connection, ApiKey.OFFSET_DELETE, unknown).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_go_with_their_topic_and_with_their_time(broker: Appliance) -> None:
    create_topic(broker.port, "short-lived")
    create_topic(broker.port, "lasting")
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert commit(connection, commit_request("mourner", "short-lived", 5)) == [0]
        assert commit(connection, commit_request("mourner", "lasting", 6)) == [0]
        ask(
            connection,
            ApiKey.DELETE_TOPICS,
            DeleteTopicsRequest((TopicSelector("short-lived"),), timeout_ms=30_000),
        )
        wait_until(lambda: create_topic(broker.port, "short-lived") == 0, "the name is free again")
        assert committed(connection, "mourner", "short-lived") == -1
        broker.kill_role("coordinator")
        assert committed(connection, "mourner", "short-lived") == -1
        assert committed(connection, "mourner", "lasting") == 6
        brief = commit_request("brief", "lasting", 7, retention_time_ms=1)
        assert commit(connection, brief, version=2) == [0]
        wait_until(
            lambda: committed(connection, "brief", "lasting") == -1, "the offset expires", timeout_s=30
        )
        assert committed(connection, "mourner", "lasting") == 6


def test_offsets_of_a_topic_that_went_while_nobody_coordinated_are_deleted_by_the_next(
    broker: Appliance,
) -> None:
    create_topic(broker.port, "replaced")
    partition = group_partition("absent", 8)
    log = broker.data_dir / "slot-0" / f"__consumer_offsets-{partition}" / "00000000000000000000.log"
    tombstone = offset_key("absent", "replaced", 0)
    with WireSocket(broker.port, timeout_s=30) as connection:
        assert commit(connection, commit_request("absent", "replaced", 5)) == [0]
        (coordinator,) = broker.pids("coordinator")
        os.kill(coordinator, signal.SIGSTOP)
        deleting = DeleteTopicsRequest((TopicSelector("replaced"),), timeout_ms=30_000)
        ask(connection, ApiKey.DELETE_TOPICS, deleting)
        wait_until(lambda: create_topic(broker.port, "replaced") == 0, "the name is free again")
        assert log.read_bytes().count(tombstone) == 1
        os.kill(coordinator, signal.SIGKILL)
        assert committed(connection, "absent", "replaced") == -1
        wait_until(lambda: log.read_bytes().count(tombstone) == 2, "the offset is deleted", timeout_s=30)


def test_member_that_waits_for_others_hears_of_the_coordinators_death(broker: Appliance) -> None:
    join = JoinGroupRequest("waiting", 10_000, "", "consumer", (JoinGroupProtocol("range", b""),), 60_000)
    with WireSocket(broker.port, timeout_s=30) as member, WireSocket(broker.port, timeout_s=30) as other:
        # Longer than the test lasts: a group of this broker waits 20 s for its first members.
        assert committed(other, "waiting", "any") == -1
        member.send(messages.encode_request(ApiKey.JOIN_GROUP, 2, join, 1, client_id="raw"))
        wait_until(lambda: state_of(other, "waiting") == "PreparingRebalance", "the member waits")
        broker.kill_role("coordinator")
        answer = member.read_frame()
        assert int.from_bytes(answer[8:10], "big") == ErrorCode.COORDINATOR_NOT_AVAILABLE
        # The connection lives on, and the next coordinator answers on it.
        assert committed(member, "waiting", "any") == -1


@contextmanager
def by_confluent(address: str, group: str) -> Iterator[Callable[[], int]]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})

    def read() -> int:
        (found,) = consumer.committed([TopicPartition("asked", 0)], timeout=30)
        offset: int = found.offset
        return offset

    with closing(consumer):
        yield read


@contextmanager
def by_kafka_python(address: str, group: str) -> Iterator[Callable[[], int]]:
    with closing(KafkaConsumer(bootstrap_servers=address, group_id=group)) as consumer:
        yield lambda: consumer.committed(PythonPartition("asked", 0))


@pytest.mark.parametrize("reader", [by_confluent, by_kafka_python])
def test_who_asks_for_its_offsets_while_the_coordinator_is_away_waits_and_is_told(
    broker: Appliance, reader: Callable[[str, str], AbstractContextManager[Callable[[], int]]]
) -> None:
    create_topic(broker.port, "asked")
    group = reader.__name__
    with WireSocket(broker.port, timeout_s=30) as connection:
        assert commit(connection, commit_request(group, "asked", 5)) == [0]
    with reader(broker.address, group) as read:
        for _ in range(3):
            assert read() == 5
            broker.kill_role("coordinator")
            assert read() == 5


def test_nothing_is_acknowledged_or_told_before_it_is_in_the_log(broker: Appliance) -> None:
    create_topic(broker.port, "pending")
    with WireSocket(broker.port, timeout_s=30) as reader, WireSocket(broker.port, timeout_s=0.5) as writer:
        find(reader, "pending")
        assert commit(reader, commit_request("pending", "pending", 1)) == [0]
        (worker,) = broker.pids("ioproc")
        suspend(worker)
        try:
            request = commit_request("pending", "pending", 2)
            writer.send(messages.encode_request(ApiKey.OFFSET_COMMIT, 9, request, 1, client_id="raw"))
            with pytest.raises(TimeoutError):
                writer.read_frame()
            assert committed(reader, "pending", "pending") == 1
        finally:
            os.kill(worker, signal.SIGCONT)
        wait_until(lambda: committed(reader, "pending", "pending") == 2, "the record is in the log")


def test_request_that_does_not_parse_costs_its_connection_only(broker: Appliance) -> None:
    with WireSocket(broker.port, timeout_s=30) as bad, WireSocket(broker.port, timeout_s=30) as good:
        assert committed(good, "any", "any") == -1
        bad.send_request(ApiKey.OFFSET_COMMIT, 8, b"\xff\xff\xff\xff\x7f", flexible=True)
        assert bad.ends_without_an_answer()
        assert committed(good, "any", "any") == -1


def state_of(connection: WireSocket, group: str) -> str:
    (described,) = ask(connection, ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest((group,)), version=5).groups
    state: str = described.group_state
    return state
