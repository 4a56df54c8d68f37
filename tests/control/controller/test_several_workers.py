"""Several workers a slot, by a real controller: each is told of what it owns, and its death is nobody else's."""

from __future__ import annotations

import pytest

from appliance.channels.control_channel import CreateTopics, DeleteTopics, NewTopic
from appliance.channels.roles import owner_of
from appliance.cluster import TopicImage
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance

PARTITIONS = 4
SLOTS, WORKERS = 3, 2


@pytest.fixture
def three(new_instance: NewInstance) -> Instance:
    """Three slots of two workers, and a topic `t`; slot 0 leads all of it, and the others follow."""
    instance = new_instance(slots=SLOTS, workers=WORKERS)
    instance.start()
    instance.start_slots()
    instance.create(NewTopic("t", assignments=dict.fromkeys(range(PARTITIONS), (0, 1, 2))))
    instance.until(lambda: sum(map(len, instance.opened.values())) == SLOTS * PARTITIONS)
    return instance


def topic(instance: Instance) -> TopicImage:
    return instance.image.topics["t"]


def owned_by(instance: Instance, index: int) -> set[int]:
    """The topic's partitions that the workers of that index own."""
    identity = topic(instance).topic_id
    return {
        number
        for number in range(PARTITIONS)
        if owner_of(0, identity, number, workers=WORKERS).index == index
    }


def leaders(instance: Instance) -> dict[int, int]:
    return {each.partition: each.leader for each in topic(instance).partitions}


def moved(instance: Instance) -> set[int]:
    return {number for number, leader in leaders(instance).items() if leader != 0}


def test_a_topic_s_partitions_go_round_the_workers(three: Instance) -> None:
    assert [len(owned_by(three, index)) for index in range(WORKERS)] == [2, 2]


def test_a_death_moves_what_that_worker_led_and_nothing_else(three: Instance) -> None:
    three.lose_other(0, 1)
    three.until(lambda: moved(three) == owned_by(three, 1))
    before = topic(three)
    three.lose(three.workers[0])
    three.until(lambda: len(moved(three)) == PARTITIONS)
    for number in owned_by(three, 1):
        assert topic(three).partitions[number].leader_epoch == before.partitions[number].leader_epoch


def test_a_slot_is_live_while_any_of_its_processes_is(three: Instance) -> None:
    three.lose_other(0, 1)
    three.lose(three.replicas[0])
    three.until(lambda: moved(three) == owned_by(three, 1))
    assert [slot.node_id for slot in three.image.slots] == [0, 1, 2]


def test_a_worker_that_comes_back_is_told_of_its_own(three: Instance) -> None:
    lone = NewTopic("lone", assignments=dict.fromkeys(range(PARTITIONS), (0,)))
    three.create(lone)
    led = {key for key in three.others[0, 1].led if key[0] == "lone"}
    assert len(led) == 2
    three.lose_other(0, 1)
    three.start_other(0, 1)
    three.until(lambda: {key for key in three.others[0, 1].led if key[0] == "lone"} == led)


def test_a_controller_s_successor_knows_each_worker_s_own(three: Instance) -> None:
    three.kill()
    three.lose_other(0, 1)
    three.start()
    for each in three.processes():
        each.hello()
    three.until(lambda: moved(three) == owned_by(three, 1))


def test_a_deleted_topic_s_files_go_from_every_worker(three: Instance) -> None:
    three.delete("t")
    three.until(lambda: not any(three.disks.values()))


def test_a_worker_that_comes_back_deletes_nothing_that_another_one_owns(three: Instance) -> None:
    own = owned_by(three, 1)
    three.lose(three.workers[0])
    three.lose_other(0, 1)
    number = three.ask(DeleteTopics(("t",)))
    three.until(lambda: not three.disks[1])
    second = three.start_other(0, 1)
    # What it owns may come before what it is to remove.
    three.until(lambda: any(command.removed for command in second.commands))
    assert {partition for command in second.commands for _, _, partition in command.removed} == own
    three.start_worker(0)
    three.until(lambda: number in three.answers and not any(three.disks.values()))


def test_a_topic_is_seen_once_every_worker_it_concerns_leads(three: Instance) -> None:
    new = NewTopic("new", assignments=dict.fromkeys(range(PARTITIONS), (1,)))
    three.others[1, 1].mute = True
    number = three.ask(CreateTopics((new,), validate_only=False))
    three.until(lambda: any(key[0] == "new" for key in three.others[1, 1].led))
    assert "new" not in three.image.topics
    three.others[1, 1].mute = False
    three.until(lambda: number in three.answers)
    assert "new" in three.image.topics
