"""Members of groups that speak ZeroMQ only: they join, are assigned, are pushed their partition, and commit."""

from __future__ import annotations

import io
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
import zmq
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.consumer_group_heartbeat.v1.response import ConsumerGroupHeartbeatResponse
from kio.schema.types import GroupId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32, i32Timedelta

from appliance.protocol.api_versions import ApiKey
from tests.support import zeromq_wire as wire
from tests.support.broker import Appliance
from tests.support.zeromq_wire import ZeroMqSession, string
from tests.system.raw import wait_until
from tests.system.test_zeromq import Context, Served, new_topic
from tests.system.test_zeromq_push import pushed_offsets, write

RECORDS = 5
PROTOCOL = "by-hand"
PATIENCE_S = 60
UNKNOWN_MEMBER_ID = 25


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("zg")
    listener = f"ipc://{home}/s"
    settings: dict[str, object] = {"listeners.zeromq": [listener], "group.initial.rebalance.delay.ms": 0}
    appliance = Appliance(home / "data", settings=settings)
    appliance.start(180)
    try:
        yield Served(appliance, listener)
    finally:
        appliance.stop()


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


def data(some: bytes) -> bytes:
    return struct.pack(">i", len(some)) + some


def subscription(topic: str) -> bytes:
    """ConsumerProtocolSubscription, version 0."""
    return data(struct.pack(">hi", 0, 1) + string(topic) + struct.pack(">i", -1))


def assignment(topic: str) -> bytes:
    """ConsumerProtocolAssignment, version 0: partition 0."""
    return struct.pack(">hi", 0, 1) + string(topic) + struct.pack(">iii", 1, 0, -1)


@dataclass(frozen=True, slots=True)
class Member:
    """Of a group by the classic protocol."""

    group: str
    generation: int
    id: str

    def head(self) -> bytes:
        """What Heartbeat, SyncGroup and OffsetCommit begin with."""
        return string(self.group) + struct.pack(">i", self.generation) + string(self.id)


def join_request(group: str, topic: str, member: str) -> bytes:
    body = string(group) + struct.pack(">ii", 30_000, 30_000) + string(member) + string("consumer")
    return body + struct.pack(">i", 1) + string(PROTOCOL) + subscription(topic)


def ask(session: ZeroMqSession, api: ApiKey, version: int, body: bytes) -> bytes:
    """Return the response behind its correlation id."""
    return session.ask(struct.pack(">hhi", api, version, 9) + string("member"), body)[4:]


def await_coordinator(session: ZeroMqSession, group: str) -> None:
    wait_until(
        lambda: ask(session, ApiKey.FIND_COORDINATOR, 0, string(group))[:2] == b"\0\0", "a coordinator"
    )


def join(session: ZeroMqSession, group: str, topic: str, member: str = "") -> Member:
    """JoinGroup, which waits for the other members."""
    answer = ask(session, ApiKey.JOIN_GROUP, 2, join_request(group, topic, member))
    throttle, error, generation, length = struct.unpack_from(">ihih", answer)
    assert (throttle, error) == (0, 0)
    assert answer[12 : 12 + length].decode() == PROTOCOL
    at = 12 + length
    at += 2 + struct.unpack_from(">h", answer, at)[0]  # the leader
    (length,) = struct.unpack_from(">h", answer, at)
    return Member(group, generation, answer[at + 2 : at + 2 + length].decode())


def sync(session: ZeroMqSession, member: Member, assigned: bytes) -> bytes:
    """SyncGroup by the leader, who assigns to itself; return the assignment."""
    body = member.head() + struct.pack(">i", 1) + string(member.id) + data(assigned)
    answer = ask(session, ApiKey.SYNC_GROUP, 0, body)
    assert answer[:2] == b"\0\0"
    return answer[6:]


def commit(session: ZeroMqSession, member: Member, topic: str, offset: int) -> int:
    """OffsetCommit of partition 0; return its error."""
    body = member.head() + struct.pack(">qi", -1, 1)
    body += string(topic) + struct.pack(">iiq", 1, 0, offset) + string("")
    answer = ask(session, ApiKey.OFFSET_COMMIT, 2, body)
    return int(struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)[0])


def lag(served: Served, group: str, topic: str) -> int:
    """As an admin client over TCP sees it."""
    admin = AdminClient({"bootstrap.servers": served.broker.address})
    place = TopicPartition(topic, 0)
    (told,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [place])]).values()
    (committed,) = told.result(PATIENCE_S).topic_partitions
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    end = admin.list_offsets({place: latest})[place].result(PATIENCE_S).offset
    return int(end - committed.offset)


def described_members(served: Served, group: str) -> list[tuple[str, str]]:
    """The group's state and the client id of each member, as an admin client over TCP sees them."""
    admin = AdminClient({"bootstrap.servers": served.broker.address})
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return [(described.state.name, member.client_id) for member in described.members]


def test_a_subscriber_is_a_member_of_a_group_and_its_lag_is_seen(served: Served, context: Context) -> None:
    topic, group = new_topic(served, "grouped"), "classic"
    write(served, topic, b"value", times=RECORDS)
    with (
        ZeroMqSession(context, served.listener) as membership,
        ZeroMqSession(context, served.listener) as session,
    ):
        await_coordinator(membership, group)
        member = join(membership, group, topic)
        assert sync(membership, member, assignment(topic)) == assignment(topic)
        assert ask(membership, ApiKey.HEARTBEAT, 0, member.head()) == b"\0\0"
        assert described_members(served, group) == [("STABLE", "member")]
        session.subscribe(1, topic)
        assert pushed_offsets(session, topic, RECORDS) == list(range(RECORDS))
        assert commit(session, member, topic, 2) == 0
        assert lag(served, group, topic) == RECORDS - 2
        assert commit(session, member, topic, RECORDS) == 0
        assert lag(served, group, topic) == 0
        stranger = replace(member, id="a stranger")
        assert commit(session, stranger, topic, 1) == UNKNOWN_MEMBER_ID
        assert lag(served, group, topic) == 0
        assert ask(membership, ApiKey.LEAVE_GROUP, 0, string(group) + string(member.id)) == b"\0\0"
        assert described_members(served, group) == []


def test_joining_waits_in_its_session_only(served: Served, context: Context) -> None:
    """The second member's JoinGroup waits for the first to join again; the first one's pushes go on meanwhile."""
    topic, group = new_topic(served, "rebalanced"), "rebalances"
    with (
        ZeroMqSession(context, served.listener) as first,
        ZeroMqSession(context, served.listener) as second,
        ZeroMqSession(context, served.listener) as pushes,
    ):
        await_coordinator(first, group)
        member = join(first, group, topic)
        sync(first, member, assignment(topic))
        pushes.subscribe(1, topic)
        head = struct.pack(">hhi", ApiKey.JOIN_GROUP, 2, 9) + string("member")
        second.send(wire.REQUEST, head, join_request(group, topic, ""))
        write(served, topic, b"value", times=3)
        assert pushed_offsets(pushes, topic, 3) == [0, 1, 2]
        again = join(first, group, topic, member.id)
        assert again.generation > member.generation
        assert second.response()[8:10] == b"\0\0"


def beat(session: ZeroMqSession, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    body = io.BytesIO()
    entity_writer(ConsumerGroupHeartbeatRequest)(body, request)
    head = struct.pack(">hhi", ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 9) + string("member") + b"\0"
    answer = session.ask(head, body.getvalue())[5:]
    read, _ = entity_reader(ConsumerGroupHeartbeatResponse)(answer, 0)
    assert not read.error_code, read.error_message
    return read


def test_a_subscriber_is_a_member_by_the_newer_protocol(served: Served, context: Context) -> None:
    topic, group = new_topic(served, "heartbeaten"), "newer"
    write(served, topic, b"value", times=RECORDS)
    member = str(uuid.uuid4())
    with (
        ZeroMqSession(context, served.listener) as membership,
        ZeroMqSession(context, served.listener) as session,
    ):
        await_coordinator(membership, group)
        epoch, partitions = i32(0), None
        while partitions is None:
            answer = beat(
                membership,
                ConsumerGroupHeartbeatRequest(
                    group_id=GroupId(group),
                    member_id=member,
                    member_epoch=epoch,
                    rebalance_timeout=i32Timedelta.parse(timedelta(seconds=30)),
                    subscribed_topic_names=(TopicName(topic),),
                    subscribed_topic_regex=None,
                    server_assignor=None,
                    topic_partitions=(),
                ),
            )
            epoch = answer.member_epoch
            if answer.assignment is not None and answer.assignment.topic_partitions:
                (assigned,) = answer.assignment.topic_partitions
                partitions = assigned.partitions
        assert tuple(partitions) == (0,)
        session.subscribe(1, topic)
        assert pushed_offsets(session, topic, RECORDS) == list(range(RECORDS))
        assert described_members(served, group) == [("STABLE", "member")]
