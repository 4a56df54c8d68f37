"""How many groups, members and given-out member ids one coordinator keeps, whoever asks for them.

| what | bound | beyond it |
|---|---|---|
| groups | group.max.count | a new group is refused; empty groups without offsets are removed first |
| members of all groups | group.members.max | a new member is refused: GROUP_MAX_SIZE_REACHED |
| bytes of members (`held_bytes`), one group, all groups | group.max.bytes, group.members.max.bytes | the same |
| ids of members that have not come back (KIP-394) | group.pending.members.max | the oldest is forgotten |

A member whose id was forgotten is told UNKNOWN_MEMBER_ID and begins again, as after its timeout. What the log holds is
taken in whatever the bounds say: they are for what is new.

A member that is in stays in with what it has sent; what would take more bytes than it has now is refused, too.

Apache Kafka has none of these; its `group.max.size` bounds the members of one group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from appliance.config import GroupSettings
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.held_bytes import Total

PENDING_TIMEOUT_MAX_MS: Final = 60_000
"""A client comes back with its id at once; its session timeout may be half an hour."""
_COUNT_AGAIN_MS: Final = 1_000


class GroupLimits:
    """Args:
    groups: how many groups there are.
    members: counts the members of all groups, O(groups).
    now_ms: monotonic time.
    """

    __slots__ = (
        "_added_members",
        "_count_again_ms",
        "_counted_members",
        "_groups",
        "_members",
        "_now_ms",
        "_pending",
        "_settings",
        "forgotten_members",
        "held",
        "refused_groups",
        "refused_members",
    )

    def __init__(
        self,
        settings: GroupSettings,
        *,
        groups: Callable[[], int],
        members: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._members = members
        self._now_ms = now_ms
        self._pending: deque[tuple[ClassicGroup, str]] = deque()
        self._counted_members = 0
        self._added_members = 0
        self._count_again_ms = 0
        self.held = Total()
        self.refused_groups = 0
        self.refused_members = 0
        self.forgotten_members = 0

    def has_room_for_group(self) -> bool:
        """Whether there may be one more group; False counts as a refusal."""
        if self._groups() < self._settings.max_count:
            return True
        self.refused_groups += 1
        return False

    def has_room_for_member(self) -> bool:
        """Whether there may be one more member, who is counted then; False counts as a refusal.

        Members that leave are not counted one by one: when the bound seems to be reached all are counted anew, at most
        once a second.
        """
        members_max = self._settings.members_max
        if self._counted_members + self._added_members >= members_max:
            now_ms = self._now_ms()
            if now_ms >= self._count_again_ms:
                self._count_again_ms = now_ms + _COUNT_AGAIN_MS
                self._counted_members = self._members()
                self._added_members = 0
            if self._counted_members + self._added_members >= members_max:
                self.refused_members += 1
                return False
        self._added_members += 1
        return True

    def has_room_for_bytes(self, group_bytes: int, more: int) -> bool:
        """Whether a group that holds `group_bytes` may hold `more`; False counts as the refusal of a member."""
        settings = self._settings
        if more <= 0 or (
            group_bytes + more <= settings.max_bytes and self.held.bytes + more <= settings.members_max_bytes
        ):
            return True
        self.refused_members += 1
        return False

    def given_out(self, group: ClassicGroup, member_id: str) -> tuple[ClassicGroup, str] | None:
        """A member was given its id; the group and the id of the one that is to be forgotten for it, if any.

        Of the last `group.pending.members.max` ids that were given out, those stay that were not used yet.
        """
        pending = self._pending
        pending.append((group, member_id))
        if len(pending) <= self._settings.pending_members_max:
            return None
        oldest = pending.popleft()
        if oldest[1] not in oldest[0].pending_joins:
            return None
        self.forgotten_members += 1
        return oldest
