"""Questions about followed copies reach the replica that holds them, and each is answered once."""

from __future__ import annotations

import pytest

from appliance.channels.control_channel import Body, CopiesMoved, CopyMove, Envelope, MoveCopies
from appliance.channels.roles import replica_of
from appliance.control.controller.copy_moves import ASKED_MAX, CopyMoves
from appliance.control.controller.worker_lines import WorkerSessions, identity_of

REPLICA = replica_of(2)
ASKER = b"netproc0.g1"
QUESTION = MoveCopies(2, (CopyMove("t", 0, 7, 1),))


class Post:
    """What was sent to replicas, and what was answered."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Envelope]] = []
        self.answered: list[tuple[bytes, int, Body]] = []
        self.lines = WorkerSessions(self.send, controller_epoch=1, cluster_id="c")
        self.moves = CopyMoves(self.lines, answer=self.answer)

    def send(self, receiver: bytes, envelope: Envelope) -> None:
        self.sent.append((receiver, envelope))

    def answer(self, receiver: bytes, number: int, body: Body) -> None:
        self.answered.append((receiver, number, body))


@pytest.fixture
def post() -> Post:
    post = Post()
    post.lines.hello(REPLICA, 3)
    return post


def test_the_replica_of_the_slot_is_asked_and_its_answer_goes_to_who_asked(post: Post) -> None:
    post.moves.ask(ASKER, 44, QUESTION)
    ((receiver, envelope),) = post.sent
    assert (receiver, envelope.body) == (identity_of(REPLICA, 3), QUESTION)
    post.moves.answered(b"replica1.g9", envelope.id, CopiesMoved((56,)))
    assert post.answered == []
    for _ in range(2):
        post.moves.answered(receiver, envelope.id, CopiesMoved((0,)))
    assert post.answered == [(ASKER, 44, CopiesMoved((0,)))]


def test_a_replica_that_is_down_or_dies_is_answered_for(post: Post) -> None:
    post.moves.ask(ASKER, 1, MoveCopies(1, QUESTION.moves))
    assert post.answered == [(ASKER, 1, CopiesMoved())]
    post.moves.ask(ASKER, 2, QUESTION)
    post.moves.down(REPLICA)
    assert post.answered[1:] == [(ASKER, 2, CopiesMoved())]
    post.moves.answered(*post.sent[0][:1], post.sent[0][1].id, CopiesMoved((0,)))
    assert len(post.answered) == 2


def test_no_more_than_so_many_wait_for_a_replica_that_says_nothing(post: Post) -> None:
    for number in range(ASKED_MAX + 5):
        post.moves.ask(ASKER, number, QUESTION)
    assert post.moves.statistics() == {"asked": ASKED_MAX}
    assert [number for _, number, _ in post.answered] == list(range(ASKED_MAX, ASKED_MAX + 5))
