"""CreateAcls 1-3: the controller decides; answers when every process goes by the new rules.

A rule that exists already is no error, as in Kafka.
"""

from __future__ import annotations

from appliance.channels.control_channel import AlterAcls
from appliance.cluster import AclBinding
from appliance.protocol.apis.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.acls import NO_AUTHORIZER, altered
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps, chunks, in_pieces


def create_acls(request: CreateAclsRequest, view: LocalView) -> Steps[CreateAclsResponse]:
    """One question for every ASKED_AT_ONCE rules."""
    if view.rights is None:
        refused = AclCreationResult(int(ErrorCode.SECURITY_DISABLED), NO_AUTHORIZER)
        return CreateAclsResponse((refused,) * len(request.creations))
    acls = yield from in_pieces(_binding, request.creations)
    results: list[AclCreationResult] = []
    for part in chunks(acls):
        outcomes = yield from altered(AlterAcls(created=tuple(part)))
        results += [AclCreationResult(each.error, each.message) for each in outcomes.created]
    return CreateAclsResponse(tuple(results))


def _binding(creation: AclCreation) -> AclBinding:
    return AclBinding(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )
