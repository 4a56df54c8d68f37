"""What becomes of a request to change rules: Kafka's checks, Kafka's error codes, nothing done yet.

| refused with | when |
|---|---|
| INVALID_REQUEST | a type, pattern, operation or permission that is none, or one of a filter; an empty name |
| INVALID_REQUEST | a principal without a colon; an empty host; a cluster of another name than `kafka-cluster` |
| INVALID_REQUEST | a filter with a number that nobody knows |
| POLICY_VIOLATION | more than `ACLS_MAX` rules, or more than `ACLS_BYTES_MAX`: every network process holds them all |
| POLICY_VIOLATION | a text of more than `TEXT_BYTES_MAX`; more rules for one resource than fit into its node |

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
ACLS_BYTES_MAX: Final = 64 << 20
"""The texts of all rules together, in UTF-8."""
TEXT_BYTES_MAX: Final = 4_096
"""The name of a resource or a principal, in UTF-8. Names of topics have 249 characters at most."""
HOST_BYTES_MAX: Final = 255
RESOURCE_BYTES_MAX: Final = 500_000
"""The rules of one resource, as they are written. A node of the store holds twice as much, and ZooKeeper takes no more
in one change."""

_TYPES: Final = frozenset(int(each) for each in ResourceType if each > ResourceType.ANY)
_PATTERNS: Final = frozenset(map(int, (PatternType.LITERAL, PatternType.PREFIXED)))
_OPERATIONS: Final = frozenset(int(each) for each in AclOperation if each > AclOperation.ANY)
_PERMISSIONS: Final = frozenset(map(int, (AclPermission.DENY, AclPermission.ALLOW)))


def text_bytes(acl: AclBinding) -> int:
    """Return how long the texts of a rule are, in UTF-8."""
    return len(acl.resource_name.encode()) + len(acl.principal.encode()) + len(acl.host.encode())


def check_new(acl: AclBinding, *, count: int, all_bytes: int, resource_bytes: int) -> None:
    """Check one rule of a request.

    Args:
        count: how many rules there are.
        all_bytes: `text_bytes` of all of them.
        resource_bytes: the rules of this resource as they would be written, with this one.

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
    _check_size(acl, count=count, all_bytes=all_bytes, resource_bytes=resource_bytes)


def _check_size(acl: AclBinding, *, count: int, all_bytes: int, resource_bytes: int) -> None:
    for what, text, bytes_max in (
        ("resource name", acl.resource_name, TEXT_BYTES_MAX),
        ("principal", acl.principal, TEXT_BYTES_MAX),
        ("host", acl.host, HOST_BYTES_MAX),
    ):
        if len(text.encode()) > bytes_max:
            raise _too_much(f"The {what} has more than {bytes_max} bytes.")
    if count >= ACLS_MAX:
        raise _too_much(f"There are {ACLS_MAX} ACLs already.")
    if all_bytes + text_bytes(acl) > ACLS_BYTES_MAX:
        raise _too_much(f"The ACLs would have more than {ACLS_BYTES_MAX} bytes together.")
    if resource_bytes > RESOURCE_BYTES_MAX:
        raise _too_much("There are too many ACLs for this resource. Use a prefix, or fewer principals.")


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


def _too_much(message: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.POLICY_VIOLATION, message)


def _invalid(message: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.INVALID_REQUEST, message)
