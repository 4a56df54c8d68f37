"""DescribeAcls (29), versions 1-3: the rules that a filter means. The numbers are those of `protocol.acl`.

The versions differ in their encoding, and in v3 the resource type USER (KIP-373).
"""

from __future__ import annotations

import msgspec

from appliance.protocol.acl import PatternType


class DescribeAclsRequest(msgspec.Struct, frozen=True):
    """None, or the number for ANY, leaves that part of the filter open."""

    resource_type_filter: int
    resource_name_filter: str | None
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int
    pattern_type_filter: int = int(PatternType.LITERAL)


class AclDescription(msgspec.Struct, frozen=True):
    principal: str
    host: str
    operation: int
    permission_type: int


class DescribeAclsResource(msgspec.Struct, frozen=True):
    resource_type: int
    resource_name: str
    pattern_type: int
    acls: tuple[AclDescription, ...]


class DescribeAclsResponse(msgspec.Struct, frozen=True):
    resources: tuple[DescribeAclsResource, ...] = ()
    error_code: int = 0
    error_message: str | None = None
    throttle_time_ms: int = 0
