"""Requests that name thousands of members or topics, handled in pieces: the same outcome, and others in between."""

from __future__ import annotations

from typing import Any

from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.join_group import PROTOCOLS_MAX
from appliance.control.coordinator.pieces import PIECE
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance.protocol.apis.sync_group import SyncGroupAssignment, SyncGroupRequest
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import GROUP, REBALANCE_MS, Scene

STRANGERS = tuple(MemberIdentity(f"stranger-{number}") for number in range(10 * PIECE))
UNKNOWN = int(ErrorCode.UNKNOWN_MEMBER_ID)


class InPieces:
    """A request under way."""

    def __init__(self, scene: Scene, request: Any, *, version: int = 5, client_id: str = "c") -> None:
        self.token = next(scene._tokens)
        self.scene = scene
        client = Client(client_id, "/127.0.0.1", slot=0, api_version=version)
        self._pieces = scene.groups.handle_in_pieces(request, client=client, reply=self.token)
        self.pieces = 0

    def go_on(self, pieces: int) -> None:
        for _ in range(pieces):
            self.scene.carry_out(next(self._pieces))
            self.pieces += 1

    def end(self) -> Any:
        """The answer."""
        for effects in self._pieces:
            self.scene.carry_out(effects)
            self.pieces += 1
        self.scene.groups.check()
        return self.scene.answers.get(self.token)


def leave(*members: MemberIdentity) -> LeaveGroupRequest:
    return LeaveGroupRequest(GROUP, members=members)


def errors(response: Any) -> list[int]:
    return [each.error_code for each in response.members]


def beat(member_id: str, epoch: int, *names: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        GROUP,
        member_id,
        epoch,
        rebalance_timeout_ms=REBALANCE_MS if epoch == 0 else -1,
        subscribed_topic_names=names,
        topic_partitions=(),
    )


def test_members_and_strangers_that_leave_in_pieces_are_answered_as_at_once() -> None:
    scene = Scene()
    members = [MemberIdentity(member_id) for member_id in scene.stable(3)]
    twice = (members[1], *STRANGERS, members[1], members[2], MemberIdentity(members[0].member_id, "no such"))
    long = InPieces(scene, leave(*twice))
    response = long.end()
    assert errors(response) == [0, *[UNKNOWN] * len(STRANGERS), UNKNOWN, 0, UNKNOWN]
    assert [each.member_id for each in response.members] == [each.member_id for each in twice]
    assert long.pieces > len(STRANGERS) // PIECE
    assert scene.groups.statistics().members == 1
    assert scene.state() == "PreparingRebalance"


def test_rebalance_begins_with_the_first_piece_in_which_a_member_leaves() -> None:
    scene = Scene()
    first, second, third = scene.stable(3)
    long = InPieces(scene, leave(MemberIdentity(second), *STRANGERS, MemberIdentity(third)))
    long.go_on(1)
    assert scene.state() == "PreparingRebalance"
    assert scene.heartbeat(first, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert errors(long.end())[-1] == 0
    assert scene.groups.statistics().members == 1


def test_all_members_of_a_group_leave_in_pieces() -> None:
    scene = Scene()
    members = scene.stable(2 * PIECE)
    assert set(errors(InPieces(scene, leave(*map(MemberIdentity, members))).end())) == {0}
    assert scene.groups.statistics().members == 0
    assert scene.state() == "Empty"


def test_request_to_leave_ends_where_the_group_is_led_by_another_meanwhile() -> None:
    scene = Scene()
    members = scene.stable(2)
    long = InPieces(scene, leave(*STRANGERS, MemberIdentity(members[1])))
    long.go_on(2)
    scene.refusals[GROUP] = ErrorCode.NOT_COORDINATOR
    assert long.end().error_code == ErrorCode.NOT_COORDINATOR
    assert scene.groups.statistics().members == 2


def test_one_member_with_a_long_name_leaves_by_an_old_version() -> None:
    scene = Scene()
    response = InPieces(scene, LeaveGroupRequest(GROUP, "m" * 5000), version=1).end()
    assert response.error_code == UNKNOWN


def test_members_of_a_consumer_group_leave_together_by_a_long_request() -> None:
    scene = Scene()
    scene.cluster.create("t", 6)
    for member_id in ("a", "b", "c"):
        assert scene.ask(beat(member_id, 0, "t"), version=1).error_code == 0
    epoch = scene.ask(beat("d", 0, "t"), version=1).member_epoch
    twice = (MemberIdentity("a"), *STRANGERS, MemberIdentity("b"), MemberIdentity("a"))
    assert errors(InPieces(scene, leave(*twice)).end()) == [0, *[UNKNOWN] * len(STRANGERS), 0, 0]
    assert scene.groups.statistics().members == 2
    assert scene.ask(beat("c", 0, "t"), version=1).member_epoch == epoch + 1


def test_long_request_to_leave_waits_for_the_append_under_way() -> None:
    scene = Scene()
    scene.cluster.create("t", 6)
    scene.ask(beat("a", 0, "t"), version=1)
    scene.commits = False
    scene.send(beat("b", 0, "t"), version=1)
    long = InPieces(scene, leave(MemberIdentity("a"), *STRANGERS, MemberIdentity("b")))
    assert long.end() is None
    scene.commit()
    scene.commit()
    assert errors(scene.answers[long.token]) == [0, *[UNKNOWN] * len(STRANGERS), UNKNOWN]


def test_assignments_for_strangers_are_dropped_and_those_for_members_are_not() -> None:
    scene = Scene()
    entered = [scene.enter() for _ in range(2)]
    scene._wait_for(entered[0][1])
    leader, other = (member_id for member_id, _ in entered)
    generation = scene.joined(entered[0][1]).generation_id
    waits = scene.sync(other, generation)
    strangers = [SyncGroupAssignment(f"stranger-{number}", b"x") for number in range(5 * PIECE)]
    given = [SyncGroupAssignment(other, b"old"), *strangers, SyncGroupAssignment(other, b"new")]
    request = SyncGroupRequest(GROUP, generation, leader, (*given, SyncGroupAssignment(leader, b"own")))
    assert InPieces(scene, request, version=3).end().assignment == b"own"
    assert scene.answers[waits].assignment == b"new"


def test_topics_that_a_member_names_many_times_are_taken_once_and_in_order() -> None:
    scene = Scene()
    names = [f"topic-{number % 3000}" for number in range(5000)]
    long = InPieces(scene, beat("a", 0, *names), version=1)
    assert long.end().error_code == 0
    assert long.pieces > 10
    group = scene.groups._book.groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    assert group.subscriptions["a"].topic_names == tuple(sorted(set(names)))


def test_member_that_offers_more_protocols_than_any_client_is_refused() -> None:
    scene = Scene()
    offered = {f"protocol-{number}": b"" for number in range(PROTOCOLS_MAX + 1)}
    refused = scene.answers[scene.join(protocols=offered)]
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    offered.popitem()
    taken = scene.answers[scene.join(protocols=offered)]
    assert taken.error_code == ErrorCode.MEMBER_ID_REQUIRED
