"""Each refusal of Kafka's, with Kafka's code; no process, no store."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from appliance.channels.control_channel import CreatePartitions, NewTopic
from appliance.cluster import DELAYED_STATE, INTERNAL_TOPICS, OBSERVING_TOPICS, PartitionImage, TopicImage
from appliance.config import BrokerSettings
from appliance.control.controller.topic_commands import (
    Existing,
    TopicPlan,
    duplicates,
    find_doomed,
    metric_name,
    plan_growth,
    plan_topic,
)
from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode

TOPIC_ID = UUID(int=5)


def topic(name: str, *replicas: tuple[int, ...]) -> TopicImage:
    partitions = tuple(
        PartitionImage(number, number, 1, each[0], 0, each, each) for number, each in enumerate(replicas)
    )
    return TopicImage(name, uuid4(), partitions)


def existing(
    *topics: TopicImage, slots: int = 3, left: int = 100, deleting: tuple[str, ...] = ()
) -> Existing:
    names: dict[str, set[str]] = {}
    for each in topics:
        names.setdefault(metric_name(each.name), set()).add(each.name)
    return Existing({each.name: each for each in topics}, dict.fromkeys(deleting), range(slots), left, names)


def planned(wanted: NewTopic, there: Existing, *, request_left: int = 1000) -> TopicPlan:
    broker = BrokerSettings(num_partitions=2, default_replication_factor=1)
    return plan_topic(wanted, there, topic_id=TOPIC_ID, broker=broker, request_left=request_left)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("going"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("t", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", replication_factor=-3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", partitions=1, assignments={0: (0,)}), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", replication_factor=1, assignments={0: (0,)}), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", assignments={1: (0,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments={0: (0,), 2: (0,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments={0: ()}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments={0: (1, 1)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments={0: (3,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments={0: (0, 1), 1: (2,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", configs={"segment.bytes": "many"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", configs={"segment.bytes": None}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", partitions=101), ErrorCode.POLICY_VIOLATION),
        (NewTopic("t", partitions=2**31 - 1), ErrorCode.POLICY_VIOLATION),
        (NewTopic("t", assignments=dict.fromkeys(range(101), (0,))), ErrorCode.POLICY_VIOLATION),
    ],
)
def test_topic_that_kafka_refuses_is_refused_with_its_code(wanted: NewTopic, code: ErrorCode) -> None:
    there = existing(topic("there", (0,)), topic("a.b", (0,)), deleting=("going",))
    with pytest.raises(RejectedRequest) as refused:
        planned(wanted, there)
    assert ErrorCode(refused.value.code) is code
    assert refused.value.message


def test_request_may_not_ask_for_more_than_its_share() -> None:
    assert planned(NewTopic("t", partitions=3), existing(), request_left=3).partition_count == 3
    with pytest.raises(RejectedRequest) as refused:
        planned(NewTopic("t", partitions=3), existing(), request_left=2)
    assert refused.value.code == ErrorCode.POLICY_VIOLATION


def test_minus_one_means_the_brokers_default() -> None:
    plan = planned(NewTopic("t"), existing())
    assert (plan.partition_count, plan.replication_factor) == (2, 1)


def test_assignment_by_hand_is_taken_as_it_stands() -> None:
    plan = planned(NewTopic("t", assignments={1: (2, 0), 0: (1, 2)}), existing())
    assert plan.replicas == ((1, 2), (2, 0))


def test_name_that_differs_in_more_than_dots_does_not_collide() -> None:
    assert planned(NewTopic("a-b"), existing(topic("a.b", (0,)), topic("a.c", (0,)))).name == "a-b"


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (CreatePartitions("none", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (CreatePartitions("t", 2), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitions("t", 1), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitions("t", -1), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitions("t", 2**31 - 1), ErrorCode.POLICY_VIOLATION),
        (CreatePartitions("t", 4, ((0, 1),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitions("t", 3, ((0, 1), (1, 2))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitions("t", 3, ((0,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitions("t", 3, ((0, 9),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growth_that_kafka_refuses_is_refused_with_its_code(
    wanted: CreatePartitions, code: ErrorCode
) -> None:
    there = existing(topic("t", (1, 2), (2, 0)))
    with pytest.raises(RejectedRequest) as refused:
        plan_growth(wanted, there, request_left=1000)
    assert ErrorCode(refused.value.code) is code


def test_growth_goes_on_where_placement_stopped() -> None:
    there = existing(topic("t", (1, 2), (2, 0)))
    assert plan_growth(CreatePartitions("t", 4), there, request_left=9).replicas == ((0, 1), (1, 0))
    by_hand = plan_growth(CreatePartitions("t", 3, ((2, 1),)), there, request_left=9)
    assert (by_hand.first, by_hand.replicas) == (2, ((2, 1),))


def test_deletion_finds_by_name_and_by_id() -> None:
    there = existing(topic("t", (0,)), topic("u", (0,)))
    broker = BrokerSettings()
    names = {topic.topic_id: name for name, topic in there.topics.items()}
    assert find_doomed("t", there, names, broker=broker).name == "t"
    assert find_doomed(there.topics["u"].topic_id, there, names, broker=broker).name == "u"
    for wanted, code in (
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (UUID(int=9), ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        with pytest.raises(RejectedRequest) as refused:
            find_doomed(wanted, there, names, broker=broker)
        assert refused.value.code == code
    with pytest.raises(RejectedRequest) as refused:
        find_doomed("t", there, names, broker=BrokerSettings(delete_topic_enable=False))
    assert refused.value.code == ErrorCode.TOPIC_DELETION_DISABLED


@pytest.mark.parametrize("name", [*sorted(INTERNAL_TOPICS), "__delayed_5s", DELAYED_STATE])
def test_internal_topics_cannot_be_deleted(name: str) -> None:
    there = existing(topic(name, (0,)))
    for wanted in (name, there.topics[name].topic_id):
        with pytest.raises(RejectedRequest, match="internal") as refused:
            find_doomed(wanted, there, {there.topics[name].topic_id: name}, broker=BrokerSettings())
        assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_topics_of_delayed_records_keep_their_number_of_partitions() -> None:
    with pytest.raises(RejectedRequest, match="internal") as refused:
        plan_growth(
            CreatePartitions("__delayed_5s", 4), existing(topic("__delayed_5s", (0,))), request_left=9
        )
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["__delayed_5s", DELAYED_STATE])
def test_only_the_services_process_creates_topics_of_delayed_records(name: str) -> None:
    with pytest.raises(RejectedRequest, match="internal") as refused:
        planned(NewTopic(name), existing())
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    made = plan_topic(
        NewTopic(name, partitions=4),
        existing(),
        topic_id=TOPIC_ID,
        broker=BrokerSettings(default_replication_factor=1),
        request_left=9,
        by_services=True,
    )
    assert made.partition_count == 4


@pytest.mark.parametrize("name", sorted(OBSERVING_TOPICS))
def test_only_a_services_process_creates_the_topics_of_audit_and_trace(name: str) -> None:
    with pytest.raises(RejectedRequest, match="internal") as refused:
        planned(NewTopic(name, partitions=1), existing())
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("setting", ["delivery.delay.enable", "audit.enable", "trace.enable"])
def test_a_topic_has_services_only_if_there_are_services_processes(setting: str) -> None:
    wanted = NewTopic("t", configs={setting: "true"})
    planned(wanted, existing())
    with pytest.raises(RejectedRequest, match=r"services\.processes") as refused:
        plan_topic(
            wanted,
            existing(),
            topic_id=TOPIC_ID,
            broker=BrokerSettings(default_replication_factor=1),
            request_left=9,
            can_delay=False,
        )
    assert refused.value.code == ErrorCode.INVALID_CONFIG


def test_duplicates_are_those_named_more_than_once() -> None:
    assert duplicates(["a", "b", "a", "a", "c", "c"]) == {"a", "c"}
