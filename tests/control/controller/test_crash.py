"""The controller killed between any two steps of a change, and what its next life makes of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from appliance.channels.child import EXIT_CANNOT_START
from appliance.channels.control_channel import (
    AlterConfigs,
    AlteredResource,
    AlterPartitions,
    AlterReassignments,
    Body,
    ConfigChange,
    ConfigOutcomes,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Envelope,
    NewTopic,
    Reassignment,
    TopicOutcomes,
    WantedIsr,
)
from appliance.channels.metadata_image import ImagePublisher
from appliance.channels.partition_table import INCARNATION
from appliance.channels.supervision import Heartbeat, Ready
from appliance.control.controller.control_socket import ControlSocket
from appliance.control.controller.controller import Controller
from appliance.control.controller.partition_rows import PartitionRows
from appliance.control.controller.slot_states import START_GRACE_MS
from appliance.control.store.embedded_store import EmbeddedStore
from appliance.control.store.zookeeper_store import ZooKeeperStore
from appliance.protocol.errors import ErrorCode
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance
from tests.control.controller.test_topics import check_served

STEPS = (
    (EmbeddedStore, "multi"),
    (ZooKeeperStore, "multi"),
    (ImagePublisher, "publish"),
    (ControlSocket, "send"),
    (PartitionRows, "write"),
    (PartitionRows, "withdraw"),
    (PartitionRows, "give_back"),
)
STEPS_MAX = 60
ARMING = CreateTopics | DeleteTopics | CreatePartitions | AlterConfigs | AlterPartitions | AlterReassignments


def killed_at(step: int) -> Callable[[], None]:
    """For the child: from the first request on, SIGKILL at the moment before step number `step` or after it.

    Steps are counted in halves: 2n is before the n-th, 2n + 1 after it.
    """

    def arm() -> None:
        count = 0
        armed = False

        def counted(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*arguments: Any, **named: Any) -> Any:
                nonlocal count
                if not armed:
                    return original(*arguments, **named)
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                result = original(*arguments, **named)
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                return result

            return wrapper

        for owner, name in STEPS:
            setattr(owner, name, counted(getattr(owner, name)))
        turn = Controller.turn

        def noticed(self: Controller, messages: list[tuple[bytes, Envelope]]) -> None:
            nonlocal armed
            if any(isinstance(each.body, ARMING) for _, each in messages):
                armed = True
            turn(self, messages)

        setattr(Controller, "turn", noticed)  # noqa: B010 - mypy forbids to assign to a method

    return arm


def new_life(instance: Instance) -> None:
    """The next controller; workers hear of it and say hello, as the supervisor's PeerUp makes them."""
    instance.start()
    for worker in instance.workers.values():
        before = len(worker.commands)
        worker.hello()
        instance.until(lambda worker=worker, before=before: len(worker.commands) > before)  # type: ignore[misc]
    # An answer to anything comes after what was taken over is settled.
    instance.create("probe")
    instance.delete("probe")


def finished(instance: Instance, body: Body) -> tuple[TopicOutcomes | ConfigOutcomes | None, bool]:
    """The answer, None when the controller died of its step before it came; and whether it still lives."""
    number = instance.ask(body)
    lives = instance.until(lambda: number in instance.answers, or_dead=True)
    answer = instance.answers.pop(number, None)
    assert answer is None or isinstance(answer, TopicOutcomes | ConfigOutcomes)
    if lives:
        # It may die right after its answer: a second one tells.
        second = instance.ask(CreateTopics((NewTopic("sign of life"),), validate_only=True))
        lives = instance.until(lambda: second in instance.answers, or_dead=True)
    return answer, lives


def test_creation_survives_a_kill_between_any_two_steps(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start()
    instance.start_worker()
    instance.create("old")
    (old,) = instance.image.topics["old"].partitions
    for step in range(STEPS_MAX):
        instance.stop()
        instance.start(killed_at(step))
        instance.workers[0].hello()
        name = f"t{step}"
        answer, lives = finished(instance, CreateTopics((NewTopic(name, partitions=2),)))
        if answer is not None:
            assert answer.outcomes[0].error == 0
        if lives:
            instance.stop()
        new_life(instance)
        (again,) = instance.create(NewTopic(name, partitions=2))
        if answer is not None:
            assert isinstance(answer, TopicOutcomes)
            assert again.error == ErrorCode.TOPIC_ALREADY_EXISTS, "an answered topic was lost"
            assert again.topic_id == answer.outcomes[0].topic_id
        assert again.error in {0, ErrorCode.TOPIC_ALREADY_EXISTS}
        assert len(instance.image.topics[name].partitions) == 2
        assert instance.image.topics["old"].partitions == (old,), "a living partition was renumbered"
        check_served(instance)
        if lives:
            return
    pytest.fail("the steps do not end")


def test_growth_survives_a_kill_between_any_two_steps(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start()
    instance.start_worker()
    instance.create("t")
    for step in range(STEPS_MAX):
        instance.stop()
        instance.start(killed_at(step))
        instance.workers[0].hello()
        before = instance.image.topics["t"]
        count = len(before.partitions) + 2
        _, lives = finished(instance, CreatePartitions("t", count))
        if lives:
            instance.stop()
        new_life(instance)
        outcome = instance.grow("t", count)
        assert outcome.error in {0, ErrorCode.INVALID_PARTITIONS}
        after = instance.image.topics["t"]
        assert len(after.partitions) == count
        assert after.partitions[: count - 2] == before.partitions
        check_served(instance)
        if lives:
            return
    pytest.fail("the steps do not end")


def test_deletion_survives_a_kill_between_any_two_steps(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start()
    instance.start_worker()
    highest = 0
    for step in range(STEPS_MAX):
        (created,) = instance.create("t")
        assert created.error == 0
        assert min(each.incarnation for each in instance.image.topics["t"].partitions) > highest
        highest = max(each.incarnation for each in instance.image.topics["t"].partitions)
        instance.stop()
        instance.start(killed_at(step))
        instance.workers[0].hello()
        answer, lives = finished(instance, DeleteTopics(("t",)))
        if lives:
            instance.stop()
        new_life(instance)
        if answer is not None:
            assert "t" not in instance.image.topics, "an answered deletion came back"
        (outcome,) = instance.delete("t")
        assert outcome.error in {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert instance.disks[0] == {}
        check_served(instance)
        if lives:
            return
    pytest.fail("the steps do not end")


def test_restart_of_everything_keeps_topics_and_ids(instance: Instance) -> None:
    instance.create(NewTopic("t", partitions=3, configs={"retention.ms": "1000"}))
    before = instance.image
    instance.kill()
    instance.new_memory()
    instance.start()
    instance.start_worker()
    instance.until(lambda: instance.images.version > 0)
    after = instance.image
    assert after.cluster_id == before.cluster_id
    assert after.controller_epoch == before.controller_epoch + 1
    topic = after.topics["t"]
    assert (topic.topic_id, topic.configs) == (before.topics["t"].topic_id, {"retention.ms": "1000"})
    check_served(instance)


def test_restarted_controller_renumbers_nothing_and_raises_its_epoch(instance: Instance) -> None:
    instance.create(NewTopic("t", partitions=3), "u")
    before = instance.image
    instance.kill()
    instance.start()
    # Living workers and clients need no word of it: the image is whole before any hello.
    after = instance.image
    assert after.version == before.version + 1
    assert after.controller_epoch == before.controller_epoch + 1
    assert after.topics == before.topics


def test_rows_of_unknown_use_are_not_given_away_before_every_worker_knows_its_partitions(
    new_instance: NewInstance,
) -> None:
    instance = new_instance()
    instance.start()
    instance.start_worker()
    instance.create("t")
    instance.kill()
    used = {each.row for each in instance.image.topics["t"].partitions}
    resting = max(used) + 1
    instance.table.cells[instance.table.at(resting) + INCARNATION] = 77
    instance.start()
    number = instance.ask(CreateTopics((NewTopic("u"),)))
    instance.until(lambda: bool(instance.table.cells[instance.table.at(resting + 1) + INCARNATION]))
    assert instance.table.cells[instance.table.at(resting) + INCARNATION] == 77
    instance.workers[0].hello()
    instance.answer(number)
    assert instance.table.cells[instance.table.at(resting) + INCARNATION] == 0
    (partition,) = instance.image.topics["u"].partitions
    assert partition.row == resting + 1
    check_served(instance)


def test_controller_whose_epoch_was_passed_changes_nothing_and_begins_anew(instance: Instance) -> None:
    instance.create("t")
    epoch = instance.image.controller_epoch
    instance.change_store("/controller_epoch", b"%d" % (epoch + 5))
    instance.ask(CreateTopics((NewTopic("fenced"),)))
    assert instance.reap() == EXIT_CANNOT_START
    assert "fenced" not in instance.image.topics
    new_life(instance)
    assert instance.image.controller_epoch == epoch + 6
    assert sorted(instance.image.topics) == ["t"]
    check_served(instance)


def test_second_controller_stands_by_until_the_first_is_killed(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start()
    instance.start_worker()
    instance.create("t")
    epoch = instance.image.controller_epoch
    first_pid, first_supervision = instance.pid, instance.supervision
    assert first_supervision is not None
    # The same data directory and memory: only /controller keeps the two apart.
    instance.launch()
    assert not instance.speaks(timeout_ms=500)
    os.kill(first_pid, signal.SIGKILL)
    os.waitpid(first_pid, 0)
    first_supervision.close()
    assert instance.hear_child() == [Ready()]
    assert instance.image.controller_epoch == epoch + 1
    assert "t" in instance.image.topics


def test_a_death_while_a_controller_stands_by_is_known_when_it_leads(new_instance: NewInstance) -> None:
    """It would else presume that the process lives, and leave its partitions without a leader for START_GRACE_MS."""
    instance = new_instance(slots=3)
    instance.start()
    instance.start_slots()
    instance.create(NewTopic("t", assignments={0: (0, 1, 2)}))
    assert instance.partition("t").leader == 0
    first_pid, first_supervision = instance.pid, instance.supervision
    assert first_supervision is not None
    instance.launch()
    assert not instance.speaks(timeout_ms=500)
    instance.lose(instance.workers[0], instance.replicas[0])
    instance.tell_child(Heartbeat(1))
    assert instance.hear_child() == [Heartbeat(1)]
    os.kill(first_pid, signal.SIGKILL)
    os.waitpid(first_pid, 0)
    first_supervision.close()
    assert instance.hear_child() == [Ready()]
    began = time.monotonic()
    for each in instance.processes():
        each.hello()
    instance.until(lambda: instance.partition("t").leader == 1)
    assert time.monotonic() - began < 0.75 * START_GRACE_MS / 1000


def test_an_alteration_survives_a_kill_between_any_two_steps(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start()
    instance.start_worker()
    instance.create("t")
    for step in range(STEPS_MAX):
        instance.stop()
        instance.start(killed_at(step))
        instance.workers[0].hello()
        value, before = str(1000 + step), instance.image.topics["t"].configs
        change = ConfigChange("retention.ms", value)
        answer, lives = finished(instance, AlterConfigs((AlteredResource(2, "t", (change,)),)))
        if lives:
            instance.stop()
        new_life(instance)
        configs = instance.image.topics["t"].configs
        if answer is not None:
            assert configs == {"retention.ms": value}, "an answered change was lost"
        assert configs in ({"retention.ms": value}, before)
        assert instance.workers[0].led["t", 0].configs == configs
        if lives:
            return
    pytest.fail("the steps do not end")


@pytest.mark.slow
@pytest.mark.parametrize("killed_in", ["its begin", "its end"])
def test_a_reassignment_survives_a_kill_between_any_two_steps(
    new_instance: NewInstance, killed_in: str
) -> None:
    instance = new_instance(slots=3)
    instance.start()
    instance.start_slots()
    for step in range(STEPS_MAX):
        topic = f"t{step}"
        instance.create(NewTopic(topic, assignments={0: (0, 2)}))
        move = AlterReassignments((Reassignment(topic, 0, (1, 2)),))
        if killed_in == "its begin":
            restart(instance, step)
        number = instance.ask(move)
        alive = instance.until(lambda number=number: number in instance.answers, or_dead=True)  # type: ignore[misc]
        if not alive or killed_in == "its end":
            restart(instance, step if alive else None)
        if not alive:
            instance.answer(instance.ask(move))
        if not instance.until(lambda topic=topic: bool(instance.partition(topic).adding), or_dead=True):  # type: ignore[misc]
            alive = False
            restart(instance)
            instance.until(lambda topic=topic: bool(instance.partition(topic).adding))  # type: ignore[misc]
        while instance.partition(topic).replicas != (1, 2):
            lives = propose_all(instance, topic)
            alive = alive and lives
            if not lives:
                restart(instance)
        instance.until(lambda topic=topic: instance.partition(topic).leader == 1)  # type: ignore[misc]
        instance.until(lambda topic=topic: has_left(instance, topic), or_dead=True)  # type: ignore[misc]
        if instance.is_dead():
            alive = False
            restart(instance)
        instance.until(lambda topic=topic: has_left(instance, topic))  # type: ignore[misc]
        assert {slot for slot in range(3) if (topic, 0) in instance.disks[slot]} == {1, 2}
        assert b"leaving" not in instance.read_store(f"/brokers/topics/{topic}")
        if alive:
            return
    pytest.fail("the steps do not end")


def has_left(instance: Instance, topic: str) -> bool:
    """Slot 0's copy is deleted, and the store has heard of it: one after the other, once the new leader leads."""
    return (topic, 0) not in instance.disks[0] and b"leaving" not in instance.read_store(
        f"/brokers/topics/{topic}"
    )


def restart(instance: Instance, step: int | None = None) -> None:
    """The next controller, to be killed at a step; everybody says hello to it."""
    if not instance.is_dead():
        instance.kill()
    instance.start(killed_at(step) if step is not None else None)
    for each in instance.processes():
        each.hello()


def propose_all(instance: Instance, topic: str) -> bool:
    """The leader proposes all replicas as its ISR; False when the controller dies of it."""
    image = instance.image.topics[topic]
    now = image.partitions[0]
    wanted = WantedIsr(
        topic,
        image.topic_id,
        0,
        now.incarnation,
        now.leader_epoch,
        now.partition_epoch,
        now.replicas,
    )
    worker = instance.workers[now.leader]
    number = worker.propose(wanted)
    return instance.until(lambda: number in worker.answers, or_dead=True)
