"""Topics through a real controller process: created, seen in the image, assigned, grown, deleted."""

from __future__ import annotations

from appliance.channels.control_channel import CreateTopics, DeleteTopics, NewTopic
from appliance.channels.partition_table import INCARNATION, ISR_BITS, LEADER_EPOCH, LEADER_SLOT
from appliance.channels.roles import Role, RoleKind
from appliance.config import BrokerSettings
from appliance.control.controller.copies import PIECE
from appliance.protocol.errors import ErrorCode
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance


def words(instance: Instance, row: int) -> tuple[int, int, int, int]:
    at, cells = instance.table.at(row), instance.table.cells
    return cells[at + INCARNATION], cells[at + LEADER_SLOT], cells[at + LEADER_EPOCH], cells[at + ISR_BITS]


def check_served(instance: Instance) -> None:
    """Image, partition table, worker and disk agree."""
    led = {key: each for worker in instance.workers.values() for key, each in worker.led.items()}
    seen = {
        (topic.name, each.partition): (topic, each)
        for topic in instance.image.topics.values()
        for each in topic.partitions
    }
    assert led.keys() == seen.keys()
    for key, (topic, partition) in seen.items():
        assigned = led[key]
        assert (assigned.topic_id, assigned.row, assigned.incarnation, assigned.leader_epoch) == (
            topic.topic_id,
            partition.row,
            partition.incarnation,
            partition.leader_epoch,
        )
        assert words(instance, partition.row) == (
            partition.incarnation,
            partition.leader,
            partition.leader_epoch,
            sum(1 << slot for slot in partition.isr),
        )
        assert instance.disks[partition.leader][key] == topic.topic_id
    assert {key for disk in instance.disks.values() for key in disk} == led.keys()


def test_created_topic_is_answered_when_it_is_served_and_seen(instance: Instance) -> None:
    (outcome,) = instance.create(NewTopic("t", partitions=3, configs={"segment.bytes": "1048576"}))
    assert (outcome.error, outcome.partitions, outcome.replication_factor) == (0, 3, 1)
    assert outcome.configs == {"segment.bytes": "1048576"}
    topic = instance.image.topics["t"]
    assert topic.topic_id == outcome.topic_id
    assert topic.configs == {"segment.bytes": "1048576"}
    assert [each.leader for each in topic.partitions] == [0, 0, 0]
    assert not topic.internal
    check_served(instance)


def test_topic_is_not_seen_before_its_worker_serves_it(instance: Instance) -> None:
    instance.workers[0].mute = True
    number = instance.ask(CreateTopics((NewTopic("t"),)))
    instance.until(lambda: len(instance.workers[0].commands) == 2)
    assert "t" not in instance.image.topics
    assert number not in instance.answers
    instance.workers[0].mute = False
    instance.answer(number)
    assert "t" in instance.image.topics


def test_hundred_topics_of_one_request_are_a_few_commands_and_one_image(instance: Instance) -> None:
    version, commands = instance.images.version, len(instance.workers[0].commands)
    outcomes = instance.create(*(f"t{number}" for number in range(100)))
    assert [outcome.error for outcome in outcomes] == [0] * 100
    assert instance.images.version == version + 1
    assert len(instance.workers[0].commands) <= commands + 100 // PIECE + 1
    check_served(instance)


def test_defaults_come_from_the_broker_settings(new_instance: NewInstance) -> None:
    instance = new_instance(broker=BrokerSettings(num_partitions=4))
    instance.start()
    instance.start_worker()
    (outcome,) = instance.create("t")
    assert (outcome.partitions, outcome.replication_factor) == (4, 1)


def test_validation_alone_changes_nothing(instance: Instance) -> None:
    version = instance.images.version
    (outcome,) = instance.create(NewTopic("t", partitions=2), validate_only=True)
    assert (outcome.error, outcome.partitions, outcome.topic_id) == (0, 2, None)
    (refused,) = instance.create(NewTopic("t", partitions=0), validate_only=True)
    assert refused.error == ErrorCode.INVALID_PARTITIONS
    assert instance.images.version == version
    assert len(instance.workers[0].commands) == 1


def test_one_bad_topic_does_not_spoil_the_others(instance: Instance) -> None:
    outcomes = instance.create("good", "bad name", NewTopic("worse", replication_factor=2), "twice", "twice")
    assert {outcome.name: outcome.error for outcome in outcomes} == {
        "good": 0,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "worse": ErrorCode.INVALID_REPLICATION_FACTOR,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert list(instance.image.topics) == ["good"]
    check_served(instance)


def test_existing_topic_is_refused_with_its_id(instance: Instance) -> None:
    (created,) = instance.create("t")
    (refused,) = instance.create("t")
    assert refused.error == ErrorCode.TOPIC_ALREADY_EXISTS
    assert refused.topic_id == created.topic_id


def test_internal_topic_is_marked(instance: Instance) -> None:
    instance.create("__consumer_offsets")
    assert instance.image.topics["__consumer_offsets"].internal


def test_grown_topic_keeps_its_partitions_and_gets_more(instance: Instance) -> None:
    instance.create(NewTopic("t", partitions=2))
    before = instance.image.topics["t"]
    outcome = instance.grow("t", 5)
    assert (outcome.error, outcome.partitions) == (0, 5)
    after = instance.image.topics["t"]
    assert after.topic_id == before.topic_id
    assert after.partitions[:2] == before.partitions
    assert [each.partition for each in after.partitions] == [0, 1, 2, 3, 4]
    assert len(instance.workers[0].commands[-1].partitions) == 3
    check_served(instance)
    assert instance.grow("t", 5).error == ErrorCode.INVALID_PARTITIONS
    assert instance.grow("t", 4).error == ErrorCode.INVALID_PARTITIONS
    assert instance.grow("none", 4).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_deleted_topic_leaves_the_image_before_its_worker_hears_of_it(instance: Instance) -> None:
    instance.create(NewTopic("t", partitions=2), "kept")
    rows = [each.row for each in instance.image.topics["t"].partitions]
    worker = instance.workers[0]
    worker.mute = True
    commands = len(worker.commands)
    number = instance.ask(DeleteTopics(("t",)))
    instance.until(lambda: len(worker.commands) > commands)
    assert list(instance.image.topics) == ["kept"]
    assert [words(instance, row)[:2] for row in rows] == [(0, -1), (0, -1)]
    assert number not in instance.answers
    worker.mute = False
    instance.answer(number)
    check_served(instance)


def test_deleted_topic_is_created_anew_at_once(instance: Instance) -> None:
    for _ in range(3):
        (created,) = instance.create("t")
        (partition,) = instance.image.topics["t"].partitions
        (deleted,) = instance.delete("t")
        assert (deleted.error, deleted.topic_id) == (0, created.topic_id)
        assert instance.disks[0] == {}
        (again,) = instance.create("t")
        assert again.error == 0
        assert again.topic_id != created.topic_id
        (new,) = instance.image.topics["t"].partitions
        assert new.incarnation > partition.incarnation
        check_served(instance)
        instance.delete("t")


def test_deletion_by_id_names_the_topic_and_spares_its_successor(instance: Instance) -> None:
    (first,) = instance.create("t")
    assert first.topic_id is not None
    (deleted,) = instance.outcomes(DeleteTopics(topic_ids=(first.topic_id,)))
    assert (deleted.name, deleted.error) == ("t", 0)
    instance.create("t")
    (refused,) = instance.outcomes(DeleteTopics(topic_ids=(first.topic_id,)))
    assert (refused.name, refused.error) == ("", ErrorCode.UNKNOWN_TOPIC_ID)
    assert refused.topic_id == first.topic_id
    assert "t" in instance.image.topics


def test_deletion_of_nothing_and_of_the_same_twice_is_refused(instance: Instance) -> None:
    instance.create("t")
    outcomes = instance.delete("none", "t", "t")
    assert {each.name: each.error for each in outcomes} == {
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "t": ErrorCode.INVALID_REQUEST,
    }
    assert "t" in instance.image.topics


def test_partition_limit_is_kept_and_deletion_makes_room(new_instance: NewInstance) -> None:
    instance = new_instance(broker=BrokerSettings(max_partitions=4, max_partitions_per_request=3))
    instance.start()
    instance.start_worker()
    outcomes = instance.create(NewTopic("a", partitions=3), NewTopic("b", partitions=1))
    assert [each.error for each in outcomes] == [0, ErrorCode.POLICY_VIOLATION]
    (outcome,) = instance.create(NewTopic("b", partitions=2))
    assert outcome.error == ErrorCode.POLICY_VIOLATION
    (outcome,) = instance.create(NewTopic("c", partitions=2_000_000_000))
    assert outcome.error == ErrorCode.POLICY_VIOLATION
    assert instance.create(NewTopic("b", partitions=1))[0].error == 0
    assert instance.grow("b", 2).error == ErrorCode.POLICY_VIOLATION
    instance.delete("a")
    assert instance.grow("b", 4).error == 0
    check_served(instance)


def test_slots_are_registered_and_named_in_the_image(new_instance: NewInstance) -> None:
    instance = new_instance(slots=3)
    instance.start()
    for slot in range(3):
        instance.start_worker(slot)
    (outcome,) = instance.create(NewTopic("t", partitions=6, replication_factor=3))
    assert outcome.error == 0
    assert [(slot.node_id, slot.port) for slot in instance.image.slots] == [(0, 9092), (1, 9093), (2, 9094)]
    leaders = [each.leader for each in instance.image.topics["t"].partitions]
    assert sorted(leaders) == [0, 0, 1, 1, 2, 2]
    check_served(instance)


def test_only_the_services_process_creates_topics_of_delayed_records(new_instance: NewInstance) -> None:
    instance = new_instance(services=1)
    instance.start()
    instance.start_worker()
    wanted = NewTopic("__delayed_5s", partitions=3)
    (outcome,) = instance.create(wanted)
    assert outcome.error == ErrorCode.INVALID_TOPIC_EXCEPTION
    (outcome,) = instance.create_as(Role(RoleKind.SERVICES), wanted)
    assert (outcome.error, outcome.partitions) == (0, 3)
