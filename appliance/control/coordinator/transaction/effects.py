"""What a transaction wants done: values that its caller carries out, in the order in which they stand.

Answer(reply, response)                      as of every state machine (`runtime/effects.py`)
Append(partition, records, then)             the same, whose `then` may ask for markers
WriteMarkers(partition, marker, …, then)     the marker goes to each of the partitions
After(delay_ms, then)                        later, `then` is called and returns further effects
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from appliance.cluster import TopicPartition
from appliance.control.coordinator.runtime.effects import Answer, Record


class Marker(msgspec.Struct, frozen=True):
    """What a partition is told of a decided transaction.

    `transaction_version` 2 demands that `producer_epoch` is above that of the data (KIP-890, KIP-1228).
    """

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


class Append(msgspec.Struct, frozen=True):
    """Records for one partition of `__transaction_state`, as one batch.

    `then` takes 0 when they are committed, else the error code of the failure as the produce path names it. It is
    called exactly once, and not from within the call that returned this effect. `reserved_bytes` as of
    `runtime.effects.Append`.
    """

    partition: int
    records: tuple[Record, ...]
    then: Callable[[int], TransactionEffects]
    reserved_bytes: int = 0


class WriteMarkers(msgspec.Struct, frozen=True):
    """A marker for each of the partitions.

    The caller repeats it until every partition has it, or the partition's topic is gone, and calls `then` once. It
    drops the effect when the coordinator loses the partition of `__transaction_state`, because the next coordinator
    sends all markers again. It also drops it when a partition answers that the producer or the coordinator is fenced:
    the transaction then stays in its Prepare state, as in Kafka.
    """

    log_partition: int
    marker: Marker
    partitions: frozenset[TopicPartition]
    then: Callable[[], TransactionEffects]


class After(msgspec.Struct, frozen=True):
    """`then` is called when `delay_ms` have gone by."""

    delay_ms: int
    then: Callable[[], TransactionEffects]


TransactionEffects: TypeAlias = list[Answer | Append | WriteMarkers | After]
