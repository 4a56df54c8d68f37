"""DescribeProducers (61), version 0: which producers a partition knows, and which of them has a transaction open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicRequest:
    name: str
    partition_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeProducersRequest:
    topics: tuple[TopicRequest, ...]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer by its last batch. `last_timestamp` in ms; -1 where it has none, no coordinator, or no transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


@dataclass(frozen=True, slots=True)
class PartitionResponse:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicResponse:
    name: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True)
class DescribeProducersResponse:
    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = 0
