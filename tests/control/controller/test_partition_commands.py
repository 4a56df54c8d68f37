"""Elections by request, the balance of leaders, reassignments, and slots that their operator stops."""

from __future__ import annotations

from uuid import UUID

import pytest

from appliance.channels.control_channel import (
    AlterConfigs,
    AlteredResource,
    AlterReassignments,
    ConfigChange,
    ConfigOutcomes,
    DeleteTopics,
    ElectLeaders,
    NewTopic,
    PartitionOutcomes,
    PartitionsOffline,
    Reassignment,
    WantedIsr,
)
from appliance.channels.counter_names import named_counters
from appliance.channels.roles import CONTROLLER, replica_of, workers_of
from appliance.cluster import NO_LEADER, PartitionImage, TopicImage
from appliance.config import BrokerSettings
from appliance.control.controller.elections import plan_balance
from appliance.control.controller.slot_states import SlotStates
from appliance.ipc.process_table import ProcessTable
from appliance.ipc.shared_memory import Region
from appliance.protocol.errors import ErrorCode
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance
from tests.control.controller.test_leadership import holders, opened, state, three

__all__ = ["three"]

BROKER = 4


def told(instance: Instance, request: ElectLeaders | AlterReassignments) -> list[int]:
    """The error of each partition that is answered."""
    answer = instance.answer(instance.ask(request))
    assert isinstance(answer, PartitionOutcomes)
    return [each.error for each in answer.outcomes]


def move(instance: Instance, *replicas: int, topic: str = "t") -> int:
    (error,) = told(instance, AlterReassignments((Reassignment(topic, 0, replicas),)))
    return error


def set_isr(instance: Instance, topic: str, isr: tuple[int, ...]) -> None:
    """Has the leader propose it; it is accepted and seen."""
    image = instance.image.topics[topic]
    now = image.partitions[0]
    wanted = WantedIsr(topic, image.topic_id, 0, now.incarnation, now.leader_epoch, now.partition_epoch, isr)
    (answer,) = instance.propose(now.leader, wanted).partitions
    assert answer.error == 0
    instance.until(
        lambda: (
            instance.partition(topic).partition_epoch > now.partition_epoch
            and instance.partition(topic).leader_epoch == answer.leader_epoch
        )
    )


def stop(instance: Instance, slot: int, *, stopped: bool = True) -> int:
    change = ConfigChange("slot.stopped", "true" if stopped else "false")
    answer = instance.answer(instance.ask(AlterConfigs((AlteredResource(BROKER, str(slot), (change,)),))))
    assert isinstance(answer, ConfigOutcomes)
    return answer.outcomes[0].error


def move_leader_away(instance: Instance) -> None:
    """Slot 0's worker dies and comes back; slot 1 leads `t`."""
    instance.lose(instance.workers[0])
    instance.until(lambda: instance.partition("t").leader == 1)
    instance.start_worker(0)
    instance.until(lambda: holders(instance) == {0: "replica", 1: "ioproc", 2: "replica"})
    instance.until(lambda: bool(instance.workers[0].commands))
    set_isr(instance, "t", (0, 1, 2))


# Elections


def test_the_preferred_leader_leads_again_when_asked_for(three: Instance) -> None:
    move_leader_away(three)
    assert told(three, ElectLeaders((("t", 0),))) == [0]
    # Answered means led and seen.
    assert state(three.partition("t")) == (0, 2, (0, 1, 2))
    assert ("t", 0) in three.workers[0].led
    three.until(lambda: holders(three) == {0: "ioproc", 1: "replica", 2: "replica"})


def test_an_election_that_is_not_needed_or_possible_says_why_and_changes_nothing(three: Instance) -> None:
    asked = ElectLeaders((("t", 0), ("t", 1), ("none", 0), ("t", -1)))
    assert told(three, asked) == [ErrorCode.ELECTION_NOT_NEEDED, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3]
    assert told(three, ElectLeaders((("t", 0),), unclean=True)) == [ErrorCode.ELECTION_NOT_NEEDED]
    assert told(three, ElectLeaders(None)) == []
    move_leader_away(three)
    set_isr(three, "t", (1, 2))
    assert told(three, ElectLeaders((("t", 0),))) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert state(three.partition("t")) == (1, 1, (1, 2))


def unclean_elections(instance: Instance) -> int:
    """What the controller's row of the process table says."""
    region = Region.open(instance.wiring.processes_name, writable=False)
    try:
        row = ProcessTable(region.view).row(instance.wiring.process_row(CONTROLLER)).snapshot()
        return named_counters("controller", row.counters)["unclean_elections"]
    finally:
        region.close()


def test_an_unclean_leader_follows_one_without_storage_whose_replica_process_came_after_it_failed(
    three: Instance,
) -> None:
    set_isr(three, "t", (0,))
    three.workers[0].link.ask(PartitionsOffline(0, (("t", 0),)))
    three.propose(0)  # an answer to the same worker: the word before was heard
    three.lose(three.replicas[0])
    three.start_replica(0)
    three.until(lambda: bool(three.replicas[0].commands))
    assert unclean_elections(three) == 0
    assert told(three, ElectLeaders((("t", 0),), unclean=True)) == [0]
    three.until(lambda: three.partition("t").leader == 1)
    three.until(lambda: unclean_elections(three) == 1)


def test_an_unclean_election_moves_nothing_from_who_was_refused_its_log_and_serves_after_all(
    three: Instance,
) -> None:
    set_isr(three, "t", (0,))
    three.workers[0].link.ask(PartitionsOffline(0, (("t", 0),)))
    opened(three, 0, "t")
    assert told(three, ElectLeaders((("t", 0),), unclean=True)) == [ErrorCode.ELECTION_NOT_NEEDED]
    assert told(three, ElectLeaders(None, unclean=True)) == []
    assert state(three.partition("t")) == (0, 0, (0,))


def test_an_election_that_finds_nobody_instead_of_who_has_no_storage_says_so(three: Instance) -> None:
    set_isr(three, "t", (0,))
    three.workers[0].link.ask(PartitionsOffline(0, (("t", 0),)))
    three.lose(three.workers[1], three.workers[2])
    three.until(lambda: [slot.node_id for slot in three.image.slots] == [0, 1, 2])
    refused = [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    assert told(three, ElectLeaders((("t", 0),), unclean=True)) == refused
    assert three.partition("t").leader == 0


def test_leaders_do_not_go_back_to_a_copy_that_has_failed() -> None:
    away = PartitionImage(0, 0, 1, 1, 1, (0, 1), (0, 1))
    topics = {"t": TopicImage("t", UUID(int=1), (away,), {})}
    halves = [half for slot in (0, 1) for half in (*workers_of(slot, workers=1), replica_of(slot))]
    slots = SlotStates((0, 1), present=halves)
    assert plan_balance(topics, slots, percentage_max=0)["t"][0].leader == 0
    assert plan_balance(topics, slots, percentage_max=0, failed={("t", 0, 0)}) == {}


def test_an_operator_may_ask_for_an_unclean_leader_where_there_is_none(three: Instance) -> None:
    set_isr(three, "t", (0,))
    three.lose(three.workers[0], three.replicas[0])
    three.until(lambda: three.partition("t").leader == NO_LEADER)
    assert told(three, ElectLeaders((("t", 0),), unclean=True)) == [0]
    leader, epoch, isr = state(three.partition("t"))
    assert (leader, epoch, isr) == (1, 2, (1,))


def test_leaders_go_back_by_themselves_after_the_interval(new_instance: NewInstance) -> None:
    instance = new_instance(slots=3, broker=BrokerSettings(leader_imbalance_check_interval_seconds=1))
    instance.start()
    instance.start_slots()
    instance.create(NewTopic("t", assignments={0: (0, 1, 2)}))
    move_leader_away(instance)
    instance.until(lambda: instance.partition("t").leader == 0)
    assert state(instance.partition("t")) == (0, 2, (0, 1, 2))


# Reassignments


def test_a_partition_moves_to_another_slot_and_leaves_nothing_behind(three: Instance) -> None:
    three.create(NewTopic("m", assignments={0: (0,)}))
    assert move(three, 1, topic="m") == 0
    three.until(lambda: holders(three, "m") == {0: "ioproc", 1: "replica"})
    three.until(lambda: bool(three.partition("m").adding))
    now = three.partition("m")
    assert (now.leader, now.replicas, now.adding, now.removing, now.isr) == (0, (1, 0), (1,), (0,), (0,))
    set_isr(three, "m", (0, 1))
    three.until(lambda: three.partition("m").leader == 1)
    now = three.partition("m")
    assert (state(now), now.replicas, now.adding, now.removing) == ((1, 1, (1,)), (1,), (), ())
    three.until(lambda: holders(three, "m") == {1: "ioproc"} and ("m", 0) not in three.disks[0])
    assert ("m", 0) in three.disks[1]


def test_fewer_replicas_are_there_at_once_and_their_files_go(three: Instance) -> None:
    assert move(three, 0) == 0
    three.until(lambda: three.partition("t").replicas == (0,))
    assert state(three.partition("t")) == (0, 1, (0,))
    three.until(lambda: three.disks[1] == three.disks[2] == {})
    assert holders(three) == {0: "ioproc"}


def test_a_name_is_free_once_files_that_were_leaving_are_gone_too(three: Instance) -> None:
    # Else an order to remove that a slot carries out late would meet the next topic of this name.
    three.workers[2].mute = three.replicas[2].mute = True
    assert move(three, 0, 1) == 0
    three.until(lambda: three.partition("t").replicas == (0, 1))
    number = three.ask(DeleteTopics(("t",)))
    three.until(lambda: "t" not in three.image.topics and three.disks[0] == three.disks[1] == {})
    (refused,) = three.create("t")
    assert refused.error == ErrorCode.TOPIC_ALREADY_EXISTS
    three.workers[2].mute = three.replicas[2].mute = False
    three.until(lambda: number in three.answers)
    assert three.disks[2] == {}
    assert three.create("t")[0].error == 0


def test_more_replicas_join_by_catching_up(three: Instance) -> None:
    three.create(NewTopic("m", assignments={0: (0,)}))
    assert move(three, 0, 2, topic="m") == 0
    three.until(lambda: holders(three, "m") == {0: "ioproc", 2: "replica"})
    three.until(lambda: bool(three.partition("m").adding))
    set_isr(three, "m", (0, 2))
    now = three.partition("m")
    assert (state(now), now.replicas, now.adding) == ((0, 0, (0, 2)), (0, 2), ())


def test_a_reassignment_that_is_called_back_leaves_everything_as_it_was(three: Instance) -> None:
    three.create(NewTopic("m", assignments={0: (0, 1)}))
    move(three, 2, 1, topic="m")
    three.until(lambda: ("m", 0) in three.disks[2])
    (error,) = told(three, AlterReassignments((Reassignment("m", 0, None),)))
    assert error == 0
    three.until(lambda: ("m", 0) not in three.disks[2] and not three.partition("m").adding)
    now = three.partition("m")
    assert (now.leader, set(now.replicas), set(now.isr), now.removing) == (0, {0, 1}, {0, 1}, ())
    three.until(lambda: holders(three, "m") == {0: "ioproc", 1: "replica"})


def test_a_second_reassignment_takes_the_place_of_the_first(three: Instance) -> None:
    three.create(NewTopic("m", assignments={0: (0,)}))
    move(three, 1, topic="m")
    three.until(lambda: ("m", 0) in three.disks[1])
    assert move(three, 2, topic="m") == 0
    now = three.partition("m")
    three.until(lambda: three.partition("m").replicas == (2, 0))
    three.until(lambda: ("m", 0) not in three.disks[1] and ("m", 0) in three.disks[2])
    now = three.partition("m")
    assert (now.adding, now.removing) == ((2,), (0,))


@pytest.mark.parametrize(
    ("replicas", "error"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((0, 0), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((0, 7), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((-1,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((0, 1, 2, 3), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_a_reassignment_that_cannot_be_is_refused_and_changes_nothing(
    three: Instance, replicas: tuple[int, ...] | None, error: ErrorCode
) -> None:
    before = three.partition("t"), three.read_store("/brokers/topics/t")
    assert told(three, AlterReassignments((Reassignment("t", 0, replicas),))) == [error]
    assert (three.partition("t"), three.read_store("/brokers/topics/t")) == before


def test_conflicting_and_unknown_reassignments_are_refused_one_by_one(three: Instance) -> None:
    twice = Reassignment("t", 0, (1,))
    unknown = Reassignment("none", 0, (1,))
    assert told(three, AlterReassignments((twice, twice, unknown))) == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    forbidden = AlterReassignments((Reassignment("t", 0, (0, 1)),), allow_factor_change=False)
    assert told(three, forbidden) == [ErrorCode.INVALID_REPLICATION_FACTOR]
    assert three.partition("t").replicas == (0, 1, 2)


def test_a_reassignment_is_finished_by_the_next_controller(three: Instance) -> None:
    three.create(NewTopic("m", assignments={0: (0,)}))
    move(three, 1, topic="m")
    three.until(lambda: holders(three, "m") == {0: "ioproc", 1: "replica"})
    three.kill()
    three.start()
    for each in three.processes():
        each.hello()
    three.until(lambda: three.partition("m").adding == (1,))
    set_isr(three, "m", (0, 1))
    three.until(lambda: three.partition("m").leader == 1 and ("m", 0) not in three.disks[0])


# Stopped slots


def test_a_stopped_slot_holds_nothing_and_is_no_broker_until_it_is_started(three: Instance) -> None:
    three.create(NewTopic("lonely", assignments={0: (0,)}))
    assert stop(three, 0) == 0
    three.until(lambda: three.partition("t").leader == 1 and not three.opened[0])
    assert state(three.partition("t")) == (1, 1, (1, 2))
    three.until(lambda: three.partition("lonely").leader == NO_LEADER)
    assert [slot.node_id for slot in three.image.slots] == [1, 2]
    assert three.image.controller_id == 1
    # Its files stay, and so it is over restarts of the controller.
    assert ("t", 0) in three.disks[0]
    three.kill()
    three.start()
    for each in three.processes():
        each.hello()
    three.create(NewTopic("u", replication_factor=2))
    assert set(three.partition("u").replicas) == {1, 2}
    assert not three.opened[0]
    assert stop(three, 0, stopped=False) == 0
    three.until(lambda: three.partition("lonely").leader == 0 and ("t", 0) in three.replicas[0].led)
    assert len(three.image.slots) == 3
    assert three.partition("t").isr == (1, 2)


def test_the_last_slot_cannot_be_stopped(three: Instance) -> None:
    assert [stop(three, slot) for slot in (0, 1, 2)] == [0, 0, ErrorCode.INVALID_REQUEST]
    assert [slot.node_id for slot in three.image.slots] == [2]


def test_all_slots_cannot_be_stopped_at_once(three: Instance) -> None:
    change = ConfigChange("slot.stopped", "true")
    answer = three.answer(three.ask(AlterConfigs((AlteredResource(BROKER, "", (change,)),))))
    assert isinstance(answer, ConfigOutcomes)
    assert answer.outcomes[0].error == ErrorCode.INVALID_REQUEST
    assert len(three.image.slots) == 3
