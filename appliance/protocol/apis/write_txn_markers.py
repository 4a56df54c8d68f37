"""WriteTxnMarkers (27), versions 1-2: end a producer's transaction in the partitions that are named.

v2 adds `transaction_version`, which says by which rules the producer's epoch is checked (KIP-890).
"""

from __future__ import annotations

import msgspec


class WritableTxnMarkerTopic(msgspec.Struct, frozen=True):
    name: str
    partition_indexes: tuple[int, ...] = ()


class WritableTxnMarker(msgspec.Struct, frozen=True):
    """`transaction_result`: true commits, false aborts."""

    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: int
    transaction_version: int = 0


class WriteTxnMarkersRequest(msgspec.Struct, frozen=True):
    markers: tuple[WritableTxnMarker, ...]


class WritableTxnMarkerPartitionResult(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: int = 0


class WritableTxnMarkerTopicResult(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


class WritableTxnMarkerResult(msgspec.Struct, frozen=True):
    producer_id: int
    topics: tuple[WritableTxnMarkerTopicResult, ...]


class WriteTxnMarkersResponse(msgspec.Struct, frozen=True):
    markers: tuple[WritableTxnMarkerResult, ...]
