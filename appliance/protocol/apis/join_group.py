"""JoinGroup (11), versions 0-9: a member enters its group, or comes to its rebalance, with what it can do.

v1 adds the rebalance timeout (before it the session timeout counts), v4 asks a new member to come again with the id it
was given (KIP-394), v5 adds the group instance id (KIP-345), v7 answers the protocol type (KIP-559), v8 adds a reason,
v9 lets a returning static leader skip the assignment (KIP-814).
"""

from __future__ import annotations

import msgspec

NO_MEMBER = ""
"""The member id of who has none yet."""

UNSET_MS = -1


class JoinGroupProtocol(msgspec.Struct, frozen=True):
    """A way of assigning partitions that the member knows, with what it says about itself under it."""

    name: str
    metadata: bytes


class JoinGroupRequest(msgspec.Struct, frozen=True):
    group_id: str
    session_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    rebalance_timeout_ms: int = UNSET_MS
    group_instance_id: str | None = None
    reason: str | None = None


class JoinGroupMember(msgspec.Struct, frozen=True):
    """What the leader is told about a member: its metadata under the protocol that was chosen."""

    member_id: str
    metadata: bytes
    group_instance_id: str | None = None


class JoinGroupResponse(msgspec.Struct, frozen=True):
    """`members` is for the leader only. `protocol_name` may be None from v7 on."""

    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinGroupMember, ...] = ()
    throttle_time_ms: int = 0
