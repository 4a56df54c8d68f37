"""Settings through a real controller process: altered, told to the workers, seen in the image, kept."""

from __future__ import annotations

import resource
from uuid import UUID

import pytest

from appliance.channels.control_channel import (
    AlterConfigs,
    AlteredResource,
    ConfigChange,
    ConfigOutcomes,
    NewTopic,
)
from appliance.cluster import TopicImage
from appliance.config import GroupSettings
from appliance.control.controller.config_commands import Altering, plan_alteration
from appliance.control.store.znode_tree import broker_config_path, topic_config_path
from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance
from tests.control.controller.test_damage import without_room

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND = 0, 1, 2


def altering(kind: int, name: str, *, validate_only: bool = False, **values: str) -> AlterConfigs:
    """Sets `values`, whose names have underscores for dots."""
    changes = tuple(ConfigChange(key.replace("_", "."), value) for key, value in values.items())
    return AlterConfigs((AlteredResource(kind, name, changes),), validate_only=validate_only)


def alter(instance: Instance, wanted: AlterConfigs) -> list[int]:
    answer = instance.answer(instance.ask(wanted))
    assert isinstance(answer, ConfigOutcomes)
    return [each.error for each in answer.outcomes]


def test_an_answered_change_is_at_the_worker_and_in_the_image(instance: Instance) -> None:
    instance.create(NewTopic("t", partitions=3, configs={"retention.ms": "5"}))
    assert alter(instance, altering(TOPIC, "t", segment_ms="7")) == [0]
    wanted = {"retention.ms": "5", "segment.ms": "7"}
    assert [each.configs for each in instance.workers[0].led.values()] == [wanted] * 3
    assert instance.image.topics["t"].configs == wanted


def test_a_worker_that_does_not_answer_keeps_the_change_from_being_acknowledged(instance: Instance) -> None:
    instance.create("t")
    worker = instance.workers[0]
    worker.mute = True
    number = instance.ask(altering(TOPIC, "t", segment_ms="7"))
    instance.until(lambda: len(worker.commands) > 2)
    assert number not in instance.answers
    assert instance.image.topics["t"].configs == {}
    worker.mute = False
    answer = instance.answer(number)
    assert isinstance(answer, ConfigOutcomes)
    assert instance.image.topics["t"].configs == {"segment.ms": "7"}


def test_a_worker_that_never_answers_is_waited_for_until_the_deadline(instance: Instance) -> None:
    instance.create("t")
    instance.workers[0].mute = True
    assert alter(instance, altering(TOPIC, "t", segment_ms="7")) == [ErrorCode.REQUEST_TIMED_OUT]
    assert instance.image.topics["t"].configs == {"segment.ms": "7"}


def test_a_change_survives_kill_of_the_controller(instance: Instance) -> None:
    instance.create("t")
    assert alter(instance, altering(TOPIC, "t", segment_ms="7")) == [0]
    assert alter(instance, altering(BROKER, "", log_retention_ms="8")) == [0]
    instance.kill()
    instance.start()
    worker = instance.start_worker()
    instance.until(lambda: bool(worker.led))
    assert worker.led["t", 0].configs == {"segment.ms": "7"}
    assert worker.commands[0].log_defaults is not None
    assert worker.commands[0].log_defaults["retention.ms"] == "8"
    assert instance.image.broker_configs == {"": {"log.retention.ms": "8"}}


def test_a_change_on_one_slot_goes_to_its_worker_and_one_on_all_to_every_worker(
    new_instance: NewInstance,
) -> None:
    instance = new_instance(slots=2)
    instance.start()
    first, second = instance.start_worker(0), instance.start_worker(1)
    instance.until(lambda: bool(first.commands and second.commands))
    assert alter(instance, altering(BROKER, "", log_segment_bytes="2000000")) == [0]
    assert alter(instance, altering(BROKER, "1", log_segment_bytes="3000000")) == [0]
    told = [worker.commands[-1].log_defaults for worker in (first, second)]
    assert [each and each["segment.bytes"] for each in told] == ["2000000", "3000000"]


def test_a_dead_worker_is_not_waited_for(instance: Instance) -> None:
    instance.lose(instance.workers[0])
    assert alter(instance, altering(BROKER, "", log_retention_ms="8")) == [0]
    worker = instance.start_worker()
    instance.until(lambda: bool(worker.commands))
    assert worker.commands[0].log_defaults is not None
    assert worker.commands[0].log_defaults["retention.ms"] == "8"


def test_validate_only_and_refusals_change_nothing(instance: Instance) -> None:
    instance.create("t")
    version, commands = instance.images.version, len(instance.workers[0].commands)
    assert alter(instance, altering(TOPIC, "t", segment_ms="7", validate_only=True)) == [0]
    assert alter(instance, altering(TOPIC, "t", segment_ms="x")) == [ErrorCode.INVALID_CONFIG]
    assert alter(instance, altering(TOPIC, "u", segment_ms="7")) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert alter(instance, altering(BROKER, "9", log_retention_ms="8")) == [ErrorCode.INVALID_REQUEST]
    assert (instance.images.version, len(instance.workers[0].commands)) == (version, commands)


def test_created_altered_and_deleted_in_one_turn(instance: Instance) -> None:
    numbers = [
        instance.ask(each)
        for each in (
            altering(TOPIC, "t", segment_ms="1"),
            altering(BROKER, "", log_retention_ms="8"),
        )
    ]
    outcome = instance.create(NewTopic("t", configs={"retention.ms": "5"}))
    assert outcome[0].error == 0
    answers = [instance.answer(number) for number in numbers]
    assert [each.outcomes[0].error for each in answers if isinstance(each, ConfigOutcomes)] == [3, 0]
    instance.ask(altering(TOPIC, "t", segment_ms="2"))
    assert [each.error for each in instance.delete("t")] == [0]
    assert "t" not in instance.image.topics


def test_a_topic_whose_settings_somebody_removed_from_the_tree_can_be_altered(instance: Instance) -> None:
    instance.create("t")
    instance.kill()
    instance.remove_from_store(topic_config_path("t"))
    instance.start()
    instance.start_worker()
    assert alter(instance, altering(TOPIC, "t", segment_ms="7")) == [0]


def test_kafkas_paths_hold_kafkas_records(instance: Instance) -> None:
    instance.create("t")
    assert alter(instance, altering(TOPIC, "t", segment_ms="7")) == [0]
    assert alter(instance, altering(BROKER, "", log_retention_ms="8")) == [0]
    assert alter(instance, altering(BROKER, "0", log_retention_ms="9")) == [0]
    instance.stop()
    assert instance.read_store(topic_config_path("t")) == b'{"config":{"segment.ms":"7"},"version":1}'
    assert (
        instance.read_store("/config/brokers/<default>") == b'{"config":{"log.retention.ms":"8"},"version":1}'
    )
    assert instance.read_store(broker_config_path("0")) == b'{"config":{"log.retention.ms":"9"},"version":1}'


def test_replacing_takes_away_what_is_not_named(instance: Instance) -> None:
    instance.create(NewTopic("t", configs={"retention.ms": "5"}))
    wanted = AlterConfigs((AlteredResource(TOPIC, "t", (ConfigChange("segment.ms", "7"),)),), replace=True)
    assert alter(instance, wanted) == [0]
    assert instance.image.topics["t"].configs == {"segment.ms": "7"}


def test_a_full_disk_refuses_the_change_and_nothing_has_changed(instance: Instance) -> None:
    instance.create("t")
    instance.stop()
    instance.start(without_room(instance, more_bytes=200_000))
    worker = instance.start_worker()
    instance.until(lambda: bool(worker.led))
    version = instance.images.version
    long = ",".join(f"{number}:0" for number in range(30_000))
    wanted = altering(TOPIC, "t", leader_replication_throttled_replicas=long)
    assert alter(instance, wanted) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert instance.images.version == version
    assert len(worker.commands) == 1
    assert instance.image.topics["t"].configs == {}
    resource.prlimit(instance.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert alter(instance, wanted) == [0]
    assert instance.image.topics["t"].configs["leader.replication.throttled.replicas"] == long


def test_a_groups_settings_are_in_the_image_and_survive_kill_of_the_controller(instance: Instance) -> None:
    for group_id in (".", "a/b", "ü\0"):
        assert alter(instance, altering(GROUP, group_id, consumer_session_timeout_ms="50000")) == [0]
    instance.kill()
    instance.start()
    instance.start_worker()
    wanted = {"consumer.session.timeout.ms": "50000"}
    instance.until(lambda: instance.image.group_configs == dict.fromkeys((".", "a/b", "ü\0"), wanted))
    unset = AlterConfigs(
        (AlteredResource(GROUP, "a/b", (ConfigChange("consumer.session.timeout.ms", None, DELETE),)),)
    )
    assert alter(instance, unset) == [0]
    assert instance.image.group_configs == dict.fromkeys((".", "ü\0"), wanted)


def test_subscriptions_to_client_metrics_are_in_the_image_and_survive_kill_of_the_controller(
    instance: Instance,
) -> None:
    for name in (".", "a/b", "ü\0"):
        assert alter(instance, altering(CLIENT_METRICS, name, interval_ms="1000")) == [0]
    instance.kill()
    instance.start()
    instance.start_worker()
    wanted = {"interval.ms": "1000"}
    instance.until(lambda: instance.image.client_metrics == dict.fromkeys((".", "a/b", "ü\0"), wanted))
    unset = AlterConfigs(
        (AlteredResource(CLIENT_METRICS, "a/b", (ConfigChange("interval.ms", None, DELETE),)),)
    )
    assert alter(instance, unset) == [0]
    assert instance.image.client_metrics == dict.fromkeys((".", "ü\0"), wanted)
    # Kafka 4.3.1 takes the two lists for plain texts here.
    added = AlterConfigs((AlteredResource(CLIENT_METRICS, ".", (ConfigChange("metrics", "a,b", APPEND),)),))
    assert alter(instance, added) == [ErrorCode.INVALID_CONFIG]
    assert instance.image.client_metrics["."] == {"interval.ms": "1000"}


def test_what_a_subscription_may_not_be_given_changes_nothing(instance: Instance) -> None:
    instance.start_worker()
    # As Apache Kafka 4.3.1 answers.
    for wanted, error in (
        (altering(CLIENT_METRICS, "", interval_ms="1000"), ErrorCode.INVALID_REQUEST),
        (altering(CLIENT_METRICS, "s", interval_ms="99"), ErrorCode.INVALID_REQUEST),
        (altering(CLIENT_METRICS, "s", interval_ms="soon"), ErrorCode.INVALID_CONFIG),
        (altering(CLIENT_METRICS, "s", match="name=x"), ErrorCode.INVALID_CONFIG),
        (altering(CLIENT_METRICS, "s", segment_ms="5"), ErrorCode.INVALID_REQUEST),
    ):
        assert alter(instance, wanted) == [error]
    assert instance.image.client_metrics == {}


def test_what_a_group_may_not_be_given_changes_nothing(instance: Instance) -> None:
    instance.start_worker()
    assert alter(instance, altering(GROUP, "", consumer_session_timeout_ms="50000")) == [
        ErrorCode.INVALID_REQUEST
    ]
    for refused in ("1", "soon"):
        wanted = altering(GROUP, "g", consumer_session_timeout_ms=refused)
        assert alter(instance, wanted) == [ErrorCode.INVALID_CONFIG]
    assert alter(instance, altering(GROUP, "g", segment_ms="5")) == [ErrorCode.INVALID_CONFIG]
    assert instance.image.group_configs == {}


@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [
        ([ConfigChange("segment.ms", "60000")], True),
        ([ConfigChange("min.insync.replicas", "1")], True),
        ([ConfigChange("retention.ms", "-1")], True),
        ([ConfigChange("retention.ms", "1000")], False),
        ([ConfigChange("retention.ms", None, DELETE)], False),
        ([ConfigChange("cleanup.policy", "compact")], False),
        ([ConfigChange("segment.ms", "60000"), ConfigChange("max.message.bytes", "100")], False),
    ],
)
def test_no_setting_of_a_topic_of_delayed_delivery_can_lose_its_records(
    changes: list[ConfigChange], is_taken: bool
) -> None:
    configs = {"retention.ms": "-1", "cleanup.policy": "delete"}
    topic = TopicImage("__delayed_5s", UUID(int=5), (), configs)
    known = Altering({topic.name: topic}, {}, {}, (0,), {}, GroupSettings())
    wanted = AlteredResource(TOPIC, topic.name, tuple(changes))
    if is_taken:
        assert plan_alteration(wanted, known, replace=False).items() >= configs.items()
    else:
        with pytest.raises(RejectedRequest, match="delayed records") as refused:
            plan_alteration(wanted, known, replace=False)
        assert refused.value.code == ErrorCode.POLICY_VIOLATION
    with pytest.raises(RejectedRequest):
        plan_alteration(AlteredResource(TOPIC, topic.name, ()), known, replace=True)


def test_level_of_a_logger_is_a_setting_of_the_only_broker(instance: Instance) -> None:
    logger = 8
    assert alter(instance, altering(logger, "0", netproc="DEBUG", root="WARN")) == [0]
    assert instance.image.broker_configs["0"] == {"log.level.netproc": "DEBUG", "log.level": "WARN"}
    removed = AlterConfigs((AlteredResource(logger, "0", (ConfigChange("netproc", None, DELETE),)),))
    assert alter(instance, removed) == [0]
    assert instance.image.broker_configs["0"] == {"log.level": "WARN"}
    wrong = [
        altering(logger, "0", nothing="INFO"),
        altering(logger, "0", root="LOUD"),
        altering(logger, "1", root="INFO"),
    ]
    assert [alter(instance, each) for each in wrong] == [
        [ErrorCode.INVALID_CONFIG],
        [ErrorCode.INVALID_CONFIG],
        [ErrorCode.INVALID_REQUEST],
    ]
    legacy = AlterConfigs((AlteredResource(logger, "0", (ConfigChange("root", "INFO"),)),), replace=True)
    assert alter(instance, legacy) == [ErrorCode.INVALID_REQUEST]
