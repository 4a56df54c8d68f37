"""Permits and markers on their way to the owners of partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from appliance.channels.roles import Role, RoleKind
from appliance.clock import ManualClock
from appliance.cluster import CONSUMER_OFFSETS, TopicPartition
from appliance.control.coordinator.marker_lines import (
    IN_FLIGHT_MAX,
    PARTITIONS_A_SLICE,
    PERMITS_MAX,
    UNREAD_MAX,
)
from appliance.control.coordinator.marker_writer import PARTITIONS_A_TURN, MarkerWriter
from appliance.control.coordinator.transaction.effects import Marker
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode

WORKER = Role(RoleKind.IOPROC, 0, 0)
COMMIT = Marker(7, 3, True, 5, 2)
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
OFFSETS_0 = TopicPartition(CONSUMER_OFFSETS, 0)
Done = Callable[[int], None]


class Scene:
    """Owners that answer when the test says so.

    `room`: how much more finds room on their rings. `workers`: who leads the partitions of a topic, WORKER unless it
    says another. `full`: whose ring is full. `sent_to`: the worker of each `done`. `unread_by`: how many messages a
    worker has not read: one that is `stalled` reads nothing, another one everything between two turns.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, TopicPartition, Done]] = []
        self.room = 1_000_000
        self.workers: dict[str, Role] = {}
        self.full: set[Role] = set()
        self.stalled: set[Role] = set()
        self.unread_by: Counter[Role] = Counter()
        self.sent_to: dict[int, Role] = {}
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
        worker = self.workers.get(partition.topic, WORKER)
        return LogPlace(partition.topic, partition.partition, 0, 0, 0, 0, worker)

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
        if not self.room or place.worker in self.full:
            return False
        self.room -= 1
        self.sent_to[id(done)] = place.worker
        self.unread_by[place.worker] += 1
        self.sent.append((kind, TopicPartition(place.topic, place.partition), done))
        return True

    def unread(self, worker: Role) -> int:
        return self.unread_by[worker]

    # What the test does

    def flush(self) -> bool:
        """A turn; before it the workers have read what they were sent."""
        for worker in list(self.unread_by):
            if worker not in self.stalled:
                del self.unread_by[worker]
        return self.writer.flush()

    def flush_all(self) -> None:
        """As many turns as it takes until nothing more is sent."""
        while True:
            before = len(self.sent), self.writer.statistics()
            self.flush()
            if (len(self.sent), self.writer.statistics()) == before:
                return

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

    def answer_all(self) -> None:
        while self.sent:
            self.answer()

    def pause_is_over(self) -> int:
        delay_ms, action = self.later.pop(0)
        action()
        return delay_ms


def test_a_transaction_ends_when_every_partition_has_its_marker() -> None:
    scene = Scene()
    scene.write(A0, A1)
    assert scene.flush()
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
    scene.flush()
    pauses = []
    for _ in range(9):
        scene.answer(error)
        scene.flush()
        assert scene.sent == [], "it rests first"
        pauses.append(scene.pause_is_over())
        scene.flush()
    assert pauses == [20, 40, 80, 160, 320, 640, 1_000, 1_000, 1_000]
    scene.answer()
    assert scene.ended == ["one"]


def test_a_partition_that_rests_delays_no_other_one() -> None:
    scene = Scene()
    scene.write(A0, name="one")
    scene.flush()
    scene.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    scene.write(A0, name="two")
    scene.write(A1, name="three")
    scene.flush()
    assert [partition for _, partition, _ in scene.sent] == [A1]
    scene.answer()
    assert scene.ended == ["three"]
    scene.writer.places_changed()
    scene.flush()
    assert [partition for _, partition, _ in scene.sent] == [A0, A0], "a new image ends its pause"


def test_a_deleted_topic_owes_nothing() -> None:
    scene = Scene()
    scene.deleted = {"a"}
    scene.write(A0, TopicPartition("b", 0))
    scene.flush()
    assert scene.answer() == TopicPartition("b", 0)
    assert scene.ended == ["one"]


def test_a_partition_without_a_leader_is_waited_for() -> None:
    scene = Scene()
    scene.leaderless = {A0}
    scene.write(A0)
    scene.flush()
    assert (scene.sent, scene.ended) == ([], [])
    scene.leaderless.clear()
    scene.writer.places_changed()
    scene.flush()
    scene.answer()
    assert scene.ended == ["one"]


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
def test_a_fenced_transaction_stays_as_it_is(error: ErrorCode) -> None:
    scene = Scene()
    scene.write(A0, A1)
    scene.flush()
    scene.answer(error)
    scene.answer()
    assert scene.ended == []
    assert scene.later == []
    assert scene.writer.owed == 0


def test_nothing_of_a_partition_that_was_given_away_is_sent_or_ended() -> None:
    scene = Scene()
    scene.write(A0, log_partition=4)
    scene.flush()
    scene.write(A1, log_partition=4)
    scene.write(A1, log_partition=5, name="another")
    scene.writer.forget(4)
    scene.flush()
    assert [partition for _, partition, _ in scene.sent] == [A0, A1]
    scene.answer()
    scene.answer()
    assert scene.ended == ["another"]


def test_what_finds_no_room_is_sent_when_there_is_some() -> None:
    scene = Scene()
    scene.room = 1
    scene.write(A0, A1)
    assert not scene.flush()
    scene.answer()
    assert not scene.flush()
    scene.room = 1
    assert scene.flush()
    scene.answer()
    assert scene.ended == ["one"]


def test_many_markers_take_turns_and_are_bounded_in_flight() -> None:
    scene = Scene()
    scene.write(*(TopicPartition("a", number) for number in range(5_000)))
    scene.write(TopicPartition("b", 0), name="small")
    scene.flush_all()
    assert len(scene.sent) == IN_FLIGHT_MAX
    assert [p.topic for _, p, _ in scene.sent].index("b") < 2 * PARTITIONS_A_TURN
    while scene.sent:
        scene.answer()
        scene.flush()
    assert scene.ended == ["small", "one"]


def test_a_worker_that_has_not_read_gets_no_further_markers() -> None:
    """What the coordinator appends for other transactions goes on the same ring, behind them."""
    scene = Scene()
    scene.write(*(TopicPartition("a", number) for number in range(1_000)))
    scene.stalled = {WORKER}
    for _ in range(20):
        assert not scene.flush(), "the worker may read any moment, and no message says so"
    assert len(scene.sent) == UNREAD_MAX
    scene.unread_by[WORKER] -= 10
    scene.flush()
    assert len(scene.sent) == UNREAD_MAX + 10
    scene.stalled.clear()
    while scene.sent:
        scene.answer()
        scene.flush()
    assert scene.ended == ["one"]


@pytest.mark.parametrize("wide", [1, 3])
def test_a_small_transaction_waits_for_a_slice_of_each_wide_one_and_no_more(wide: int) -> None:
    scene = Scene()
    for number in range(wide):
        scene.write(*(TopicPartition(f"wide {number}", p) for p in range(5_000)), name=f"wide {number}")
    for _ in range(20):
        scene.flush()
        scene.answer_all()
    for number in range(100):
        scene.write(TopicPartition("small", number), name=f"small {number}")
        ahead: list[str] = []
        for _ in range(5):
            scene.flush()
            ahead += [partition.topic for _, partition, _ in scene.sent]
            scene.answer_all()
        assert ahead.index("small") <= UNREAD_MAX + wide * PARTITIONS_A_SLICE
        assert f"small {number}" in scene.ended
    for _ in range(5_000):
        scene.flush()
        scene.answer_all()
    assert len(scene.ended) == 100 + wide


def test_transactions_that_wait_for_room_share_it_evenly() -> None:
    scene = Scene()
    scene.full = {WORKER}
    for name in "abcd":
        scene.write(*(TopicPartition(name, number) for number in range(200)), name=name)
    scene.flush_all()
    scene.full.clear()
    for _ in range(5):
        scene.flush()
    sent = Counter(partition.topic for _, partition, _ in scene.sent)
    assert len(sent) == 4
    assert max(sent.values()) - min(sent.values()) <= PARTITIONS_A_SLICE


def test_permits_of_a_small_request_wait_for_a_slice_of_a_wide_one() -> None:
    scene = Scene()
    scene.permits(*(TopicPartition("wide", number) for number in range(4 * PERMITS_MAX)), name="wide")
    scene.flush_all()
    assert len(scene.sent) == PERMITS_MAX
    scene.permits(B0, name="small")
    scene.flush()
    answered = 0
    while "small" not in scene.ended:
        scene.answer()
        scene.flush()
        answered += 1
    assert answered <= PERMITS_MAX + PARTITIONS_A_SLICE + 1


@pytest.mark.parametrize("room", [1, 5, 1_000])
def test_markers_of_one_partition_are_sent_in_the_order_in_which_they_were_asked_for(room: int) -> None:
    scene = Scene()
    scene.room = 0
    order: list[str] = []
    for number in range(60):
        wanted = [TopicPartition("a", number % 3), TopicPartition("b", number)]
        scene.write(*wanted, name=f"{number}")
    for _ in range(150):
        scene.room = room
        scene.flush()
        while scene.sent:
            scene.answer()
        order += scene.ended
        scene.ended.clear()
    for lane in range(3):
        ended = [int(each) for each in order if int(each) % 3 == lane]
        assert ended == sorted(ended)
    assert len(order) == 60


def test_permits_are_answered_whatever_the_owners_say() -> None:
    scene = Scene()
    scene.leaderless = {A1}
    scene.permits(A0, A1)
    scene.flush()
    scene.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert scene.ended == ["permits"]


def test_no_permit_is_sent_for_a_transaction_that_was_decided_meanwhile() -> None:
    scene = Scene()
    scene.permits(A0, is_valid=False)
    scene.flush()
    assert scene.sent == []
    assert scene.ended == ["permits"]


def test_a_marker_for_committed_offsets_waits_for_the_permit_in_flight() -> None:
    """It may take the ring of another process, and must not arrive before the permit."""
    scene = Scene()
    scene.permits(OFFSETS_0)
    scene.write(OFFSETS_0)
    scene.flush()
    assert [kind for kind, _, _ in scene.sent] == ["permit"]
    scene.answer()
    scene.pause_is_over()
    scene.flush()
    assert [kind for kind, _, _ in scene.sent] == ["marker"]
    scene.answer()
    assert scene.ended == ["permits", "one"]


OTHER_WORKER = Role(RoleKind.IOPROC, 0, 1)
B0 = TopicPartition("b", 0)


def test_a_partition_that_never_answers_leaves_room_for_the_markers_of_others() -> None:
    """Its followers lag: it answers each marker after seconds, and transactions go on to name it."""
    scene = Scene()
    for number in range(3 * IN_FLIGHT_MAX):
        scene.write(A0, name=f"slow {number}")
    scene.flush_all()
    slow = [done for _, partition, done in scene.sent if partition == A0]
    assert len(slow) == IN_FLIGHT_MAX // 2, "it has half of what its worker may have in flight, and no more"
    scene.write(A1, name="quick")
    scene.flush()
    assert scene.sent[-1][1] == A1
    scene.sent.pop()[2](0)
    assert scene.ended == ["quick"]
    scene.sent.clear()
    for done in slow:
        done(0)
    while scene.writer.owed:
        scene.flush()
        while scene.sent:
            scene.answer()
    assert len(scene.ended) == 1 + 3 * IN_FLIGHT_MAX, "what waited for its share is sent in the end"
    assert scene.writer.statistics() == {"owed": 0, "in_flight": 0, "resting": 0, "waiting": 0}


def test_many_partitions_that_never_answer_leave_each_other_and_a_new_one_the_same_share() -> None:
    scene = Scene()
    slow = [TopicPartition("a", number) for number in range(7)]
    for _ in range(IN_FLIGHT_MAX):
        scene.write(*slow)
    scene.flush_all()
    sent = Counter(partition for _, partition, _ in scene.sent)
    even = IN_FLIGHT_MAX // 8
    a_few = IN_FLIGHT_MAX // 256  # transactions take turns, not partitions
    assert len(sent) == 7
    assert all(abs(count - even) <= a_few for count in sent.values())
    for number in range(even // 2 - a_few):
        scene.write(B0, name=f"new {number}")
    scene.flush_all()
    assert sum(partition == B0 for _, partition, _ in scene.sent) == even // 2 - a_few


def test_markers_that_nobody_answers_delay_no_permit_of_the_same_worker() -> None:
    scene = Scene()
    scene.write(*(TopicPartition("a", number) for number in range(5_000)))
    scene.flush_all()
    assert len(scene.sent) == IN_FLIGHT_MAX
    scene.permits(B0)
    scene.flush()
    kind, partition, done = scene.sent[-1]
    assert (kind, partition) == ("permit", B0)
    done(0)
    assert scene.ended == ["permits"]


def test_a_worker_that_hangs_with_a_full_ring_delays_no_other_worker() -> None:
    scene = Scene()
    scene.workers["a"] = OTHER_WORKER
    scene.full = {OTHER_WORKER}
    scene.permits(A0, name="hangs")
    scene.write(A0, A1, name="hangs too")
    scene.write(B0, name="goes on")
    scene.permits(B0, name="goes on, too")
    assert not scene.flush(), "there may be room on the ring any moment"
    assert [partition for _, partition, _ in scene.sent] == [B0, B0]
    scene.answer()
    scene.answer()
    assert scene.ended == ["goes on", "goes on, too"]
    scene.full.clear()
    assert scene.flush()
    assert [partition for _, partition, _ in scene.sent] == [A0, A0, A1]
    for _ in range(3):
        scene.answer()
    assert sorted(scene.ended) == ["goes on", "goes on, too", "hangs", "hangs too"]


def test_permits_that_nobody_answers_are_bounded_and_delay_no_other_worker() -> None:
    scene = Scene()
    scene.workers["a"] = OTHER_WORKER
    scene.permits(*(TopicPartition("a", number) for number in range(2 * PERMITS_MAX)), name="hangs")
    scene.permits(B0, name="goes on")
    for _ in range(3):
        scene.flush()
    assert sum(partition.topic == "a" for _, partition, _ in scene.sent) == PERMITS_MAX
    assert B0 in [partition for _, partition, _ in scene.sent]
    while scene.sent:
        scene.answer()
        scene.flush()
    assert scene.ended == ["goes on", "hangs"]


def test_what_waits_for_a_worker_goes_to_the_next_leader_when_the_partition_moves() -> None:
    scene = Scene()
    scene.full = {WORKER}
    scene.write(A0)
    scene.permits(A1)
    assert not scene.flush()
    scene.workers["a"] = OTHER_WORKER
    scene.writer.places_changed()
    assert scene.flush()
    assert sorted(kind for kind, _, _ in scene.sent) == ["marker", "permit"]


def test_an_offsets_partition_that_never_answers_delays_no_other_one() -> None:
    scene = Scene()
    for _ in range(2 * IN_FLIGHT_MAX):
        scene.write(OFFSETS_0)
    scene.flush_all()
    scene.write(TopicPartition(CONSUMER_OFFSETS, 1), name="other")
    scene.flush()
    scene.sent.pop()[2](0)
    assert scene.ended == ["other"]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_answers_or_is_full_every_marker_and_permit_ends_and_no_bound_is_passed(seed: int) -> None:
    """A random run over three workers: full rings, errors, moved partitions, answers in any order."""
    dice = Random(seed)
    scene = Scene()
    workers = [Role(RoleKind.IOPROC, 0, number) for number in range(3)]
    names = ["a", "b", "c", "d"]
    partitions = [TopicPartition(name, number) for name in names for number in range(40)]
    for name in names:
        scene.workers[name] = dice.choice(workers)
    begun = 0
    for step in range(150):
        for _ in range(dice.randrange(12)):
            some = dice.sample(partitions, dice.choice((1, 2, 30)))
            begun += 1
            begin = scene.permits if dice.random() < 0.3 else scene.write
            begin(*some, name=f"{begun}")
        if dice.random() < 0.1:
            scene.full = {worker for worker in workers if dice.random() < 0.4}
        if dice.random() < 0.1:
            scene.workers[dice.choice(names)] = dice.choice(workers)
            scene.writer.places_changed()
        scene.flush()
        if not step % 10:
            counts = Counter((kind, scene.sent_to[id(done)]) for kind, _, done in scene.sent)
            bounds = {"marker": IN_FLIGHT_MAX, "permit": PERMITS_MAX}
            assert all(count <= bounds[kind] for (kind, _), count in counts.items())
        for _ in range(min(len(scene.sent), dice.randrange(40))):
            scene.sent.insert(0, scene.sent.pop(dice.randrange(len(scene.sent))))
            scene.answer(ErrorCode.REQUEST_TIMED_OUT if dice.random() < 0.05 else 0)
        if scene.later and step % 3 == 0:
            scene.pause_is_over()
    scene.full = set()
    while len(scene.ended) < begun:
        before = len(scene.ended)
        scene.flush()
        while scene.sent:
            scene.answer()
        while scene.later:
            scene.pause_is_over()
        assert len(scene.ended) > before or scene.writer.statistics()["waiting"], "something is left behind"
    assert scene.writer.statistics() == {"owed": 0, "in_flight": 0, "resting": 0, "waiting": 0}
