"""A network process and two coordinators over real rings: whom a request goes to, and what one answer is made of."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from appliance.channels.roles import Role, RoleKind
from appliance.channels.wiring import Attachment, Wiring
from appliance.cluster import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from appliance.config import Settings
from appliance.control.coordinator.request_lines import RequestLines
from appliance.control.coordinator.request_queue import Received
from appliance.errors import MalformedFrame
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.shared_memory import remove_directory
from appliance.netproc.connection import Connection
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.apis.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from appliance.protocol.apis.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from appliance.protocol.apis.end_txn import EndTxnRequest, EndTxnResponse
from appliance.protocol.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from appliance.protocol.apis.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from appliance.protocol.apis.list_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from appliance.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import decode_response, encode_request, encode_response
from appliance.requests.coordinator_lines import CoordinatorLines
from appliance.requests.session import Request
from appliance.requests.topic_routes import TopicRoutes
from tests.support.private_directory import new_private_directory
from tests.support.published import publisher_in

NETPROC = Role(RoleKind.NETPROC, 0)
COORDINATORS = [Role(RoleKind.COORDINATOR, index) for index in range(2)]
PARTITIONS = 8
TRANSACTION_PARTITIONS = 5
VERSION = 4
GROUPS = [f"group-{number}" for number in range(6)]
NOT_AVAILABLE = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def owner(group: str) -> int:
    return group_partition(group, PARTITIONS) % len(COORDINATORS)


def transaction_owner(name: str) -> int:
    return group_partition(name, TRANSACTION_PARTITIONS) % len(COORDINATORS)


class Conversation:
    """All three, in one process; the test plays the coordinators."""

    def __init__(self, data_dir: Path) -> None:
        settings = Settings(data_dir=data_dir)
        settings = replace(
            settings,
            network=replace(settings.network, processes=1),
            broker=replace(settings.broker, coordinator_processes=2, coordinator_pool_bytes=4 << 20),
        )
        self.memory = new_private_directory()
        self.bells = {role: Doorbell.create_eventfd() for role in (NETPROC, *COORDINATORS)}
        self.wiring = Wiring(settings, "appliance-test", self.memory, self.bells)
        self.wiring.create_standing_regions()
        self.wiring.create_for(NETPROC, 1, {})
        for role in COORDINATORS:
            self.wiring.create_for(role, 1, {NETPROC: 1})
        self.netproc = Attachment(self.wiring, NETPROC, 1, dict.fromkeys(COORDINATORS, 1))
        assert self.netproc.pool is not None
        self.publisher = publisher_in(self.memory)
        self.pool = BufferPool(self.netproc.pool.view)
        self.finished: list[bytes] = []
        self.refused: list[str] = []
        self.lines = CoordinatorLines(
            self.netproc,
            TopicRoutes(self.netproc.image, workers=1),
            processes=2,
            finish=lambda _, pieces: self.finished.extend(
                piece for piece in pieces if isinstance(piece, bytes)
            ),
            refuse=lambda _, why: self.refused.append(why),
            give=self.pool.give,
            brief_wait=BriefWait(lambda: 0, limit_ns=0),
        )
        self.ends = []
        for role in COORDINATORS:
            attachment = Attachment(self.wiring, role, 1, {NETPROC: 1})
            assert attachment.pool is not None
            self.ends.append((attachment, RequestLines(attachment, BufferPool(attachment.pool.view))))
        ours, self.client = socket.socketpair()
        self.connection = Connection(
            ours, connection_id=1, slot=0, peer_host="127.0.0.1", peer_port=1, now_ns=0
        )

    def close(self) -> None:
        self.client.close()
        self.connection.sock.close()
        for descriptor in self.bells.values():
            os.close(descriptor)
        remove_directory(self.memory)

    def create_topic(self) -> None:
        partitions = tuple(PartitionImage(n, n, 1, 0, 0, (0,), (0,)) for n in range(PARTITIONS))
        transactions = tuple(
            PartitionImage(n, PARTITIONS + n, 1, 0, 0, (0,), (0,)) for n in range(TRANSACTION_PARTITIONS)
        )
        topics = {
            CONSUMER_OFFSETS: TopicImage(CONSUMER_OFFSETS, UUID(int=1), partitions, internal=True),
            TRANSACTION_STATE: TopicImage(TRANSACTION_STATE, UUID(int=2), transactions, internal=True),
        }
        self.publisher.publish(ClusterImage(1, "c", 0, 1, (), topics))

    def ask(self, api: ApiKey, request: Any, *, cut: int = 0, version: int = VERSION) -> None:
        """A client asks; `cut` bytes of the end are missing."""
        frame = encode_request(api, version, request, 7)[4:]
        frame = frame[: len(frame) - cut]
        block = self.pool.take(len(frame))
        assert block is not None
        block.view[: len(frame)] = frame
        header = parse_request_header(block.view, 0, len(frame))
        pending = Request(self.connection, block, header.api_key, header.version, header.correlation_id)
        try:
            self.lines.begin(pending, block.view, header.body_position, len(frame), start=0)
        finally:
            pending.give_block(self.pool)
        self.lines.turn()

    def hear(self, index: int) -> list[Received]:
        """What coordinator `index` was asked since the last time."""
        attachment, lines = self.ends[index]
        lines.receive(NETPROC, attachment.inbound[NETPROC].drain())
        received = []
        while (each := lines.queue.next_cheap() or lines.queue.next_costly()) is not None:
            lines.take(each.reply)
            received.append(each)
        return received

    def answer(
        self, index: int, received: Received, api: ApiKey, response: Any, *, version: int = VERSION
    ) -> None:
        _, lines = self.ends[index]
        lines.answer(received.reply, encode_response(api, version, response, 7))
        lines.publish()
        self.lines.turn()

    def die(self, index: int) -> None:
        self.netproc.peer_down(COORDINATORS[index])
        self.lines.coordinator_down(COORDINATORS[index])

    def answers(self, api: ApiKey, *, version: int = VERSION) -> list[Any]:
        """What the client got."""
        frames, self.finished = self.finished, []
        return [decode_response(api, version, memoryview(frame))[1] for frame in frames]


@pytest.fixture
def conversation(tmp_path: Path) -> Iterator[Conversation]:
    made = Conversation(tmp_path)
    made.create_topic()
    yield made
    made.close()


def described(*groups: str) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(tuple(DescribedGroup(group) for group in groups))


def errors(response: Any) -> dict[str, int]:
    return {one.group_id: one.error_code for one in response.groups}


@pytest.mark.parametrize("group", GROUPS)
def test_request_of_one_group_goes_to_its_coordinator_alone(conversation: Conversation, group: str) -> None:
    conversation.ask(ApiKey.HEARTBEAT, HeartbeatRequest(group, 1, "m"))
    conversation.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest((group,)))
    assert conversation.hear(1 - owner(group)) == []
    beat, describe = conversation.hear(owner(group))
    assert beat.reply.partitions == PARTITIONS
    conversation.answer(owner(group), beat, ApiKey.HEARTBEAT, HeartbeatResponse(error_code=9))
    assert [each.error_code for each in conversation.answers(ApiKey.HEARTBEAT)] == [9]
    conversation.answer(owner(group), describe, ApiKey.DESCRIBE_GROUPS, described(group))
    assert [errors(each) for each in conversation.answers(ApiKey.DESCRIBE_GROUPS)] == [{group: 0}]


@pytest.mark.parametrize("first", [0, 1])
def test_request_of_many_groups_is_answered_when_all_coordinators_have(
    conversation: Conversation, first: int
) -> None:
    free_bytes = conversation.pool.free_bytes()
    conversation.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(tuple(GROUPS)))
    for index in (first, 1 - first):
        assert conversation.finished == []
        (received,) = conversation.hear(index)
        own = [group for group in GROUPS if owner(group) == index]
        conversation.answer(index, received, ApiKey.DESCRIBE_GROUPS, described(*own))
    (answer,) = conversation.answers(ApiKey.DESCRIBE_GROUPS)
    assert errors(answer) == dict.fromkeys(GROUPS, 0)
    assert conversation.pool.free_bytes() == free_bytes


def test_groups_of_a_dead_coordinator_have_none_and_the_others_are_answered(
    conversation: Conversation,
) -> None:
    free_bytes = conversation.pool.free_bytes()
    conversation.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(tuple(GROUPS)))
    (received,) = conversation.hear(0)
    conversation.die(1)
    assert conversation.finished == []
    own = [group for group in GROUPS if owner(group) == 0]
    conversation.answer(0, received, ApiKey.DESCRIBE_GROUPS, described(*own))
    (answer,) = conversation.answers(ApiKey.DESCRIBE_GROUPS)
    expected = {group: NOT_AVAILABLE if owner(group) else 0 for group in GROUPS}
    assert errors(answer) == expected
    conversation.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(tuple(GROUPS)))
    (received,) = conversation.hear(0)
    conversation.answer(0, received, ApiKey.DESCRIBE_GROUPS, described(*own))
    assert [errors(each) for each in conversation.answers(ApiKey.DESCRIBE_GROUPS)] == [expected]
    assert conversation.pool.free_bytes() == free_bytes


def test_list_is_that_of_all_coordinators_or_an_error(conversation: Conversation) -> None:
    conversation.ask(ApiKey.LIST_GROUPS, ListGroupsRequest())
    for index in range(2):
        (received,) = conversation.hear(index)
        listed = ListGroupsResponse(groups=(ListedGroup(f"of {index}", "consumer"),))
        conversation.answer(index, received, ApiKey.LIST_GROUPS, listed)
    (answer,) = conversation.answers(ApiKey.LIST_GROUPS)
    assert [group.group_id for group in answer.groups] == ["of 0", "of 1"]
    conversation.die(0)
    conversation.ask(ApiKey.LIST_GROUPS, ListGroupsRequest())
    (received,) = conversation.hear(1)
    conversation.answer(1, received, ApiKey.LIST_GROUPS, ListGroupsResponse())
    (answer,) = conversation.answers(ApiKey.LIST_GROUPS)
    assert answer.error_code == NOT_AVAILABLE


def test_everything_goes_to_the_first_coordinator_while_there_is_no_topic(tmp_path: Path) -> None:
    conversation = Conversation(tmp_path)
    try:
        for group in GROUPS:
            conversation.ask(ApiKey.HEARTBEAT, HeartbeatRequest(group, 1, "m"))
        received = conversation.hear(0)
        assert len(received) == len(GROUPS)
        assert {each.reply.partitions for each in received} == {0}
        assert conversation.hear(1) == []
    finally:
        conversation.close()


def test_request_that_one_coordinator_cannot_read_is_refused_once(conversation: Conversation) -> None:
    conversation.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(tuple(GROUPS)))
    for index in range(2):
        (received,) = conversation.hear(index)
        _, lines = conversation.ends[index]
        lines.refuse(received.reply, "why")
        lines.publish()
        conversation.lines.turn()
    assert conversation.refused == ["why"]
    assert conversation.finished == []


def test_request_without_a_coordinator_that_does_not_parse_is_malformed(conversation: Conversation) -> None:
    free_bytes = conversation.pool.free_bytes()
    for index in range(2):
        conversation.die(index)
    with pytest.raises(MalformedFrame):
        conversation.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(tuple(GROUPS)), cut=3)
    assert conversation.finished == []
    assert conversation.pool.free_bytes() == free_bytes


def test_closed_connection_is_told_to_every_coordinator_that_it_has_asked(
    conversation: Conversation,
) -> None:
    free_bytes = conversation.pool.free_bytes()
    conversation.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(tuple(GROUPS)))
    conversation.lines.leave(conversation.connection)
    conversation.lines.turn()
    for index in range(2):
        assert conversation.hear(index) == []
        assert conversation.ends[index][1].dropped == 1
        conversation.ends[index][1].publish()
    conversation.lines.turn()
    assert conversation.finished == [b""]
    assert conversation.lines.statistics()["waiting"] == 0
    assert conversation.pool.free_bytes() == free_bytes


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", GROUPS)
def test_request_of_one_transaction_goes_to_the_coordinator_of_its_id_alone(
    conversation: Conversation, name: str
) -> None:
    index = transaction_owner(name)
    conversation.ask(ApiKey.END_TXN, EndTxnRequest(name, 1, 0, committed=True))
    conversation.ask(ApiKey.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest((transaction(name),)))
    assert conversation.hear(1 - index) == []
    end, _ = conversation.hear(index)
    assert end.reply.partitions == TRANSACTION_PARTITIONS
    conversation.answer(index, end, ApiKey.END_TXN, EndTxnResponse(error_code=9))
    assert [each.error_code for each in conversation.answers(ApiKey.END_TXN)] == [9]


@pytest.mark.parametrize("name", GROUPS)
def test_offsets_of_a_transaction_go_to_the_coordinator_of_their_group(
    conversation: Conversation, name: str
) -> None:
    conversation.ask(ApiKey.TXN_OFFSET_COMMIT, TxnOffsetCommitRequest("any transaction", name, 1, 0))
    assert conversation.hear(1 - owner(name)) == []
    (received,) = conversation.hear(owner(name))
    assert received.reply.partitions == PARTITIONS


def transaction(name: str) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(name, 1, 0)


def test_additions_for_many_transactions_are_answered_by_the_coordinator_of_each(
    conversation: Conversation,
) -> None:
    api = ApiKey.ADD_PARTITIONS_TO_TXN
    assert {transaction_owner(name) for name in GROUPS} == {0, 1}
    conversation.ask(api, AddPartitionsToTxnRequest(tuple(map(transaction, GROUPS))))
    for index in range(2):
        (received,) = conversation.hear(index)
        own = tuple(AddPartitionsToTxnResult(name) for name in GROUPS if transaction_owner(name) == index)
        conversation.answer(index, received, api, AddPartitionsToTxnResponse(results_by_transaction=own))
    (answer,) = conversation.answers(api)
    assert sorted(each.transactional_id for each in answer.results_by_transaction) == sorted(GROUPS)


def test_transactions_of_a_dead_coordinator_have_none_and_the_others_are_described(
    conversation: Conversation,
) -> None:
    api = ApiKey.DESCRIBE_TRANSACTIONS
    conversation.ask(api, DescribeTransactionsRequest(tuple(GROUPS)), version=0)
    (received,) = conversation.hear(0)
    conversation.die(1)
    own = tuple(DescribedTransaction(name) for name in GROUPS if transaction_owner(name) == 0)
    conversation.answer(0, received, api, DescribeTransactionsResponse(own), version=0)
    (answer,) = conversation.answers(api, version=0)
    assert {each.transactional_id: each.error_code for each in answer.transaction_states} == {
        name: NOT_AVAILABLE if transaction_owner(name) else 0 for name in GROUPS
    }


def test_list_of_transactions_is_that_of_all_coordinators(conversation: Conversation) -> None:
    api = ApiKey.LIST_TRANSACTIONS
    conversation.ask(api, ListTransactionsRequest(("Asleep",)), version=2)
    for index in range(2):
        (received,) = conversation.hear(index)
        listed = ListTransactionsResponse(
            unknown_state_filters=("Asleep",),
            transaction_states=(ListedTransaction(f"of {index}", index, "Empty"),),
        )
        conversation.answer(index, received, api, listed, version=2)
    (answer,) = conversation.answers(api, version=2)
    assert [each.transactional_id for each in answer.transaction_states] == ["of 0", "of 1"]
    assert answer.unknown_state_filters == ("Asleep",)
