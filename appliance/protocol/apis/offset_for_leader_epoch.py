"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ended (KIP-320).

A consumer sees by it whether records that it has read were taken back by an unclean election.

v3 adds the replica that asks (-1 is a consumer); the others differ in their encoding only.
"""

from __future__ import annotations

import msgspec

CONSUMER = -1
DEBUGGING = -2


class OffsetForLeaderPartition(msgspec.Struct, frozen=True):
    """`current_leader_epoch` is the one the requester believes in, -1 where it does not say."""

    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


class OffsetForLeaderTopic(msgspec.Struct, frozen=True):
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


class OffsetForLeaderEpochRequest(msgspec.Struct, frozen=True):
    topics: tuple[OffsetForLeaderTopic, ...]
    replica_id: int = DEBUGGING


class EpochEndOffset(msgspec.Struct, frozen=True):
    """The epoch asked for, or the one before it that the leader knows, and where that ended; -1 both where none is."""

    partition: int
    error_code: int = 0
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderTopicResult(msgspec.Struct, frozen=True):
    topic: str
    partitions: tuple[EpochEndOffset, ...]


class OffsetForLeaderEpochResponse(msgspec.Struct, frozen=True):
    topics: tuple[OffsetForLeaderTopicResult, ...]
    throttle_time_ms: int = 0
