"""OffsetFetch (9), versions 1-10: how far a group has come.

v2 may ask for every topic, v5 adds leader epochs, v7 waits for transactions that are open (KIP-447), v8 asks for many
groups at once (KIP-709), v9 knows members of the new consumer protocol (KIP-848), v10 names topics by their ids.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from appliance.protocol.primitives import NO_UUID

NO_OFFSET = -1


class OffsetFetchTopic(msgspec.Struct, frozen=True):
    """By `name` up to v9, by `topic_id` from v10 on."""

    name: str = ""
    topic_id: UUID = NO_UUID
    partition_indexes: tuple[int, ...] = ()


class OffsetFetchGroup(msgspec.Struct, frozen=True):
    """`topics` None asks for all; a member is named where the group has the new consumer protocol."""

    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None = None
    member_id: str | None = None
    member_epoch: int = -1


class OffsetFetchRequest(msgspec.Struct, frozen=True):
    """One group in `group_id` and `topics` up to v7, `groups` from v8 on."""

    group_id: str = ""
    topics: tuple[OffsetFetchTopic, ...] | None = None
    groups: tuple[OffsetFetchGroup, ...] = ()
    require_stable: bool = False
    with_commit_times: bool = False


class OffsetFetchPartitionResponse(msgspec.Struct, frozen=True):
    """An offset of -1 says that none is committed. `commit_time_ms` counts from 1970; -1: not asked for, or none."""

    partition_index: int
    committed_offset: int = NO_OFFSET
    metadata: str | None = ""
    error_code: int = 0
    committed_leader_epoch: int = -1
    commit_time_ms: int = -1


class OffsetFetchTopicResponse(msgspec.Struct, frozen=True):
    name: str = ""
    topic_id: UUID = NO_UUID
    partitions: tuple[OffsetFetchPartitionResponse, ...] = ()


class OffsetFetchGroupResponse(msgspec.Struct, frozen=True):
    group_id: str
    topics: tuple[OffsetFetchTopicResponse, ...] = ()
    error_code: int = 0


class OffsetFetchResponse(msgspec.Struct, frozen=True):
    """One group in `topics` and `error_code` (from v2 on) up to v7, `groups` from v8 on."""

    topics: tuple[OffsetFetchTopicResponse, ...] = ()
    error_code: int = 0
    groups: tuple[OffsetFetchGroupResponse, ...] = ()
    throttle_time_ms: int = 0
