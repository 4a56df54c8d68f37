"""Consumer groups of KIP-848: one request for everything, epochs, and partitions that never have two owners."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
)
from appliance.protocol.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    OwnedTopicPartitions,
)
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.join_group import JoinGroupProtocol, JoinGroupRequest
from appliance.protocol.apis.leave_group import MemberIdentity
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import encode_response_body
from tests.control.coordinator.group.consumer import (
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    described,
    scene_with,
    settle,
    settled_pair,
)
from tests.control.coordinator.group.scene import GROUP, Scene

# ── joining and sharing ───────────────────────────────────────────────────────────────────────────────────


def test_the_first_member_gets_everything_at_once() -> None:
    scene = scene_with()
    one = Consumer(scene, "one")
    response = one.join()
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("one", 1, 5000)
    assert one.owned == {UUID(int=1): frozenset(range(4))}
    assert described(scene).group_state == "Stable"


def test_nobody_hears_of_what_is_not_in_the_log() -> None:
    scene = scene_with()
    scene.commits = False
    one = Consumer(scene, "one")
    token = one.send(**one.wishes, rebalance_timeout_ms=REBALANCE_MS, topic_partitions=())
    assert token not in scene.answers
    assert scene.groups.statistics().members == 0
    second = Consumer(scene, "two")
    waits = second.send(**second.wishes, rebalance_timeout_ms=REBALANCE_MS, topic_partitions=())
    assert len(scene.appends) == 1
    scene.commit()
    assert scene.answers[token].member_epoch == 1
    assert scene.answers[waits].member_epoch == 2


def test_what_cannot_be_written_never_happened() -> None:
    scene = scene_with()
    scene.commits = False
    one = Consumer(scene, "one")
    token = one.send(**one.wishes, rebalance_timeout_ms=REBALANCE_MS, topic_partitions=())
    scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert scene.answers[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.groups.statistics().groups == 0


def test_a_partition_moves_only_when_its_owner_has_given_it_up() -> None:
    scene = scene_with(2)
    one, two = Consumer(scene, "one"), Consumer(scene, "two")
    one.join()
    two.join()
    assert (two.epoch, two.owned) == (2, {})
    before = dict(one.owned)
    one.beat(says=False)
    assert (one.epoch, one.count) == (1, 1)
    assert described(scene).group_state == "Reconciling"
    two.beat()
    assert two.count == 0
    # It still says that it owns both: nothing moves on.
    one.owned = before
    assert one.ask(topic_partitions=one.said()).member_epoch == 1
    one.owned = {topic: frozenset({min(owned)}) for topic, owned in before.items()}
    one.beat()
    two.beat()
    assert (one.epoch, two.epoch, one.count, two.count) == (2, 2, 1, 1)
    settle(one, two)
    assert described(scene).group_state == "Stable"


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    scene = scene_with()
    one = Consumer(scene, "one")
    one.join()
    written = len(scene.log)
    response = one.ask()
    assert (response.member_epoch, response.assignment) == (1, None)
    assert len(scene.log) == written


def test_members_share_alike_and_move_as_little_as_can_be() -> None:
    scene = scene_with(12)
    members = [Consumer(scene, f"m{number}") for number in range(3)]
    for member in members:
        member.join()
        settle(*members[: members.index(member) + 1])
    assert [member.count for member in members] == [4, 4, 4]
    before = {member.member_id: member.owned for member in members}
    members[2].ask(member_epoch=-1)
    settle(*members[:2])
    assert [member.count for member in members[:2]] == [6, 6]
    for member in members[:2]:
        assert before[member.member_id][UUID(int=1)] <= member.owned[UUID(int=1)]


def test_range_gives_ranges() -> None:
    scene = scene_with(5)
    one = Consumer(scene, "a", server_assignor="range")
    two = Consumer(scene, "b", server_assignor="range")
    one.join()
    two.join()
    settle(one, two)
    assert one.owned == {UUID(int=1): frozenset({0, 1, 2})}
    assert two.owned == {UUID(int=1): frozenset({3, 4})}
    assert described(scene).assignor_name == "range"


def test_more_members_than_partitions_leaves_some_without() -> None:
    scene = scene_with(1)
    one, two = settled_pair(scene)
    assert (one.count, two.count) == (1, 0)
    assert described(scene).group_state == "Stable"


def test_new_partitions_and_new_topics_come_with_the_next_heartbeat() -> None:
    scene = scene_with(1)
    one = Consumer(scene, "one", subscribed_topic_names=("orders", "returns"))
    one.join()
    assert one.count == 1
    scene.cluster.topics["orders"] = type(scene.cluster.topics["orders"])("orders", UUID(int=1), 3)
    scene.cluster.create("returns", 2)
    one.beat()
    assert one.count == 1
    scene.groups.metadata_changed()
    one.beat()
    assert one.count == 5


def test_a_deleted_topic_is_taken_away() -> None:
    scene = scene_with(2)
    one = Consumer(scene, "one")
    one.join()
    del scene.cluster.topics["orders"]
    scene.groups.metadata_changed()
    settle(one)
    assert one.count == 0


def test_a_member_that_changes_its_subscription_gets_the_other_topic() -> None:
    scene = scene_with(2)
    scene.cluster.create("returns", 3)
    one = Consumer(scene, "one")
    one.join()
    one.take(one.ask(subscribed_topic_names=("returns",), topic_partitions=one.said()))
    settle(one)
    assert one.owned == {UUID(int=2): frozenset({0, 1, 2})}


# ── expressions ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_expression_stands_for_the_topics_that_match_as_a_whole() -> None:
    scene = scene_with(1)
    for name in ("orders-eu", "orders-us", "my-orders"):
        scene.cluster.create(name, 1)
    one = Consumer(scene, "one", subscribed_topic_names=None, subscribed_topic_regex="orders(-.*)?")
    one.join()
    assert set(one.owned) == {UUID(int=1), UUID(int=2), UUID(int=3)}
    assert described(scene).members[0].subscribed_topic_regex == "orders(-.*)?"
    scene.cluster.create("orders-asia", 1)
    scene.groups.metadata_changed()
    one.beat()
    assert one.count == 4
    scene.restart()
    assert one.beat().error_code == 0
    one.take(
        one.ask(subscribed_topic_regex="", subscribed_topic_names=("my-orders",), topic_partitions=one.said())
    )
    settle(one)
    assert set(one.owned) == {UUID(int=4)}


@pytest.mark.parametrize("regex", ["(", "*", "a" * 2000, "(a{1000}){1000}"])
def test_an_expression_that_cannot_be_matched_is_refused(regex: str) -> None:
    scene = scene_with()
    one = Consumer(scene, "one", subscribed_topic_names=None, subscribed_topic_regex=regex)
    assert one.join().error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert scene.groups.statistics().groups == 0


def test_an_expression_that_would_take_for_ever_elsewhere_takes_no_time() -> None:
    scene = scene_with()
    scene.cluster.create("a" * 200, 1)
    one = Consumer(scene, "one", subscribed_topic_names=None, subscribed_topic_regex="(a|aa)+(a|aa)+b")
    assert one.join().error_code == 0
    assert one.count == 0


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"group_id": "  "},
        {"member_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": (OwnedTopicPartitions(UUID(int=1), (0,)),)},
        {"subscribed_topic_names": None},
    ],
)
def test_requests_that_contradict_the_protocol_change_nothing(fields: dict[str, Any]) -> None:
    scene = scene_with()
    joining: dict[str, Any] = {
        "group_id": GROUP,
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": ("orders",),
        "topic_partitions": (),
    }
    response = scene.ask(ConsumerGroupHeartbeatRequest(**{**joining, **fields}), version=1)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.error_message
    assert scene.groups.statistics().groups == 0


def test_v0_gives_a_member_its_id() -> None:
    scene = scene_with()
    one = Consumer(scene, "")
    response = one.ask(0, **one.wishes, rebalance_timeout_ms=REBALANCE_MS, topic_partitions=())
    assert response.error_code == 0
    assert response.member_id


def test_an_assignor_that_there_is_not_is_refused() -> None:
    scene = scene_with()
    assert Consumer(scene, "m", server_assignor="best").join().error_code == ErrorCode.UNSUPPORTED_ASSIGNOR


def test_strangers_are_refused() -> None:
    scene = scene_with()
    one = Consumer(scene, "one")
    assert one.ask(member_epoch=3).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert one.ask(member_epoch=-1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    one.join()
    stranger = Consumer(scene, "stranger")
    assert stranger.ask(member_epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.ask(member_epoch=-1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_of_another_epoch_are_fenced_and_may_come_again() -> None:
    scene = scene_with()
    one = Consumer(scene, "one")
    one.join()
    for epoch in (2, 100):
        assert one.ask(member_epoch=epoch, topic_partitions=()).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert one.join().error_code == 0
    assert one.count == 4


def test_a_lost_answer_costs_a_member_nothing() -> None:
    scene = scene_with(2)
    one, two = Consumer(scene, "one"), Consumer(scene, "two")
    one.join()
    two.join()
    one.beat()
    lost = one.ask(topic_partitions=one.said())
    assert lost.member_epoch == 2
    assert one.epoch == 1
    again = one.beat()
    assert again.member_epoch == 2
    # But not one that owns more than it should.
    one.epoch = 1
    greedy = (OwnedTopicPartitions(UUID(int=1), (0, 1)),)
    assert one.ask(topic_partitions=greedy).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_full_group_refuses_new_members_and_keeps_its_own() -> None:
    scene = scene_with(consumer_max_size=1)
    one = Consumer(scene, "one")
    one.join()
    assert Consumer(scene, "two").join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert one.join().error_code == 0


def test_only_the_assignors_that_are_offered_may_be_asked_for_and_the_first_is_the_default() -> None:
    scene = Scene(consumer_assignors=("range",))
    scene.cluster.create("orders", 2)
    refused = Consumer(scene, "m", server_assignor="uniform").join()
    assert refused.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert refused.error_message is not None
    assert refused.error_message.endswith("Supported assignors: range.")
    Consumer(scene, "n").join()
    (described,) = scene.ask(ConsumerGroupDescribeRequest((GROUP,))).groups
    assert described.assignor_name == "range"


def test_names_as_long_as_a_string_can_be_are_answered_like_others() -> None:
    scene = scene_with()
    longest = "x" * 32_767
    asked: list[tuple[ApiKey, Any]] = [
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, ConsumerGroupHeartbeatRequest(longest, longest, 7)),
        (
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ConsumerGroupHeartbeatRequest(
                GROUP,
                longest,
                0,
                rebalance_timeout_ms=1,
                subscribed_topic_names=(longest,),
                server_assignor=longest,
                topic_partitions=(),
            ),
        ),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest((longest,))),
        (ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest((longest,))),
    ]
    for api, request in asked:
        answer = scene.ask(request, version=api.max_version)
        assert encode_response_body(api, api.max_version, answer)
    request = JoinGroupRequest(
        longest, SESSION_MS, "", "consumer", (JoinGroupProtocol(longest, b""),), group_instance_id=longest
    )
    token = scene.send(request, version=5, client_id=longest)
    scene.pass_time(4_000)
    joined = scene.joined(token)
    assert encode_response_body(ApiKey.JOIN_GROUP, 5, joined)
    scene.sync(joined.member_id, 1, group_id=longest)
    scene.restart()
    assert scene.state(longest) == "Stable"


# ── the log ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_is_after_a_restart_what_it_was() -> None:
    scene = scene_with(4)
    one, two = Consumer(scene, "one", instance_id="i"), Consumer(scene, "two", rack_id="r")
    one.join()
    two.join()
    one.beat()
    before = described(scene)
    scene.restart()
    assert described(scene) == before
    settle(one, two)
    assert (one.count, two.count) == (2, 2)
    scene.pass_time(SESSION_MS + 1)
    assert described(scene).members == ()


def test_an_append_that_died_with_the_process_never_was() -> None:
    scene = scene_with(2)
    one = Consumer(scene, "one")
    one.join()
    scene.commits = False
    two = Consumer(scene, "two")
    two.send(**two.wishes, rebalance_timeout_ms=REBALANCE_MS, topic_partitions=())
    scene.restart()
    scene.commits = True
    assert one.beat().member_epoch == 1
    assert [member.member_id for member in described(scene).members] == ["one"]


def test_who_waits_its_turn_when_the_partition_moves_hears_where_not_to_look() -> None:
    scene = scene_with(2)
    scene.commits = False
    one, two = Consumer(scene, "one"), Consumer(scene, "two")
    tokens = [
        consumer.send(**consumer.wishes, rebalance_timeout_ms=REBALANCE_MS, topic_partitions=())
        for consumer in (one, two)
    ]
    scene.refusals[GROUP] = ErrorCode.NOT_COORDINATOR
    scene.commit(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    scene.carry_out(scene.groups.unload(sum(GROUP.encode()) % 3))
    assert [scene.answers[token].error_code for token in tokens] == [ErrorCode.NOT_COORDINATOR] * 2
    assert scene.groups.next_deadline_ms() is None


# ── beside classic groups ─────────────────────────────────────────────────────────────────────────────────


def test_an_empty_classic_group_makes_place_for_a_consumer_group_and_the_other_way_round() -> None:
    scene = scene_with(consumer_migration_policy="disabled")
    (member,) = scene.stable(1)
    one = Consumer(scene, "one")
    assert one.join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    scene.leave(MemberIdentity(member))
    assert one.join().error_code == 0
    scene.restart()
    assert described(scene).group_state == "Stable"
    assert scene.describe(version=6).error_message == f"Group {GROUP} is not a classic group."
    refused = scene.answers[scene.join(version=3, protocol_type="connect")]
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    one.ask(member_epoch=-1)
    (member,) = scene.stable(1)
    assert described(scene).error_message == f"Group {GROUP} is not a consumer group."
    scene.restart()
    assert scene.state() == "Stable"


def test_consumer_groups_are_listed_and_deleted_as_such() -> None:
    scene = scene_with()
    one = Consumer(scene, "one")
    one.join()
    (group,) = scene.ask(ListGroupsRequest(types_filter=("Consumer",))).groups
    assert (group.group_id, group.protocol_type, group.group_state) == (GROUP, "consumer", "Stable")
    assert scene.ask(ListGroupsRequest(types_filter=("classic",))).groups == ()
    deletion = DeleteGroupsRequest((GROUP,))
    assert scene.ask(deletion).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    one.ask(member_epoch=-1)
    assert scene.ask(deletion).results[0].error_code == 0
    scene.restart()
    assert scene.groups.statistics().groups == 0


def test_an_unknown_group_is_not_found() -> None:
    scene = scene_with()
    group = described(scene)
    assert (group.error_code, group.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {GROUP} not found.",
    )
