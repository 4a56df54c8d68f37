"""A classic group: members, votes, generations. It decides and remembers; who waits is answered elsewhere.

Invariants, which `check` holds:
  · a group without members has no leader, and its leader is a member
  · every static member is found by its instance id
  · members that are new to us and members that have not joined yet are never the same
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from appliance.control.coordinator.group import group_metadata_record as log_record
from appliance.control.coordinator.group.classic_member import ClassicMember, OnTime, Waiting
from appliance.control.coordinator.group.classic_state import STATES, ClassicState
from appliance.control.coordinator.group.held_bytes import HeldBytes
from appliance.control.coordinator.group.subscription import PROTOCOL_TYPE, subscribed_topics
from appliance.control.coordinator.runtime.effects import Record
from appliance.delayed.timing_wheel import Task
from appliance.errors import ApplianceDefect, MalformedFrame
from appliance.protocol.apis.join_group import JoinGroupProtocol
from appliance.protocol.errors import ErrorCode

SUBSCRIBED_NAMES_MAX: Final = 200_000
"""Topics that the members of a group may name together; with more it counts as one that cannot be read. It takes the
coordinator about 60 ms to read so many, in one piece."""


class ClassicGroup:
    """One group.

    `generation_id` counts the rebalances; what speaks of another generation is fenced. `pending_joins` holds the
    ids we gave out to members that have not come back with them (KIP-394); `pending_syncs` those members of the
    generation that have not asked for their assignment. `in_log` tells whether any record of the group was written.
    """

    __slots__ = (
        "_joining",
        "_knowing",
        "_static",
        "_topics",
        "generation_id",
        "group_id",
        "held",
        "in_log",
        "join_timer",
        "leader",
        "members",
        "new_member_added",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "sync_timer",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.held = HeldBytes(group_id)
        self.state = ClassicState.EMPTY
        self.previous_state = ClassicState.DEAD
        self.state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.pending_joins: dict[str, Task[OnTime]] = {}
        self.pending_syncs: set[str] = set()
        self.new_member_added = False
        self.in_log = False
        self.join_timer: Task[OnTime] | None = None
        self.sync_timer: Task[OnTime] | None = None
        self._static: dict[str, str] = {}
        self._knowing: dict[str, int] = {}  # protocol name → how many members know it
        self._joining = 0
        self._topics: frozenset[str] | None = None

    # ── states ────────────────────────────────────────────────────────────────────────────────────────────

    def move_to(self, state: ClassicState, now_ms: int) -> None:
        """Enters `state`. Raises ApplianceDefect where the table has no such way."""
        if state not in STATES[self.state].next:
            raise ApplianceDefect(f"group {self.group_id} cannot go from {self.state.value} to {state.value}")
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def waits_for_first_members(self) -> bool:
        """Whether it is in its first rebalance since it was empty."""
        return self.state is ClassicState.PREPARING_REBALANCE and self.previous_state is ClassicState.EMPTY

    @property
    def can_rebalance(self) -> bool:
        return STATES[self.state].can_rebalance

    def next_generation(self, now_ms: int) -> None:
        """Everybody who is to come has joined: chooses the protocol, or leaves the group empty."""
        self.generation_id += 1
        self.pending_syncs.clear()
        if self.members:
            self.protocol_name = self.choose_protocol()
            self.move_to(ClassicState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.move_to(ClassicState.EMPTY, now_ms)
        self._topics = self._subscribed_topics()

    # ── members ───────────────────────────────────────────────────────────────────────────────────────────

    def add(self, member: ClassicMember) -> None:
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self._end_pending(member.member_id)
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self._count_bytes(member)
        self._joining += member.joining is not None
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> None:
        """Takes the member out, wherever it stands, and its timer; another one becomes leader if it was that."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            self.held.add(-member.counted_bytes)
            member.counted_bytes = 0
            self._joining -= member.joining is not None
            if member.instance_id is not None:
                self._static.pop(member.instance_id, None)
            if member.session is not None:
                member.session.cancel()
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self._end_pending(member_id)
        self.pending_syncs.discard(member_id)

    def set_joining(self, member: ClassicMember, waiting: Waiting | None) -> None:
        """The member waits to join, or does no longer."""
        self._joining += (waiting is not None) - (member.joining is not None)
        member.joining = waiting

    def set_protocols(self, member: ClassicMember, protocols: tuple[JoinGroupProtocol, ...]) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        self._count_bytes(member)

    def assign(self, member: ClassicMember, assignment: bytes) -> None:
        """The member is to work on this from now on."""
        more = len(assignment) - len(member.assignment)
        member.assignment = assignment
        member.counted_bytes += more
        self.held.add(more)

    def _count_bytes(self, member: ClassicMember) -> None:
        held = member.weigh()
        self.held.add(held - member.counted_bytes)
        member.counted_bytes = held

    def _count_protocols(self, member: ClassicMember, by: int) -> None:
        for name in member.protocol_names():
            count = self._knowing.get(name, 0) + by
            if count:
                self._knowing[name] = count
            else:
                del self._knowing[name]

    def _end_pending(self, member_id: str) -> None:
        task = self.pending_joins.pop(member_id, None)
        if task is not None:
            task.cancel()

    def replace_static(self, old_id: str, new_id: str) -> ClassicMember:
        """The static member `old_id` goes on as `new_id`, with all it has but what it waits for."""
        member = self.members.pop(old_id)
        assert member.instance_id is not None
        member.member_id = new_id
        self.members[new_id] = member
        self._count_bytes(member)
        self._static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_syncs:
            self.pending_syncs.discard(old_id)
            self.pending_syncs.add(new_id)
        return member

    def static_member_id(self, instance_id: str | None) -> str | None:
        return None if instance_id is None else self._static.get(instance_id)

    def fault_of(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE for a member; UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another one has taken its place."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    @property
    def joining_count(self) -> int:
        """How many members wait for the rebalance to begin."""
        return self._joining

    @property
    def all_joined(self) -> bool:
        return not self.pending_joins and self._joining == len(self.members)

    @property
    def all_synced(self) -> bool:
        return not self.pending_syncs

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of its members: how long a rebalance waits."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is one who has joined. False when nobody has."""
        if self.leader is not None and self.members[self.leader].joining is not None:
            return True
        for member in self.members.values():
            if member.joining is not None:
                self.leader = member.member_id
                return True
        return False

    # ── protocols ─────────────────────────────────────────────────────────────────────────────────────────

    def supports(self, protocol_type: str, protocols: tuple[JoinGroupProtocol, ...]) -> bool:
        """Whether a member with these protocols fits: the same type, and one protocol that all members know."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        everybody = len(self.members)
        return any(self._knowing.get(protocol.name, 0) == everybody for protocol in protocols)

    def choose_protocol(self) -> str:
        """The protocol with the most votes among those that every member knows; the first voted for wins a tie."""
        everybody = len(self.members)
        candidates = {name for name, count in self._knowing.items() if count == everybody}
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__)

    @property
    def is_simple(self) -> bool:
        """Whether only offsets were ever committed in its name, without a member."""
        return self.protocol_type is None and not self.members and not self.pending_joins

    @property
    def may_go(self) -> bool:
        """Whether nobody is in it or about to be."""
        return self.state is ClassicState.EMPTY and not self.pending_joins

    @property
    def is_unborn(self) -> bool:
        """Whether nobody is in it and nothing of it is in the log."""
        return self.is_simple and not self.in_log

    @property
    def topics(self) -> frozenset[str] | None:
        """What its members have subscribed to, as of this generation; None when that cannot be known."""
        return self._topics

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether offsets of `topic` must stay. A consumer group we cannot read counts as subscribed to all."""
        if self._topics is None:
            return self.protocol_type == PROTOCOL_TYPE
        return topic in self._topics

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != PROTOCOL_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        left = SUBSCRIBED_NAMES_MAX
        try:
            for member in self.members.values():
                named = subscribed_topics(member.metadata(self.protocol_name), names_max=left)
                left -= len(named)
                topics.update(named)
        except (MalformedFrame, KeyError):
            return None
        return frozenset(topics)

    # ── its log ───────────────────────────────────────────────────────────────────────────────────────────

    def record(self, assignments: dict[str, bytes]) -> Record:
        """The group as it would be with these assignments (member id → bytes)."""
        protocol_name = self.protocol_name or ""
        rows = tuple(
            log_record.MemberRow(
                member.member_id,
                member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(protocol_name),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )
        value = log_record.GroupMetadata(
            self.protocol_type or "",
            self.generation_id,
            protocol_name=self.protocol_name,
            leader=self.leader,
            state_timestamp_ms=self.state_timestamp_ms,
            members=rows,
        )
        return log_record.record(self.group_id, value)

    def assignments(self) -> dict[str, bytes]:
        return {member.member_id: member.assignment for member in self.members.values()}

    @staticmethod
    def from_log(group_id: str, value: log_record.GroupMetadata) -> ClassicGroup:
        """The group that a record tells of: stable with its members, or empty."""
        group = ClassicGroup(group_id, value.state_timestamp_ms)
        group.in_log = True
        group.generation_id = value.generation_id
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol_name
        for row in value.members:
            member = ClassicMember(
                row.member_id,
                row.instance_id,
                client_id=row.client_id,
                client_host=row.client_host,
                rebalance_timeout_ms=row.rebalance_timeout_ms,
                session_timeout_ms=row.session_timeout_ms,
                protocol_type=value.protocol_type,
                protocols=(JoinGroupProtocol(value.protocol_name or "", row.subscription),),
                assignment=row.assignment,
            )
            group.add(member)
        if group.members:
            group.state = ClassicState.STABLE
            group.leader = value.leader if value.leader in group.members else next(iter(group.members))
        group._topics = group._subscribed_topics()
        return group

    def check(self) -> None:
        """Raises ApplianceDefect unless the invariants at the head of the file hold."""
        if (self.leader is None) != (not self.members) or (self.leader and self.leader not in self.members):
            raise ApplianceDefect(f"group {self.group_id}: the leader is {self.leader!r}")
        if self._static != {m.instance_id: m.member_id for m in self.members.values() if m.instance_id}:
            raise ApplianceDefect(f"group {self.group_id}: the static members are not those it knows")
        held = HeldBytes(self.group_id).bytes + sum(member.weigh() for member in self.members.values())
        if held != self.held.bytes:
            raise ApplianceDefect(
                f"group {self.group_id}: it holds {held} bytes, {self.held.bytes} are counted"
            )
        if self._joining != sum(member.joining is not None for member in self.members.values()):
            raise ApplianceDefect(f"group {self.group_id}: {self._joining} members are said to wait")
        names = [name for member in self.members.values() for name in member.protocol_names()]
        if self._knowing != Counter(names):
            raise ApplianceDefect(f"group {self.group_id}: its protocols are miscounted")
        if self.pending_joins.keys() & self.members.keys():
            raise ApplianceDefect(f"group {self.group_id}: a pending member has joined")
        if not self.pending_syncs <= self.members.keys():
            raise ApplianceDefect(f"group {self.group_id}: a member that left is waited for")
        if self.state is ClassicState.STABLE and not self.members:
            raise ApplianceDefect(f"group {self.group_id} is stable without members")
