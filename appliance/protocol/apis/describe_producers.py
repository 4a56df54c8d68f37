"""DescribeProducers (61), version 0: which producers a partition knows, and which of them has a transaction open."""

from __future__ import annotations

import msgspec


class TopicRequest(msgspec.Struct, frozen=True):
    name: str
    partition_indexes: tuple[int, ...] = ()


class DescribeProducersRequest(msgspec.Struct, frozen=True):
    topics: tuple[TopicRequest, ...]


class ProducerState(msgspec.Struct, frozen=True):
    """A producer by its last batch. `last_timestamp` in ms; -1 where it has none, no coordinator, or no transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class PartitionResponse(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: int = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


class TopicResponse(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[PartitionResponse, ...]


class DescribeProducersResponse(msgspec.Struct, frozen=True):
    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = 0
