"""The counters of the process table by name, for each kind of process that has some, in their order there.

BOUNDS are those that count what was refused, dropped or forgotten because a bound was reached: `appliance status` tells
of them where they are not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.channels.roles import RoleKind

COUNTER_NAMES: Final[Mapping[RoleKind, tuple[str, ...]]] = {
    RoleKind.PURGATORY: (
        "waiting",
        "watched rows",
        "satisfied",
        "expired",
        "cancelled",
        "completions owed",
    ),
    RoleKind.IOPROC: (
        "failed directories",
        "offline partitions",
        "moving partitions",
        "producer ids",
        "forgotten producer ids",
    ),
    RoleKind.NETPROC: ("watched partitions", "fetches answered early"),
    RoleKind.COORDINATOR: (
        "commits",
        "appends",
        "dropped requests",
        "groups",
        "refused groups",
        "refused members",
        "forgotten member ids",
    ),
    RoleKind.CLEANER: ("compacted logs", "uncleanable", "rounds", "freed bytes"),
    RoleKind.CONTROLLER: ("topics", "partitions", "waves"),
}

BOUNDS: Final[Mapping[str, str]] = {
    "forgotten producer ids": "producer ids were forgotten: see producer.ids.max, producer.ids.per.partition.max",
    "fetches answered early": "fetches were answered early: see network.waiting.fetch.partitions.max",
    "refused groups": "new groups were refused: see group.max.count",
    "refused members": "new members of groups were refused: see group.members.max",
    "forgotten member ids": "ids of members that had not joined were forgotten: see group.pending.members.max",
}
"""Name of the counter → what `appliance status` says behind its number."""


def named(kind: RoleKind, counters: tuple[int, ...]) -> dict[str, int]:
    """The counters of a process by name; empty for a kind that names none."""
    return dict(zip(COUNTER_NAMES.get(kind, ()), counters, strict=False))
