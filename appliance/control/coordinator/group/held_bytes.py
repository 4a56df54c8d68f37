"""How much memory groups take for what clients have sent: ids, subscriptions, protocols, assignments.

    Total      of all groups in the book
    HeldBytes  of one group; it counts in a Total while the group is in the book
    weigh_…    what one member takes

A string counts as many bytes as it takes in memory, and each element of an array a little more than its own. Assigned
partitions of consumer groups are not counted: the server chooses them, and a partition has one owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof
from typing import TYPE_CHECKING, Final

from appliance.protocol.apis.join_group import JoinGroupProtocol

if TYPE_CHECKING:
    from appliance.control.coordinator.group.consumer_records import MemberSubscription

POINTER_BYTES: Final = 8
PROTOCOL_BYTES: Final = 64
"""The pair of a protocol's name and its metadata, and its place in the array."""


class Total:
    """Bytes of all groups together."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class HeldBytes:
    """Bytes of one group, those of its id included."""

    __slots__ = ("_total", "bytes")

    def __init__(self, group_id: str) -> None:
        self.bytes = getsizeof(group_id)
        self._total: Total | None = None

    def add(self, more: int) -> None:
        """The group holds so many bytes more, or fewer where it is negative."""
        self.bytes += more
        if self._total is not None:
            self._total.bytes += more

    def enter(self, total: Total) -> None:
        """The group is in the book."""
        if self._total is None:
            self._total = total
            total.bytes += self.bytes

    def leave(self) -> None:
        """The group is out of the book."""
        if self._total is not None:
            self._total.bytes -= self.bytes
            self._total = None


def weigh_member(
    *strings: str | None, protocols: Iterable[JoinGroupProtocol], assignment: bytes = b""
) -> int:
    """What a member of a classic group takes."""
    held = sum(map(getsizeof, strings)) + getsizeof(assignment)
    for protocol in protocols:
        held += PROTOCOL_BYTES + getsizeof(protocol.name) + getsizeof(protocol.metadata)
    return held


def weigh_subscription(member_id: str, said: MemberSubscription) -> int:
    """What a member of a consumer group takes."""
    protocols = said.classic.protocols if said.classic is not None else ()
    held = weigh_member(
        member_id,
        said.instance_id,
        said.rack_id,
        said.client_id,
        said.client_host,
        said.regex,
        said.assignor,
        protocols=protocols,
    )
    return held + POINTER_BYTES * len(said.topic_names) + sum(map(getsizeof, said.topic_names))
