"""The assignment: from the leader to the log, and from there to each member."""

from __future__ import annotations

import pytest

from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import DELAY_MS, REBALANCE_MS, SESSION_MS, Scene


def generation_of_two(scene: Scene) -> tuple[str, str]:
    leader, _ = scene.enter()
    follower, _ = scene.enter()
    scene.pass_time(3 * DELAY_MS)
    assert scene.state() == "CompletingRebalance"
    return leader, follower


def test_nobody_hears_its_assignment_before_it_is_in_the_log() -> None:
    scene = Scene(commits=False)
    leader, follower = generation_of_two(scene)
    waiting = scene.sync(follower, 1)
    leading = scene.sync(leader, 1, {leader: b"l", follower: b"f"})
    assert waiting not in scene.answers
    assert leading not in scene.answers
    assert scene.state() == "CompletingRebalance"
    scene.commit()
    assert scene.answers[waiting].assignment == b"f"
    assert scene.answers[leading].assignment == b"l"
    assert scene.answers[leading].protocol_name == "range"
    assert scene.state() == "Stable"


def test_a_follower_that_comes_later_fetches_its_assignment() -> None:
    scene = Scene()
    leader, follower = generation_of_two(scene)
    scene.sync(leader, 1, {leader: b"l", follower: b"f"})
    assert scene.answers[scene.sync(follower, 1)].assignment == b"f"
    assert scene.answers[scene.sync(follower, 1)].assignment == b"f"


def test_who_the_leader_left_out_gets_nothing_and_strangers_are_dropped() -> None:
    scene = Scene()
    leader, follower = generation_of_two(scene)
    scene.sync(leader, 1, {leader: b"l", "stranger": b"s"})
    assert scene.answers[scene.sync(follower, 1)].assignment == b""
    assert [member.member_id for member in scene.describe().members] == [leader, follower]


@pytest.mark.parametrize(
    ("failure", "heard"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_cannot_be_written_starts_over(failure: ErrorCode, heard: ErrorCode) -> None:
    scene = Scene(commits=False)
    leader, follower = generation_of_two(scene)
    tokens = [scene.sync(follower, 1), scene.sync(leader, 1, {leader: b"l"})]
    scene.commit(failure)
    assert [scene.answers[token].error_code for token in tokens] == [heard, heard]
    assert scene.state() == "PreparingRebalance"


def test_an_assignment_that_is_written_too_late_is_not_taken() -> None:
    scene = Scene(commits=False)
    leader, follower = generation_of_two(scene)
    token = scene.sync(leader, 1, {leader: b"l", follower: b"f"})
    scene.enter()
    assert scene.answers[token].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    scene.commit()
    assert scene.state() == "PreparingRebalance"


def test_old_and_future_generations_are_refused() -> None:
    scene = Scene()
    leader, _ = generation_of_two(scene)
    for generation in (0, 2, -1):
        assert scene.answers[scene.sync(leader, generation)].error_code == ErrorCode.ILLEGAL_GENERATION
    assert scene.state() == "CompletingRebalance"


def test_strangers_and_unknown_groups_are_refused() -> None:
    scene = Scene()
    assert scene.answers[scene.sync("x", 1)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    generation_of_two(scene)
    assert scene.answers[scene.sync("x", 1)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.answers[scene.sync("x", 1, group_id="")].error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize(("type_", "name"), [("connect", None), (None, "sticky"), ("connect", "range")])
def test_a_member_that_thinks_of_another_protocol_is_refused(type_: str | None, name: str | None) -> None:
    scene = Scene()
    leader, _ = generation_of_two(scene)
    token = scene.sync(leader, 1, version=5, protocol_type=type_, protocol_name=name)
    assert scene.answers[token].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_sync_in_a_rebalance_says_so() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    scene.join(leader)
    assert scene.answers[scene.sync(follower, 1)].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_never_brings_the_assignment_is_out() -> None:
    scene = Scene()
    leader, follower = generation_of_two(scene)
    waiting = scene.sync(follower, 1)
    for _ in range(REBALANCE_MS // 5000):
        scene.heartbeat(leader, 1)
        scene.pass_time(5000)
    scene.pass_time(1)
    assert scene.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    token = scene.join(follower)
    assert scene.joined(token).leader == follower
    assert scene.heartbeat(leader, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_never_asks_for_its_assignment_is_out() -> None:
    scene = Scene()
    leader, follower = generation_of_two(scene)
    scene.sync(leader, 1, {leader: b"l", follower: b"f"})
    for _ in range(REBALANCE_MS // 5000):
        scene.heartbeat(leader, 1)
        scene.heartbeat(follower, 1)
        scene.pass_time(5000)
    scene.pass_time(1)
    assert scene.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_waits_for_its_assignment_needs_no_heartbeats() -> None:
    scene = Scene()
    leader, follower = generation_of_two(scene)
    waiting = scene.sync(follower, 1)
    for _ in range(3):
        scene.heartbeat(leader, 1)
        scene.pass_time(SESSION_MS - 1)
    scene.sync(leader, 1, {follower: b"f"})
    assert scene.answers[waiting].assignment == b"f"


def test_a_second_sync_of_a_member_ends_its_first() -> None:
    scene = Scene()
    _, follower = generation_of_two(scene)
    first, second = scene.sync(follower, 1), scene.sync(follower, 1)
    assert scene.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in scene.answers


def test_an_assignment_of_the_generation_before_is_not_taken_for_this_one() -> None:
    scene = Scene(commits=False)
    leader, follower = generation_of_two(scene)
    scene.sync(leader, 1, {leader: b"old"})
    scene.join(leader, protocols={"range": b"changed"})
    scene.join(follower)
    assert scene.state() == "CompletingRebalance"
    waiting = scene.sync(follower, 2)
    scene.commit()
    assert waiting not in scene.answers
    assert scene.state() == "CompletingRebalance"
