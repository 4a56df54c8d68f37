"""A classic group under any mixture of clients: they join, sync, beat, leave, fall silent, come back as static members.

What must hold whatever they do, in whatever order appends are committed or fail and processes die:
  · each request is answered once, and none waits longer than the timeouts allow
  · one generation at a time: what members are told never goes back while the log is kept
  · the members of a generation get what its leader gave them, all of them the same protocol, each its own part
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.protocol.apis.join_group import JoinGroupResponse
from appliance.protocol.apis.leave_group import MemberIdentity
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.scene import DELAY_MS, Scene, subscription

CLIENTS = 4
STATICS = ("", "", "one", "two")
SESSION_MS = 10_000
REBALANCE_MS = 20_000
# A rebalance may begin anew for a member that fell silent, and each member may do that once.
PATIENCE_MS = CLIENTS * (SESSION_MS + REBALANCE_MS + DELAY_MS)


@dataclass
class Member:
    """A client as it sees itself."""

    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    leads: tuple[str, ...] = ()
    joining: int | None = None
    syncing: int | None = None
    topics: str = "a"


@dataclass
class Generation:
    protocol: str | None
    given: dict[str, bytes] = field(default_factory=dict)


class ClassicGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(commits=False)
        self.members = [Member(name or None) for name in STATICS]
        self.sent_ms: dict[int, int] = {}
        self.generations: dict[tuple[int, int], Generation] = {}
        self.lives = 0  # generations may be used again after a crash that forgot one
        self.newest = 0

    def now_ms(self) -> int:
        return self.scene.clock.monotonic_ns() // 1_000_000

    # ── clients ───────────────────────────────────────────────────────────────────────────────────────────

    @rule(who=st.integers(0, CLIENTS - 1), version=st.sampled_from([3, 5, 9]), topics=st.sampled_from("ab"))
    def join(self, who: int, version: int, topics: str) -> None:
        member = self.members[who]
        if member.joining is not None:
            return
        member.topics = topics
        member.joining = self.scene.join(
            member.member_id,
            instance_id=member.instance_id,
            version=version,
            protocols={"range": subscription(topics), "sticky": subscription(topics)},
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        self.sent_ms[member.joining] = self.now_ms()
        self.read_answers()

    @rule(who=st.integers(0, CLIENTS - 1))
    def sync(self, who: int) -> None:
        member = self.members[who]
        if member.syncing is not None or member.generation < 0:
            return
        given = {name: f"{name}@{member.generation}".encode() for name in member.leads}
        if given:
            made = self.generations[self.lives, member.generation]
            assert not made.given or made.given.keys() == given.keys()
            made.given = given
        member.syncing = self.scene.sync(
            member.member_id, member.generation, given, instance_id=member.instance_id
        )
        self.sent_ms[member.syncing] = self.now_ms()
        self.read_answers()

    @rule(who=st.integers(0, CLIENTS - 1))
    def beat(self, who: int) -> None:
        member = self.members[who]
        if member.member_id and member.joining is None:
            error = self.scene.heartbeat(member.member_id, member.generation, instance_id=member.instance_id)
            self.hear(member, error)

    @rule(who=st.integers(0, CLIENTS - 1))
    def leave(self, who: int) -> None:
        member = self.members[who]
        if member.member_id:
            self.scene.leave(MemberIdentity(member.member_id, member.instance_id))
            self.read_answers()
            self.forget(member)

    @rule(who=st.integers(0, CLIENTS - 1))
    def die(self, who: int) -> None:
        """The client's process is gone; a new one with the same instance id knows nothing."""
        self.members[who] = Member(self.members[who].instance_id)

    # ── the log, time, the process ────────────────────────────────────────────────────────────────────────

    @rule(error=st.sampled_from([0, 0, 0, ErrorCode.NOT_ENOUGH_REPLICAS]))
    def commit(self, error: int) -> None:
        self.scene.commit(error)
        self.read_answers()

    @rule(duration_ms=st.sampled_from([1, 1000, DELAY_MS, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def wait(self, duration_ms: int) -> None:
        self.scene.pass_time(duration_ms)
        self.read_answers()

    @rule()
    def restart(self) -> None:
        """The coordinator dies: connections break, clients ask again."""
        self.scene.restart()
        self.lives += 1
        self.newest = 0
        self.sent_ms.clear()
        for member in self.members:
            member.joining = member.syncing = None
            member.leads = ()
            member.generation = -1

    # ── what clients hear ─────────────────────────────────────────────────────────────────────────────────

    def read_answers(self) -> None:
        answers = self.scene.answers
        for member in self.members:
            if member.joining in answers and member.joining is not None:
                response = answers[member.joining]
                member.joining = None
                self.hear_joined(member, response)
            if member.syncing in answers and member.syncing is not None:
                response = answers[member.syncing]
                member.syncing = None
                if response.error_code:
                    self.hear(member, response.error_code)
                else:
                    self.hear_assigned(member, response.assignment)

    def hear_joined(self, member: Member, response: JoinGroupResponse) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            assert member.instance_id is None
            member.member_id = response.member_id
        elif response.error_code:
            self.hear(member, response.error_code)
        else:
            assert response.generation_id >= self.newest, "a generation came back"
            self.newest = response.generation_id
            member.member_id = response.member_id
            member.generation = response.generation_id
            key = (self.lives, response.generation_id)
            made = self.generations.setdefault(key, Generation(response.protocol_name))
            assert made.protocol == response.protocol_name
            listed = () if response.skip_assignment else response.members
            member.leads = tuple(one.member_id for one in listed)

    def hear_assigned(self, member: Member, assignment: bytes) -> None:
        made = self.generations.get((self.lives, member.generation))
        if made is not None and member.instance_id is None and made.given:
            assert assignment == made.given[member.member_id]
        name, _, generation = assignment.decode().partition("@")
        if member.instance_id is None:
            assert (name, generation) == (member.member_id, str(member.generation))

    def hear(self, member: Member, error: int) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION):
            self.forget(member)
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            member.leads = ()

    def forget(self, member: Member) -> None:
        member.member_id = ""
        member.generation = -1
        member.leads = ()
        member.joining = member.syncing = None

    # ── what holds ────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def groups_are_whole(self) -> None:
        self.scene.groups.check()

    @invariant()
    def nobody_waits_longer_than_the_timeouts_allow(self) -> None:
        if self.scene.appends:
            return
        for token, sent_ms in self.sent_ms.items():
            assert token in self.scene.answers or self.now_ms() - sent_ms <= PATIENCE_MS

    @precondition(lambda self: not self.scene.appends)
    @rule()
    def everybody_who_beats_settles(self) -> None:
        """Left to clients that do as they should, the group gets stable, and each has its part."""
        scene = self.scene
        for _ in range(40):
            for who in range(CLIENTS):
                member = self.members[who]
                in_a_generation = member.member_id and member.generation >= 0 and member.joining is None
                if in_a_generation and scene.heartbeat(
                    member.member_id, member.generation, instance_id=member.instance_id
                ):
                    member.generation = -1
                    member.leads = ()
                if member.generation < 0:
                    self.join(who, 5, "a")
            for who in range(CLIENTS):
                if self.members[who].generation >= 0 and self.members[who].joining is None:
                    self.sync(who)
            scene.commit()
            self.read_answers()
            scene.pass_time(DELAY_MS)
            self.read_answers()
            described = scene.describe()
            if described.group_state == "Stable" and len(described.members) == CLIENTS:
                return
        raise AssertionError(f"the group does not settle: {scene.describe()}")


TestClassicGroup = ClassicGroupModel.TestCase
TestClassicGroup.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
