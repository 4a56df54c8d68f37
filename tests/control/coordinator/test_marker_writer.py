"""Permits and markers on their way to the owners of partitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.channels.roles import Role, RoleKind
from appliance.clock import ManualClock
from appliance.cluster import CONSUMER_OFFSETS, TopicPartition
from appliance.control.coordinator.marker_writer import IN_FLIGHT_MAX, PARTITIONS_A_TURN, MarkerWriter
from appliance.control.coordinator.transaction.effects import Marker
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode

WORKER = Role(RoleKind.IOPROC, 0, 0)
COMMIT = Marker(7, 3, True, 5, 2)
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
OFFSETS_0 = TopicPartition(CONSUMER_OFFSETS, 0)
Done = Callable[[int], None]


class Scene:
    """Owners that answer when the test says so. `room`: how much more finds room on their rings."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, TopicPartition, Done]] = []
        self.room = 1_000_000
        self.deleted: set[str] = set()
        self.leaderless: set[TopicPartition] = set()
        self.later: list[tuple[int, Callable[[], None]]] = []
        self.ended: list[str] = []
        self.writer = MarkerWriter(
            self,
            self,
            write_offsets_marker=lambda partition, _marker, done: self.sent.append(
                ("marker", TopicPartition(CONSUMER_OFFSETS, partition), done)
            ),
            later=lambda delay_ms, action: self.later.append((delay_ms, action)),
            clock=ManualClock(),
        )

    # Places

    def has(self, partition: TopicPartition) -> bool:
        return partition.topic not in self.deleted

    def log_place(self, partition: TopicPartition) -> LogPlace | None:
        if partition in self.leaderless:
            return None
        return LogPlace(partition.topic, partition.partition, 0, 0, 0, 0, WORKER)

    # Owners

    def permit(self, place: LogPlace, producer_id: int, producer_epoch: int, done: Done) -> bool:
        return self._put("permit", place, done)

    def write_marker(
        self,
        place: LogPlace,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
        done: Done,
    ) -> bool:
        assert Marker(producer_id, producer_epoch, commit, coordinator_epoch, transaction_version) == COMMIT
        return self._put("marker", place, done)

    def _put(self, kind: str, place: LogPlace, done: Done) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.sent.append((kind, TopicPartition(place.topic, place.partition), done))
        return True

    # What the test does

    def write(self, *partitions: TopicPartition, name: str = "one", log_partition: int = 0) -> None:
        self.writer.write(log_partition, COMMIT, frozenset(partitions), lambda: self.ended.append(name))

    def permits(self, *partitions: TopicPartition, is_valid: bool = True, name: str = "permits") -> None:
        self.writer.permit(
            7, 3, frozenset(partitions), is_valid=lambda _: is_valid, then=lambda: self.ended.append(name)
        )

    def answer(self, error: int = 0) -> TopicPartition:
        """The oldest permit or marker is answered."""
        _, partition, done = self.sent.pop(0)
        done(error)
        return partition

    def pause_is_over(self) -> int:
        delay_ms, action = self.later.pop(0)
        action()
        return delay_ms


def test_a_transaction_ends_when_every_partition_has_its_marker() -> None:
    scene = Scene()
    scene.write(A0, A1)
    assert scene.writer.flush()
    scene.answer()
    assert scene.ended == []
    scene.answer()
    assert scene.ended == ["one"]
    assert scene.writer.owed == 0
    assert scene.writer.markers == 2


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ],
)
def test_a_marker_that_was_not_written_is_sent_again_for_ever_with_longer_pauses(error: ErrorCode) -> None:
    scene = Scene()
    scene.write(A0)
    scene.writer.flush()
    pauses = []
    for _ in range(9):
        scene.answer(error)
        scene.writer.flush()
        assert scene.sent == [], "it rests first"
        pauses.append(scene.pause_is_over())
        scene.writer.flush()
    assert pauses == [20, 40, 80, 160, 320, 640, 1_000, 1_000, 1_000]
    scene.answer()
    assert scene.ended == ["one"]


def test_a_partition_that_rests_delays_no_other_one() -> None:
    scene = Scene()
    scene.write(A0, name="one")
    scene.writer.flush()
    scene.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    scene.write(A0, name="two")
    scene.write(A1, name="three")
    scene.writer.flush()
    assert [partition for _, partition, _ in scene.sent] == [A1]
    scene.answer()
    assert scene.ended == ["three"]
    scene.writer.places_changed()
    scene.writer.flush()
    assert [partition for _, partition, _ in scene.sent] == [A0, A0], "a new image ends its pause"


def test_a_deleted_topic_owes_nothing() -> None:
    scene = Scene()
    scene.deleted = {"a"}
    scene.write(A0, TopicPartition("b", 0))
    scene.writer.flush()
    assert scene.answer() == TopicPartition("b", 0)
    assert scene.ended == ["one"]


def test_a_partition_without_a_leader_is_waited_for() -> None:
    scene = Scene()
    scene.leaderless = {A0}
    scene.write(A0)
    scene.writer.flush()
    assert (scene.sent, scene.ended) == ([], [])
    scene.leaderless.clear()
    scene.writer.places_changed()
    scene.writer.flush()
    scene.answer()
    assert scene.ended == ["one"]


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
def test_a_fenced_transaction_stays_as_it_is(error: ErrorCode) -> None:
    scene = Scene()
    scene.write(A0, A1)
    scene.writer.flush()
    scene.answer(error)
    scene.answer()
    assert scene.ended == []
    assert scene.later == []
    assert scene.writer.owed == 0


def test_nothing_of_a_partition_that_was_given_away_is_sent_or_ended() -> None:
    scene = Scene()
    scene.write(A0, log_partition=4)
    scene.writer.flush()
    scene.write(A1, log_partition=4)
    scene.write(A1, log_partition=5, name="another")
    scene.writer.forget(4)
    scene.writer.flush()
    assert [partition for _, partition, _ in scene.sent] == [A0, A1]
    scene.answer()
    scene.answer()
    assert scene.ended == ["another"]


def test_what_finds_no_room_is_sent_when_there_is_some() -> None:
    scene = Scene()
    scene.room = 1
    scene.write(A0, A1)
    assert not scene.writer.flush()
    scene.answer()
    assert not scene.writer.flush()
    scene.room = 1
    assert scene.writer.flush()
    scene.answer()
    assert scene.ended == ["one"]


def test_many_markers_take_turns_and_are_bounded_in_flight() -> None:
    scene = Scene()
    scene.write(*(TopicPartition("a", number) for number in range(5_000)))
    scene.write(TopicPartition("b", 0), name="small")
    scene.writer.flush()
    assert len(scene.sent) == IN_FLIGHT_MAX
    assert [p.topic for _, p, _ in scene.sent].index("b") == PARTITIONS_A_TURN
    while scene.sent:
        scene.answer()
        scene.writer.flush()
    assert scene.ended == ["small", "one"]


def test_permits_are_answered_whatever_the_owners_say() -> None:
    scene = Scene()
    scene.leaderless = {A1}
    scene.permits(A0, A1)
    scene.writer.flush()
    scene.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert scene.ended == ["permits"]


def test_no_permit_is_sent_for_a_transaction_that_was_decided_meanwhile() -> None:
    scene = Scene()
    scene.permits(A0, is_valid=False)
    scene.writer.flush()
    assert scene.sent == []
    assert scene.ended == ["permits"]


def test_a_marker_for_committed_offsets_waits_for_the_permit_in_flight() -> None:
    """It may take the ring of another process, and must not arrive before the permit."""
    scene = Scene()
    scene.permits(OFFSETS_0)
    scene.write(OFFSETS_0)
    scene.writer.flush()
    assert [kind for kind, _, _ in scene.sent] == ["permit"]
    scene.answer()
    scene.pause_is_over()
    scene.writer.flush()
    assert [kind for kind, _, _ in scene.sent] == ["marker"]
    scene.answer()
    assert scene.ended == ["permits", "one"]
