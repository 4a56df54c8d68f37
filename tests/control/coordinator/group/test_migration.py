"""Groups with members change from the classic protocol to KIP-848 and back: nobody stops, nothing has two owners."""

from __future__ import annotations

from uuid import UUID

import pytest

from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.subscription import encode_assignment, read_assignment
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.apis.join_group import JoinGroupResponse
from appliance.protocol.apis.leave_group import MemberIdentity
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.consumer import Consumer
from tests.control.coordinator.group.scene import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Scene,
    subscription,
)

ORDERS = UUID(int=1)


class ClassicConsumer:
    """A client of the classic protocol. `eager` gives everything up before it joins, as most do; others keep what they
    have and give up what they are not assigned (KIP-429)."""

    def __init__(self, scene: Scene, *, eager: bool = True, instance_id: str | None = None) -> None:
        self.scene = scene
        self.eager = eager
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: set[int] = set()
        self.joining: int | None = None

    def metadata(self) -> bytes:
        body = subscription("orders", version=1)
        if not self.owned:
            return body + bytes(4)
        owned = encode_assignment(1, (("orders", tuple(sorted(self.owned))),))
        return body + owned[2:-4]

    def join(self) -> None:
        if self.eager:
            self.owned.clear()
        self.joining = self.scene.join(
            self.member_id, instance_id=self.instance_id, protocols={"range": self.metadata()}, version=9
        )
        self.read()

    def read(self) -> None:
        """Takes the answer of its request to join, if there is one."""
        if self.joining is None or self.joining not in self.scene.answers:
            return
        response = self.scene.answers[self.joining]
        assert isinstance(response, JoinGroupResponse)
        self.joining = None
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self.join()
        elif response.error_code:
            assert response.error_code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID)
            self.generation = -1
        else:
            self.member_id, self.generation = response.member_id, response.generation_id
            self.sync(response)

    def sync(self, response: JoinGroupResponse) -> None:
        ids = [member.member_id for member in response.members]
        shares = {name: tuple(range(ids.index(name), 4, len(ids))) for name in ids}
        given = {name: encode_assignment(1, (("orders", share),)) for name, share in shares.items()}
        token = self.scene.sync(
            self.member_id,
            self.generation,
            given,
            instance_id=self.instance_id,
            version=5,
            protocol_type="consumer",
        )
        self.syncing = token

    def take(self) -> None:
        answer = self.scene.answers.get(self.syncing)
        if answer is not None and not answer.error_code:
            self.owned = {
                partition for _, partitions in read_assignment(answer.assignment) for partition in partitions
            }

    def beat(self) -> int:
        self.read()
        if self.joining is not None:
            return 0
        self.take()
        error = self.scene.heartbeat(self.member_id, self.generation, instance_id=self.instance_id)
        if error:
            if error == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id, self.owned = "", set()
            self.join()
            self.read()
            self.take()
        return error


def classic_group(
    *, count: int = 2, eager: bool = True, policy: str = "bidirectional"
) -> tuple[Scene, list[ClassicConsumer]]:
    scene = Scene(consumer_migration_policy=policy)
    scene.cluster.create("orders", 4)
    members = [ClassicConsumer(scene, eager=eager) for _ in range(count)]
    for member in members:
        member.join()
    scene.pass_time(DELAY_MS * (count + 1))
    for member in members:
        member.read()
    for member in members:
        member.take()
    assert scene.state() == "Stable"
    assert sorted(partition for member in members for partition in member.owned) == [0, 1, 2, 3]
    return scene, members


def settle(scene: Scene, classic: list[ClassicConsumer], consumers: list[Consumer]) -> None:
    for _ in range(8):
        for member in classic:
            member.beat()
        for consumer in consumers:
            consumer.beat()
        scene.pass_time(100)
        scene.groups.check()
    owned = [partition for member in classic for partition in member.owned]
    owned += [partition for consumer in consumers for partition in consumer.owned.get(ORDERS, ())]
    assert sorted(owned) == [0, 1, 2, 3]


@pytest.mark.parametrize("eager", [True, False])
def test_members_are_restarted_one_by_one_with_the_new_protocol_and_back(eager: bool) -> None:
    scene, classic = classic_group(eager=eager)
    new = [Consumer(scene, "n1")]
    assert new[0].join().error_code == 0
    assert classic[0].beat() == ErrorCode.REBALANCE_IN_PROGRESS
    settle(scene, classic, new)
    scene.leave(MemberIdentity(classic.pop().member_id))
    new.append(Consumer(scene, "n2"))
    new[1].join()
    settle(scene, classic, new)
    scene.leave(MemberIdentity(classic.pop().member_id))
    settle(scene, [], new)
    assert [consumer.count for consumer in new] == [2, 2]
    # And the other way round.
    classic.append(ClassicConsumer(scene, eager=eager))
    classic[0].join()
    settle(scene, classic, new)
    new.pop(0).ask(member_epoch=-1)
    settle(scene, classic, new)
    assert new.pop().ask(member_epoch=-1).error_code == 0
    assert scene.state() == "PreparingRebalance"
    settle(scene, classic, [])
    assert scene.state() == "Stable"


def test_members_that_wait_when_the_group_changes_are_told_to_come_again() -> None:
    scene, classic = classic_group()
    classic[0].join()
    waiting = classic[0].joining
    assert waiting not in scene.answers
    Consumer(scene, "new").join()
    assert waiting is not None
    assert scene.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_change_that_cannot_be_written_leaves_the_group_as_it_was() -> None:
    scene, _ = classic_group()
    scene.commits = False
    new = Consumer(scene, "new")
    token = new.send(**new.wishes, rebalance_timeout_ms=REBALANCE_MS, topic_partitions=())
    beats = scene.appends.popleft()
    scene.carry_out(beats.then(ErrorCode.NOT_ENOUGH_REPLICAS))
    scene.commits = True
    scene.commit()
    # The newcomer began anew, and this time it was written.
    assert scene.answers[token].error_code == 0
    assert scene.groups.statistics().members == 3
    scene.restart()
    assert scene.groups.statistics().members == 3


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_policy_against_it_keeps_a_classic_group_classic(policy: str) -> None:
    scene, classic = classic_group(policy=policy)
    assert Consumer(scene, "new").join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert classic[0].beat() == 0


def test_a_policy_against_it_keeps_a_consumer_group_with_classic_members() -> None:
    scene, classic = classic_group(policy="upgrade")
    new = Consumer(scene, "new")
    new.join()
    settle(scene, classic, [new])
    new.ask(member_epoch=-1)
    settle(scene, classic, [])
    assert scene.describe(version=6).error_message == f"Group {GROUP} is not a classic group."


def test_a_group_that_gave_one_partition_to_two_members_stays_classic() -> None:
    scene, (leader, follower) = classic_group()
    scene.join(leader.member_id, protocols={"range": subscription("orders")})
    scene.join(follower.member_id, protocols={"range": subscription("orders")})
    everything = encode_assignment(0, (("orders", (0, 1, 2, 3)),))
    scene.sync(leader.member_id, 2, {leader.member_id: everything, follower.member_id: everything})
    assert scene.state() == "Stable"
    assert Consumer(scene, "new").join().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_of_another_kind_stays_classic() -> None:
    scene = Scene()
    scene.cluster.create("orders", 4)
    scene.stable(1, protocol_type="connect", protocols={"range": b"?"})
    assert Consumer(scene, "new").join().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_of_both_kinds_is_after_a_restart_what_it_was() -> None:
    scene, classic = classic_group(eager=False)
    new = Consumer(scene, "new")
    new.join()
    settle(scene, classic, [new])
    scene.restart()
    settle(scene, classic, [new])
    new.ask(member_epoch=-1)
    scene.restart()
    settle(scene, classic, [])


def test_a_classic_member_that_does_not_join_anew_is_out_after_its_rebalance_timeout() -> None:
    scene, classic = classic_group()
    new = Consumer(scene, "new")
    new.join()
    for _ in range(REBALANCE_MS // 5_000):
        assert scene.heartbeat(classic[0].member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        scene.heartbeat(classic[1].member_id, 1)
        new.beat()
        scene.pass_time(5_000)
    scene.pass_time(1)
    settle(scene, [], [new])
    assert new.count == 4


def test_a_rebalance_timeout_that_ends_while_the_members_join_is_written_does_not_put_it_out() -> None:
    scene, (old,) = classic_group(count=1)
    known_as = old.member_id
    new = Consumer(scene, "new")
    new.join()
    for _ in range(REBALANCE_MS // 5_000 - 1):
        assert scene.heartbeat(old.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        new.beat()
        scene.pass_time(5_000)
    assert scene.heartbeat(old.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    scene.commits = False
    old.join()
    scene.pass_time(5_001)
    assert old.joining not in scene.answers
    scene.commits = True
    scene.commit()
    old.read()
    settle(scene, [old], [new])
    assert (old.member_id, len(old.owned), new.count) == (known_as, 2, 2)


def test_a_silent_classic_member_is_out_after_its_own_session() -> None:
    scene, classic = classic_group()
    new = Consumer(scene, "new")
    new.join()
    settle(scene, classic, [new])
    scene.pass_time(SESSION_MS + 1)
    settle(scene, [], [new])
    assert new.count == 4


def test_classic_members_commit_in_their_generation() -> None:
    scene, classic = classic_group()
    new = Consumer(scene, "new")
    new.join()
    settle(scene, classic, [new])

    def commit(generation: int, version: int = 8) -> int:
        client = Client("c", "/h", slot=0, api_version=version)
        member_id = classic[0].member_id
        return scene.groups.check_commit(
            GROUP,
            member_id=member_id,
            instance_id=None,
            generation=generation,
            api_version=client.api_version,
        )

    assert commit(classic[0].generation) == ErrorCode.NONE
    assert commit(classic[0].generation - 1) == ErrorCode.ILLEGAL_GENERATION


def test_a_static_classic_member_is_replaced_by_its_successor_of_either_kind() -> None:
    scene = Scene()
    scene.cluster.create("orders", 4)
    old = ClassicConsumer(scene, instance_id="i")
    old.join()
    scene.pass_time(2 * DELAY_MS)
    old.read()
    new = Consumer(scene, "new")
    new.join()
    settle(scene, [old], [new])
    again = ClassicConsumer(scene, instance_id="i")
    again.join()
    settle(scene, [again], [new])
    assert scene.heartbeat(old.member_id, old.generation, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
    modern = Consumer(scene, "modern", instance_id="i")
    assert modern.join().error_code == 0
    settle(scene, [], [modern, new])
    assert scene.heartbeat(again.member_id, again.generation, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID


def test_members_of_the_new_protocol_may_not_speak_the_old_one() -> None:
    scene = Scene()
    scene.cluster.create("orders", 4)
    new = Consumer(scene, "new")
    new.join()
    assert scene.heartbeat("new", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.answers[scene.sync("new", 1)].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_administrator_removes_members_of_the_new_protocol() -> None:
    """By member id or by instance id, as `removeMembersFromConsumerGroup`. Apache Kafka 4.3 answers the same."""
    scene = Scene()
    scene.cluster.create("orders", 4)
    dynamic, static, stays = Consumer(scene, "d"), Consumer(scene, "s", instance_id="i"), Consumer(scene, "x")
    for each in (dynamic, static, stays):
        each.join()
    left = scene.leave(MemberIdentity("d"), MemberIdentity("", "i"), MemberIdentity("nobody"))
    assert left == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert dynamic.ask().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert static.ask().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert dynamic.join().error_code == 0
    scene.groups.check()
    scene.restart()
    assert dynamic.ask().error_code == 0
    assert static.ask().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_only_members_of_the_new_protocol_were_removed_is_classic_again() -> None:
    scene, _ = classic_group()
    consumers = [Consumer(scene, "new"), Consumer(scene, "newer")]
    for each in consumers:
        each.join()
    assert isinstance(scene.groups._book.groups[GROUP], ConsumerGroup)
    assert scene.leave(MemberIdentity("new"), MemberIdentity("newer")) == [0, 0]
    assert isinstance(scene.groups._book.groups[GROUP], ClassicGroup)
    scene.groups.check()


def test_a_classic_member_that_is_silent_from_the_change_on_is_out_after_its_session() -> None:
    scene, _ = classic_group()
    new = Consumer(scene, "new")
    new.join()
    scene.pass_time(SESSION_MS + 1)
    settle(scene, [], [new])
    assert new.count == 4


def test_what_a_classic_member_still_owns_is_given_to_nobody() -> None:
    scene, (old,) = classic_group(count=1, eager=False)
    new = Consumer(scene, "new")
    new.join()
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert (old.generation, len(old.owned)) == (1, 2)
    new.beat()
    assert new.count == 0
    old.beat()
    assert old.generation == 2
    new.beat()
    assert new.count == 2


def test_a_classic_member_that_never_fetches_its_assignment_is_out_after_its_rebalance_timeout() -> None:
    scene, (old,) = classic_group(count=1)
    new = Consumer(scene, "new")
    new.join()
    token = scene.join(old.member_id, protocols={"range": subscription("orders")})
    generation = scene.joined(token).generation_id
    for _ in range(REBALANCE_MS // 5_000):
        assert scene.heartbeat(old.member_id, generation) == 0
        new.beat()
        scene.pass_time(5_000)
    scene.pass_time(1)
    assert scene.heartbeat(old.member_id, generation) == ErrorCode.UNKNOWN_MEMBER_ID
