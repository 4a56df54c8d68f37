"""A consumer group of KIP-848 under any mixture of members, growing topics, failing appends and dying processes.

What must hold whatever they do:
  · no partition has two owners, neither in the coordinator's book nor among what members think they own
  · no member is given a partition that it, or another one, still has to give up
  · member epochs never go back while the log is kept; what was answered is in the log
  · left to members that do as they should, everybody is in one epoch and all partitions are shared out
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.control.coordinator.group.effects import Topic
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from appliance.protocol.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import GROUP, Scene

MEMBERS = 4
TOPICS = ("orders", "returns")
SESSION_MS = 45_000
REBALANCE_MS = 30_000

Partition = tuple[UUID, int]


@dataclass
class Member:
    """A client as it sees itself. `until_ms`: when it has to let go of everything because nobody answered it."""

    member_id: str
    instance_id: str | None
    epoch: int = 0
    owned: set[Partition] = field(default_factory=set)
    token: int | None = None
    until_ms: int = 0


class ConsumerGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(commits=False)
        for name in TOPICS:
            self.scene.cluster.create(name, 2)
        self.births = 0
        self.members = [self.born("i" if number == 0 else None) for number in range(MEMBERS)]

    def born(self, instance_id: str | None) -> Member:
        self.births += 1
        return Member(f"m{self.births}", instance_id)

    def now_ms(self) -> int:
        return self.scene.clock.monotonic_ns() // 1_000_000

    # ── members ───────────────────────────────────────────────────────────────────────────────────────────

    def send(self, member: Member, *, regex: bool = False, assignor: str = "uniform") -> None:
        self.let_go(member)
        if member.token is not None:
            return
        joins = member.epoch == 0
        grouped: dict[UUID, list[int]] = {}
        for topic, partition in sorted(member.owned):
            grouped.setdefault(topic, []).append(partition)
        said = tuple(OwnedTopicPartitions(topic, tuple(owned)) for topic, owned in grouped.items())
        request = ConsumerGroupHeartbeatRequest(
            GROUP,
            member.member_id,
            member.epoch,
            instance_id=member.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topic_names=(() if regex else TOPICS) if joins else None,
            subscribed_topic_regex=(".*" if regex else None) if joins else None,
            server_assignor=assignor if joins else None,
            topic_partitions=() if joins else said,
        )
        member.token = self.scene.send(request, version=1)
        self.read_answers()

    def let_go(self, member: Member) -> None:
        """Who was not answered for a session, or knows that it is out, owns nothing any more.

        Nor does it wait for the answer to what it said before: that would be an epoch without the partitions of it.
        """
        if member.owned and self.now_ms() >= member.until_ms:
            member.owned.clear()
            member.epoch = 0
            member.token = None

    @rule(
        who=st.integers(0, MEMBERS - 1), regex=st.booleans(), assignor=st.sampled_from(["uniform", "range"])
    )
    def beat(self, who: int, regex: bool, assignor: str) -> None:
        self.send(self.members[who], regex=regex, assignor=assignor)

    @rule(who=st.integers(0, MEMBERS - 1))
    def die(self, who: int) -> None:
        """Its process is gone with all it owned; a static member's successor finds the place held."""
        self.members[who] = self.born(self.members[who].instance_id)

    @rule(who=st.integers(0, MEMBERS - 1))
    def leave(self, who: int) -> None:
        member = self.members[who]
        if member.epoch > 0 and member.token is None:
            epoch = -1 if member.instance_id is None else -2
            self.scene.send(
                ConsumerGroupHeartbeatRequest(GROUP, member.member_id, epoch, instance_id=member.instance_id),
                version=1,
            )
            self.members[who] = self.born(member.instance_id)

    # ── the log, time, topics, the process ────────────────────────────────────────────────────────────────

    @rule(error=st.sampled_from([0, 0, 0, ErrorCode.NOT_ENOUGH_REPLICAS]))
    def commit(self, error: int) -> None:
        self.scene.commit(error)
        self.read_answers()

    @rule(duration_ms=st.sampled_from([1, 5_000, REBALANCE_MS, SESSION_MS - 1]))
    def wait(self, duration_ms: int) -> None:
        self.scene.pass_time(duration_ms)
        self.read_answers()
        for member in self.members:
            self.let_go(member)

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 2))
    def grow(self, name: str, more: int) -> None:
        topic = self.scene.cluster.topics.get(name)
        if topic is not None and topic.partitions < 6:
            self.scene.cluster.topics[name] = Topic(name, topic.topic_id, topic.partitions + more)
            self.scene.groups.metadata_changed()

    @rule()
    def restart(self) -> None:
        """The coordinator dies; requests under way are never answered."""
        self.scene.restart()
        for member in self.members:
            member.token = None

    # ── what members hear ─────────────────────────────────────────────────────────────────────────────────

    def read_answers(self) -> None:
        for member in self.members:
            if member.token is not None and member.token in self.scene.answers:
                response = self.scene.answers[member.token]
                member.token = None
                self.hear(member, response)

    def hear(self, member: Member, response: ConsumerGroupHeartbeatResponse) -> None:
        error = response.error_code
        if error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNRELEASED_INSTANCE_ID):
            return
        if error:
            assert error in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.FENCED_INSTANCE_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ), response.error_message
            member.owned.clear()
            member.epoch = 0
            return
        assert response.member_epoch >= member.epoch, "an epoch went back"
        member.epoch = response.member_epoch
        # It may have to give partitions up, and is out if it says nothing about that in its rebalance timeout.
        member.until_ms = self.now_ms() + min(SESSION_MS, REBALANCE_MS)
        if response.assignment is not None:
            member.owned = {
                (one.topic_id, partition)
                for one in response.assignment.topic_partitions
                for partition in one.partitions
                if one.topic_id is not None
            }

    # ── what holds ────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def groups_are_whole(self) -> None:
        self.scene.groups.check()

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        taken: dict[Partition, str] = {}
        for member in self.members:
            if self.now_ms() < member.until_ms:
                for partition in member.owned:
                    assert partition not in taken, f"{taken[partition]} and {member.member_id}: {partition}"
                    taken[partition] = member.member_id

    @precondition(lambda self: not self.scene.appends)
    @rule()
    def everybody_who_beats_settles(self) -> None:
        scene = self.scene
        for _ in range(60):
            for member in self.members:
                self.send(member)
                scene.commit()
                self.read_answers()
            group = scene.ask(ConsumerGroupDescribeRequest((GROUP,)), version=1).groups[0]
            owned = {partition for member in self.members for partition in member.owned}
            wanted = sum(topic.partitions for topic in scene.cluster.topics.values())
            if group.group_state == "Stable" and len(owned) == wanted and len(group.members) == MEMBERS:
                counts = sorted(len(member.owned) for member in self.members)
                assert counts[-1] - counts[0] <= (1 if group.assignor_name == "uniform" else len(TOPICS))
                return
            # Those whom a death has left behind are out after their sessions.
            scene.pass_time(5_000)
            self.read_answers()
        raise AssertionError(f"the group does not settle: {group}")


TestConsumerGroup = ConsumerGroupModel.TestCase
TestConsumerGroup.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
