"""DescribeGroups (15), versions 0-6: state and members of classic groups.

v3 adds authorized operations, v4 the group instance id; v6 says GROUP_ID_NOT_FOUND, with a sentence, where older
versions call the group Dead (KIP-1043).
"""

from __future__ import annotations

import msgspec

NO_AUTHORIZED_OPERATIONS = -(2**31)
"""Nobody asked for them, or they are not known."""


class DescribeGroupsRequest(msgspec.Struct, frozen=True):
    groups: tuple[str, ...]
    include_authorized_operations: bool = False


class DescribedGroupMember(msgspec.Struct, frozen=True):
    """Metadata and assignment as the client's own protocol writes them; empty unless the group is stable."""

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None = None
    member_metadata: bytes = b""
    member_assignment: bytes = b""


class DescribedGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: int = 0
    error_message: str | None = None
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: int = NO_AUTHORIZED_OPERATIONS


class DescribeGroupsResponse(msgspec.Struct, frozen=True):
    groups: tuple[DescribedGroup, ...]
    throttle_time_ms: int = 0
