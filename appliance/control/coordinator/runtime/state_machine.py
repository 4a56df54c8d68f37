"""What the runtime asks of a state machine: one per partition of an internal topic, and the service that makes them.

    registered    runtime.register(service)           once per topic, when the process starts
    found         service.machines(partitions)        one machine per partition, when the topic exists
    loading       block_replay, replay, replay_marker everything in the partition's log, in its order
    loaded        loaded → effects                    requests are served from now on
    appended      apply(records), then `then`         what an Append said is committed
                  replay(…) each, then `then`         the same in a transaction
                  replay_marker(…)                    a marker that came to the partition is committed
    new image     service.image_changed, then image_changed
    given away    unloaded → effects                  forget everything; it may be loaded again

After Apache Kafka's `CoordinatorShard` and `CoordinatorShardBuilder`. One rule differs: Kafka applies a record when it
is written and rolls back when the append fails; here a machine decides on committed state only, so nothing is rolled
back.

Requests do not come through this interface, because a request may name things of many partitions: `Coordinator` finds
the partition, asks its shard's `gate`, lets the machine's room decide, and carries out the effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from appliance.control.coordinator.runtime.effects import Effects, Record
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker

if TYPE_CHECKING:
    # It takes numpy, which is loaded with the first record that is replayed (decision 0053).
    from appliance.control.coordinator.runtime.record_block import RecordBlock

BlockReplay: TypeAlias = Callable[["RecordBlock"], None]
"""Takes in the records of a block, in order.

Raises:
    CorruptFile, MalformedFrame: a record is not one that this topic may have.
"""
Steps: TypeAlias = Iterator[tuple[int, Effects]]
"""Work in steps: how many elements a step looked at, and what it wants done."""


class StateMachine(Protocol):
    """The state of one partition. It reads no clock, no ring and no file."""

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: Record) -> None:
        """Take in a committed record, while loading, and while serving one that was written in a transaction.

        Producer id and epoch are -1 where the batch has none.

        Raises:
            CorruptFile, MalformedFrame: the record is not one that this topic may have.
        """
        ...

    def replay_marker(
        self, offset: int, producer_id: int, producer_epoch: int, marker: EndTransactionMarker
    ) -> None:
        """Take in the end of the producer's transaction, while loading and while serving."""
        ...

    def block_replay(self) -> BlockReplay | None:
        """A load begins. Return a faster way to take in many records, or None to get each by `replay`.

        A machine that takes blocks gets a transaction whose end is near as if it had none (`runtime.replay`): it must
        follow Kafka's rule that of two records of a key the one that stands later in the log counts.
        """
        ...

    def loaded(self) -> Effects:
        """Everything was replayed."""
        ...

    def unloaded(self) -> Effects:
        """Forget everything; answer who waits, because this process is their coordinator no more."""
        ...

    def apply(self, records: Sequence[Record]) -> None:
        """Take over what an `Append` said: it is committed. Its `then` is called next."""
        ...

    def image_changed(self) -> Effects:
        """There is a new metadata image; asked of loaded machines only."""
        ...


class Service(Protocol):
    """The state machines of one topic, and what they share."""

    @property
    def topic(self) -> str:
        """The internal topic: the one place that names it to the runtime."""
        ...

    @property
    def codec(self) -> Codec:
        """How batches are compressed."""
        ...

    def machines(self, partitions: int) -> Sequence[StateMachine]:
        """The topic has so many partitions: make a machine for each, and forget those made before."""
        ...

    def image_changed(self) -> Effects:
        """There is a new metadata image; the machines are asked next."""
        ...

    def next_deadline_ms(self) -> int | None:
        """Return when `expire` has something to do, in milliseconds of the monotonic clock; None: never."""
        ...

    def expire(self) -> Effects:
        """Do what is due."""
        ...
