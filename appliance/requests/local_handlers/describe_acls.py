"""DescribeAcls 1-3: the rules of the metadata image that a filter means, by resource."""

from __future__ import annotations

from appliance.access.acl_filter import AclFilter
from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType
from appliance.protocol.apis.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.acls import NO_AUTHORIZER
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps, in_pieces

_PIECE = 200


def describe_acls(request: DescribeAclsRequest, view: LocalView) -> Steps[DescribeAclsResponse]:
    """A filter with a number that nobody knows is INVALID_REQUEST (Kafka closes the connection)."""
    if view.rights is None:
        return DescribeAclsResponse((), int(ErrorCode.SECURITY_DISABLED), NO_AUTHORIZER)
    for enum, number in (
        (ResourceType, request.resource_type_filter),
        (PatternType, request.pattern_type_filter),
        (AclOperation, request.operation),
        (AclPermission, request.permission_type),
    ):
        if number not in [int(each) for each in enum if each]:
            why = f"The filter contains UNKNOWN elements: {enum.__name__} {number}"
            return DescribeAclsResponse((), int(ErrorCode.INVALID_REQUEST), why)
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    found: dict[tuple[int, str, int], list[AclDescription]] = {}
    for number, acl in enumerate(view.image.acls):
        if not number % _PIECE:
            yield None
        if wanted.matches(acl):
            resource = (acl.resource_type, acl.resource_name, acl.pattern_type)
            described = AclDescription(acl.principal, acl.host, acl.operation, acl.permission)
            found.setdefault(resource, []).append(described)
    return DescribeAclsResponse((yield from in_pieces(_resource, found.items())))


def _resource(found: tuple[tuple[int, str, int], list[AclDescription]]) -> DescribeAclsResource:
    (kind, name, pattern), acls = found
    return DescribeAclsResource(kind, name, pattern, tuple(acls))
