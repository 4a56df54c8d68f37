"""A long request under way: worked on in slices, dropped or finished when its connection closes, and counted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from appliance.control.coordinator.long_requests import (
    LARGE_AT_ONCE,
    LARGE_BYTES_MAX,
    LONG_BYTES_MAX,
    LongRequests,
)
from appliance.control.coordinator.pieces import Steps
from appliance.control.coordinator.request_queue import LARGE_BYTES, Received, Reply
from appliance.control.coordinator.slices import SLICE_NS, TURN_NS, Slices
from appliance.ipc.shared_memory import remove_directory
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance.protocol.headers import parse_request_header
from appliance.protocol.message_codec import PIECE
from appliance.protocol.messages import encode_request
from tests.requests.test_coordinator_line import NETPROC, Conversation

GROUPS = 40 * PIECE
PIECE_NS = SLICE_NS // 4
NOTHING = {"large": 0, "large_bytes": 0, "bytes": 0}


class Work:
    """Long requests over real lines, with a clock that moves with each look at it."""

    def __init__(self, conversation: Conversation) -> None:
        self.lines = conversation.lines
        self.now_ns = 0
        self.served: list[Any] = []
        self.contained: list[Exception] = []
        self.slices = Slices(self.clock, failed=lambda _, error: self.contained.append(error))
        self.long = LongRequests(
            self.slices,
            self.lines,
            serve=self.serve,
            serve_bytes={},
            contain=self.contain,
            monotonic_ns=self.clock,
        )
        self.lines.on_closed = self.slices.closed
        self.numbers = count(1)

    def clock(self) -> int:
        self.now_ns += PIECE_NS
        return self.now_ns

    def serve(self, request: Any, reply: Reply) -> Steps[None]:
        self.served.append(request)
        if isinstance(request, LeaveGroupRequest):
            yield None
            raise RuntimeError("a defect")
        response = DescribeGroupsResponse(tuple(DescribedGroup(group) for group in request.groups))
        yield from self.long.answer(reply, response)

    def contain(self, reply: Reply, error: Exception) -> None:
        self.contained.append(error)
        self.lines.refuse(reply, "a defect")

    def begin(
        self, api: ApiKey = ApiKey.DESCRIBE_GROUPS, *, cut: int = 0, length_bytes: int = LARGE_BYTES
    ) -> Reply:
        """A request comes from a connection of its own, and is begun."""
        number = next(self.numbers)
        request: Any = DescribeGroupsRequest(tuple(f"group-{each}" for each in range(GROUPS)))
        if api is ApiKey.LEAVE_GROUP:
            request = LeaveGroupRequest("g", members=(MemberIdentity("m"),) * GROUPS)
        frame = memoryview(encode_request(api, 5, request, number))[4:]
        header = parse_request_header(frame, 0, len(frame))
        reply = Reply(
            NETPROC,
            1,
            request_id=number,
            header=header,
            length_bytes=length_bytes,
            slot=0,
            host="",
            connection=number,
        )
        self.lines.take(reply)
        self.long.begin(Received(reply, frame, len(frame) - cut))
        return reply

    def turn(self) -> None:
        self.slices.run(lambda: False)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    conversation = Conversation(tmp_path)
    yield Work(conversation)
    conversation.client.close()
    conversation.connection.sock.close()
    remove_directory(conversation.memory)


def test_long_request_takes_as_many_slices_as_it_needs_and_is_answered(work: Work) -> None:
    reply = work.begin()
    turns = 0
    while not reply.answered:
        before_ns = work.now_ns
        work.turn()
        assert work.now_ns - before_ns <= TURN_NS + 2 * SLICE_NS
        turns += 1
    assert turns > GROUPS // PIECE * PIECE_NS // TURN_NS
    assert len(work.served[0].groups) == GROUPS
    assert not len(work.slices)
    assert work.long.statistics() == NOTHING


def test_what_only_asks_is_dropped_with_its_connection(work: Work) -> None:
    reply, other = work.begin(), work.begin()
    work.turn()
    work.slices.closed(reply.key)
    assert reply.dropped
    assert reply.answered
    while len(work.slices):
        work.turn()
    assert len(work.served) == 1
    assert other.answered
    assert not other.dropped
    assert work.long.statistics() == NOTHING


def test_what_changes_something_is_finished_though_its_connection_has_closed(work: Work) -> None:
    reply = work.begin(ApiKey.LEAVE_GROUP)
    work.turn()
    work.slices.closed(reply.key)
    assert not reply.dropped
    while len(work.slices):
        work.turn()
    assert isinstance(work.served[0], LeaveGroupRequest)


def test_defect_in_one_request_is_its_own(work: Work) -> None:
    broken, sound = work.begin(ApiKey.LEAVE_GROUP), work.begin()
    while len(work.slices):
        work.turn()
    assert [str(error) for error in work.contained] == ["a defect"]
    assert broken.answered
    assert sound.answered


def test_request_that_does_not_parse_is_refused(work: Work) -> None:
    reply = work.begin(cut=100)
    while len(work.slices):
        work.turn()
    assert reply.answered
    assert not work.served
    assert not work.contained


def rooms(work: Work) -> tuple[bool, bool]:
    """Whether there is room for one more, and for a large one."""
    return work.long.has_room, work.long.has_room_for_large


def test_few_large_requests_are_worked_on_and_others_by_their_bytes(work: Work) -> None:
    for _ in range(LARGE_AT_ONCE):
        assert rooms(work) == (True, True)
        work.begin(length_bytes=LARGE_BYTES + 1)
    for _ in range(LONG_BYTES_MAX // LARGE_BYTES):
        assert rooms(work) == (True, False)
        work.begin()
    assert rooms(work) == (False, False)
    while len(work.slices):
        work.turn()
    assert rooms(work) == (True, True)
    assert work.lines.under_way_bytes == 0
    assert work.long.statistics() == NOTHING


def test_one_request_may_be_longer_than_all_large_ones_together_and_is_the_only_one_then(work: Work) -> None:
    work.begin(length_bytes=LARGE_BYTES_MAX)
    assert rooms(work) == (True, False)
    while len(work.slices):
        work.turn()
    assert rooms(work) == (True, True)


def test_a_request_whose_client_leaves_is_over_once_and_its_late_answer_goes_nowhere(work: Work) -> None:
    """A long request and its answer in pieces are two pieces of work; a group may answer after both were dropped."""
    reply = work.begin()
    under_way = work.lines.under_way
    work.lines.drop(reply)
    work.lines.drop(reply)
    work.lines.refuse(reply, "too late")
    assert work.lines.dropped == 1
    assert work.lines.under_way == under_way - 1
    assert reply.answered
