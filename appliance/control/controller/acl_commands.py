"""What becomes of a request to change rules: Kafka's checks, Kafka's error codes, nothing done yet.

| refused with | when |
|---|---|
| INVALID_REQUEST | a type, pattern, operation or permission that is none, or one of a filter; an empty name |
| INVALID_REQUEST | a principal without a colon; an empty host; a cluster of another name than `kafka-cluster` |
| INVALID_REQUEST | a filter with a number that nobody knows |
| POLICY_VIOLATION | more than `ACLS_MAX` rules: every process holds them all |

Pure. Source: Kafka's `AclControlManager.java` and `AclApis.scala`, release 4.3.
"""

from __future__ import annotations

from typing import Final

from appliance.access.acl_filter import AclFilter
from appliance.cluster import AclBinding
from appliance.errors import RejectedRequest
from appliance.protocol.acl import (
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from appliance.protocol.errors import ErrorCode

ACLS_MAX: Final = 100_000
"""Some 200 bytes each, in every network process and coordinator."""

_TYPES: Final = frozenset(int(each) for each in ResourceType if each > ResourceType.ANY)
_PATTERNS: Final = frozenset(map(int, (PatternType.LITERAL, PatternType.PREFIXED)))
_OPERATIONS: Final = frozenset(int(each) for each in AclOperation if each > AclOperation.ANY)
_PERMISSIONS: Final = frozenset(map(int, (AclPermission.DENY, AclPermission.ALLOW)))


def check_new(acl: AclBinding, *, count: int) -> None:
    """`count`: how many rules there are.

    Raises:
        RejectedRequest: as the table above says.
    """
    if acl.resource_type not in _TYPES:
        raise _invalid(f"Invalid resourceType {_named(ResourceType, acl.resource_type)}")
    if acl.pattern_type not in _PATTERNS:
        raise _invalid(f"Invalid patternType {_named(PatternType, acl.pattern_type)}")
    if acl.operation not in _OPERATIONS:
        raise _invalid(f"Invalid operation {_named(AclOperation, acl.operation)}")
    if acl.permission not in _PERMISSIONS:
        raise _invalid(f"Invalid permissionType {_named(AclPermission, acl.permission)}")
    if not acl.resource_name:
        raise _invalid("Resource name should not be empty")
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if ":" not in acl.principal:
        raise _invalid(
            f"Could not parse principal from `{acl.principal[:200]}` (no colon is present separating the"
            " principal type from the principal name)"
        )
    if not acl.host:
        raise _invalid("The host should not be empty")
    if count >= ACLS_MAX:
        raise RejectedRequest(ErrorCode.POLICY_VIOLATION, f"There are {ACLS_MAX} ACLs already.")


def check_filter(wanted: AclFilter) -> None:
    """Raises RejectedRequest for a number that nobody knows."""
    for enum, number in (
        (ResourceType, wanted.resource_type),
        (PatternType, wanted.pattern_type),
        (AclOperation, wanted.operation),
        (AclPermission, wanted.permission),
    ):
        if number not in [int(each) for each in enum if each]:
            raise _invalid(f"The filter contains UNKNOWN elements: {enum.__name__} {number}")


def _named(enum: type[ResourceType | PatternType | AclOperation | AclPermission], number: int) -> str:
    return enum(number).name if number in [int(each) for each in enum] else "UNKNOWN"


def _invalid(message: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.INVALID_REQUEST, message)
