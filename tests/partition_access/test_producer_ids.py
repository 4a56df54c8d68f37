"""A coordinator's producer ids: none twice, asked for before they are needed, and again where a question was lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.channels.control_channel import AllocateProducerIds, Body, Envelope, ProducerIdBlock
from appliance.clock import ManualClock
from appliance.partition_access.producer_ids import ASK_AGAIN_MS, ProducerIdBlocks

BLOCK = 1_000


class Line:
    """The controller, which answers when the test says so, if at all."""

    def __init__(self) -> None:
        self.asked = 0
        self.connected = 0
        self.is_full = False
        self.arrived: list[Envelope] = []

    def connect(self) -> Line:
        self.connected += 1
        return self

    def ask(self, body: Body) -> int | None:
        assert isinstance(body, AllocateProducerIds)
        if self.is_full:
            return None
        self.asked += 1
        return self.asked

    def receive(self) -> list[Envelope]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def answer(self, first: int, count: int = BLOCK) -> None:
        self.arrived.append(Envelope(1, ProducerIdBlock(first, count)))


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.line = Line()
        self.ids = ProducerIdBlocks(self.line.connect, self.clock)
        self.refills = 0
        self.ids.refilled = self._refilled

    def _refilled(self) -> None:
        self.refills += 1

    def given(self, first: int, count: int = BLOCK) -> None:
        """A block arrives."""
        self.line.answer(first, count)
        self.ids.hear()

    def take(self, count: int) -> list[int]:
        taken = [self.ids.take() for _ in range(count)]
        assert None not in taken
        return [each for each in taken if each is not None]


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    made.ids.prepare()
    yield made
    assert made.line.connected == 1


def test_the_line_is_made_when_ids_may_be_wanted_and_not_before() -> None:
    scene = Scene()
    scene.ids.hear()
    scene.ids.controller_changed()
    assert scene.line.connected == 0
    assert scene.ids.take() is None
    assert (scene.line.connected, scene.line.asked) == (1, 1)
    assert scene.refills == 0


def test_the_ids_of_a_block_are_given_once_each_and_those_who_wait_are_told(scene: Scene) -> None:
    assert scene.ids.take() is None
    scene.given(5_000)
    assert scene.refills == 1
    assert scene.take(BLOCK) == list(range(5_000, 6_000))
    assert scene.ids.take() is None


def test_the_next_block_is_asked_for_once_when_this_one_is_begun(scene: Scene) -> None:
    scene.given(5_000)
    scene.take(BLOCK - 50)
    assert scene.line.asked == 2
    scene.given(9_000)
    assert scene.take(100) == [*range(5_950, 6_000), *range(9_000, 9_050)]
    assert scene.line.asked == 3


def test_a_controller_that_takes_300_ms_keeps_nobody_waiting_at_3000_ids_a_second(scene: Scene) -> None:
    """It writes each block down, and forces that to the disk, before it answers."""
    scene.given(0)
    scene.clock.advance(1)
    first, due_ms, asked, waited = BLOCK, -1, scene.line.asked, 0
    for ms in range(3_000):
        scene.clock.advance(1)
        if scene.line.asked > asked:
            asked, due_ms = scene.line.asked, ms + 300
        if ms == due_ms:
            scene.given(first)
            first += BLOCK
        waited += [scene.ids.take() for _ in range(3)].count(None)
    assert waited == 0


def test_a_question_that_was_lost_is_asked_again_after_a_second(scene: Scene) -> None:
    scene.clock.advance(ASK_AGAIN_MS - 1)
    assert scene.ids.take() is None
    assert scene.line.asked == 1
    scene.clock.advance(1)
    assert scene.ids.take() is None
    assert scene.line.asked == 2


def test_another_controller_is_asked_at_once_for_what_the_dead_one_owed(scene: Scene) -> None:
    scene.ids.controller_changed()
    assert scene.line.asked == 2
    scene.given(5_000)
    scene.ids.controller_changed()
    assert scene.line.asked == 2, "nothing is owed"
    assert scene.ids.take() == 5_000
    assert scene.line.asked == 3, "the spare one"


def test_a_line_that_is_full_is_tried_again_when_an_id_is_wanted() -> None:
    scene = Scene()
    scene.line.is_full = True
    assert scene.ids.take() is None
    scene.line.is_full = False
    assert scene.ids.take() is None
    assert scene.line.asked == 1


def test_a_controller_that_cannot_write_a_block_down_is_asked_again_when_an_id_is_wanted(
    scene: Scene,
) -> None:
    scene.given(0, 0)
    assert scene.refills == 0
    assert scene.ids.take() is None
    assert scene.line.asked == 2


def test_two_answers_to_one_question_leave_every_id_to_be_given_once(scene: Scene) -> None:
    """The first one was late, and the question was asked again."""
    scene.line.answer(5_000)
    scene.line.answer(9_000)
    scene.ids.hear()
    assert scene.take(2) == [9_000, 9_001]
    scene.given(20_000)
    scene.given(30_000)
    assert scene.take(BLOCK) == [*range(9_002, 10_000), 30_000, 30_001]


def test_what_is_no_block_is_not_listened_to(scene: Scene) -> None:
    scene.line.arrived.append(Envelope(1, AllocateProducerIds()))
    scene.ids.hear()
    assert scene.refills == 0
    assert scene.ids.take() is None


class Lives(RuleBasedStateMachine):
    """Blocks come late, twice, empty or not at all: no id is given that is in no block, and none twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene()
        self.next_first = 10
        self.known: set[int] = set()
        self.taken: set[int] = set()

    @rule(count=st.integers(1, 200))
    def takes(self, count: int) -> None:
        for _ in range(count):
            taken = self.scene.ids.take()
            if taken is None:
                break
            assert taken in self.known
            assert taken not in self.taken
            self.taken.add(taken)

    @rule(count=st.sampled_from((0, 1, 100, 150)), times=st.integers(1, 2))
    def answers(self, count: int, times: int) -> None:
        for _ in range(times):
            self.known |= set(range(self.next_first, self.next_first + count))
            self.scene.line.answer(self.next_first, count)
            self.next_first += count + 7
        self.scene.ids.hear()

    @rule(ms=st.sampled_from((1, ASK_AGAIN_MS)))
    def time_goes_by(self, ms: int) -> None:
        self.scene.clock.advance(ms)

    @rule()
    def controller_changes(self) -> None:
        self.scene.ids.controller_changed()

    @invariant()
    def who_wants_an_id_gets_one_or_the_controller_is_asked(self) -> None:
        asked = self.scene.line.asked
        taken = self.scene.ids.take()
        if taken is None:
            self.scene.clock.advance(ASK_AGAIN_MS)
            assert self.scene.ids.take() is None
            assert self.scene.line.asked > asked
        else:
            assert taken in self.known - self.taken
            self.taken.add(taken)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
