"""DeleteAcls (31), versions 1-3: takes away the rules that filters mean. The numbers are those of `protocol.acl`.

The versions differ in their encoding, and in v3 the resource type USER (KIP-373).
"""

from __future__ import annotations

import msgspec

from appliance.protocol.acl import PatternType


class DeleteAclsFilter(msgspec.Struct, frozen=True):
    """None, or the number for ANY, leaves that part of the filter open."""

    resource_type_filter: int
    resource_name_filter: str | None
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int
    pattern_type_filter: int = int(PatternType.LITERAL)


class DeleteAclsRequest(msgspec.Struct, frozen=True):
    filters: tuple[DeleteAclsFilter, ...]


class DeleteAclsMatchingAcl(msgspec.Struct, frozen=True):
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int
    error_code: int = 0
    error_message: str | None = None


class DeleteAclsFilterResult(msgspec.Struct, frozen=True):
    error_code: int = 0
    error_message: str | None = None
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = ()


class DeleteAclsResponse(msgspec.Struct, frozen=True):
    """`filter_results` in the order of the request."""

    filter_results: tuple[DeleteAclsFilterResult, ...]
    throttle_time_ms: int = 0
