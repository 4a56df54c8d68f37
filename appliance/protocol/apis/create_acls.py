"""CreateAcls (30), versions 1-3: rules of who may do what. The numbers are those of `protocol.acl`.

The versions differ in their encoding, and in v3 the resource type USER (KIP-373).
"""

from __future__ import annotations

import msgspec

from appliance.protocol.acl import PatternType


class AclCreation(msgspec.Struct, frozen=True):
    resource_type: int
    resource_name: str
    principal: str
    host: str
    operation: int
    permission_type: int
    resource_pattern_type: int = int(PatternType.LITERAL)


class CreateAclsRequest(msgspec.Struct, frozen=True):
    creations: tuple[AclCreation, ...]


class AclCreationResult(msgspec.Struct, frozen=True):
    error_code: int = 0
    error_message: str | None = None


class CreateAclsResponse(msgspec.Struct, frozen=True):
    """`results` in the order of the request."""

    results: tuple[AclCreationResult, ...]
    throttle_time_ms: int = 0
