"""Who gets into a classic group, when the others hear of it, and who leads."""

from __future__ import annotations

import pytest

from appliance.protocol.apis.join_group import JoinGroupResponse
from appliance.protocol.apis.leave_group import MemberIdentity
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Scene,
    subscription,
)


def error_of(scene: Scene, token: int) -> int:
    response = scene.answers[token]
    assert isinstance(response, JoinGroupResponse)
    return response.error_code


def test_a_new_member_is_given_its_id_first_from_v4_on() -> None:
    scene = Scene()
    response = scene.answers[scene.join(version=4)]
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert response.member_id == "c-1"
    assert scene.groups.statistics().members == 0
    scene.join(version=3)
    assert scene.groups.statistics().members == 1


def test_the_first_rebalance_waits_for_its_delay_and_no_longer() -> None:
    scene = Scene()
    _, token = scene.enter()
    scene.pass_time(DELAY_MS)
    assert token not in scene.answers
    scene.pass_time(1)
    assert scene.joined(token).generation_id == 1


def test_each_new_member_prolongs_the_first_rebalance_up_to_the_rebalance_timeout() -> None:
    scene = Scene()
    _, first = scene.enter(rebalance_ms=7000)
    for _ in range(3):
        scene.pass_time(DELAY_MS - 800)
        scene.enter(rebalance_ms=7000)
    assert first not in scene.answers
    scene.pass_time(500)
    assert scene.joined(first).generation_id == 1
    assert len(scene.joined(first).members) == 4


def test_only_the_leader_hears_of_the_others() -> None:
    scene = Scene()
    leader, first = scene.enter()
    follower, second = scene.enter()
    scene.pass_time(3 * DELAY_MS)
    assert [member.member_id for member in scene.joined(first).members] == [leader, follower]
    assert scene.joined(first).members[0].metadata == subscription("orders")
    assert scene.joined(second).members == ()
    assert scene.joined(second).leader == leader
    assert scene.joined(second).protocol_name == "range"
    assert scene.joined(second).protocol_type == "consumer"


def test_the_protocol_with_most_votes_wins_among_those_that_all_know() -> None:
    scene = Scene()
    _, token = scene.enter(protocols={"sticky": b"", "range": b"", "a": b""})
    scene.enter(protocols={"range": b"", "sticky": b"", "b": b""})
    scene.enter(protocols={"c": b"", "range": b"", "sticky": b""})
    scene.pass_time(4 * DELAY_MS)
    assert scene.joined(token).protocol_name == "range"


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", {"range": b""}), ("consumer", {"other": b""}), ("consumer", {})],
)
def test_a_member_that_has_no_protocol_in_common_is_refused_and_changes_nothing(
    protocol_type: str, protocols: dict[str, bytes]
) -> None:
    scene = Scene()
    scene.stable(2)
    token = scene.join(protocol_type=protocol_type, protocols=protocols)
    assert error_of(scene, token) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert scene.state() == "Stable"


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", {"range": b""}), ("consumer", {})])
def test_an_empty_group_wants_a_protocol_type_and_a_protocol(
    protocol_type: str, protocols: dict[str, bytes]
) -> None:
    scene = Scene()
    token = scene.join(protocol_type=protocol_type, protocols=protocols)
    assert error_of(scene, token) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert scene.groups.statistics().groups == 0


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1])
def test_session_timeouts_out_of_bounds_are_refused(session_ms: int) -> None:
    scene = Scene()
    assert error_of(scene, scene.join(session_ms=session_ms)) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert scene.groups.statistics().groups == 0


def test_an_empty_group_id_is_refused() -> None:
    scene = Scene()
    assert error_of(scene, scene.join(group_id="")) == ErrorCode.INVALID_GROUP_ID


def test_an_unknown_member_id_is_refused_with_and_without_a_group() -> None:
    scene = Scene()
    assert error_of(scene, scene.join("stranger")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.groups.statistics().groups == 0
    scene.stable(1)
    assert error_of(scene, scene.join("stranger")) == ErrorCode.UNKNOWN_MEMBER_ID


def test_what_the_gate_says_is_answered_and_no_group_is_made() -> None:
    scene = Scene()
    scene.refusals[GROUP] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert error_of(scene, scene.join()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert scene.groups.statistics().groups == 0


def test_versions_before_7_get_an_empty_name_where_there_is_no_protocol() -> None:
    scene = Scene()
    assert scene.answers[scene.join(version=6)].protocol_name == ""
    assert scene.answers[scene.join(version=7)].protocol_name is None


def test_a_pending_member_that_does_not_come_back_is_forgotten_with_its_group() -> None:
    scene = Scene()
    scene.join()
    assert scene.groups.statistics().pending_members == 1
    scene.pass_time(SESSION_MS + 1)
    assert scene.groups.statistics().groups == 0
    assert scene.groups.next_deadline_ms() is None


def test_a_rebalance_waits_for_a_pending_member_until_its_session_ends() -> None:
    scene = Scene()
    (member,) = scene.stable(1)
    scene.join()
    token = scene.join(member)
    scene.pass_time(SESSION_MS)
    assert token not in scene.answers
    scene.pass_time(1)
    assert scene.joined(token).generation_id == 2


def test_a_pending_member_joins_while_the_last_member_leaves() -> None:
    """Between the two the group prepares a rebalance of nobody. Kafka counts such members as knowing any protocol."""
    scene = Scene()
    (last,) = scene.stable(1)
    pending = scene.answers[scene.join()].member_id
    assert scene.leave(MemberIdentity(last)) == [0]
    token = scene.join(pending)
    scene.pass_time(2 * DELAY_MS)
    assert error_of(scene, token) == ErrorCode.NONE


def test_a_pending_member_may_leave() -> None:
    scene = Scene()
    pending = scene.answers[scene.join()].member_id
    assert scene.leave(MemberIdentity(pending)) == [0]
    assert scene.groups.statistics().groups == 0


def test_a_full_group_refuses_new_members_and_keeps_its_own() -> None:
    scene = Scene(max_size=2)
    members = scene.stable(2)
    token = scene.join(version=3)
    assert error_of(scene, token) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert scene.answers[token].member_id == ""
    assert [scene.heartbeat(member, 1) for member in members] == [0, 0]


def test_in_a_rebalance_the_first_to_join_have_the_places() -> None:
    scene = Scene(max_size=2)
    leader, follower = scene.stable(2)
    scene.join(leader)
    newcomer = scene.join(version=3)
    late = scene.join(follower)
    assert error_of(scene, late) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert scene.joined(newcomer).generation_id == 2


def test_a_follower_that_joins_again_unchanged_hears_what_it_was_told() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    again = scene.joined(scene.join(follower))
    assert (again.generation_id, again.leader, again.members) == (1, leader, ())
    assert scene.state() == "Stable"


def test_a_leader_that_joins_a_stable_group_starts_a_rebalance() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    token = scene.join(leader)
    assert scene.state() == "PreparingRebalance"
    assert scene.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    scene.join(follower)
    assert scene.joined(token).generation_id == 2


def test_a_follower_with_another_subscription_starts_a_rebalance() -> None:
    scene = Scene()
    _, follower = scene.stable(2)
    token = scene.join(follower, protocols={"range": subscription("orders", "returns")})
    assert token not in scene.answers
    assert scene.state() == "PreparingRebalance"


def test_while_the_assignment_is_awaited_the_same_join_gets_the_same_generation() -> None:
    scene = Scene()
    leader, first = scene.enter()
    follower, _ = scene.enter()
    scene.pass_time(3 * DELAY_MS)
    assert scene.joined(scene.join(leader)) == scene.joined(first)
    assert scene.joined(scene.join(follower)).members == ()
    assert scene.state() == "CompletingRebalance"


def test_while_the_assignment_is_awaited_another_subscription_starts_anew() -> None:
    scene = Scene()
    leader, _ = scene.enter()
    follower, _ = scene.enter()
    scene.pass_time(3 * DELAY_MS)
    waiting = scene.sync(follower, 1)
    scene.join(leader, protocols={"range": subscription("returns")})
    assert scene.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.state() == "PreparingRebalance"


def test_who_does_not_rejoin_in_time_is_out_and_another_one_leads() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    token = scene.join(follower, protocols={"range": subscription("returns")})
    for _ in range(REBALANCE_MS // 5000):
        assert scene.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        scene.pass_time(5000)
    scene.pass_time(1)
    joined = scene.joined(token)
    assert (joined.generation_id, joined.leader) == (2, follower)
    assert scene.heartbeat(leader, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_holds_a_rebalance_up_for_its_session_only() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    token = scene.join(leader)
    scene.pass_time(SESSION_MS + 1)
    assert scene.joined(token).generation_id == 2
    assert scene.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_member_that_waits_too_long_is_told_to_start_over() -> None:
    scene = Scene()
    member, _ = scene.stable(2, rebalance_ms=1_700_000, session_ms=1_700_000)
    token = scene.join(version=3, rebalance_ms=1_700_000, session_ms=1_700_000)
    scene.heartbeat(member, 1)
    scene.pass_time(5 * 60 * 1000)
    assert token not in scene.answers
    scene.pass_time(1)
    assert error_of(scene, token) == ErrorCode.UNKNOWN_MEMBER_ID


def test_v0_has_no_rebalance_timeout_and_takes_the_session_s() -> None:
    scene = Scene()
    first = scene.join(version=0, rebalance_ms=-1)
    scene.pass_time(DELAY_MS + 1)
    leader = scene.joined(first).member_id
    scene.sync(leader, 1, {})
    scene.join(version=0, rebalance_ms=-1)
    scene.heartbeat(leader, 1)
    scene.pass_time(SESSION_MS + 1)
    assert scene.state() == "CompletingRebalance"


def test_a_second_join_of_a_member_ends_its_first() -> None:
    scene = Scene()
    leader, _ = scene.stable(2)
    first = scene.join(leader)
    second = scene.join(leader)
    assert error_of(scene, first) == ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in scene.answers
    scene.groups.check()
