"""How many groups, members and given-out ids there may be, and what goes for what."""

from __future__ import annotations

from appliance.control.coordinator.group.group_limits import PENDING_TIMEOUT_MAX_MS
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from appliance.protocol.apis.leave_group import MemberIdentity
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import DELAY_MS, GROUP, REBALANCE_MS, Scene

HALF_AN_HOUR_MS = 1_800_000


def given_id(scene: Scene, *, group_id: str = GROUP, session_ms: int = HALF_AN_HOUR_MS) -> str:
    """The id that a new member is given, with which it is asked to come again."""
    token = scene.join(group_id=group_id, session_ms=session_ms)
    response = scene.answers[token]
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    member_id: str = response.member_id
    return member_id


def beat(group_id: str, member_id: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id,
        member_id,
        0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )


def test_of_the_ids_that_were_given_out_the_oldest_is_forgotten() -> None:
    scene = Scene(pending_members_max=3)
    first, *others = [given_id(scene, group_id=f"g{number}") for number in range(4)]
    assert scene.groups.statistics().pending_members == 3
    assert scene.groups.statistics().groups == 3
    assert scene.groups.limits.forgotten_members == 1
    late = scene.join(first, group_id="g0")
    assert scene.answers[late].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    in_time = scene.join(others[0], group_id="g1")
    scene.pass_time(2 * DELAY_MS)
    assert scene.joined(in_time).member_id == others[0]
    scene.groups.check()


def test_a_million_requests_without_a_member_id_keep_no_more_than_the_bound() -> None:
    scene = Scene(pending_members_max=10)
    for number in range(1_000):
        given_id(scene, group_id=f"g{number % 7}")
        assert scene.groups.statistics().pending_members <= 10
    scene.groups.check()


def test_an_id_is_kept_for_a_minute_however_long_the_session() -> None:
    scene = Scene()
    given_id(scene)
    scene.pass_time(PENDING_TIMEOUT_MAX_MS - 1)
    assert scene.groups.statistics().pending_members == 1
    scene.pass_time(2)
    assert scene.groups.statistics().pending_members == 0
    assert scene.groups.statistics().groups == 0


def test_one_group_too_many_is_refused_in_either_protocol() -> None:
    scene = Scene(max_count=2, initial_rebalance_delay_ms=0)
    scene.cluster.create("t", 1)
    given_id(scene, group_id="a")
    assert scene.ask(beat("b", "m"), version=1).error_code == 0
    refused = scene.answers[scene.join(group_id="c")]
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    beaten = scene.ask(beat("d", "m"), version=1)
    assert beaten.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "group.max.count = 2" in beaten.error_message
    assert scene.groups.check_new("e") == ErrorCode.POLICY_VIOLATION
    assert scene.groups.check_new("a") == 0
    assert scene.groups.limits.refused_groups == 3
    assert len(scene.groups) == 2
    given_id(scene, group_id="a")
    assert scene.ask(beat("b", "n"), version=1).error_code == 0


def test_groups_of_the_log_are_taken_whatever_the_bound() -> None:
    scene = Scene(max_count=1)
    scene.groups.offsets_seen("a")
    scene.groups.offsets_seen("b")
    assert len(scene.groups) == 2


def test_one_member_too_many_is_refused_until_another_one_leaves() -> None:
    scene = Scene(members_max=2)
    scene.cluster.create("t", 1)
    assert scene.ask(beat("a", "m"), version=1).error_code == 0
    assert scene.ask(beat("b", "m"), version=1).error_code == 0
    refused = scene.ask(beat("c", "m"), version=1)
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "group.members.max = 2" in refused.error_message
    classic = scene.join(given_id(scene, group_id="d"), group_id="d")
    assert scene.answers[classic].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert scene.groups.limits.refused_members == 2
    assert scene.ask(beat("a", "m"), version=1).error_code == 0
    left = ConsumerGroupHeartbeatRequest("a", "m", -1)
    assert scene.ask(left, version=1).error_code == 0
    scene.pass_time(1_001)
    assert scene.ask(beat("c", "m"), version=1).error_code == 0


def test_groups_that_nobody_is_in_are_idle_and_go_with_their_records() -> None:
    scene = Scene()
    (member,) = scene.stable(1)
    given_id(scene, group_id="pending")
    assert scene.groups.idle() == []
    assert scene.leave(MemberIdentity(member)) == [0]
    scene.pass_time(REBALANCE_MS)
    assert scene.groups.idle() == [GROUP]
    scene.carry_out(scene.groups.remove_if_empty(GROUP))
    assert scene.log[-1][1].value is None
    scene.restart()
    assert len(scene.groups) == 0
