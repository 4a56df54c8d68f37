"""SyncGroup (14), versions 0-5: the leader brings the assignment of its generation, every member fetches its own.

v3 adds the group instance id (KIP-345), v5 protocol type and name on both ways (KIP-559).
"""

from __future__ import annotations

import msgspec


class SyncGroupAssignment(msgspec.Struct, frozen=True):
    member_id: str
    assignment: bytes


class SyncGroupRequest(msgspec.Struct, frozen=True):
    group_id: str
    generation_id: int
    member_id: str
    assignments: tuple[SyncGroupAssignment, ...] = ()
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


class SyncGroupResponse(msgspec.Struct, frozen=True):
    error_code: int = 0
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None
    throttle_time_ms: int = 0
