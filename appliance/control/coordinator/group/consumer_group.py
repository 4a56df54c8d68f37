"""A consumer group (KIP-848): exactly what its records in the log say, and nothing that is not there.

`apply` takes in one change; after a restart the same changes give the same group. Who wants something of a group works
out changes, has them appended, and only then are they applied. While an append is under way nobody else's turn comes
(`in_turn`), so every decision is made on what is in the log.

    group epoch        grows with every change of members, subscriptions or topics
    assignment epoch   the group epoch that the target assignment was made for
    member epoch       how far a member has come

Invariants, which `check` holds: a partition has one owner; nobody has a target or an assignment who is not a member.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from uuid import UUID

from appliance.control.coordinator.group.classic_member import OnTime
from appliance.control.coordinator.group.consumer_records import (
    NOTHING,
    Assignment,
    Change,
    CurrentAssignment,
    CurrentChange,
    GroupEpochChange,
    MemberState,
    MemberSubscription,
    RegexChange,
    ResolvedRegex,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
)
from appliance.control.coordinator.group.held_bytes import POINTER_BYTES, HeldBytes, weigh_subscription
from appliance.delayed.timing_wheel import Task
from appliance.errors import ApplianceDefect
from appliance.protocol.errors import ErrorCode

STATIC_AWAY_EPOCH = -2
"""The member epoch of a static member that has left for a while."""

_NEW = CurrentAssignment()


class ConsumerState(Enum):
    """The value is Kafka's name. A state is seen, not entered: it follows from the epochs."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """One group. `sessions` and `rebalances` hold its members' timers; `seen_topics` is the version of the metadata
    image that its subscriptions were last held against, `seen_names` that of the names which each expression was."""

    __slots__ = (
        "_commits_since",
        "_counted_bytes",
        "_owners",
        "_static",
        "_turns",
        "assignment_epoch",
        "currents",
        "epoch",
        "group_id",
        "held",
        "is_busy",
        "metadata_hash",
        "rebalances",
        "regexes",
        "seen_names",
        "seen_topics",
        "sessions",
        "subscriptions",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.held = HeldBytes(group_id)
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.subscriptions: dict[str, MemberSubscription] = {}
        self.targets: dict[str, Assignment] = {}
        self.currents: dict[str, CurrentAssignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.seen_names: dict[str, int] = {}
        self.sessions: dict[str, Task[OnTime]] = {}
        self.rebalances: dict[str, Task[OnTime]] = {}
        self.seen_topics = -1
        self.is_busy = False
        self._commits_since: dict[str, int] = {}
        self._counted_bytes: dict[str, int] = {}
        self._owners: dict[tuple[UUID, int], str] = {}
        self._static: dict[str, str] = {}
        self._turns: deque[Callable[[], None]] = deque()

    # ── changes ───────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, change: Change) -> None:
        """Takes in a change that is in the log."""
        match change:
            case GroupEpochChange(epoch, metadata_hash):
                self.epoch = epoch or 0
                self.metadata_hash = metadata_hash
            case SubscriptionChange(member_id, subscription):
                self._subscribe(member_id, subscription)
            case TargetEpochChange(epoch):
                self.assignment_epoch = epoch or 0
            case TargetChange(member_id, target):
                if target is None:
                    self.targets.pop(member_id, None)
                else:
                    self.targets[member_id] = target
            case CurrentChange(member_id, current):
                self._own(member_id, current)
            case RegexChange(regex, resolved):
                known = self.regexes.get(regex)
                self.held.add(
                    POINTER_BYTES
                    * (len(resolved.topics if resolved else ()) - len(known.topics if known else ()))
                )
                if resolved is None:
                    self.regexes.pop(regex, None)
                    self.seen_names.pop(regex, None)
                else:
                    self.regexes[regex] = resolved

    def _subscribe(self, member_id: str, subscription: MemberSubscription | None) -> None:
        before = self.subscriptions.get(member_id)
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and self._static.get(instance_id) == member_id:
            del self._static[instance_id]
        counted = 0 if subscription is None else weigh_subscription(member_id, subscription)
        self.held.add(counted - self._counted_bytes.pop(member_id, 0))
        if subscription is None:
            self.subscriptions.pop(member_id, None)
            return
        self._counted_bytes[member_id] = counted
        self.subscriptions[member_id] = subscription
        if subscription.instance_id is not None:
            self._static[subscription.instance_id] = member_id

    def _own(self, member_id: str, current: CurrentAssignment | None) -> None:
        before = self.currents.get(member_id, _NEW)
        for partition in _partitions(before.assigned, before.revoking):
            if self._owners.get(partition) == member_id:
                del self._owners[partition]
        if current is None:
            self.currents.pop(member_id, None)
            self._commits_since.pop(member_id, None)
            return
        kept = set(_partitions(current.assigned, current.revoking))
        if member_id not in self.currents or not kept.issuperset(
            _partitions(before.assigned, before.revoking)
        ):
            self._commits_since[member_id] = current.member_epoch
        self.currents[member_id] = current
        for partition in kept:
            self._owners[partition] = member_id

    def counted_bytes(self, member_id: str) -> int:
        """What a member counts for in `held`."""
        return self._counted_bytes.get(member_id, 0)

    # ── what it says ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_empty(self) -> bool:
        return not self.subscriptions

    @property
    def may_go(self) -> bool:
        """Whether nobody is in it or about to be."""
        return self.is_empty and not self.is_busy

    @property
    def is_unborn(self) -> bool:
        """Whether nothing of it is in the log, nor on its way there."""
        return self.is_empty and self.epoch == 0 and not self.is_busy and not self._turns

    @property
    def state(self) -> ConsumerState:
        if self.is_empty:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(self.is_reconciled(member_id) for member_id in self.subscriptions):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    def current(self, member_id: str) -> CurrentAssignment:
        return self.currents.get(member_id, _NEW)

    def target(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def is_reconciled(self, member_id: str) -> bool:
        current = self.current(member_id)
        return current.state is MemberState.STABLE and current.member_epoch == self.assignment_epoch

    def is_free(self, topic_id: UUID, partition: int) -> bool:
        """Whether nobody owns the partition, nor has still to give it up."""
        return (topic_id, partition) not in self._owners

    def end(self) -> list[Change]:
        """The changes that delete the group."""
        gone: list[Change] = [CurrentChange(member_id, None) for member_id in self.currents]
        gone += [TargetChange(member_id, None) for member_id in self.targets]
        gone += [TargetEpochChange(None)]
        gone += [SubscriptionChange(member_id, None) for member_id in self.subscriptions]
        gone += [RegexChange(regex, None) for regex in self.regexes]
        return [*gone, GroupEpochChange(None)]

    def static_member_id(self, instance_id: str) -> str | None:
        return self._static.get(instance_id)

    def topics_of(self, subscription: MemberSubscription) -> set[str]:
        """The names that a member has subscribed to, those included that its expression stands for."""
        names = set(subscription.topic_names)
        if subscription.regex is not None and (resolved := self.regexes.get(subscription.regex)):
            names.update(resolved.topics)
        return names

    def topics(self) -> set[str]:
        return set().union(*(self.topics_of(one) for one in self.subscriptions.values()))

    @staticmethod
    def preferred_assignor(subscriptions: Iterable[MemberSubscription], offered: Sequence[str]) -> str:
        """The one of the offered assignors that most members ask for; the first where none is asked for.

        A member may have asked, before a restart, for one that is offered no more.
        """
        votes = Counter(one.assignor for one in subscriptions if one.assignor in offered)
        return (votes.most_common(1)[0][0] if votes else None) or offered[0]

    # ── what offsets ask ──────────────────────────────────────────────────────────────────────────────────

    def check_commit(self, member_id: str, member_epoch: int, api_version: int) -> ErrorCode:
        """Whether a member in this epoch may commit offsets. Who is no member may while there is none."""
        if member_epoch < 0 and self.is_empty:
            return ErrorCode.NONE
        if member_id not in self.subscriptions:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if self.subscriptions[member_id].classic is None and api_version < _EPOCHS_FROM:
            return ErrorCode.UNSUPPORTED_VERSION
        # A commit may cross with the heartbeat that raises the epoch. While the member has lost nothing since the epoch
        # it speaks of, it owns what it commits for (as KIP-1251 has it, which looks at each partition).
        is_consumer = self.subscriptions[member_id].classic is None
        if (
            is_consumer
            and self._commits_since.get(member_id, 0) <= member_epoch < self.current(member_id).member_epoch
        ):
            return ErrorCode.NONE
        return self._check_epoch(member_id, member_epoch)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether a member in this epoch may fetch offsets. Who names no member always may."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        if member_id not in self.subscriptions:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return self._check_epoch(member_id, member_epoch)

    def _check_epoch(self, member_id: str, member_epoch: int) -> ErrorCode:
        if member_epoch == self.current(member_id).member_epoch:
            return ErrorCode.NONE
        is_classic = self.subscriptions[member_id].classic is not None
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    # ── turns and timers ──────────────────────────────────────────────────────────────────────────────────

    def in_turn(self, action: Callable[[], None]) -> None:
        """Does `action` now, or when the append under way and what came before are through."""
        if self.is_busy or self._turns:
            self._turns.append(action)
        else:
            action()

    def next_turns(self) -> None:
        """The append is through: those who waited go on, until one of them appends again."""
        self.is_busy = False
        while self._turns and not self.is_busy:
            self._turns.popleft()()

    def cancel_timers(self, member_id: str) -> None:
        for timers in (self.sessions, self.rebalances):
            task = timers.pop(member_id, None)
            if task is not None:
                task.cancel()

    def cancel_all_timers(self) -> None:
        for member_id in [*self.sessions, *self.rebalances]:
            self.cancel_timers(member_id)

    def check(self) -> None:
        """Raises ApplianceDefect unless the invariants at the head of the file hold."""
        owners: dict[tuple[UUID, int], str] = {}
        for member_id, current in self.currents.items():
            for partition in _partitions(current.assigned, current.revoking):
                if partition in owners:
                    raise ApplianceDefect(
                        f"group {self.group_id}: {owners[partition]} and {member_id} both own {partition}"
                    )
                owners[partition] = member_id
        if owners != self._owners:
            raise ApplianceDefect(f"group {self.group_id}: the owners are not those it knows")
        held = HeldBytes(self.group_id).bytes
        held += sum(weigh_subscription(member_id, one) for member_id, one in self.subscriptions.items())
        held += sum(POINTER_BYTES * len(resolved.topics) for resolved in self.regexes.values())
        if held != self.held.bytes:
            raise ApplianceDefect(
                f"group {self.group_id}: it holds {held} bytes, {self.held.bytes} are counted"
            )
        strangers = (self.targets.keys() | self.currents.keys()) - self.subscriptions.keys()
        if strangers:
            raise ApplianceDefect(f"group {self.group_id}: {strangers} are no members")
        if self.assignment_epoch > self.epoch:
            raise ApplianceDefect(f"group {self.group_id}: the target is newer than the group")


_EPOCHS_FROM = 9
"""Version of OffsetCommit from which it carries a member epoch."""


def _partitions(*assignments: Assignment) -> list[tuple[UUID, int]]:
    return [
        (topic_id, partition)
        for assignment in assignments
        for topic_id, partitions in assignment.items()
        for partition in partitions
    ]
