"""A consumer group whose members speak both protocols, under any mixture of coming, going, growing and restarts.

What must hold whatever they do, as members see it themselves:
  · no partition has two owners among those whose session and rebalance timeouts have not passed
  · the coordinator's book holds together
  · left to members that do as they should, all partitions are shared out, and every member is heard
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.control.coordinator.group.effects import Topic
from appliance.control.coordinator.group.subscription import encode_assignment, read_assignment
from appliance.protocol.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    OwnedTopicPartitions,
)
from appliance.protocol.apis.leave_group import MemberIdentity
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import GROUP, SESSION_MS, Scene, subscription

MEMBERS = 4
TOPIC = "orders"
PARTITIONS_MAX = 10
REBALANCE_MS = 30_000
CONSUMER_SESSION_MS = 45_000
TRUSTED_MS = min(SESSION_MS, REBALANCE_MS, CONSUMER_SESSION_MS)
JOINS_MAX = 5


@dataclass
class Member:
    """A client as it sees itself. `until_ms`: when it lets go of everything because nobody answered it."""

    number: int
    is_classic: bool
    eager: bool
    member_id: str = ""
    epoch: int = 0
    owned: set[int] = field(default_factory=set)
    until_ms: int = 0
    is_joining: bool = False

    def forget(self) -> None:
        self.owned.clear()
        self.epoch = 0
        self.is_joining = False
        if self.is_classic:
            self.member_id = ""


class MixedGroupModel(RuleBasedStateMachine):
    """The first member is always there, of the new protocol: a group without members may become a classic one, in which
    the leader assigns. Other tests look at that."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(consumer_migration_policy="upgrade")
        self.topic = self.scene.cluster.create(TOPIC, 8).topic_id
        self.births = 0
        self.members = [self.born(is_classic=number % 2 == 1, eager=False) for number in range(MEMBERS)]
        self.everybody_who_beats_settles()

    def born(self, *, is_classic: bool, eager: bool) -> Member:
        self.births += 1
        return Member(self.births, is_classic, eager, member_id="" if is_classic else f"m{self.births}")

    def now_ms(self) -> int:
        return self.scene.clock.monotonic_ns() // 1_000_000

    # ── members ───────────────────────────────────────────────────────────────────────────────────────────

    def beat_of(self, member: Member, *, stays_joining: bool = False) -> None:
        """A heartbeat and all that follows from it."""
        if self.now_ms() >= member.until_ms:
            member.owned.clear()
            member.epoch = 0
            member.is_joining = False
        if member.is_classic:
            self.beat_classic(member, stays_joining=stays_joining)
        else:
            self.beat_consumer(member)

    def beat_consumer(self, member: Member) -> None:
        joins = member.epoch == 0
        said = (OwnedTopicPartitions(self.topic, tuple(sorted(member.owned))),) if member.owned else ()
        request = ConsumerGroupHeartbeatRequest(
            GROUP,
            member.member_id,
            member.epoch,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topic_names=(TOPIC,) if joins else None,
            topic_partitions=() if joins else said,
        )
        response = self.scene.ask(request, version=1)
        if response.error_code:
            assert response.error_code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ), response.error_message
            member.forget()
            return
        member.epoch = response.member_epoch
        member.until_ms = self.now_ms() + TRUSTED_MS
        if response.assignment is not None:
            member.owned = {
                partition for each in response.assignment.topic_partitions for partition in each.partitions
            }

    def beat_classic(self, member: Member, *, stays_joining: bool = False) -> None:
        """As often as it is told to come again, within reason. `stays_joining`: it is stopped before SyncGroup."""
        for _ in range(JOINS_MAX):
            if member.is_joining:
                if self.sync_classic(member):
                    return
            elif member.epoch and self.is_told_to_stay(member):
                return
            self.join_classic(member)
            if stays_joining:
                return

    def is_told_to_stay(self, member: Member) -> bool:
        """What its heartbeat hears."""
        error = self.scene.heartbeat(member.member_id, member.epoch)
        if not error:
            member.until_ms = self.now_ms() + TRUSTED_MS
        elif error != ErrorCode.REBALANCE_IN_PROGRESS:
            assert error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
            member.owned.clear()
            if error == ErrorCode.UNKNOWN_MEMBER_ID:
                member.forget()
        return not error

    def join_classic(self, member: Member) -> None:
        if member.eager:
            member.owned.clear()
        owned = encode_assignment(1, ((TOPIC, tuple(sorted(member.owned))),) if member.owned else ())
        metadata = subscription(TOPIC, version=1) + owned[2:-4]
        token = self.scene.join(
            member.member_id, protocols={"range": metadata}, version=9, rebalance_ms=REBALANCE_MS
        )
        joined = self.scene.answers[token]
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = joined.member_id
        elif joined.error_code:
            assert joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID, joined
            member.forget()
        else:
            member.epoch = joined.generation_id
            member.is_joining = True

    def sync_classic(self, member: Member) -> bool:
        """Whether it was told what it is assigned."""
        member.is_joining = False
        synced = self.scene.answers[self.scene.sync(member.member_id, member.epoch, version=5)]
        if synced.error_code:
            if synced.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                assert synced.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
                member.forget()
            return False
        member.until_ms = self.now_ms() + TRUSTED_MS
        member.owned = {
            partition for _, partitions in read_assignment(synced.assignment) for partition in partitions
        }
        return True

    @rule(
        beats=st.lists(
            st.tuples(st.integers(0, MEMBERS - 1), st.sampled_from([False, True])), min_size=1, max_size=8
        )
    )
    def beat(self, beats: list[tuple[int, bool]]) -> None:
        for who, stays_joining in beats:
            self.beat_of(self.members[who], stays_joining=stays_joining)
            self.no_partition_has_two_owners()

    @rule(who=st.integers(1, MEMBERS - 1), is_classic=st.booleans(), eager=st.booleans())
    def die(self, who: int, is_classic: bool, eager: bool) -> None:
        """Its process is gone with all it owned; another one, of either protocol, takes its place."""
        self.members[who] = self.born(is_classic=is_classic, eager=eager)

    @rule(who=st.integers(1, MEMBERS - 1), is_classic=st.booleans(), eager=st.booleans())
    def leave(self, who: int, is_classic: bool, eager: bool) -> None:
        member = self.members[who]
        if member.epoch and member.is_classic:
            self.scene.leave(MemberIdentity(member.member_id))
        elif member.epoch:
            self.scene.send(ConsumerGroupHeartbeatRequest(GROUP, member.member_id, -1), version=1)
        self.members[who] = self.born(is_classic=is_classic, eager=eager)

    @rule(who=st.integers(1, MEMBERS - 1), other=st.integers(1, MEMBERS - 1))
    def come_while_another_joins(self, who: int, other: int) -> None:
        """A newcomer wants what another one, between JoinGroup and SyncGroup, does not know yet that it must give."""
        self.members[who] = newcomer = self.born(is_classic=False, eager=False)
        for member in (newcomer, self.members[other], newcomer):
            self.beat_of(member, stays_joining=True)

    @rule(duration_ms=st.sampled_from([1, 5_000, SESSION_MS, REBALANCE_MS, CONSUMER_SESSION_MS]))
    def wait(self, duration_ms: int) -> None:
        while duration_ms:
            step_ms = min(duration_ms, 5_000)
            duration_ms -= step_ms
            self.scene.pass_time(step_ms)
            self.beat_of(self.members[0])

    @rule(more=st.integers(1, 2))
    def grow(self, more: int) -> None:
        topic = self.scene.cluster.topics[TOPIC]
        if topic.partitions < PARTITIONS_MAX:
            self.scene.cluster.topics[TOPIC] = Topic(TOPIC, topic.topic_id, topic.partitions + more)
            self.scene.groups.metadata_changed()

    @rule()
    def restart(self) -> None:
        """The coordinator dies, and another one reads its log."""
        self.scene.restart()

    # ── what holds ────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def groups_are_whole(self) -> None:
        self.scene.groups.check()

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        taken: dict[int, int] = {}
        for member in self.members:
            if self.now_ms() < member.until_ms:
                for partition in member.owned:
                    assert partition not in taken, f"{taken[partition]} and {member.number}: {partition}"
                    taken[partition] = member.number

    @rule()
    def everybody_who_beats_settles(self) -> None:
        scene = self.scene
        wanted = set(range(scene.cluster.topics[TOPIC].partitions))
        for _ in range(40):
            for member in self.members:
                self.beat_of(member)
            self.no_partition_has_two_owners()
            counts = sorted(len(member.owned) for member in self.members)
            owned = {partition for member in self.members for partition in member.owned}
            if owned == wanted and sum(counts) == len(wanted) and counts[-1] - counts[0] <= 1:
                return
            # Those whom a death has left behind are out after their sessions.
            scene.pass_time(2_500)
        raise AssertionError(f"the group does not settle: {self.members}")


TestMixedGroup = MixedGroupModel.TestCase
TestMixedGroup.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
