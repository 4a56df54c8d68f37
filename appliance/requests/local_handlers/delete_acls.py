"""DeleteAcls 1-3: the controller decides; answers when every process goes by the rules that are left."""

from __future__ import annotations

from appliance.access.acl_filter import AclFilter
from appliance.channels.control_channel import AclOutcome, AlterAcls
from appliance.cluster import AclBinding
from appliance.protocol.apis.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.acls import NO_AUTHORIZER, altered
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps, in_pieces

FILTERS_AT_ONCE = 20
"""The controller holds each filter against every rule."""


def delete_acls(request: DeleteAclsRequest, view: LocalView) -> Steps[DeleteAclsResponse]:
    """One question for every FILTERS_AT_ONCE filters."""
    if view.rights is None:
        refused = DeleteAclsFilterResult(int(ErrorCode.SECURITY_DISABLED), NO_AUTHORIZER)
        return DeleteAclsResponse((refused,) * len(request.filters))
    filters = yield from in_pieces(_filter, request.filters)
    results: list[DeleteAclsFilterResult] = []
    for first in range(0, len(filters), FILTERS_AT_ONCE):
        outcomes = yield from altered(AlterAcls(deleted=filters[first : first + FILTERS_AT_ONCE]))
        for outcome in outcomes.deleted:
            results.append((yield from _result(outcome)))
    return DeleteAclsResponse(tuple(results))


def _filter(wanted: DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        wanted.resource_type_filter,
        wanted.resource_name_filter,
        wanted.pattern_type_filter,
        wanted.principal_filter,
        wanted.host_filter,
        wanted.operation,
        wanted.permission_type,
    )


def _result(outcome: AclOutcome) -> Steps[DeleteAclsFilterResult]:
    acls = yield from in_pieces(_matching, outcome.acls)
    return DeleteAclsFilterResult(outcome.error, outcome.message, acls)


def _matching(acl: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )
