"""ListGroups (16), versions 0-5: the groups that this broker coordinates.

v4 adds a filter by state (KIP-518), v5 one by type, `classic` or `consumer` (KIP-848).
"""

from __future__ import annotations

import msgspec


class ListGroupsRequest(msgspec.Struct, frozen=True):
    """No filter lets everything through."""

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


class ListedGroup(msgspec.Struct, frozen=True):
    group_id: str
    protocol_type: str
    group_state: str = ""
    group_type: str = ""


class ListGroupsResponse(msgspec.Struct, frozen=True):
    error_code: int = 0
    groups: tuple[ListedGroup, ...] = ()
    throttle_time_ms: int = 0
