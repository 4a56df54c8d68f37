"""What all handlers share: the groups, their timers, and the effects of the call under way.

A handler changes a group, writes what it wants done into the book and returns; `Groups` hands the effects out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from appliance.clock import NS_PER_MS, Clock
from appliance.config import ConsumerTimes, GroupSettings
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_member import OnTime
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.effects import CommittedOffsets, Topics
from appliance.control.coordinator.group.group_limits import GroupLimits
from appliance.control.coordinator.group.held_bytes import Total
from appliance.control.coordinator.group.topic_names import TopicNames
from appliance.control.coordinator.runtime.effects import (
    Answer,
    AnswerInPieces,
    Append,
    Client,
    Effects,
    GoOn,
    Record,
)
from appliance.delayed.timing_wheel import Task, TimingWheel
from appliance.errors import ApplianceDefect

_SHOWN_MAX = 255
"""Characters. A string of the protocol has 32,767 bytes, and what a client sends may be as long."""


def unique_member_id(prefix: str) -> str:
    """A member id that nobody has: the client's or the instance's id, and 36 characters of a UUID.

    A long prefix is cut, as the whole has to fit into a string of a record.
    """
    return f"{shown(prefix)}-{uuid4()}"


def shown(name: str) -> str:
    """A name that came from a client, as far as it is told in a message or goes on in another name."""
    return name[:_SHOWN_MAX]


def _nobody(request: object, client: Client, reply: object) -> None:
    raise ApplianceDefect("the book has no owner")


class GroupsById(dict[str, ClassicGroup | ConsumerGroup]):
    """The groups by their ids; what they hold is counted in `total`. Changed by these two ways only."""

    __slots__ = ("_total",)

    def __init__(self, total: Total) -> None:
        super().__init__()
        self._total = total

    def __setitem__(self, group_id: str, group: ClassicGroup | ConsumerGroup) -> None:
        before = self.get(group_id)
        if before is not None and before is not group:
            before.held.leave()
        super().__setitem__(group_id, group)
        group.held.enter(self._total)

    def __delitem__(self, group_id: str) -> None:
        self[group_id].held.leave()
        super().__delitem__(group_id)


class GroupBook:
    """`again(request, client, reply)` handles a request anew, from its beginning.

    Args:
    gate: (group id, slot) → 0, or why that slot cannot speak for the group now.
    partition_of: the partition of `__consumer_offsets` that a group's records go to.
    new_member_id: client id or group instance id → a member id.
    """

    __slots__ = (
        "_partition_of",
        "_wheel",
        "again",
        "clock",
        "effects",
        "gate",
        "groups",
        "limits",
        "new_member_id",
        "offsets",
        "settings",
        "topic_names",
        "topics",
        "topics_version",
    )

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        *,
        partition_of: Callable[[str], int],
        gate: Callable[[str, int], int],
        topics: Topics,
        offsets: CommittedOffsets,
        new_member_id: Callable[[str], str],
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.gate = gate
        self.topics = topics
        self.offsets = offsets
        self.new_member_id = new_member_id
        self.limits = GroupLimits(
            settings, groups=self._count_groups, members=self.count_members, now_ms=self._monotonic_ms
        )
        self.groups = GroupsById(self.limits.held)
        self.again: Callable[[object, Client, object], None] = _nobody
        self.topics_version = 0  # counts the metadata images
        self.topic_names = TopicNames(topics)
        self.effects: Effects = []
        self._partition_of = partition_of
        self._wheel: TimingWheel[OnTime] = TimingWheel(self._monotonic_ms())

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    def after(self, timeout_ms: int, action: OnTime) -> Task[OnTime]:
        """Does `action` in `timeout_ms` at the earliest; none is negative, whatever a client asked for."""
        # The clock's reading was rounded down, and no deadline may come early.
        return self._wheel.add(action, self._monotonic_ms() + 1 + max(timeout_ms, 0))

    def next_deadline_ms(self) -> int | None:
        return self._wheel.next_expiry_ms()

    def due(self) -> list[OnTime]:
        """What is to be done now, in the order of the deadlines."""
        return [task.take() for task in self._wheel.advance(self._monotonic_ms())]

    def _monotonic_ms(self) -> int:
        return self.clock.monotonic_ns() // NS_PER_MS

    # ── effects ───────────────────────────────────────────────────────────────────────────────────────────

    def answer(self, reply: object, response: object) -> None:
        self.effects.append(Answer(reply, response))

    def answer_in_pieces(
        self, reply: object, elements: Iterator[Any], make: Callable[[tuple[Any, ...]], Any]
    ) -> None:
        """Answer with `make` of the elements, which are asked for one by one; see `AnswerInPieces`."""
        self.effects.append(AnswerInPieces(reply, elements, make))

    def go_on(self, action: Callable[[], None]) -> None:
        """Call `action` after others had their turn; it may write into this book."""

        def run() -> Effects:
            action()
            return self.take_effects()

        self.effects.append(GoOn(run))

    def append(self, group_id: str, records: tuple[Record, ...], then: Callable[[int], None]) -> None:
        """Has the records written; `then` gets 0 or the error code, and may write into this book."""
        self.effects.append(Append(self.partition_of(group_id), records, self._continued(then)))

    def partition_of(self, group_id: str) -> int:
        return self._partition_of(group_id)

    def take_effects(self) -> Effects:
        effects, self.effects = self.effects, []
        return effects

    def _continued(self, then: Callable[[int], None]) -> Callable[[int], Effects]:
        def run(error_code: int) -> Effects:
            then(error_code)
            return self.take_effects()

        return run

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────

    def fault_of(self, group_id: str, client: Client) -> int:
        """Why nothing can be said about the group to this client now; 0 if something can."""
        return self.gate(group_id, client.slot)

    def in_turn(
        self, group: ConsumerGroup, request: object, client: Client, *, reply: object, action: OnTime
    ) -> None:
        """Does `action` for a request when its turn comes; if the group is gone by then the request begins anew."""

        def turn() -> None:
            if self.groups.get(group.group_id) is group:
                action()
            else:
                self.again(request, client, reply)

        group.in_turn(turn)

    def _count_groups(self) -> int:
        return len(self.groups)

    def count_members(self) -> int:
        """Members of all groups; O(groups)."""
        return sum(
            len(group.members) if isinstance(group, ClassicGroup) else len(group.subscriptions)
            for group in self.groups.values()
        )

    def consumer_times(self, group_id: str) -> ConsumerTimes:
        """What members of the group, a consumer group, go by now."""
        return ConsumerTimes.of(self.settings, self.topics.group_configs(group_id))

    def classic(self, group_id: str) -> ClassicGroup | None:
        """The classic group of that name, if there is one."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def drop_if_unborn(self, group: ClassicGroup | ConsumerGroup) -> None:
        """Forgets a group that has nobody, is in no log and keeps no offsets: a client came and went."""
        if (
            group.is_unborn
            and self.groups.get(group.group_id) is group
            and not self.offsets.has_offsets(group.group_id)
        ):
            del self.groups[group.group_id]
