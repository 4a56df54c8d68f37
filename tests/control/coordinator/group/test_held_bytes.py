"""What members send takes memory: bounded by the group and in total, and given back when they leave."""

from __future__ import annotations

import pytest

from appliance.control.coordinator.group.held_bytes import HeldBytes
from appliance.control.coordinator.group.subscription import encode_assignment
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from appliance.protocol.apis.join_group import JoinGroupProtocol
from appliance.protocol.apis.leave_group import MemberIdentity
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, Scene

ROOM = 100_000
LARGE = b"x" * (ROOM // 2)
FULL = int(ErrorCode.GROUP_MAX_SIZE_REACHED)


def beat(member_id: str, epoch: int = 0, *names: str, group_id: str = GROUP) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id,
        member_id,
        epoch,
        rebalance_timeout_ms=REBALANCE_MS,
        subscribed_topic_names=names,
        topic_partitions=(),
    )


def held(scene: Scene) -> int:
    """What all groups hold but their ids."""
    scene.groups.check()
    ids = sum(HeldBytes(group_id).bytes for group_id in scene.groups._book.groups)
    return scene.groups.limits.held.bytes - ids


@pytest.mark.parametrize("bounds", [(ROOM, 10 * ROOM), (10 * ROOM, ROOM)])
def test_member_that_would_take_more_than_there_is_room_for_is_refused(bounds: tuple[int, int]) -> None:
    scene = Scene(max_bytes=bounds[0], members_max_bytes=bounds[1])
    first, _ = scene.enter(protocols={"range": LARGE})
    scene.pass_time(2 * DELAY_MS)
    before = held(scene)
    assert len(LARGE) < before < ROOM
    member_id = scene.answers[scene.join(protocols={"range": b""})].member_id
    assert scene.answers[scene.join(member_id, protocols={"range": LARGE})].error_code == FULL
    assert held(scene) == before
    assert scene.groups.limits.refused_members == 1
    scene.leave(MemberIdentity(first))
    assert held(scene) == 0
    taken = scene.join(scene.answers[scene.join()].member_id, protocols={"range": LARGE})
    scene.pass_time(2 * DELAY_MS)
    assert scene.answers[taken].error_code == 0


def test_all_groups_share_the_room_for_all() -> None:
    scene = Scene(members_max_bytes=ROOM)
    scene.enter(protocols={"range": LARGE}, group_id="a")
    scene.enter(protocols={"range": LARGE[: ROOM // 4]}, group_id="b")
    member_id = scene.answers[scene.join(group_id="c")].member_id
    refused = scene.join(member_id, protocols={"range": LARGE[: ROOM // 4]}, group_id="c")
    assert scene.answers[refused].error_code == FULL


def test_member_that_is_in_may_not_grow_beyond_the_room_and_stays_in() -> None:
    scene = Scene(max_bytes=ROOM)
    members = scene.stable(2, protocols={"range": LARGE[: ROOM // 5]})
    before = held(scene)
    refused = scene.join(members[1], protocols={"range": LARGE * 2})
    assert scene.answers[refused].error_code == FULL
    assert held(scene) == before
    assert scene.heartbeat(members[1], 1) == 0
    scene.join(members[1], protocols={"range": b"small"})
    assert held(scene) < before


def test_silent_members_give_their_room_back() -> None:
    scene = Scene()
    scene.stable(3)
    assert held(scene) > 0
    scene.pass_time(2 * SESSION_MS)
    assert held(scene) == 0


def test_assignments_count_and_are_refused_where_there_is_no_room() -> None:
    scene = Scene(max_bytes=ROOM)
    (member_id,) = scene.stable(1)
    before = held(scene)
    again = scene.join(member_id)
    scene.pass_time(2 * DELAY_MS)
    generation = scene.joined(again).generation_id
    refused = scene.sync(member_id, generation, {member_id: LARGE * 2})
    assert scene.answers[refused].error_code == FULL
    assert held(scene) < before
    again = scene.join(member_id)
    scene.pass_time(2 * DELAY_MS)
    scene.sync(member_id, scene.joined(again).generation_id, {member_id: LARGE})
    assert held(scene) > before + len(LARGE) // 2
    scene.leave(MemberIdentity(member_id))
    assert held(scene) == 0


def test_subscriptions_of_a_consumer_group_are_bounded_and_give_their_room_back() -> None:
    scene = Scene(max_bytes=ROOM)
    names = [f"topic-{number}" for number in range(1000)]
    joined = scene.ask(beat("a", 0, *names), version=1)
    assert joined.error_code == 0
    before = held(scene)
    assert before > sum(map(len, names))
    refused = scene.ask(beat("b", 0, *names), version=1)
    assert refused.error_code == FULL
    assert "group.max.bytes" in refused.error_message
    assert held(scene) == before
    assert scene.ask(beat("b", 0, "t"), version=1).error_code == 0
    grown = scene.ask(beat("b", 0, *names), version=1)
    assert grown.error_code == FULL
    for member_id in ("a", "b"):
        assert scene.ask(beat(member_id, -1), version=1).error_code == 0
    assert held(scene) == 0


def test_group_that_changes_its_protocol_is_counted_once() -> None:
    scene = Scene()
    scene.cluster.create("orders", 2)
    member_id, joined = scene.enter()
    scene.pass_time(2 * DELAY_MS)
    assigned = encode_assignment(1, (("orders", (0, 1)),))
    scene.sync(member_id, scene.joined(joined).generation_id, {member_id: assigned})
    before = held(scene)
    assert scene.ask(beat("new", 0, "orders"), version=1).error_code == 0
    assert scene.describe(version=5).group_state == "Dead"  # it is a consumer group now
    assert before < held(scene) < 3 * before


def test_what_the_log_holds_is_counted_after_a_restart() -> None:
    scene = Scene()
    scene.stable(2)
    scene.ask(beat("a", 0, "orders", group_id="other"), version=1)
    assert held(scene) > 0
    scene.restart()
    before = held(scene)
    assert before > 0
    for partition in range(3):
        scene.carry_out(scene.groups.unload(partition))
    assert held(scene) == 0


def test_protocols_count_by_their_metadata() -> None:
    few, many = Scene(), Scene()
    few.enter(protocols={"range": b""})
    many.enter(protocols={f"p{number}": b"x" * 10 for number in range(50)})
    protocol = JoinGroupProtocol("p0", b"x" * 10)
    assert held(many) > held(few) + 49 * (len(protocol.name) + len(protocol.metadata))


def test_names_of_groups_count_and_new_ones_are_refused_where_there_is_no_room() -> None:
    scene = Scene(members_max_bytes=ROOM)
    names = [f"{number}".ljust(30_000, "x") for number in range(4)]
    for name in names[:3]:
        assert scene.groups.check_new(name) == ErrorCode.NONE
        scene.groups.offsets_seen(name)
    assert scene.groups.check_new(names[3]) == ErrorCode.POLICY_VIOLATION
    assert scene.answers[scene.join(group_id=names[3])].error_code == FULL
    assert scene.ask(beat("a", 0, "t", group_id=names[3]), version=1).error_code == FULL
    assert len(scene.groups) == 3
    scene.groups.remove_if_empty(names[0])
    assert scene.groups.check_new(names[3]) == ErrorCode.NONE
