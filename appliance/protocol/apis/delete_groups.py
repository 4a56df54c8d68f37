"""DeleteGroups (42), versions 0-2: groups without members go, with all their committed offsets.

The versions differ in their encoding only.
"""

from __future__ import annotations

import msgspec


class DeleteGroupsRequest(msgspec.Struct, frozen=True):
    groups_names: tuple[str, ...]


class DeletableGroupResult(msgspec.Struct, frozen=True):
    group_id: str
    error_code: int = 0


class DeleteGroupsResponse(msgspec.Struct, frozen=True):
    results: tuple[DeletableGroupResult, ...]
    throttle_time_ms: int = 0
