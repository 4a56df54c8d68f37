"""Heartbeats, leaving, sessions; static members that go and come back (KIP-345)."""

from __future__ import annotations

import pytest

from appliance.protocol.apis.heartbeat import HeartbeatRequest
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import DELAY_MS, GROUP, SESSION_MS, Scene, subscription

# ── heartbeats and sessions ───────────────────────────────────────────────────────────────────────────────


def test_heartbeats_keep_a_member_alive() -> None:
    scene = Scene()
    (member,) = scene.stable(1)
    for _ in range(5):
        scene.pass_time(SESSION_MS - 1)
        assert scene.heartbeat(member, 1) == ErrorCode.NONE


def test_a_silent_member_is_out_after_its_session_and_never_before() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    scene.heartbeat(follower, 1)
    scene.pass_time(SESSION_MS // 2)
    scene.heartbeat(leader, 1)
    scene.pass_time(SESSION_MS // 2)
    assert scene.heartbeat(leader, 1) == ErrorCode.NONE
    scene.pass_time(1)
    assert scene.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_last_member_died_is_empty_in_the_log() -> None:
    scene = Scene()
    scene.stable(2)
    scene.pass_time(3 * SESSION_MS)
    assert scene.state() == "Empty"
    scene.restart()
    assert scene.state() == "Empty"
    assert scene.describe().members == ()


def test_heartbeats_of_strangers_and_old_generations_are_refused() -> None:
    scene = Scene()
    assert scene.heartbeat("x", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    (member,) = scene.stable(1)
    assert scene.heartbeat("x", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.heartbeat(member, 0) == ErrorCode.ILLEGAL_GENERATION
    assert scene.heartbeat(member, 1, group_id="") == ErrorCode.INVALID_GROUP_ID


def test_while_its_group_is_loaded_a_heartbeat_is_taken_as_it_is() -> None:
    scene = Scene()
    scene.refusals[GROUP] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert scene.ask(HeartbeatRequest(GROUP, 1, "m")).error_code == ErrorCode.NONE
    scene.refusals[GROUP] = ErrorCode.NOT_COORDINATOR
    assert scene.ask(HeartbeatRequest(GROUP, 1, "m")).error_code == ErrorCode.NOT_COORDINATOR


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [0, 1, 2])
def test_one_member_leaves_as_old_clients_say_it(version: int) -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    assert scene.ask(LeaveGroupRequest(GROUP, follower), version=version).error_code == 0
    assert scene.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    error = scene.ask(LeaveGroupRequest(GROUP, follower), version=version).error_code
    assert error == ErrorCode.UNKNOWN_MEMBER_ID


def test_many_leave_at_once_each_with_its_own_answer_and_one_rebalance() -> None:
    scene = Scene()
    leader, one, two = scene.stable(3)
    errors = scene.leave(MemberIdentity(one), MemberIdentity("stranger"), MemberIdentity(two))
    assert errors == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert scene.joined(scene.join(leader)).generation_id == 2


def test_leaving_an_unknown_group_is_answered_for_each_member() -> None:
    scene = Scene()
    assert scene.leave(MemberIdentity("a"), MemberIdentity("b")) == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


def test_the_last_member_that_leaves_empties_the_group_at_once() -> None:
    scene = Scene()
    (member,) = scene.stable(1)
    assert scene.leave(MemberIdentity(member)) == [0]
    assert scene.state() == "Empty"
    scene.restart()
    assert scene.state() == "Empty"


def test_a_leader_that_leaves_is_followed_by_another() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    scene.leave(MemberIdentity(leader))
    assert scene.joined(scene.join(follower)).leader == follower


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    waiting = scene.join(leader)
    scene.leave(MemberIdentity(leader))
    assert scene.answers[waiting].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    scene.join(follower)
    assert scene.state() == "CompletingRebalance"


# ── static members ────────────────────────────────────────────────────────────────────────────────────────


def test_a_static_member_that_comes_back_costs_no_rebalance() -> None:
    scene = Scene()
    _, two = scene.static("one", "two")
    back = scene.joined(scene.join(instance_id="two"))
    assert back.generation_id == 1
    assert back.member_id != two
    assert scene.state() == "Stable"
    synced = scene.answers[scene.sync(back.member_id, 1, instance_id="two")]
    assert synced.assignment == b"two"


def test_the_old_id_of_a_static_member_is_fenced_everywhere() -> None:
    scene = Scene()
    _, old = scene.static("one", "two")
    scene.join(instance_id="two")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert scene.heartbeat(old, 1, instance_id="two") == fenced
    assert scene.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.answers[scene.sync(old, 1, instance_id="two")].error_code == fenced
    assert scene.answers[scene.join(old, instance_id="two")].error_code == fenced
    assert scene.leave(MemberIdentity(old, "two")) == [fenced]
    assert scene.heartbeat(old, 1, instance_id="three") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_leader_of_v9_is_told_to_skip_the_assignment() -> None:
    scene = Scene()
    scene.static("one", "two")
    back = scene.joined(scene.join(instance_id="one", version=9))
    assert back.skip_assignment
    assert back.leader == back.member_id
    assert len(back.members) == 2


def test_an_older_static_leader_is_not_told_that_it_leads() -> None:
    scene = Scene()
    old, _ = scene.static("one", "two")
    back = scene.joined(scene.join(instance_id="one", version=8))
    assert not back.skip_assignment
    assert (back.leader, back.members) == (old, ())
    assert scene.heartbeat(back.member_id, 1, instance_id="one") == ErrorCode.NONE


def test_a_static_member_s_new_id_survives_a_restart() -> None:
    scene = Scene()
    scene.static("one", "two")
    new = scene.joined(scene.join(instance_id="two")).member_id
    scene.restart()
    assert scene.heartbeat(new, 1, instance_id="two") == ErrorCode.NONE


def test_a_static_member_whose_new_id_cannot_be_written_keeps_its_old_one() -> None:
    scene = Scene()
    _, old = scene.static("one", "two")
    scene.commits = False
    token = scene.join(instance_id="two", protocols={"range": subscription("returns")})
    assert token not in scene.answers
    scene.commit(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert scene.answers[token].error_code == ErrorCode.NOT_COORDINATOR
    assert scene.heartbeat(old, 1, instance_id="two") == ErrorCode.NONE
    assert scene.describe().members[1].member_metadata == subscription("orders")
    scene.groups.check()


def test_a_static_member_that_would_change_the_protocol_starts_a_rebalance() -> None:
    scene = Scene()
    scene.static("one", protocols={"range": b"", "sticky": b""})
    token = scene.join(instance_id="one", protocols={"sticky": b""})
    assert scene.joined(token).generation_id == 2
    assert scene.joined(token).protocol_name == "sticky"


def test_a_static_member_that_comes_back_while_the_assignment_is_made_starts_anew() -> None:
    scene = Scene()
    tokens = [scene.join(instance_id=name) for name in ("one", "two")]
    scene.pass_time(3 * DELAY_MS)
    leader, follower = (scene.joined(token).member_id for token in tokens)
    waiting = scene.sync(follower, 1, instance_id="two")
    scene.join(instance_id="two")
    assert scene.answers[waiting].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert scene.heartbeat(leader, 1, instance_id="one") == ErrorCode.REBALANCE_IN_PROGRESS


def test_two_processes_with_one_instance_id_fence_each_other_while_they_join() -> None:
    scene = Scene()
    first = scene.join(instance_id="one")
    second = scene.join(instance_id="one")
    assert scene.answers[first].error_code == ErrorCode.FENCED_INSTANCE_ID
    scene.pass_time(3 * DELAY_MS)
    assert scene.joined(second).generation_id == 1


def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance() -> None:
    scene = Scene()
    one, two = scene.static("one", "two", session_ms=100_000)
    token = scene.join(one, instance_id="one", session_ms=100_000)
    scene.pass_time(60_001)
    assert [member.member_id for member in scene.joined(token).members] == [one, two]
    scene.sync(one, 2, {one: b"1", two: b"2"}, instance_id="one")
    assert scene.describe().members[1].member_assignment == b"2"


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    scene = Scene()
    one, two = scene.static("one", "two")
    assert scene.leave(MemberIdentity("", "two"), MemberIdentity("", "three")) == [
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert scene.heartbeat(two, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.heartbeat(one, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_stays_away_is_out_after_its_session() -> None:
    scene = Scene()
    one, _ = scene.static("one", "two")
    scene.heartbeat(one, 1)
    scene.pass_time(SESSION_MS - 1)
    scene.heartbeat(one, 1)
    scene.pass_time(2)
    assert scene.heartbeat(one, 1) == ErrorCode.REBALANCE_IN_PROGRESS
