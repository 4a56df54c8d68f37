"""Leaders and in-sync replicas of several slots, by a real controller: what moves, in which order, what does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.channels.control_channel import NewTopic, PartitionsOffline, WantedIsr
from appliance.channels.partition_table import (
    ISR_BITS,
    SERVING_EPOCH,
    SERVING_INCARNATION,
    SLOT_FOLLOWED_EPOCH,
    SLOT_FOLLOWED_INCARNATION,
)
from appliance.channels.roles import Role, RoleKind
from appliance.channels.supervision import PeerDown, PeerHeld
from appliance.cluster import NO_LEADER, PartitionImage
from appliance.config import BrokerSettings
from appliance.control.controller import leadership
from appliance.protocol.errors import ErrorCode
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance


@pytest.fixture
def three(new_instance: NewInstance) -> Instance:
    """Three slots with all their processes, and a topic `t` with a replica on each, led by slot 0."""
    return three_slots(new_instance)


@pytest.fixture
def patient_three(new_instance: NewInstance) -> Instance:
    """The same, where a slot that is missed is waited for longer than a test takes."""
    return three_slots(new_instance, patient)


def patient() -> None:
    """For the child."""
    leadership.GRACE_MS = 600_000  # type: ignore[attr-defined]


def three_slots(new_instance: NewInstance, before: Callable[[], None] | None = None) -> Instance:
    instance = new_instance(slots=3)
    instance.start(before)
    instance.start_slots()
    instance.create(NewTopic("t", assignments={0: (0, 1, 2)}))
    instance.until(lambda: holders(instance) == {0: "ioproc", 1: "replica", 2: "replica"})
    return instance


def holders(instance: Instance, topic: str = "t", number: int = 0) -> dict[int, str]:
    """Which process of each slot has its copy open."""
    return {
        slot: str(opened[topic, number].kind)
        for slot, opened in sorted(instance.opened.items())
        if (topic, number) in opened
    }


def create_dirty(instance: Instance, *replicas: int) -> None:
    """A topic of one partition that allows unclean leaders."""
    allows: dict[str, str | None] = {"unclean.leader.election.enable": "true"}
    instance.create(NewTopic("dirty", assignments={0: replicas}, configs=allows))


def wanted(instance: Instance, isr: tuple[int, ...], name: str = "t", /, **changed: int) -> WantedIsr:
    """A proposal that goes by what is published, but for what is `changed`."""
    topic, now = instance.image.topics[name], instance.partition(name)
    epochs = {"leader_epoch": now.leader_epoch, "partition_epoch": now.partition_epoch} | changed
    return WantedIsr(name, topic.topic_id, 0, now.incarnation, isr=isr, **epochs)


def state(partition: PartitionImage) -> tuple[int, int, tuple[int, ...]]:
    return partition.leader, partition.leader_epoch, partition.isr


def test_a_new_topic_is_led_by_one_and_followed_by_the_others(three: Instance) -> None:
    assert state(three.partition("t")) == (0, 0, (0, 1, 2))
    assert three.workers[0].led["t", 0].leader == 0
    assert {slot: three.replicas[slot].led["t", 0].leader for slot in (1, 2)} == {1: 0, 2: 0}
    assert len(three.disks[1]) == len(three.disks[2]) == 1


def test_a_deleted_topic_leaves_no_files_on_any_slot(three: Instance) -> None:
    (outcome,) = three.delete("t")
    assert outcome.error == 0
    assert three.disks == {0: {}, 1: {}, 2: {}}
    assert three.opened == {0: {}, 1: {}, 2: {}}


def test_when_a_worker_dies_a_replica_in_sync_leads_and_its_slot_follows(three: Instance) -> None:
    three.lose(three.workers[0])
    three.until(lambda: three.partition("t").leader == 1)
    # Two are enough: nobody waits for the dead worker's slot to open what it left.
    assert state(three.partition("t")) == (1, 1, (1, 2))
    three.until(lambda: holders(three) == {0: "replica", 1: "ioproc", 2: "replica"})
    assert three.replicas[2].led["t", 0].leader == 1
    three.start_worker(0)
    three.until(lambda: bool(three.workers[0].commands))
    assert three.workers[0].led == {}
    assert three.partition("t").leader == 1


@pytest.mark.parametrize("controllers", [1, 2])
def test_of_a_worker_that_the_kernel_holds_others_lead_and_nobody_opens_what_it_has_open(
    three: Instance, controllers: int
) -> None:
    held = three.workers.pop(0)
    held.link.close()
    three.tell_child(PeerHeld(RoleKind.IOPROC, 0, 0, held.generation))
    three.until(lambda: three.partition("t").leader == 1)
    assert state(three.partition("t")) == (1, 1, (1, 2))
    if controllers == 2:
        three.held = frozenset({Role(RoleKind.IOPROC, 0, 0)})
        three.kill()
        three.start()
        for each in three.processes():
            each.hello()
        three.until(lambda: three.workers[1].commands[-1].full and three.replicas[0].commands[-1].full)
        assert ("t", 0) in three.workers[1].led, "whoever leads goes on"
    # Whatever there was to be told has been when something else is done.
    three.create(NewTopic("other", assignments={0: (1, 2)}))
    assert ("t", 0) not in three.replicas[0].led
    assert holders(three) == {0: "ioproc", 1: "ioproc", 2: "replica"}
    del three.opened[0]["t", 0]
    three.tell_child(PeerDown(RoleKind.IOPROC, 0, 0, held.generation))
    three.until(lambda: holders(three) == {0: "replica", 1: "ioproc", 2: "replica"})


def opened(instance: Instance, slot: int, topic: str) -> None:
    """Has the table say that the slot has its copy open, as its process does once that is so."""
    now, table = instance.partition(topic), instance.table
    at, own = table.at(now.row), table.slot_at(now.row, slot)
    incarnation, epoch = SLOT_FOLLOWED_INCARNATION + own, SLOT_FOLLOWED_EPOCH + own
    if now.leader == slot:
        incarnation, epoch = SERVING_INCARNATION + at, SERVING_EPOCH + at
    table.cells[incarnation], table.cells[epoch] = now.incarnation, now.leader_epoch


@pytest.mark.parametrize("kind", [RoleKind.IOPROC, RoleKind.REPLICA])
def test_what_the_living_half_has_open_stays_open_though_the_kernel_holds_the_other_and_the_controller_dies(
    three: Instance, kind: RoleKind
) -> None:
    # Slot 0 leads `t` and follows `f`.
    three.create(NewTopic("f", assignments={0: (1, 0, 2)}))
    three.until(lambda: holders(three, "f") == {0: "replica", 1: "ioproc", 2: "replica"})
    opened(three, 0, "t")
    opened(three, 0, "f")
    worker_is_held = kind is RoleKind.IOPROC
    held = (three.workers if worker_is_held else three.replicas).pop(0)
    held.link.close()
    three.tell_child(PeerHeld(kind, 0, 0, held.generation))
    if worker_is_held:
        three.until(lambda: three.partition("t").leader == 1)
    three.held = frozenset({Role(kind, 0, 0)})
    three.kill()
    three.start()
    for each in three.processes():
        each.hello()
    living = (three.replicas if worker_is_held else three.workers)[0]
    before = len(living.commands)
    three.until(lambda: len(living.commands) > before and living.commands[-1].full)
    assert set(living.led) == {("f" if worker_is_held else "t", 0)}
    # What the held one may have open, nobody else opens.
    three.create(NewTopic("other", assignments={0: (1, 2)}))
    assert (holders(three)[0], holders(three, "f")[0]) == ("ioproc", "replica")
    del three.opened[0]["t" if worker_is_held else "f", 0]
    three.tell_child(PeerDown(kind, 0, 0, held.generation))
    if worker_is_held:
        three.until(lambda: holders(three).get(0) == "replica")
    assert set(living.led) == {("t", 0), ("f", 0)} if worker_is_held else {("t", 0)}


def test_the_new_leader_is_published_when_it_has_answered_and_not_before(three: Instance) -> None:
    three.workers[1].mute = True
    three.lose(three.workers[0])
    three.until(lambda: ("t", 0) in three.workers[1].led)
    assert three.partition("t").leader == 0
    three.workers[1].mute = False
    three.until(lambda: three.partition("t").leader == 1)


def test_the_new_leader_is_not_assigned_before_its_slots_replica_let_go(three: Instance) -> None:
    three.replicas[1].mute = True
    three.lose(three.workers[0])
    three.until(lambda: any(each.released for each in three.replicas[1].commands))
    assert three.workers[1].led == {}
    three.replicas[1].mute = False
    three.until(lambda: three.partition("t").leader == 1)


def test_the_new_leader_is_not_assigned_before_the_old_one_let_go(three: Instance) -> None:
    three.workers[0].mute = True
    three.workers[0].link.ask(PartitionsOffline(0, (("t", 0),)))
    three.until(lambda: any(each.released for each in three.workers[0].commands))
    three.until(lambda: ("t", 0) not in three.replicas[1].led)
    # What it is told meanwhile, after its replica's answer, does not name the partition.
    for name in ("u", "v"):
        three.create(NewTopic(name, assignments={0: (1,)}))
    assert set(three.workers[1].led) == {("u", 0), ("v", 0)}
    assert three.partition("t").leader == 0
    three.workers[0].mute = False
    three.until(lambda: three.partition("t").leader == 1)


def test_an_old_leader_that_dies_instead_of_letting_go_has_let_go(three: Instance) -> None:
    three.workers[0].mute = True
    three.workers[0].link.ask(PartitionsOffline(0, (("t", 0),)))
    three.until(lambda: any(each.released for each in three.workers[0].commands))
    three.lose(three.workers[0])
    three.until(lambda: three.partition("t").leader == 1)


def test_a_replica_that_dies_instead_of_letting_go_has_let_go(three: Instance) -> None:
    three.replicas[1].mute = True
    three.lose(three.workers[0])
    three.until(lambda: any(each.released for each in three.replicas[1].commands))
    three.lose(three.replicas[1])
    three.until(lambda: three.partition("t").leader == 1)


def test_a_leader_that_dies_on_its_way_is_followed_by_the_next(three: Instance) -> None:
    three.workers[1].mute = True
    three.lose(three.workers[0])
    three.until(lambda: ("t", 0) in three.workers[1].led)
    three.lose(three.workers[1])
    three.until(lambda: three.partition("t").leader == 2)
    # Slot 1 stays in sync: nobody else is left but the leader.
    assert state(three.partition("t")) == (2, 2, (1, 2))
    three.until(lambda: holders(three) == {0: "replica", 1: "replica", 2: "ioproc"})


def test_a_slot_that_is_missed_stays_in_sync_while_it_is_waited_for(patient_three: Instance) -> None:
    three = patient_three
    three.create(
        NewTopic("two", assignments={0: (0, 1)}),
        NewTopic("all", assignments={0: (0, 1, 2)}, configs={"min.insync.replicas": "3"}),
    )
    three.lose(three.workers[0])
    three.until(lambda: {three.partition(each).leader for each in ("t", "two", "all")} == {1})
    assert three.partition("t").isr == (1, 2)
    assert three.partition("two").isr == (0, 1)
    assert three.partition("all").isr == (0, 1, 2)


def test_a_follower_that_dies_leaves_the_isr_at_once_where_two_are_left(three: Instance) -> None:
    three.create(NewTopic("two", assignments={0: (0, 2)}))
    three.lose(three.replicas[2])
    three.until(lambda: three.partition("t").isr == (0, 1))
    assert three.partition("two").isr == (0, 2)
    three.until(lambda: three.workers[0].led["t", 0].isr == (0, 1))
    three.until(lambda: three.partition("two").isr == (0,))


def test_a_lonely_partition_keeps_its_leader_and_epoch_over_a_restart_of_its_worker(
    patient_three: Instance,
) -> None:
    three = patient_three
    three.create(NewTopic("lonely", assignments={0: (0,)}))
    three.lose(three.workers[0])
    three.until(lambda: three.partition("t").leader == 1)
    three.start_worker(0)
    three.until(lambda: ("lonely", 0) in three.workers[0].led)
    assert state(three.partition("lonely")) == (0, 0, (0,))


def test_a_slot_that_does_not_come_back_leaves_isr_and_brokers_and_returns(three: Instance) -> None:
    three.create(NewTopic("lonely", assignments={0: (2,)}))
    three.lose(three.workers[2], three.replicas[2])
    three.until(lambda: [slot.node_id for slot in three.image.slots] == [0, 1])
    three.until(lambda: three.partition("lonely").leader == NO_LEADER)
    assert state(three.partition("lonely")) == (NO_LEADER, 1, (2,))
    assert state(three.partition("t")) == (0, 0, (0, 1))
    # The leader was told, in the same epoch: it did not ask for it.
    three.until(lambda: three.workers[0].led["t", 0].isr == (0, 1))
    assert three.workers[0].led["t", 0].partition_epoch == three.partition("t").partition_epoch == 1
    three.start_replica(2)
    three.start_worker(2)
    three.until(lambda: len(three.image.slots) == 3 and three.partition("lonely").leader == 2)
    assert state(three.partition("lonely")) == (2, 2, (2,))
    # Who returns follows, and joins the ISR when the leader says that it has caught up.
    assert state(three.partition("t")) == (0, 0, (0, 1))
    three.until(lambda: ("t", 0) in three.replicas[2].led)
    (answer,) = three.propose(0, wanted(three, (0, 1, 2))).partitions
    assert (answer.error, answer.isr, answer.partition_epoch) == (0, (0, 1, 2), 2)
    three.until(lambda: three.partition("t").isr == (0, 1, 2))


def test_an_accepted_isr_is_stored_published_and_in_the_table(three: Instance) -> None:
    commands = len(three.workers[0].commands)
    (answer,) = three.propose(0, wanted(three, (0, 2))).partitions
    assert (answer.error, answer.leader, answer.isr, answer.partition_epoch) == (0, 0, (0, 2), 1)
    three.until(lambda: three.partition("t").isr == (0, 2))
    row = three.partition("t").row
    assert three.table.cells[three.table.at(row) + ISR_BITS] == 0b101
    stored = three.read_store("/brokers/topics/t/partitions/0/state")
    assert b'"isr":[0,2]' in stored
    assert len(three.workers[0].commands) == commands, "the answer is enough"


@pytest.mark.parametrize(
    ("isr", "changed", "error"),
    [
        ((0, 1), {"leader_epoch": 7}, ErrorCode.FENCED_LEADER_EPOCH),
        ((0, 1), {"partition_epoch": 9}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 2), {}, ErrorCode.INVALID_REQUEST),
        ((0, 1, 1), {}, ErrorCode.INVALID_REQUEST),
        ((0, 1, 5), {}, ErrorCode.INVALID_REQUEST),
        ((), {}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_proposal_of_another_moment_changes_nothing(
    three: Instance, isr: tuple[int, ...], changed: dict[str, int], error: ErrorCode
) -> None:
    before = three.read_store("/brokers/topics/t/partitions/0/state")
    (answer,) = three.propose(0, wanted(three, isr, **changed)).partitions
    assert answer.error == error
    assert (answer.isr, answer.partition_epoch) == ((0, 1, 2), 0)
    assert three.read_store("/brokers/topics/t/partitions/0/state") == before


def test_a_member_that_does_not_live_does_not_join_the_isr(three: Instance) -> None:
    three.propose(0, wanted(three, (0, 1)))
    three.until(lambda: three.partition("t").isr == (0, 1))
    three.lose(three.replicas[2])
    (answer,) = three.propose(0, wanted(three, (0, 1, 2))).partitions
    assert (answer.error, answer.isr) == (ErrorCode.INELIGIBLE_REPLICA, (0, 1))


def test_only_the_leaders_worker_is_heard(three: Instance) -> None:
    (answer,) = three.propose(1, wanted(three, (0, 1))).partitions
    assert answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert three.partition("t").isr == (0, 1, 2)


def test_nobody_out_of_sync_leads_unless_the_topic_allows_it(three: Instance) -> None:
    create_dirty(three, 0, 1)
    alone = wanted(three, (0,), "dirty")
    three.propose(0, wanted(three, (0,)), alone)
    three.until(lambda: three.partition("t").isr == three.partition("dirty").isr == (0,))
    three.lose(three.workers[0], three.replicas[0])
    three.until(lambda: three.partition("dirty").leader == 1)
    assert state(three.partition("dirty")) == (1, 1, (1,))
    three.until(lambda: three.partition("t").leader == NO_LEADER)
    assert three.partition("t").isr == (0,)


def test_a_leader_whose_storage_fails_is_followed_by_another(three: Instance) -> None:
    three.create(NewTopic("lonely", assignments={0: (0,)}))
    three.workers[0].link.ask(PartitionsOffline(0, (("t", 0), ("lonely", 0), ("gone", 0))))
    three.until(lambda: three.partition("t").leader == 1)
    assert state(three.partition("t")) == (1, 1, (1, 2))
    assert state(three.partition("lonely")) == (0, 0, (0,))


def test_a_new_leader_that_cannot_open_its_log_is_followed_by_another(three: Instance) -> None:
    three.workers[1].failures = {"t-0": (int(ErrorCode.KAFKA_STORAGE_ERROR), "the disk is gone")}
    three.lose(three.workers[0])
    three.until(lambda: three.partition("t").leader == 2)
    assert state(three.partition("t")) == (2, 2, (2,))


def test_a_leader_that_cannot_open_its_log_is_followed_by_one_in_sync_that_comes_back_later(
    patient_three: Instance,
) -> None:
    three = patient_three
    three.create(NewTopic("two", assignments={0: (0, 1)}))
    three.workers[1].failures = {"two-0": (int(ErrorCode.KAFKA_STORAGE_ERROR), "the disk is gone")}
    three.lose(three.workers[0])
    three.until(lambda: three.partition("t").leader == 1 and ("two", 0) in three.workers[1].led)
    three.propose(1, wanted(three, (1, 2)))  # an answer: that it cannot was heard
    three.start_worker(0)
    three.until(lambda: three.partition("two").leader == 0)
    assert three.partition("two").isr == (0,)


def test_who_is_in_sync_stays_so_while_its_leader_has_no_storage(three: Instance) -> None:
    """Nothing can be acknowledged that it lacks, however long it is away."""
    three.create(NewTopic("two", assignments={0: (0, 1)}))
    three.workers[1].failures = {"two-0": (int(ErrorCode.KAFKA_STORAGE_ERROR), "the disk is gone")}
    three.lose(three.workers[0], three.replicas[0])
    three.until(lambda: [slot.node_id for slot in three.image.slots] == [1, 2])
    three.start_replica(0)
    three.start_worker(0)
    three.until(lambda: three.partition("two").leader == 0)
    assert three.partition("two").isr == (0,)


def test_nobody_leads_instead_of_a_copy_that_has_failed_until_one_in_sync_can(
    patient_three: Instance,
) -> None:
    """Even if all stops meanwhile: the copy that failed may have lost what the other one has."""
    three = patient_three
    three.create(
        NewTopic("two", assignments={0: (0, 1)}),
        NewTopic("dirty", assignments={0: (0, 1, 2)}, configs={"unclean.leader.election.enable": "true"}),
    )
    (answer,) = three.propose(0, wanted(three, (0, 1), "dirty")).partitions
    assert answer.error == 0
    three.lose(three.workers[0])
    names = ("two", "dirty")
    three.until(lambda: [three.partition(name).leader for name in names] == [1, 1])
    three.workers[1].link.ask(PartitionsOffline(1, (("two", 0), ("dirty", 0))))
    three.until(lambda: [three.partition(name).leader for name in names] == [NO_LEADER] * 2)
    assert [three.partition(name).isr for name in names] == [(0,), (0,)]
    # A review, on which the topic that allows it would be led by who is not in sync.
    three.lose(three.replicas[2])
    three.start_worker(0)
    three.until(lambda: [three.partition(name).leader for name in names] == [0, 0])


def test_a_leader_that_has_opened_its_log_after_all_is_no_failed_one(three: Instance) -> None:
    """As after a full disk: what it was refused once moves nothing later, least of all to who lacks records."""
    create_dirty(three, 0, 1)
    alone = wanted(three, (0,), "dirty")
    three.lose(three.replicas[1], three.workers[1])
    three.propose(0, alone)
    three.until(lambda: three.partition("dirty").isr == (0,))
    three.workers[0].link.ask(PartitionsOffline(0, (("dirty", 0),)))
    three.propose(0, wanted(three, (0, 2)))  # an answer: the word before was heard
    assert three.partition("dirty").leader == 0
    opened(three, 0, "dirty")
    three.start_replica(1)
    three.start_worker(1)
    three.until(lambda: bool(three.workers[1].commands))
    three.create(NewTopic("later", assignments={0: (1,)}))
    assert state(three.partition("dirty")) == (0, 0, (0,))


def test_leaders_go_back_to_a_copy_that_lacked_files_once_it_is_in_sync(new_instance: NewInstance) -> None:
    instance = new_instance(slots=3, broker=BrokerSettings(leader_imbalance_check_interval_seconds=1))
    instance.start()
    instance.start_slots()
    for name in ("whole", "t"):
        instance.create(NewTopic(name, assignments={0: (0, 1, 2)}))
    both = (("t", 0), ("whole", 0))
    instance.workers[0].link.ask(PartitionsOffline(0, both, (("t", 0),)))
    instance.until(lambda: all(instance.partition(name).leader == 1 for name, _ in both))
    for name, _ in both:
        topic, now = instance.image.topics[name], instance.partition(name)
        again = WantedIsr(
            name, topic.topic_id, 0, now.incarnation, now.leader_epoch, now.partition_epoch, (0, 1, 2)
        )
        assert instance.propose(1, again).partitions[0].error == 0
    instance.until(lambda: instance.partition("t").leader == 0)
    assert state(instance.partition("whole")) == (1, 1, (0, 1, 2))


def test_what_a_process_says_of_its_copies_dies_with_it(three: Instance) -> None:
    """Its next life has opened them."""
    before = three.workers.pop(0)
    three.opened[0].clear()
    three.last_generations[RoleKind.IOPROC, 0] = before.generation
    three.start_worker(0)
    three.until(lambda: three.partition("t").leader == 1 and bool(three.workers[0].commands))
    (answer,) = three.propose(1, wanted(three, (0, 1, 2))).partitions
    assert answer.isr == (0, 1, 2)
    before.link.ask(PartitionsOffline(0, (("t", 0),)))
    for name in ("u", "v"):
        three.create(NewTopic(name, assignments={0: (2,)}))
    before.link.close()
    assert three.partition("t").isr == (0, 1, 2)


def test_leaders_without_storage_do_not_hand_a_partition_to_and_fro(three: Instance) -> None:
    create_dirty(three, 0, 1)
    for slot in (0, 1):
        three.workers[slot].failures = {"dirty-0": (int(ErrorCode.KAFKA_STORAGE_ERROR), "the disk is gone")}
    three.workers[0].link.ask(PartitionsOffline(0, (("dirty", 0),)))
    three.until(lambda: ("dirty", 0) in three.workers[1].led)
    for name in ("u", "v", "w"):
        three.create(NewTopic(name, assignments={0: (2,)}))
    stored = three.read_store("/brokers/topics/dirty/partitions/0/state")
    assert b'"leader_epoch":1' in stored, stored


def test_a_restarted_controller_moves_nothing_and_asks_who_holds_what(three: Instance) -> None:
    before = three.partition("t")
    three.kill()
    three.start()
    for each in three.processes():
        each.hello()
    three.create("u")
    assert three.partition("t") == before
    assert holders(three) == {0: "ioproc", 1: "replica", 2: "replica"}


@pytest.mark.parametrize("silent", ["releasing replica", "new leader"])
def test_a_change_of_leader_is_finished_by_the_next_controller(three: Instance, silent: str) -> None:
    process = three.replicas[1] if silent == "releasing replica" else three.workers[1]
    process.mute = True
    three.lose(three.workers[0])
    named = len(process.commands)
    three.until(lambda: len(process.commands) > named)
    three.kill()
    three.start()
    process.mute = False
    three.start_worker(0)
    for each in three.processes():
        if each is not three.workers[0]:
            each.hello()
    three.until(lambda: holders(three) == {0: "replica", 1: "ioproc", 2: "replica"})
    three.until(lambda: three.partition("t").leader == 1)
