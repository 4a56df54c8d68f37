"""What is left of groups when the process dies or their partition moves, and how much of them there may be."""

from __future__ import annotations

import pytest

from appliance.control.coordinator.group import group_metadata_record as log_record
from appliance.errors import MalformedFrame
from appliance.protocol.apis.join_group import JoinGroupProtocol, JoinGroupRequest
from appliance.protocol.apis.sync_group import SyncGroupAssignment, SyncGroupRequest
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import DELAY_MS, GROUP, SESSION_MS, Scene


def test_a_stable_group_goes_on_after_a_restart() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    before = scene.describe()
    scene.restart()
    assert scene.describe() == before
    assert scene.heartbeat(follower, 1) == ErrorCode.NONE
    assert scene.answers[scene.sync(follower, 1)].assignment == follower.encode()
    token = scene.join(leader)
    scene.join(follower)
    assert scene.joined(token).generation_id == 2


def test_members_that_died_with_the_process_are_out_after_their_sessions() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    scene.restart()
    scene.pass_time(SESSION_MS)
    assert scene.heartbeat(leader, 1) == ErrorCode.NONE
    scene.pass_time(1)
    assert scene.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_assignment_that_was_not_committed_was_never_made() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    scene.join(leader)
    scene.join(follower)
    scene.commits = False
    scene.sync(leader, 2, {leader: b"x"})
    scene.restart()
    scene.commits = True
    assert scene.heartbeat(leader, 2) == ErrorCode.ILLEGAL_GENERATION
    assert scene.answers[scene.sync(leader, 1)].assignment == leader.encode()


def test_a_group_that_is_too_large_after_a_restart_rebalances() -> None:
    scene = Scene()
    members = scene.stable(3)
    scene.settings = type(scene.settings)(max_size=2)
    scene.restart()
    tokens = [scene.join(member) for member in members]
    errors = [scene.answers[token].error_code for token in tokens]
    assert sorted(errors) == [0, 0, ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_who_waits_when_its_partition_moves_hears_where_not_to_look() -> None:
    scene = Scene()
    leader, follower = scene.stable(2)
    joining = scene.join(leader)
    scene.carry_out(scene.groups.unload(sum(GROUP.encode()) % 3))
    assert scene.answers[joining].error_code == ErrorCode.NOT_COORDINATOR
    assert scene.groups.statistics().groups == 0
    assert scene.groups.next_deadline_ms() is None
    assert scene.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_waits_for_an_assignment_when_its_partition_moves_is_answered_too() -> None:
    scene = Scene()
    leader, _ = scene.enter()
    follower, _ = scene.enter()
    scene.pass_time(3 * DELAY_MS)
    scene.commits = False
    tokens = [scene.sync(follower, 1), scene.sync(leader, 1, {leader: b"l"})]
    scene.carry_out(scene.groups.unload(sum(GROUP.encode()) % 3))
    assert [scene.answers[token].error_code for token in tokens] == [ErrorCode.NOT_COORDINATOR] * 2
    scene.commit(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert scene.groups.statistics().groups == 0


def test_other_partitions_stay() -> None:
    scene = Scene()
    scene.stable(1)
    scene.carry_out(scene.groups.unload((sum(GROUP.encode()) + 1) % 3))
    assert scene.state() == "Stable"


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_record_has_kafka_s_bytes() -> None:
    row = log_record.MemberRow(
        "m", "i", client_id="c", client_host="/h", rebalance_timeout_ms=1, session_timeout_ms=2,
        subscription=b"\x01", assignment=b"\x02\x03",
    )  # fmt: skip
    value = log_record.GroupMetadata(
        "consumer", 7, protocol_name="range", leader="m", state_timestamp_ms=9, members=(row,)
    )
    record = log_record.record("g", value)
    assert record.key == bytes.fromhex("0002 0001 67")
    assert record.value == bytes.fromhex(
        "0003"  # version
        "0008 636f6e73756d6572"  # protocol type
        "00000007"  # generation
        "0005 72616e6765"  # protocol
        "0001 6d"  # leader
        "0000000000000009"  # when the state was entered
        "00000001"  # members
        "0001 6d 0001 69 0001 63 0002 2f68"  # member, instance, client, host
        "00000001 00000002"  # rebalance timeout, session timeout
        "00000001 01 00000002 0203"  # subscription, assignment
    )
    assert log_record.read_value(record.value) == value


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (0, "0001 63 00000001 ffff ffff 00000001 0001 6d 0001 63 0001 68 00000005 00000000 00000000"),
        (
            1,
            "0001 63 00000001 ffff ffff 00000001 0001 6d 0001 63 0001 68 00000005 00000005 00000000 00000000",
        ),
        (
            2,
            "0001 63 00000001 ffff ffff ffffffffffffffff 00000001"
            "0001 6d 0001 63 0001 68 00000005 00000005 00000000 00000000",
        ),
    ],
)
def test_older_values_are_read(version: int, body: str) -> None:
    value = log_record.read_value(version.to_bytes(2) + bytes.fromhex(body))
    assert value.state_timestamp_ms == -1
    assert value.members[0] == log_record.MemberRow(
        "m", None, client_id="c", client_host="h", rebalance_timeout_ms=5, session_timeout_ms=5,
        subscription=b"", assignment=b"",
    )  # fmt: skip


@pytest.mark.parametrize("value", [b"", b"\x00\x09", b"\x00\x03\x00\x01", b"\xff\xff" + bytes(40)])
def test_a_damaged_value_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedFrame):
        log_record.read_value(value)


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────────────


def test_five_hundred_members_settle_in_one_rebalance() -> None:
    scene = Scene()
    members = scene.stable(500)
    assert {member.member_assignment for member in scene.describe().members} == {
        member.encode() for member in members
    }
    assert scene.describe().group_state == "Stable"
    assert scene.heartbeat(members[499], 1) == ErrorCode.NONE
    scene.groups.check()


def test_a_megabyte_of_metadata_goes_to_the_leader_and_into_the_log() -> None:
    scene = Scene()
    metadata = bytes(1_000_000)
    scene.stable(1, protocols={"own": metadata}, protocol_type="mine")
    assert scene.describe().members[0].member_metadata == metadata
    scene.restart()
    assert scene.describe().members[0].member_metadata == metadata


def test_ten_thousand_groups_live_beside_each_other() -> None:
    scene = Scene(initial_rebalance_delay_ms=0)
    protocols = (JoinGroupProtocol("range", b""),)
    joined = {}
    for number in range(10_000):
        group_id = f"g{number}"
        joined[group_id] = scene.send(
            JoinGroupRequest(group_id, SESSION_MS, "", "consumer", protocols=protocols), version=3
        )
    scene.pass_time(1)
    for group_id, token in joined.items():
        member_id = scene.joined(token).member_id
        scene.send(SyncGroupRequest(group_id, 1, member_id, (SyncGroupAssignment(member_id, b"a"),)))
    assert scene.groups.statistics().groups == 10_000
    scene.restart()
    assert scene.groups.statistics().members == 10_000
    scene.pass_time(SESSION_MS + 1)
    assert scene.groups.statistics().members == 0
