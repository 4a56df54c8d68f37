"""Works out what a heartbeat changes in a consumer group, as a draft on top of what is in the log.

A draft sees its own changes; the group does not until they are committed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from appliance.control.coordinator.group.consumer_assignors import ASSIGNORS, AssignedMember
from appliance.control.coordinator.group.consumer_group import STATIC_AWAY_EPOCH, ConsumerGroup
from appliance.control.coordinator.group.consumer_reconciliation import reconcile
from appliance.control.coordinator.group.consumer_records import (
    NOTHING,
    Assignment,
    Change,
    CurrentAssignment,
    CurrentChange,
    GroupEpochChange,
    MemberSubscription,
    RegexChange,
    ResolvedRegex,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
)
from appliance.control.coordinator.group.effects import Topic
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.topic_names import Difference
from appliance.control.coordinator.group.topic_regex import matching_topics

MATCHES_A_TURN: Final = 10_000
"""Names that one heartbeat holds against expressions, about 30 ms; what is left is done in those after it."""

_NEW = MemberSubscription()


class Draft:
    """Changes of one group that are not in the log yet: `changes`, in the order in which they will be written.

    When they are, `seen` says in the group which topics its subscriptions have been held against.
    """

    __slots__ = (
        "_book",
        "_currents",
        "_epoch",
        "_group",
        "_regexes",
        "_seen_names",
        "_seen_topics",
        "_subscriptions",
        "_targets",
        "changes",
    )

    def __init__(self, book: GroupBook, group: ConsumerGroup) -> None:
        self._book = book
        self._group = group
        self.changes: list[Change] = []
        self._epoch = group.epoch
        self._subscriptions: dict[str, MemberSubscription | None] = {}
        self._currents: dict[str, CurrentAssignment] = {}
        self._targets: dict[str, Assignment | None] = {}
        self._regexes: dict[str, ResolvedRegex | None] = {}
        self._seen_topics = group.seen_topics
        self._seen_names: dict[str, int] = {}

    # ── what would be ─────────────────────────────────────────────────────────────────────────────────────

    def subscription(self, member_id: str) -> MemberSubscription:
        drafted = self._subscriptions.get(member_id)
        return self._group.subscriptions.get(member_id, _NEW) if drafted is None else drafted

    def current(self, member_id: str) -> CurrentAssignment:
        return self._currents.get(member_id) or self._group.current(member_id)

    def target(self, member_id: str) -> Assignment:
        drafted = self._targets.get(member_id)
        return self._group.target(member_id) if drafted is None else drafted

    def _members(self) -> dict[str, MemberSubscription]:
        drafted = {**self._group.subscriptions, **self._subscriptions}
        return {member_id: one for member_id, one in drafted.items() if one is not None}

    def seen(self) -> None:
        """The draft is in the log, or had nothing to write."""
        group = self._group
        group.seen_topics = self._seen_topics
        group.seen_names.update(
            (regex, at) for regex, at in self._seen_names.items() if regex in group.regexes
        )

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────

    def replace_member(self, old_id: str, new_id: str) -> None:
        """A static member that was away is back under another id, with all it had and nothing to prove."""
        subscription, target = self.subscription(old_id), self.target(old_id)
        current = replace(self.current(old_id), member_epoch=0, previous_epoch=0, revoking=NOTHING)
        self._drop(old_id)
        self._change(SubscriptionChange(new_id, subscription))
        self._change(TargetChange(new_id, target))
        self._change(CurrentChange(new_id, current))

    def subscribe(self, member_id: str, subscription: MemberSubscription) -> None:
        """The member says this of itself; the group's epoch grows if that, or what it stands for, is new."""
        before = self.subscription(member_id)
        is_new = self._subscriptions.get(member_id) is None and member_id not in self._group.subscriptions
        if is_new or subscription != before:
            self._change(SubscriptionChange(member_id, subscription))
        wants_other = (subscription.topic_names, subscription.regex) != (before.topic_names, before.regex)
        self._look_at_topics(bump=is_new or wants_other)

    def remove(self, member_id: str) -> None:
        """The member is out; its partitions are free and the group's epoch grows."""
        self.remove_all((member_id,))

    def remove_all(self, member_ids: Sequence[str]) -> None:
        """Takes the members out; the group's epoch grows by one, however many they are (as in Kafka)."""
        for member_id in member_ids:
            self._drop(member_id)
        if member_ids:
            self._look_at_topics(bump=True)

    def send_away(self, member_id: str) -> None:
        """A static member leaves for a while: its partitions wait for it until its session ends."""
        current = self.current(member_id)
        away = replace(
            current, member_epoch=STATIC_AWAY_EPOCH, previous_epoch=current.member_epoch, revoking=NOTHING
        )
        self._change(CurrentChange(member_id, away))

    def assign(self) -> None:
        """Makes the target assignment anew if it is older than the group."""
        group = self._group
        if self._epoch <= group.assignment_epoch:
            return
        subscriptions = self._members()
        topics = self._topics(subscriptions)
        members = [
            AssignedMember(
                member_id,
                one.instance_id,
                topics=frozenset(topics[name].topic_id for name in self._names(one) if name in topics),
                before=self.target(member_id),
            )
            for member_id, one in subscriptions.items()
        ]
        assignors = self._book.settings.consumer_assignors
        assignor = ASSIGNORS[group.preferred_assignor(subscriptions.values(), assignors)]
        made = assignor(members, {topic.topic_id: topic.partitions for topic in topics.values()})
        for member_id, target in made.items():
            if target != self.target(member_id) or member_id not in group.targets:
                self._change(TargetChange(member_id, target))
        self._change(TargetEpochChange(self._epoch))

    def reconcile(self, member_id: str, owned: Assignment | None) -> None:
        """The member takes its next step."""
        current = self.current(member_id)
        following = reconcile(
            current,
            self.target(member_id),
            target_epoch=self._assignment_epoch(),
            owned=owned,
            is_free=self._group.is_free,
        )
        if following != current or member_id not in self._group.currents:
            self._change(CurrentChange(member_id, following))

    # ── topics ────────────────────────────────────────────────────────────────────────────────────────────

    def _look_at_topics(self, *, bump: bool) -> None:
        """Holds the subscriptions against the metadata image if either is new; what differs raises the epoch."""
        book, group = self._book, self._group
        if not bump and group.seen_topics == book.topics_version:
            return
        subscriptions = self._members()
        if self._resolve_regexes(subscriptions):
            self._seen_topics = book.topics_version
        metadata_hash = self._hash(self._topics(subscriptions).values())
        if bump or metadata_hash != group.metadata_hash:
            self._epoch += 1
            self._change(GroupEpochChange(self._epoch, metadata_hash=metadata_hash))

    def _resolve_regexes(self, subscriptions: dict[str, MemberSubscription]) -> bool:
        """Holds the expressions against the topics; False where some are left for the next heartbeat.

        Those that nothing is known of come first, so a new member never waits for the topics of its own.
        """
        regexes = self._group.regexes
        used = {one.regex for one in subscriptions.values() if one.regex is not None}
        for regex in regexes.keys() - used:
            self._change(RegexChange(regex, None))
        left = MATCHES_A_TURN
        for regex in sorted(used, key=lambda regex: (regex in regexes, regex)):
            if left <= 0 and regex in regexes:
                return False
            left -= self._resolve(regex, regexes.get(regex))
        return True

    def _resolve(self, regex: str, known: ResolvedRegex | None) -> int:
        """How many names were matched."""
        names = self._book.topic_names
        seen = self._group.seen_names.get(regex)
        change = None if seen is None or known is None else names.since(seen)
        if change is None or known is None:
            topics, matched = matching_topics(regex, names.all()), len(names.all())
        else:
            topics, matched = _changed(known.topics, regex, change), len(change.came)
        if known is None or known.topics != topics:
            resolved = ResolvedRegex(
                topics, self._book.topics_version, timestamp_ms=self._book.clock.now_ms()
            )
            self._change(RegexChange(regex, resolved))
        self._seen_names[regex] = names.version
        return matched

    def _names(self, subscription: MemberSubscription) -> set[str]:
        names = set(subscription.topic_names)
        if subscription.regex is not None:
            resolved = self._regexes.get(subscription.regex) or self._group.regexes.get(subscription.regex)
            names.update(resolved.topics if resolved is not None else ())
        return names

    def _topics(self, subscriptions: dict[str, MemberSubscription]) -> dict[str, Topic]:
        """Those of the subscribed topics that exist."""
        # A member may name thousands that do not exist: those are left out before anything is sorted or looked up.
        there = self._book.topic_names.all()
        names = set().union(*(there.intersection(self._names(one)) for one in subscriptions.values()))
        found = ((name, self._book.topics.by_name(name)) for name in sorted(names))
        return {name: topic for name, topic in found if topic is not None}

    @staticmethod
    def _hash(topics: Iterable[Topic]) -> int:
        """A number that is another one when a topic comes, goes or grows. Only we compare it with one of ours."""
        # Loaded with the first consumer group: it brings all of OpenSSL along (decision 0053).
        from hashlib import blake2b

        text = repr([(one.name, one.topic_id.int, one.partitions) for one in topics])
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)

    # ── changes ───────────────────────────────────────────────────────────────────────────────────────────

    def _drop(self, member_id: str) -> None:
        self._change(CurrentChange(member_id, None))
        self._change(TargetChange(member_id, None))
        self._change(SubscriptionChange(member_id, None))

    def _assignment_epoch(self) -> int:
        return max(self._epoch, self._group.assignment_epoch)

    def _change(self, change: Change) -> None:
        self.changes.append(change)
        match change:
            case SubscriptionChange(member_id, subscription):
                self._subscriptions[member_id] = subscription
            case TargetChange(member_id, target):
                self._targets[member_id] = target
            case CurrentChange(member_id, current) if current is not None:
                self._currents[member_id] = current
            case RegexChange(regex, resolved):
                self._regexes[regex] = resolved
            case _:
                pass


def _changed(topics: tuple[str, ...], regex: str, change: Difference) -> tuple[str, ...]:
    """The sorted topics that match, when those that matched before the change are known; the same object if so."""
    came = matching_topics(regex, change.came)
    went = [name for name in change.went if _has(topics, name)]
    return tuple(sorted({*topics, *came}.difference(went))) if came or went else topics


def _has(names: tuple[str, ...], name: str) -> bool:
    at = bisect_left(names, name)
    return at < len(names) and names[at] == name
