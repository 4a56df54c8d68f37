"""LeaveGroup (13), versions 0-5: members leave, or are made to.

Up to v2 one member names itself and the response has one error; from v3 on many leave at once, each with its own
error, and a static member may be named by its instance id alone (KIP-345). v5 adds a reason (KIP-800).
"""

from __future__ import annotations

import msgspec


class MemberIdentity(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveGroupRequest(msgspec.Struct, frozen=True):
    """`member_id` up to v2, `members` from v3 on."""

    group_id: str
    member_id: str = ""
    members: tuple[MemberIdentity, ...] = ()


class MemberResponse(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None = None
    error_code: int = 0


class LeaveGroupResponse(msgspec.Struct, frozen=True):
    error_code: int = 0
    members: tuple[MemberResponse, ...] = ()
    throttle_time_ms: int = 0
