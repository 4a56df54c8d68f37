"""What groups ask of the metadata image and of the committed offsets; what they want done is in `runtime/effects`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol
from uuid import UUID

import msgspec

from appliance.control.coordinator.runtime.effects import Record

GROUP_OPERATIONS: Final = sum(1 << bit for bit in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: without an authorizer every operation that groups have is
allowed. Source: KIP-430, Kafka's `AclEntry.supportedOperations`."""


class Topic(msgspec.Struct, frozen=True):
    """A topic as the metadata image has it."""

    name: str
    topic_id: UUID
    partitions: int


class Topics(Protocol):
    """What the groups see of the metadata image; always the newest one."""

    def by_name(self, name: str) -> Topic | None:
        """The topic of that name, if it exists."""
        ...

    def by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of that id, if it exists."""
        ...

    def names(self) -> Sequence[str]:
        """All topics, internal ones too."""
        ...

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        """What was set on the group."""
        ...


class CommittedOffsets(Protocol):
    """What the groups ask about offsets that were committed in a group's name."""

    def has_offsets(self, group_id: str) -> bool:
        """Whether any offset of the group is kept."""
        ...

    def tombstones(self, group_id: str) -> Sequence[Record]:
        """The records that delete every offset of the group; they go into the batch that deletes the group."""
        ...


class OffsetExpiry(msgspec.Struct, frozen=True):
    """From when on the offsets of a group grow old.

    `since_ms` is when the group became empty (wall clock); None: each offset since it was committed. Offsets of
    topics in `subscribed` do not expire at all.
    """

    since_ms: int | None = None
    subscribed: frozenset[str] = frozenset()
