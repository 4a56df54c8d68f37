"""What a group wants done: values that its caller carries out, in the order in which they stand.

Nothing in this room answers a client, writes a log or waits. Each call returns its effects:

    Answer(reply, response)          once per request, now or in a later call's effects
    AnswerInPieces(reply, elements, make)
                                     the same, for answers that grow with the number of groups: the caller takes an
                                     element at a time, and does other work in between
    GoOn(action)                     after other work, `action` is called and gives further effects
    Append(partition, records, then) the records go to that partition of `__consumer_offsets` as one batch; when the
                                     batch is committed, or has failed, `then` is called and gives further effects

What an `Append` says is not yet so: the state it stands for is taken on in `then`, so a crash before it changes
nothing that anybody has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

import msgspec

GROUP_OPERATIONS: Final = sum(1 << bit for bit in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: without an authorizer every operation that groups have is
allowed. Source: KIP-430, Kafka's `AclEntry.supportedOperations`."""


class Record(msgspec.Struct, frozen=True):
    """A record of `__consumer_offsets`: key and value as they lie in its log; a tombstone has no value."""

    key: bytes
    value: bytes | None


class Client(msgspec.Struct, frozen=True):
    """Who sent a request, and how.

    `host` is its address as Kafka writes it, `/127.0.0.1`; `slot` the one it spoke to.
    """

    client_id: str
    host: str
    slot: int
    api_version: int


class Answer(msgspec.Struct, frozen=True):
    """The response to the request that came with `reply`: a shape of `appliance.protocol.apis`."""

    reply: Any
    response: Any


class AnswerInPieces(msgspec.Struct, frozen=True):
    """The response to the request that came with `reply`: `make(elements)`, whose array may be long.

    The groups may change between two elements, so the iterator looks each group up when its turn comes.
    """

    reply: Any
    elements: Iterator[Any]
    make: Callable[[tuple[Any, ...]], Any]


class GoOn(msgspec.Struct, frozen=True):
    """A request that goes on after others had their turn."""

    action: Callable[[], Effects]


class Append(msgspec.Struct, frozen=True):
    """Records for one partition of `__consumer_offsets`.

    `then` takes 0 when all of them are committed, else the error code of the failure as the produce path names
    it; it must be called exactly once, and not from within the call that returned this.
    """

    partition: int
    records: tuple[Record, ...]
    then: Callable[[int], Effects]


Effect: TypeAlias = Answer | AnswerInPieces | GoOn | Append
Effects: TypeAlias = list[Effect]


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
