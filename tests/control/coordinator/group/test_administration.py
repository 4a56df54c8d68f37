"""What an administrator sees and does: describe, list, delete; and what committed offsets ask of a group."""

from __future__ import annotations

import pytest

from appliance.control.coordinator.group.effects import OffsetExpiry
from appliance.control.coordinator.runtime.effects import Client, Record
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from appliance.protocol.apis.consumer_group_heartbeat import (
    JOIN_GROUP_EPOCH,
    ConsumerGroupHeartbeatRequest,
)
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.describe_groups import NO_AUTHORIZED_OPERATIONS, DescribeGroupsRequest
from appliance.protocol.apis.leave_group import MemberIdentity
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.consumer import REBALANCE_MS
from tests.control.coordinator.group.scene import DELAY_MS, GROUP, SESSION_MS, Scene, subscription

CLIENT = Client("c", "/127.0.0.1", slot=0, api_version=8)


def commit_error(scene: Scene, member_id: str, generation: int, *, instance_id: str | None = None) -> int:
    return scene.groups.check_commit(
        GROUP,
        member_id=member_id,
        instance_id=instance_id,
        generation=generation,
        api_version=CLIENT.api_version,
    )


# ── describe and list ─────────────────────────────────────────────────────────────────────────────────────


def test_a_stable_group_is_described_with_all_its_members_have() -> None:
    scene = Scene()
    leader, _ = scene.stable(2)
    group = scene.describe()
    assert (group.error_code, group.group_state, group.protocol_type) == (0, "Stable", "consumer")
    assert group.protocol_data == "range"
    first = group.members[0]
    assert (first.member_id, first.client_id, first.client_host) == (leader, "c", "/127.0.0.1")
    assert first.member_metadata == subscription("orders")
    assert first.member_assignment == leader.encode()


def test_who_asks_for_it_is_told_what_it_may_do_with_a_group() -> None:
    scene = Scene()
    scene.stable(1)
    joins = ConsumerGroupHeartbeatRequest(
        "new",
        "m",
        JOIN_GROUP_EPOCH,
        rebalance_timeout_ms=REBALANCE_MS,
        subscribed_topic_names=("orders",),
        topic_partitions=(),
    )
    assert scene.ask(joins, version=1).error_code == 0
    operations = sum(1 << bit for bit in (3, 6, 8, 10, 11))
    wanted = DescribeGroupsRequest((GROUP, "never"), include_authorized_operations=True)
    assert [each.authorized_operations for each in scene.ask(wanted, version=6).groups] == [
        operations,
        NO_AUTHORIZED_OPERATIONS,
    ]
    assert scene.describe().authorized_operations == NO_AUTHORIZED_OPERATIONS
    described = ConsumerGroupDescribeRequest(("new",), include_authorized_operations=True)
    assert scene.ask(described, version=1).groups[0].authorized_operations == operations


def test_a_group_that_is_asked_for_over_and_over_is_described_once() -> None:
    scene = Scene()
    scene.stable(2)
    (told,) = scene.ask(DescribeGroupsRequest((GROUP,) * 1_000), version=6).groups
    assert len(told.members) == 2
    (told,) = scene.ask(ConsumerGroupDescribeRequest((GROUP,) * 1_000), version=1).groups
    assert told.group_id == GROUP


def test_a_group_in_a_rebalance_shows_no_protocol_and_no_metadata() -> None:
    scene = Scene()
    leader, _ = scene.stable(2)
    scene.join(leader)
    group = scene.describe()
    assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
    assert {member.member_metadata for member in group.members} == {b""}


def test_an_unknown_group_is_dead_and_from_v6_on_not_found() -> None:
    scene = Scene()
    assert scene.describe(version=5).error_code == ErrorCode.NONE
    assert scene.describe(version=5).group_state == "Dead"
    group = scene.describe(version=6)
    assert (group.error_code, group.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert group.error_message == f"Group {GROUP} not found."


def listed(scene: Scene, *, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[str]:
    response = scene.ask(ListGroupsRequest(states, types))
    return [group.group_id for group in response.groups]


def test_groups_are_listed_by_state_and_type_whatever_the_case() -> None:
    scene = Scene()
    scene.stable(1)
    scene.groups.offsets_seen("lone")
    assert listed(scene) == [GROUP, "lone"]
    assert listed(scene, states=("sTABLE",)) == [GROUP]
    assert listed(scene, states=("empty", "Stable")) == [GROUP, "lone"]
    assert listed(scene, states=("nonsense",)) == []
    assert listed(scene, types=("Classic",)) == [GROUP, "lone"]
    assert listed(scene, types=("consumer",)) == []
    group = scene.ask(ListGroupsRequest()).groups[0]
    assert (group.protocol_type, group.group_state, group.group_type) == ("consumer", "Stable", "classic")


def test_groups_of_another_slot_are_not_listed_and_described_with_the_reason() -> None:
    scene = Scene()
    scene.stable(1)
    scene.refusals[GROUP] = ErrorCode.NOT_COORDINATOR
    assert listed(scene) == []
    assert scene.describe().error_code == ErrorCode.NOT_COORDINATOR


# ── delete ────────────────────────────────────────────────────────────────────────────────────────────────


def deleted(scene: Scene, *names: str) -> dict[str, int]:
    response = scene.ask(DeleteGroupsRequest(names))
    return {result.group_id: result.error_code for result in response.results}


def test_a_group_with_members_is_not_deleted() -> None:
    scene = Scene()
    members = scene.stable(2)
    assert deleted(scene, GROUP) == {GROUP: ErrorCode.NON_EMPTY_GROUP}
    assert scene.heartbeat(members[0], 1) == 0


def test_an_empty_group_goes_with_its_offsets_in_one_batch() -> None:
    scene = Scene()
    (member,) = scene.stable(1)
    scene.leave(MemberIdentity(member))
    scene.offsets.groups[GROUP] = [Record(b"offset", None)]
    scene.commits = False
    token = scene.send(DeleteGroupsRequest((GROUP, "nobody")))
    assert token not in scene.answers
    assert [record.value for record in scene.appends[0].records] == [None, None]
    scene.commit()
    results = {result.group_id: result.error_code for result in scene.answers[token].results}
    assert results == {GROUP: 0, "nobody": ErrorCode.GROUP_ID_NOT_FOUND}
    assert scene.groups.statistics().groups == 0
    scene.log = [(partition, record) for partition, record in scene.log if record.key != b"offset"]
    scene.restart()
    assert scene.groups.statistics().groups == 0


def test_a_group_whose_tombstones_cannot_be_written_stays() -> None:
    scene = Scene()
    (member,) = scene.stable(1)
    scene.leave(MemberIdentity(member))
    scene.commits = False
    token = scene.send(DeleteGroupsRequest((GROUP,)))
    scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert scene.answers[token].results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    scene.commits = True
    assert scene.state() == "Empty"


def test_who_joins_while_its_group_is_deleted_makes_a_new_one() -> None:
    scene = Scene()
    (member,) = scene.stable(1)
    scene.leave(MemberIdentity(member))
    scene.commits = False
    scene.send(DeleteGroupsRequest((GROUP,)))
    _, token = scene.enter()
    scene.commit()
    scene.pass_time(DELAY_MS + 1)
    assert scene.joined(token).generation_id == 1
    scene.commits = True


def test_a_group_that_only_has_offsets_is_deleted() -> None:
    scene = Scene()
    scene.offsets.groups["lone"] = [Record(b"offset", None)]
    scene.groups.offsets_seen("lone")
    assert scene.describe("lone").group_state == "Empty"
    assert deleted(scene, "lone", "lone") == {"lone": 0}
    assert len(scene.log) == 1


# ── committed offsets ─────────────────────────────────────────────────────────────────────────────────────


def test_members_of_the_generation_may_commit_and_nobody_else() -> None:
    scene = Scene()
    (member,) = scene.stable(1)
    assert commit_error(scene, member, 1) == ErrorCode.NONE
    assert commit_error(scene, member, 0) == ErrorCode.ILLEGAL_GENERATION
    assert commit_error(scene, "x", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_error(scene, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_error(scene, member, 1, instance_id="i") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_without_members_takes_commits_of_consumers_without_a_group() -> None:
    scene = Scene()
    assert commit_error(scene, "", -1) == ErrorCode.NONE
    (member,) = scene.stable(1)
    scene.leave(MemberIdentity(member))
    assert commit_error(scene, "", -1) == ErrorCode.NONE
    assert commit_error(scene, member, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_generation_of_an_unknown_group_is_old() -> None:
    scene = Scene()
    assert commit_error(scene, "m", 3) == ErrorCode.ILLEGAL_GENERATION


def test_in_a_rebalance_members_may_commit_until_the_next_generation_is_made() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    scene.join(leader)
    assert commit_error(scene, follower, 1) == ErrorCode.NONE
    scene.join(follower)
    assert commit_error(scene, follower, 2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_is_a_sign_of_life() -> None:
    scene = Scene()
    (member,) = scene.stable(1)
    for _ in range(4):
        scene.pass_time(9_000)
        assert commit_error(scene, member, 1) == ErrorCode.NONE


def test_offsets_grow_old_when_nobody_reads_them() -> None:
    scene = Scene()
    assert scene.groups.offset_expiry("lone") == OffsetExpiry(since_ms=None)
    (member,) = scene.stable(1)
    assert scene.groups.offset_expiry(GROUP) == OffsetExpiry(subscribed=frozenset({"orders"}))
    scene.enter()
    assert scene.groups.offset_expiry(GROUP) is None
    scene.pass_time(1_000)
    scene.leave(MemberIdentity(member))
    scene.pass_time(20_000)
    assert scene.state() == "Empty"
    expiry = scene.groups.offset_expiry(GROUP)
    assert expiry is not None
    assert expiry.since_ms is not None
    assert scene.clock.now_ms() - 20_000 <= expiry.since_ms < scene.clock.now_ms()


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    scene = Scene()
    groups = scene.groups
    assert groups.check_offset_delete(GROUP) == ErrorCode.GROUP_ID_NOT_FOUND
    (member,) = scene.stable(1)
    assert groups.check_offset_delete(GROUP) == ErrorCode.NONE
    assert groups.topic_delete_check(GROUP)("orders") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert groups.topic_delete_check(GROUP)("returns") == ErrorCode.NONE
    scene.leave(MemberIdentity(member))
    assert groups.topic_delete_check(GROUP)("orders") == ErrorCode.NONE


def test_offsets_of_members_that_are_no_consumers_are_not_deleted() -> None:
    scene = Scene()
    scene.stable(1, protocol_type="connect", protocols={"range": b"what only they read"})
    assert scene.groups.check_offset_delete(GROUP) == ErrorCode.NON_EMPTY_GROUP


def test_a_consumer_group_whose_subscriptions_cannot_be_read_counts_as_subscribed_to_all() -> None:
    scene = Scene()
    scene.stable(1, protocols={"range": b"\x00\x00\x7f\xff\xff\xff"})
    assert scene.groups.topic_delete_check(GROUP)("orders") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert scene.groups.offset_expiry(GROUP) is None


@pytest.mark.parametrize("in_log", [True, False])
def test_an_empty_group_goes_with_its_last_offset(in_log: bool) -> None:
    scene = Scene()
    if in_log:
        (member,) = scene.stable(1)
        scene.leave(MemberIdentity(member))
    else:
        scene.groups.offsets_seen(GROUP)
    scene.carry_out(scene.groups.remove_if_empty(GROUP))
    assert scene.groups.statistics().groups == 0
    scene.restart()
    assert scene.groups.statistics().groups == 0


def test_a_group_with_members_stays_without_offsets() -> None:
    scene = Scene()
    scene.stable(1)
    scene.carry_out(scene.groups.remove_if_empty(GROUP))
    assert scene.state() == "Stable"


def transactional_error(
    scene: Scene, member_id: str = "", generation: int = -1, *, instance_id: str | None = None
) -> int:
    return scene.groups.check_transactional_commit(
        GROUP, member_id=member_id, instance_id=instance_id, generation=generation
    )


def test_offsets_in_a_transaction_need_no_member_and_mind_a_wrong_one() -> None:
    """TxnOffsetCommit 0-2 name nobody, in whatever state the group is; a member that is named must be right."""
    scene = Scene()
    assert transactional_error(scene) == ErrorCode.NONE, "a simple group"
    assert transactional_error(scene, "x", 0) == ErrorCode.ILLEGAL_GENERATION, "no group has a generation"
    one, _ = scene.stable()
    assert transactional_error(scene) == ErrorCode.NONE
    assert transactional_error(scene, one, 1) == ErrorCode.NONE
    assert transactional_error(scene, one, 2) == ErrorCode.ILLEGAL_GENERATION
    assert transactional_error(scene, one, -1) == ErrorCode.ILLEGAL_GENERATION
    assert transactional_error(scene, "stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert transactional_error(scene, "", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_in_a_transaction_are_taken_in_a_rebalance() -> None:
    scene = Scene()
    one, two = scene.stable()
    tokens = [scene.join(member_id, protocols={"range": subscription("other")}) for member_id in (one, two)]
    assert scene.state() == "CompletingRebalance"
    generation = scene.joined(tokens[0]).generation_id
    assert commit_error(scene, one, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert transactional_error(scene, one, generation) == ErrorCode.NONE


def test_offsets_in_a_transaction_are_no_sign_of_life() -> None:
    scene = Scene()
    one, _ = scene.stable()
    for _ in range(2):
        assert transactional_error(scene, one, 1) == ErrorCode.NONE
        scene.pass_time(SESSION_MS * 2 // 3)
    assert transactional_error(scene, one, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_fenced_static_member_commits_nothing_in_a_transaction() -> None:
    scene = Scene()
    one, _ = scene.static("i-1", "i-2")
    assert transactional_error(scene, one, 1, instance_id="i-1") == ErrorCode.NONE
    assert transactional_error(scene, "another", 1, instance_id="i-1") == ErrorCode.FENCED_INSTANCE_ID
    assert transactional_error(scene, one, 1, instance_id="i-3") == ErrorCode.UNKNOWN_MEMBER_ID
