"""A refusal that waits for a leader: answered when there is one, or when the client would ask again anyway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.metadata_image import POINTER_BYTES, ImagePublisher, ImageReader
from appliance.channels.partition_table import (
    FILES_VERSION,
    SERVING_EPOCH,
    SERVING_INCARNATION,
    PartitionTable,
    table_size_bytes,
)
from appliance.clock import ManualClock
from appliance.cluster import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from appliance.delayed.held_answers import Deadlines
from appliance.ipc.agent import Alarm, Timers
from appliance.requests.log_handlers.leader_wait import HOLD_MS, LOOK_MS, WAITING_MAX, LeaderWait
from appliance.requests.topic_routes import TopicRoutes
from tests.support.no_purgatory import NoPurgatory
from tests.support.private_directory import private_directory

ROW, INCARNATION = 1, 9


class NetworkProcess:
    """What of one takes part; the test is its duty cycle. Slot 0 leads t-0, in epoch 4."""

    def __init__(self, memory: Path) -> None:
        pointer = memoryview(bytearray(POINTER_BYTES))
        self.publisher = ImagePublisher(memory, pointer)
        self.table = PartitionTable(memoryview(bytearray(table_size_bytes(2, 2))), slots=2)
        self.clock = ManualClock(0)
        self.timers = Timers()
        self.topic_id = UUID(int=5)
        self.lead(0, 4)
        routes = TopicRoutes(ImageReader(memory, pointer), workers=1)
        self.wait = LeaderWait(routes, self.table, self.timers, self.clock, Deadlines(NoPurgatory(), Alarm()))
        self.answered: list[int] = []

    def lead(self, leader: int, leader_epoch: int) -> None:
        """The controller's word."""
        partition = PartitionImage(0, ROW, INCARNATION, leader, leader_epoch, (0, 1), (0, 1))
        topic = TopicImage("t", self.topic_id, (partition,))
        version = self.publisher.version + 1
        self.publisher.publish(ClusterImage(version, "c", 0, 0, (), {"t": topic}))

    def serve(self, epoch: int) -> None:
        """A worker's word."""
        cells, at = self.table.cells, self.table.at(ROW)
        cells[at + FILES_VERSION] += 2
        cells[at + SERVING_EPOCH] = epoch
        cells[at + SERVING_INCARNATION] = INCARNATION

    def hold(
        self, topic: str | UUID = "t", *, slot: int = 0, timeout_ms: int = 30_000, number: int = 1
    ) -> bool:
        return self.wait.hold(
            topic, 0, slot=slot, timeout_ms=timeout_ms, answer=lambda: self.answered.append(number)
        )

    def pass_ms(self, count: int) -> list[int]:
        for _ in range(count):
            self.clock.advance(1)
            self.timers.run_due(self.clock.monotonic_ns())
        answered, self.answered = self.answered, []
        return answered


@pytest.fixture
def process() -> Iterator[NetworkProcess]:
    with private_directory() as memory:
        yield NetworkProcess(memory)


def test_it_is_answered_once_the_image_names_another_leader(process: NetworkProcess) -> None:
    process.serve(4)
    assert process.hold()
    assert process.hold(process.topic_id, number=2)
    assert process.pass_ms(HOLD_MS // 2) == []
    process.serve(5)  # by another slot, of which clients do not hear before the image says so
    assert process.pass_ms(LOOK_MS) == []
    process.lead(1, 5)
    assert process.pass_ms(LOOK_MS) == [1, 2]
    assert process.pass_ms(HOLD_MS) == []


def test_it_is_answered_once_the_same_leader_serves_again(process: NetworkProcess) -> None:
    process.serve(4)
    assert process.hold()
    assert process.pass_ms(HOLD_MS // 2) == []
    process.serve(4)
    assert process.pass_ms(LOOK_MS) == [1]


def test_it_is_answered_when_nothing_comes_and_no_timer_runs_then(process: NetworkProcess) -> None:
    assert process.hold()
    assert process.pass_ms(HOLD_MS - 1) == []
    assert process.pass_ms(1 + LOOK_MS) == [1]
    assert len(process.wait) == 0
    assert process.timers.next_due_ns() is None
    assert process.hold(timeout_ms=2 * LOOK_MS)
    assert process.pass_ms(3 * LOOK_MS) == [1]


def test_who_asked_the_wrong_slot_is_answered_at_once(process: NetworkProcess) -> None:
    assert not process.hold(slot=1)
    assert not process.hold("unknown")
    process.lead(NO_LEADER, 4)
    assert process.hold(slot=1)


def test_not_more_than_so_many_wait(process: NetworkProcess) -> None:
    assert all(process.hold() for _ in range(WAITING_MAX))
    assert not process.hold()
