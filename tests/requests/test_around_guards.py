"""No way around the guards: what one principal may not do has no effect, and no answer names what is hidden from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.cluster import CONSUMER_OFFSETS, AclBinding
from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.apis.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
)
from appliance.protocol.apis.describe_topic_partitions import DescribeTopicPartitionsRequest, PartitionCursor
from appliance.protocol.apis.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    OffsetFetchTopicResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import encode_request
from appliance.requests.guards.guarding import Guarding
from appliance.requests.rights import Rights
from appliance.requests.session import Request, Session
from tests.requests.serving import TOPIC
from tests.requests.transacting import ID, TOPIC_ID, Transacting, batch, produce, transacting

ALICE, BOB = "User:alice", "User:bob"


def allowed(
    principal: str, operation: AclOperation, name: str, kind: ResourceType = ResourceType.TOPIC
) -> AclBinding:
    return AclBinding(
        int(kind),
        name,
        int(PatternType.LITERAL),
        principal,
        "*",
        int(operation),
        int(AclPermission.ALLOW),
    )


RULES = (
    allowed(ALICE, AclOperation.WRITE, TOPIC),
    allowed(BOB, AclOperation.WRITE, TOPIC),
    allowed(BOB, AclOperation.WRITE, ID, ResourceType.TRANSACTIONAL_ID),
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Transacting]:
    with transacting(tmp_path, acls=RULES) as made:
        yield made


@pytest.mark.parametrize("version", [12, 13])
def test_no_partition_is_added_to_the_transaction_of_somebody_else(house: Transacting, version: int) -> None:
    session = house.session(1, principal=ALICE)
    pending = house.produce(session, produce(version, {0: batch(b"a"), 1: batch(b"b")}))
    assert house.questions() == []
    assert house.errors(pending) == [int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)] * 2
    assert house.worker_got() == []
    assert house.holds_nothing


@pytest.mark.parametrize("version", [12, 13])
def test_the_owner_of_a_transactional_id_adds_partitions(house: Transacting, version: int) -> None:
    house.produce(house.session(1, principal=BOB), produce(version, {0: batch(b"a")}))
    (question,) = house.questions()
    house.coordinator_says(question)
    assert [each.value for each in house.worker_got()] == [b"a"]


# ── requests of coordinators, of which a part is denied ───────────────────────────────────────────────────

SEEN, HIDDEN = (
    OffsetFetchTopic(TOPIC, partition_indexes=(0,)),
    OffsetFetchTopic("hidden", partition_indexes=(0,)),
)
FETCH_VERSION = 8
FETCH = OffsetFetchRequest(groups=(OffsetFetchGroup("g", (SEEN, HIDDEN)),))


@pytest.fixture
def fetching(tmp_path: Path) -> Iterator[Transacting]:
    rules = (
        allowed(ALICE, AclOperation.READ, "g", ResourceType.GROUP),
        allowed(ALICE, AclOperation.READ, TOPIC),
    )
    with transacting(tmp_path, acls=rules) as made:
        yield made


def begin_fetch(house: Transacting, session: Session) -> Request:
    pending = house.serve(session, encode_request(ApiKey.OFFSET_FETCH, FETCH_VERSION, FETCH, 1))
    house.run()
    house.timers.run_due(time.monotonic_ns())
    return pending


def test_the_coordinator_gets_what_is_left_of_a_request(fetching: Transacting) -> None:
    pending = begin_fetch(fetching, fetching.session(1, principal=ALICE))
    (received,) = fetching.coordinator_got()
    asked = fetching.read(received)
    assert [topic.name for topic in asked.groups[0].topics] == [TOPIC]
    told = OffsetFetchTopicResponse(TOPIC, partitions=(OffsetFetchPartitionResponse(0, 7),))
    fetching.reply(received, OffsetFetchResponse(groups=(OffsetFetchGroupResponse("g", (told,)),)))
    (group,) = fetching.told(pending).groups
    assert [(topic.name, topic.partitions[0].error_code) for topic in group.topics] == [
        (TOPIC, 0),
        ("hidden", int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)),
    ]
    assert fetching.holds_nothing


def test_an_empty_answer_ends_nothing_but_its_request(fetching: Transacting) -> None:
    session = fetching.session(1, principal=ALICE)
    pending = begin_fetch(fetching, session)
    (received,) = fetching.coordinator_got()
    fetching.coordinator.answer(received.reply, b"")
    fetching.coordinator.publish()
    fetching.coordinators.turn()
    assert fetching.answers[pending] == b""
    assert session.amend is None
    assert fetching.faults == []


def test_nothing_of_a_request_is_left_for_the_next_one_when_its_coordinator_dies(
    fetching: Transacting,
) -> None:
    session = fetching.session(1, principal=ALICE)
    pending = begin_fetch(fetching, session)
    fetching.coordinator_dies()
    (group,) = fetching.told(pending).groups
    assert group.error_code == int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert session.amend is None
    assert fetching.holds_nothing


def test_an_answer_that_cannot_be_amended_ends_one_connection(fetching: Transacting) -> None:
    session = fetching.session(1, principal=ALICE)
    begin_fetch(fetching, session)
    (received,) = fetching.coordinator_got()
    fetching.coordinator.answer(received.reply, b"\0\0\0\5no answer")
    fetching.coordinator.publish()
    fetching.coordinators.turn()
    assert [where for where, _why in fetching.faults] == [session]
    assert fetching.holds_nothing


def test_a_request_that_fails_behind_its_guard_ends_one_connection(fetching: Transacting) -> None:
    guarding = Guarding(
        Rights(fetching.routes, fetching.settings),
        fetching.routes,
        long=fetching.long,
        timers=fetching.timers,
        finish=fetching.finish,
    )

    def begin(*_: object) -> None:
        raise RuntimeError("it fails")

    session = fetching.session(1, principal=ALICE)
    frame = encode_request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), 1)[4:]
    block = fetching.pool.take(len(frame))
    assert block is not None
    block.view[: len(frame)] = frame
    pending = Request(session, block, int(ApiKey.API_VERSIONS), 0, 1)
    session.enqueue(pending)
    header = parse_request_header(block.view, 0, len(frame))
    guarding.before(begin)(pending, block.view, header, 0, len(frame))
    fetching.run()
    fetching.timers.run_due(time.monotonic_ns())
    assert fetching.faults == [(session, "it fails")]
    assert fetching.holds_nothing


def test_an_assignment_names_no_topic_that_the_member_may_not_describe(fetching: Transacting) -> None:
    session = fetching.session(1, principal=ALICE)
    heartbeat = ConsumerGroupHeartbeatRequest("g", "m", 0, subscribed_topic_regex=".*", topic_partitions=())
    pending = fetching.serve(session, encode_request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat, 1))
    fetching.run()
    fetching.timers.run_due(time.monotonic_ns())
    (received,) = fetching.coordinator_got()
    hidden = fetching.topics()[CONSUMER_OFFSETS].topic_id
    unknown = UUID(int=99)
    assigned = tuple(AssignedTopicPartitions(each, (0,)) for each in (hidden, TOPIC_ID, unknown))
    told = ConsumerGroupHeartbeatResponse(member_id="m", assignment=HeartbeatAssignment(assigned))
    fetching.reply(received, told)
    assignment = fetching.told(pending).assignment
    assert [each.topic_id for each in assignment.topic_partitions] == [TOPIC_ID, unknown]


def test_a_page_that_begins_at_a_hidden_topic_leaves_nothing_out_of_the_next_one(tmp_path: Path) -> None:
    with transacting(tmp_path, acls=(allowed(ALICE, AclOperation.DESCRIBE, TOPIC),)) as house:
        request = DescribeTopicPartitionsRequest((), 100, PartitionCursor(CONSUMER_OFFSETS, 2))
        session = house.session(1, principal=ALICE)
        response = house.ask(session, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
        assert [topic.name for topic in response.topics] == [TOPIC]
        assert [each.partition_index for each in response.topics[0].partitions] == [0, 1, 2, 3]


def test_partitions_beside_a_denied_topic_are_not_attempted_or_unknown(tmp_path: Path) -> None:
    """As Apache Kafka 4.3, seed 4711 of `tests/system/test_acls_beside_kafka.py`."""
    rules = (
        allowed(ALICE, AclOperation.WRITE, ID, ResourceType.TRANSACTIONAL_ID),
        allowed(ALICE, AclOperation.WRITE, TOPIC),
        allowed(ALICE, AclOperation.WRITE, "unknown"),
    )
    with transacting(tmp_path, acls=rules) as house:
        topics = tuple(AddPartitionsToTxnTopic(name, (0, 9)) for name in ("denied", TOPIC, "unknown"))
        request = AddPartitionsToTxnRequest((), ID, 1, 0, topics)
        response = house.ask(house.session(1, principal=ALICE), ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
        assert house.coordinator_got() == []
        assert {
            topic.name: [each.partition_error_code for each in topic.results_by_partition]
            for topic in response.results_by_topic
        } == {"denied": [29, 29], TOPIC: [55, 3], "unknown": [3, 3]}
