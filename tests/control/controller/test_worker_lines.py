"""Which answer counts for what was sent."""

from __future__ import annotations

from uuid import UUID

import pytest

from appliance.channels.control_channel import Assigned, AssignedPartition, Envelope
from appliance.channels.roles import Role, RoleKind
from appliance.control.controller.copies import PIECE, Order
from appliance.control.controller.worker_lines import WorkerSessions, identity_of

WORKER = Role(RoleKind.IOPROC, 0, 0)
EPOCH = 5


class Post:
    """What was sent, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Envelope]] = []

    def send(self, receiver: bytes, envelope: Envelope) -> None:
        self.sent.append((receiver, envelope))


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def lines(post: Post) -> WorkerSessions:
    return WorkerSessions(post.send, controller_epoch=EPOCH, cluster_id="c")


def test_answer_counts_once_for_what_was_sent(lines: WorkerSessions, post: Post) -> None:
    assert lines.hello(WORKER, 3)
    lines.assign(WORKER, Order(), waves=(1, 2), full=True)
    ((receiver, envelope),) = post.sent
    assert receiver == identity_of(WORKER, 3) == b"ioproc0.0.g3"
    confirmation = lines.confirmed(envelope.id, Assigned(EPOCH))
    assert confirmation is not None
    assert confirmation.sent.waves == (1, 2)
    assert lines.all_assigned([WORKER])
    assert lines.confirmed(envelope.id, Assigned(EPOCH)) is None


def test_answer_to_the_controller_before_does_not_count(lines: WorkerSessions, post: Post) -> None:
    lines.hello(WORKER, 1)
    lines.assign(WORKER, Order(), waves=(1,), full=True)
    ((_, envelope),) = post.sent
    assert lines.confirmed(envelope.id, Assigned(EPOCH - 1)) is None
    assert not lines.all_assigned([WORKER])
    assert lines.confirmed(envelope.id, Assigned(EPOCH)) is not None


def test_answer_of_a_life_that_is_over_does_not_count(lines: WorkerSessions, post: Post) -> None:
    lines.hello(WORKER, 1)
    lines.assign(WORKER, Order(), waves=(1,), full=True)
    lines.down(WORKER, 1)
    assert not lines.is_up(WORKER)
    lines.hello(WORKER, 2)
    ((_, envelope),) = post.sent
    assert lines.confirmed(envelope.id, Assigned(EPOCH)) is None
    assert not lines.all_assigned([WORKER])


def test_late_word_of_an_old_death_does_not_end_the_new_life(lines: WorkerSessions) -> None:
    lines.hello(WORKER, 2)
    assert lines.down(WORKER, 1) is None
    assert lines.is_up(WORKER)
    assert not lines.hello(WORKER, 2)


def test_late_hello_of_an_old_life_does_not_end_the_new_life(lines: WorkerSessions) -> None:
    """The hellos of two lives come over two connections, so the controller may read the newer one first."""
    assert lines.hello(WORKER, 3)
    assert not lines.hello(WORKER, 2)
    assert lines.is_from(WORKER, identity_of(WORKER, 3))


def test_hello_that_is_read_after_its_sender_has_died_is_no_life(lines: WorkerSessions) -> None:
    assert lines.down(WORKER, 2) == []
    assert not lines.hello(WORKER, 2)
    assert not lines.is_up(WORKER)
    assert lines.hello(WORKER, 3)


def test_an_order_in_pieces_names_every_copy_once_and_releases_first() -> None:
    places = [("t", UUID(int=7), number) for number in range(3 * PIECE)]
    order = Order(released=places[: PIECE + 5], removed=places[PIECE + 5 : 2 * PIECE])
    order.partitions = [
        AssignedPartition(*place, number, 1, 0, 0, (0,), (0,), {})
        for number, place in enumerate(places[2 * PIECE :])
    ]
    for count_max, pieces in ((None, 3), (2, 2), (8, 3)):
        given = list(order.pieces(count_max))
        assert len(given) == pieces
        named = [place for piece in given for place in piece.places()]
        assert named == places
        assert [place for piece in given for place in piece.released] == order.released
    assert [list(piece.places()) for piece in Order().pieces()] == [[]]


def test_a_wave_waits_for_the_last_piece_that_a_worker_was_sent(lines: WorkerSessions) -> None:
    lines.hello(WORKER, 1)
    first = lines.assign(WORKER, Order(), waves=(7,))
    second = lines.assign(WORKER, Order(), waves=(7,))
    told = [lines.confirmed(number, Assigned(EPOCH)) for number in (second, first)]
    assert [each.waves for each in told if each is not None] == [(), (7,)]
