"""Workers that come late, die, fail or say nothing."""

from __future__ import annotations

import pytest

from appliance.channels.control_channel import CreateTopics, DeleteTopics, NewTopic, TopicOutcomes
from appliance.channels.roles import RoleKind
from appliance.channels.supervision import Heartbeat, PeerDown
from appliance.control.controller import waves
from appliance.protocol.errors import ErrorCode
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance
from tests.control.controller.test_topics import check_served


def impatient() -> None:
    """For the child: deadlines that are over soon, and yet leave a worker that lost its processor time to answer."""
    waves.ASSIGN_TIMEOUT_MS = 1_500


def test_worker_that_comes_late_is_waited_for(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start()
    number = instance.ask(CreateTopics((NewTopic("t"),)))
    instance.start_worker()
    answer = instance.answer(number)
    assert isinstance(answer, TopicOutcomes)
    assert answer.outcomes[0].error == 0
    check_served(instance)


def test_new_life_of_a_worker_is_assigned_everything(instance: Instance) -> None:
    instance.create(NewTopic("t", partitions=3))
    before = instance.workers[0].led
    instance.tell_child(PeerDown(RoleKind.IOPROC, 0, 0, 1))
    worker = instance.start_worker()
    instance.until(lambda: len(worker.commands) > 0)
    assert worker.commands[0].full
    assert worker.led == before
    check_served(instance)


def test_second_hello_of_one_life_is_not_answered_twice(instance: Instance) -> None:
    instance.workers[0].hello()
    instance.create("t")
    assert [command.full for command in instance.workers[0].commands] == [True, False]


def test_worker_killed_before_its_answer_is_asked_again_in_its_next_life(instance: Instance) -> None:
    worker = instance.workers[0]
    worker.mute = True
    number = instance.ask(CreateTopics((NewTopic("t"),)))
    instance.until(lambda: len(worker.commands) == 2)
    instance.tell_child(PeerDown(RoleKind.IOPROC, 0, 0, 1))
    instance.start_worker()
    answer = instance.answer(number)
    assert isinstance(answer, TopicOutcomes)
    assert answer.outcomes[0].error == 0
    check_served(instance)


def test_deletion_is_finished_by_the_next_life_of_a_worker(instance: Instance) -> None:
    instance.create("t")
    instance.workers[0].mute = True
    number = instance.ask(DeleteTopics(("t",)))
    instance.until(lambda: len(instance.workers[0].commands) == 3)
    instance.disks[0]["t", 0] = instance.workers[0].commands[1].partitions[0].topic_id
    instance.start_worker()
    instance.answer(number)
    assert instance.disks[0] == {}
    assert instance.create("t")[0].error == 0
    check_served(instance)


def test_topic_of_a_silent_worker_times_out_and_stays_created(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start(impatient)
    worker = instance.start_worker()
    instance.until(lambda: instance.images.version > 0)
    worker.mute = True
    (outcome,) = instance.create("t")
    assert outcome.error == ErrorCode.REQUEST_TIMED_OUT
    assert instance.image.topics["t"].topic_id == outcome.topic_id
    assert instance.create("t")[0].error == ErrorCode.TOPIC_ALREADY_EXISTS
    worker.mute = False
    instance.create("u")
    check_served(instance)


def test_deletion_with_a_silent_worker_times_out_and_goes_on(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start(impatient)
    worker = instance.start_worker()
    instance.create("t")
    worker.mute = True
    (outcome,) = instance.delete("t")
    assert outcome.error == ErrorCode.REQUEST_TIMED_OUT
    assert "t" not in instance.image.topics
    (refused,) = instance.create("t")
    assert refused.error == ErrorCode.TOPIC_ALREADY_EXISTS
    assert refused.message is not None
    assert "deletion" in refused.message
    worker.mute = False
    instance.create("something")
    assert instance.create("t")[0].error == 0
    check_served(instance)


def test_first_image_does_not_wait_for_ever(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start(impatient)
    instance.until(lambda: instance.images.version > 0)
    assert instance.image.topics == {}
    assert len(instance.image.slots) == 1


def test_topic_whose_files_cannot_be_made_is_answered_with_the_workers_error(instance: Instance) -> None:
    instance.workers[0].failures = {"bad-0": (int(ErrorCode.KAFKA_STORAGE_ERROR), "disk full")}
    outcomes = instance.create("bad", "bad-0", "good")
    assert {each.name: each.error for each in outcomes} == {
        "bad": ErrorCode.KAFKA_STORAGE_ERROR,
        "bad-0": 0,
        "good": 0,
    }


@pytest.mark.parametrize("partition", ["t-0"])
def test_topic_whose_files_cannot_be_deleted_is_told_again_to_the_next_life(
    instance: Instance, partition: str
) -> None:
    instance.create("t")
    worker = instance.workers[0]
    worker.failures = {partition: (int(ErrorCode.KAFKA_STORAGE_ERROR), "I/O error")}
    (outcome,) = instance.delete("t")
    assert outcome.error == ErrorCode.KAFKA_STORAGE_ERROR
    again = instance.start_worker()
    instance.until(lambda: len(again.commands) > 0)
    assert [(topic, number) for topic, _, number in again.commands[0].removed] == [("t", 0)]
    instance.create("something")
    assert instance.create("t")[0].error == 0


def test_controller_answers_heartbeats_and_stops_cleanly(instance: Instance) -> None:
    instance.tell_child(Heartbeat(7))
    assert instance.hear_child() == [Heartbeat(7)]
    assert instance.stop() == 0


def test_controller_stops_when_its_supervisor_is_gone(instance: Instance) -> None:
    assert instance.supervision is not None
    instance.supervision.close()
    instance.supervision = None
    assert instance.reap() == 0
