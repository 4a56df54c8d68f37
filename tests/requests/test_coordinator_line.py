"""A network process and the coordinator over real rings: who is told what, and who is woken for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.channels.coordinator_channel import INLINE_BYTES, INLINE_FRAME_BYTES, CoordinatorOp
from appliance.channels.roles import COORDINATOR, Role, RoleKind
from appliance.channels.wiring import Attachment, Wiring
from appliance.config import Settings
from appliance.control.coordinator.request_lines import (
    ANSWERS_AT_ONCE,
    LARGE_WAITING_BYTES_MAX,
    PIECE_BYTES,
    RequestLines,
)
from appliance.control.coordinator.request_queue import Received
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.process_table import BYTES_OUT
from appliance.ipc.shared_memory import remove_directory
from appliance.netproc.connection import Connection
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.heartbeat import HeartbeatRequest
from appliance.protocol.apis.join_group import JoinGroupRequest
from appliance.protocol.apis.offset_commit import OffsetCommitRequest
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import encode_request
from appliance.requests.coordinator_line import (
    QUIET_BYTES_MAX,
    QUIET_RELEASES_MAX,
    REQUESTS_AT_ONCE,
    CoordinatorLine,
)
from appliance.requests.session import Request
from tests.support.private_directory import new_private_directory

NETPROC = Role(RoleKind.NETPROC, 0)
LARGE = bytes(INLINE_FRAME_BYTES + 1)
"""An answer that needs a block of the coordinator's pool."""
REQUESTS = {
    ApiKey.OFFSET_COMMIT: OffsetCommitRequest("g"),
    ApiKey.HEARTBEAT: HeartbeatRequest("g", 1, "m"),
    ApiKey.JOIN_GROUP: JoinGroupRequest("g", 1000, "", "consumer", ()),
}


class Conversation:
    """Both ends, in one process: the network process's line, and the coordinator's."""

    def __init__(self, data_dir: Path) -> None:
        settings = Settings(data_dir=data_dir)
        settings = replace(settings, network=replace(settings.network, processes=1))
        self.memory = new_private_directory()
        bells = {role: Doorbell.create_eventfd() for role in (NETPROC, COORDINATOR)}
        self.wiring = Wiring(settings, "appliance-test", self.memory, bells)
        self.wiring.create_standing_regions()
        self.wiring.create_for(NETPROC, 1, {})
        self.wiring.create_for(COORDINATOR, 1, {NETPROC: 1})
        self.netproc = Attachment(self.wiring, NETPROC, 1, {COORDINATOR: 1})
        self.coordinator = Attachment(self.wiring, COORDINATOR, 1, {NETPROC: 1})
        assert self.netproc.pool is not None
        assert self.coordinator.pool is not None
        self.pool = BufferPool(self.netproc.pool.view)
        self.finished: list[bytes] = []
        self.refused: list[str] = []
        self.line = CoordinatorLine(
            self.netproc,
            finish=lambda _, pieces: self.finished.extend(
                piece for piece in pieces if isinstance(piece, bytes)
            ),
            refuse=lambda _, why: self.refused.append(why),
            give=self.pool.give,
            brief_wait=BriefWait(lambda: 0, limit_ns=0),
        )
        self.coordinator_pool = BufferPool(self.coordinator.pool.view)
        self.lines = RequestLines(self.coordinator, self.coordinator_pool)
        ours, self.client = socket.socketpair()
        self.connection = Connection(
            ours, connection_id=1, slot=0, peer_host="127.0.0.1", peer_port=1, now_ns=0
        )

    def ask(self, api: ApiKey) -> None:
        """The network process hands a request over, and ends its turn."""
        self.begin(api)
        self.line.turn()

    def begin(self, api: ApiKey) -> None:
        """The network process hands a request over, in the midst of a turn."""
        frame = encode_request(api, 8 if api is ApiKey.OFFSET_COMMIT else 4, REQUESTS[api], 7)[4:]
        block = self.pool.take(len(frame))
        assert block is not None
        block.view[: len(frame)] = frame
        header = parse_request_header(block.view, 0, len(frame))
        pending = Request(self.connection, block, header.api_key, header.version, header.correlation_id)
        self.line.begin(pending, block.view, header.body_position, len(frame), start=0)
        pending.give_block(self.pool)

    def hear(self) -> list[Received]:
        """The coordinator takes what came, releases too."""
        self.lines.receive(NETPROC, self.coordinator.inbound[NETPROC].drain())
        received: list[Received] = []
        while (each := self.lines.queue.next_cheap() or self.lines.queue.next_costly()) is not None:
            self.lines.take(each.reply)
            received.append(each)
        return received

    def answer(self, received: Received, answer: bytes) -> None:
        self.lines.answer(received.reply, answer)
        self.lines.publish()

    def coordinator_sleeps(self) -> None:
        self.coordinator.doorbell.drain()
        self.coordinator.doorbell.announce_sleep()

    def is_woken(self) -> bool:
        """Whether somebody has rung the coordinator's bell since it slept."""
        return self.coordinator.doorbell.drain() > 0


@pytest.fixture
def conversation(tmp_path: Path) -> Iterator[Conversation]:
    made = Conversation(tmp_path)
    yield made
    made.client.close()
    made.connection.sock.close()
    remove_directory(made.memory)


def told(conversation: Conversation) -> list[Any]:
    return [op for op, *_ in conversation.netproc.inbound[COORDINATOR].drain()]


def test_request_that_is_kept_for_its_answer_is_not_said_to_be_taken(conversation: Conversation) -> None:
    conversation.ask(ApiKey.HEARTBEAT)
    conversation.ask(ApiKey.OFFSET_COMMIT)
    assert len(conversation.hear()) == 2
    conversation.lines.publish()
    assert told(conversation) == [CoordinatorOp.TAKEN]
    conversation.ask(ApiKey.OFFSET_COMMIT)
    conversation.hear()
    conversation.netproc.doorbell.announce_sleep()
    conversation.lines.publish()
    assert told(conversation) == []
    assert conversation.netproc.doorbell.drain() == 0


def test_request_wakes_a_coordinator_that_sleeps(conversation: Conversation) -> None:
    conversation.coordinator_sleeps()
    conversation.ask(ApiKey.OFFSET_COMMIT)
    assert conversation.is_woken()


def test_some_requests_are_seen_before_all_of_a_turn_are_read(conversation: Conversation) -> None:
    conversation.coordinator_sleeps()
    for _ in range(REQUESTS_AT_ONCE - 1):
        conversation.begin(ApiKey.OFFSET_COMMIT)
    assert not conversation.hear()
    assert not conversation.is_woken()
    conversation.begin(ApiKey.OFFSET_COMMIT)
    assert conversation.is_woken()
    assert len(conversation.hear()) == REQUESTS_AT_ONCE
    conversation.begin(ApiKey.OFFSET_COMMIT)
    conversation.coordinator_sleeps()
    assert conversation.line.wants_turn
    conversation.line.turn()
    assert conversation.is_woken()
    assert not conversation.line.wants_turn


@pytest.mark.parametrize("answer", [b"answer", LARGE], ids=["small", "large"])
def test_some_answers_are_seen_before_all_of_a_turn_are_made(
    conversation: Conversation, answer: bytes
) -> None:
    for _ in range(ANSWERS_AT_ONCE + 1):
        conversation.ask(ApiKey.OFFSET_COMMIT)
    received = conversation.hear()
    conversation.lines.publish()
    told(conversation)
    conversation.netproc.doorbell.announce_sleep()
    for each in received[: ANSWERS_AT_ONCE - 1]:
        conversation.lines.answer(each.reply, answer)
    assert told(conversation) == []
    conversation.lines.answer(received[-2].reply, answer)
    assert told(conversation) == [CoordinatorOp.ANSWER] * ANSWERS_AT_ONCE
    assert conversation.netproc.doorbell.drain() == 1
    conversation.lines.answer(received[-1].reply, answer)
    assert told(conversation) == []
    conversation.lines.publish()
    assert told(conversation) == [CoordinatorOp.ANSWER]


def test_release_is_visible_at_once_and_wakes_nobody(conversation: Conversation) -> None:
    conversation.coordinator_sleeps()
    conversation.ask(ApiKey.OFFSET_COMMIT)
    (received,) = conversation.hear()
    conversation.answer(received, LARGE)
    conversation.coordinator_sleeps()
    conversation.line.turn()
    assert conversation.finished == [LARGE]
    assert not conversation.is_woken()
    assert conversation.lines.statistics()["lent_blocks"] == 1
    assert not conversation.hear()
    assert conversation.lines.statistics()["lent_blocks"] == 0


@pytest.mark.parametrize(
    ("answers", "length_bytes"),
    [(QUIET_RELEASES_MAX, len(LARGE)), (2, QUIET_BYTES_MAX // 2)],
    ids=["many", "large"],
)
def test_coordinator_is_woken_when_much_is_out_on_loan(
    conversation: Conversation, answers: int, length_bytes: int
) -> None:
    for _ in range(answers):
        conversation.ask(ApiKey.OFFSET_COMMIT)
    received = conversation.hear()
    for number, each in enumerate(received, 1):
        conversation.answer(each, bytes(length_bytes))
        conversation.coordinator_sleeps()
        conversation.line.turn()
        assert conversation.is_woken() is (number == answers)


@pytest.mark.parametrize(
    "length_bytes", [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, INLINE_FRAME_BYTES]
)
def test_small_answer_is_in_the_ring_and_leaves_nothing_on_loan(
    conversation: Conversation, length_bytes: int
) -> None:
    # Zeros at its end are the answer's, not the message's.
    answer = b"\x01" * (length_bytes // 2) + bytes(length_bytes - length_bytes // 2)
    conversation.ask(ApiKey.OFFSET_COMMIT)
    (received,) = conversation.hear()
    free_bytes = conversation.coordinator_pool.free_bytes()
    conversation.answer(received, answer)
    assert conversation.coordinator_pool.free_bytes() == free_bytes
    conversation.line.turn()
    assert conversation.finished == [answer]
    assert conversation.line.statistics()["waiting"] == 0
    assert conversation.coordinator.inbound[NETPROC].is_empty()
    assert conversation.coordinator.row.cells[BYTES_OUT] == length_bytes


def test_many_small_answers_ring_nobody_back(conversation: Conversation) -> None:
    answers = QUIET_BYTES_MAX // INLINE_FRAME_BYTES + 1
    received: list[Received] = []
    for _ in range(answers):
        conversation.ask(ApiKey.OFFSET_COMMIT)
        received += conversation.hear()
    conversation.coordinator_sleeps()
    for each in received:
        conversation.answer(each, bytes(INLINE_FRAME_BYTES))
        conversation.line.turn()
    assert len(conversation.finished) == answers
    assert not conversation.is_woken()


@pytest.mark.parametrize(
    "length_bytes", [INLINE_FRAME_BYTES + 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 7]
)
def test_large_answer_comes_whole_and_is_given_back(conversation: Conversation, length_bytes: int) -> None:
    answer = os.urandom(length_bytes)
    conversation.ask(ApiKey.OFFSET_COMMIT)
    (received,) = conversation.hear()
    free_bytes = conversation.coordinator_pool.free_bytes()
    conversation.answer(received, answer)
    conversation.line.turn()
    assert conversation.finished == [answer]
    conversation.hear()
    assert conversation.coordinator_pool.free_bytes() == free_bytes


def test_answers_that_find_the_ring_full_come_in_order_and_whole(conversation: Conversation) -> None:
    writer = conversation.coordinator.outbound[NETPROC]
    answers = [bytes([number % 251]) * (number % (INLINE_FRAME_BYTES + 9)) for number in range(writer.slots)]
    free_bytes = conversation.coordinator_pool.free_bytes()
    for at in range(0, len(answers), 64):
        for _ in answers[at : at + 64]:
            conversation.begin(ApiKey.OFFSET_COMMIT)
        # No turn of the network process: it stands still, and takes no answer.
        for received, answer in zip(conversation.hear(), answers[at : at + 64], strict=True):
            conversation.lines.answer(received.reply, answer)
    assert conversation.lines.congested
    for _ in range(len(answers)):
        conversation.lines.publish()
        conversation.line.turn()
        conversation.hear()
        if len(conversation.finished) == len(answers):
            break
    assert conversation.finished == answers
    conversation.hear()
    assert conversation.coordinator_pool.free_bytes() == free_bytes


@pytest.mark.parametrize(
    ("length_bytes", "left", "kept_back"),
    [(INLINE_FRAME_BYTES, 0, 2), (INLINE_FRAME_BYTES, 1, 1), (len(LARGE), 0, 1)],
    ids=["nothing of it", "half of it", "nothing of a large one"],
)
def test_answer_that_the_ring_has_no_room_for_comes_whole(
    conversation: Conversation, length_bytes: int, left: int, kept_back: int
) -> None:
    writer = conversation.coordinator.outbound[NETPROC]
    conversation.ask(ApiKey.OFFSET_COMMIT)
    (received,) = conversation.hear()
    while writer.free_slots() > left:
        assert writer.put(CoordinatorOp.TAKEN, 0, 0, 0, 0, 0, b"")
    writer.publish()
    answer = os.urandom(length_bytes)
    free_bytes = conversation.coordinator_pool.free_bytes()
    conversation.answer(received, answer)
    assert conversation.lines.statistics()["kept_back"] == kept_back
    for _ in range(writer.slots):
        conversation.line.turn()
        conversation.lines.publish()
        if conversation.finished:
            break
    assert conversation.finished == [answer]
    assert not conversation.lines.congested
    conversation.hear()
    assert conversation.coordinator_pool.free_bytes() == free_bytes


def test_nothing_is_kept_for_a_network_process_that_died(conversation: Conversation) -> None:
    writer = conversation.coordinator.outbound[NETPROC]
    for _ in range(2):
        conversation.ask(ApiKey.OFFSET_COMMIT)
    small, large = conversation.hear()
    free_bytes = conversation.coordinator_pool.free_bytes()
    conversation.lines.answer(large.reply, LARGE)
    while writer.free_slots() > 1:
        assert writer.put(CoordinatorOp.TAKEN, 0, 0, 0, 0, 0, b"")
    conversation.answer(small, bytes(INLINE_FRAME_BYTES))
    assert conversation.lines.statistics()["kept_back"] == 1
    conversation.lines.peer_down(NETPROC)
    assert conversation.lines.statistics()["kept_back"] == 0
    assert conversation.coordinator_pool.free_bytes() == free_bytes


@pytest.mark.parametrize("answer", [b"answer", LARGE], ids=["small", "large"])
def test_answer_to_who_waits_no_more_is_let_go_of(conversation: Conversation, answer: bytes) -> None:
    conversation.ask(ApiKey.JOIN_GROUP)
    (received,) = conversation.hear()
    free_bytes = conversation.coordinator_pool.free_bytes()
    conversation.line.stop()
    (told_so,) = conversation.finished
    conversation.answer(received, answer)
    conversation.line.turn()
    conversation.hear()
    assert conversation.finished == [told_so]
    assert conversation.coordinator_pool.free_bytes() == free_bytes


@pytest.mark.parametrize("why", ["why", "ä" * INLINE_BYTES, "a" + "ä" * (INLINE_BYTES // 2), "why " * 30])
def test_refusal_says_why(conversation: Conversation, why: str) -> None:
    conversation.ask(ApiKey.HEARTBEAT)
    (received,) = conversation.hear()
    conversation.lines.refuse(received.reply, why)
    conversation.lines.publish()
    conversation.line.turn()
    assert conversation.refused == [why]
    assert not conversation.finished


def test_requests_of_a_closed_connection_are_dropped_before_they_are_begun(
    conversation: Conversation,
) -> None:
    free_bytes = conversation.pool.free_bytes()
    for api in (ApiKey.HEARTBEAT, ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP):
        conversation.begin(api)
    conversation.line.leave(conversation.connection)
    conversation.line.turn()
    assert conversation.hear() == []
    assert conversation.lines.statistics()["dropped"] == 3
    conversation.lines.publish()
    conversation.line.turn()
    assert conversation.line.statistics()["waiting"] == 0
    assert conversation.pool.free_bytes() == free_bytes
    assert conversation.lines.statistics()["under_way"] == 0


def test_what_a_closed_connection_has_committed_is_still_taken(conversation: Conversation) -> None:
    for api in (ApiKey.OFFSET_COMMIT, ApiKey.HEARTBEAT):
        conversation.begin(api)
    conversation.line.leave(conversation.connection)
    conversation.line.turn()
    assert [each.reply.header.api_key for each in conversation.hear()] == [ApiKey.OFFSET_COMMIT]
    assert conversation.lines.statistics()["dropped"] == 1


def test_what_the_next_connection_of_that_number_asks_for_is_served(conversation: Conversation) -> None:
    conversation.begin(ApiKey.JOIN_GROUP)
    conversation.line.leave(conversation.connection)
    conversation.begin(ApiKey.HEARTBEAT)
    conversation.line.turn()
    (received,) = conversation.hear()
    assert received.reply.header.api_key == ApiKey.HEARTBEAT


def test_closed_connection_is_told_of_when_the_ring_has_room_again(conversation: Conversation) -> None:
    writer = conversation.netproc.outbound[COORDINATOR]
    conversation.begin(ApiKey.OFFSET_COMMIT)
    while writer.put(CoordinatorOp.RELEASE, 0, 0, 0, 0, 0, 0, bytes(16), 0):
        pass
    conversation.line.leave(conversation.connection)
    conversation.begin(ApiKey.HEARTBEAT)  # behind it, so it finds no room either
    assert len(conversation.finished) == 1
    conversation.line.turn()
    received: list[Received] = []
    while not conversation.coordinator.inbound[NETPROC].is_empty():
        received += conversation.hear()
    assert [each.reply.header.api_key for each in received] == [ApiKey.OFFSET_COMMIT]
    conversation.line.turn()
    assert conversation.hear() == []
    conversation.begin(ApiKey.HEARTBEAT)
    conversation.line.turn()
    assert [each.reply.header.api_key for each in conversation.hear()] == [ApiKey.HEARTBEAT]


def test_large_answers_leave_room_for_small_ones(conversation: Conversation) -> None:
    for _ in range(12):
        conversation.begin(ApiKey.OFFSET_COMMIT)
    conversation.ask(ApiKey.OFFSET_COMMIT)
    *large, small = conversation.hear()
    huge = os.urandom(5 * PIECE_BYTES)
    for each in large:
        conversation.lines.answer(each.reply, huge)
    assert conversation.lines.statistics()["large_waiting_bytes"] > LARGE_WAITING_BYTES_MAX
    conversation.answer(small, LARGE)
    conversation.line.turn()
    assert conversation.finished == [LARGE]
    for _ in range(1_000):
        conversation.hear()
        conversation.lines.publish()
        conversation.line.turn()
    assert conversation.finished == [LARGE, *[huge] * 12]
    assert conversation.lines.has_room
    conversation.hear()
    assert conversation.coordinator_pool.free_bytes() == conversation.coordinator_pool.size_bytes
    assert conversation.lines.statistics()["large_waiting_bytes"] == 0


def test_large_answers_to_a_closed_connection_are_dropped_where_they_are(conversation: Conversation) -> None:
    for _ in range(12):
        conversation.begin(ApiKey.OFFSET_COMMIT)
    conversation.line.turn()
    for each in conversation.hear():
        conversation.lines.answer(each.reply, bytes(4 * PIECE_BYTES))
    conversation.line.leave(conversation.connection)
    for _ in range(10):
        conversation.line.turn()
        conversation.hear()
        conversation.lines.publish()
    assert conversation.lines.has_room
    assert conversation.line.statistics()["waiting"] == 0
    assert conversation.lines.statistics()["large_waiting_bytes"] == 0
    assert not conversation.lines.congested
    assert conversation.coordinator_pool.free_bytes() == conversation.coordinator_pool.size_bytes


def test_one_body_is_sent_to_many(conversation: Conversation) -> None:
    for _ in range(2):
        conversation.ask(ApiKey.OFFSET_COMMIT)
    body = os.urandom(PIECE_BYTES)
    for number, each in enumerate(conversation.hear()):
        conversation.lines.answer(each.reply, bytes([number]) * 8, body)
    conversation.lines.publish()
    for _ in range(3):
        conversation.line.turn()
        conversation.hear()
        conversation.lines.publish()
    conversation.line.turn()
    assert conversation.finished == [bytes(8) + body, b"\x01" * 8 + body]
