"""AlterConfigs 0-2 (KIP-133): what is not named is taken away. Otherwise as IncrementalAlterConfigs.

Where we differ: a resource that is named twice is refused; Apache Kafka 4.3 leaves such a request without an answer.
"""

from __future__ import annotations

from appliance.channels.control_channel import AlteredResource, ConfigChange, ConfigOutcome
from appliance.protocol.apis.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from appliance.requests.local_handlers.incremental_alter_configs import asked_in_parts
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps, in_pieces


def alter_configs(request: AlterConfigsRequest, _view: LocalView) -> Steps[AlterConfigsResponse]:
    """One question for every ASKED_AT_ONCE resources."""
    resources = yield from in_pieces(_altered, request.resources)
    found = yield from asked_in_parts(resources, replace=True, validate_only=request.validate_only)
    return AlterConfigsResponse((yield from in_pieces(_response, found)))


def _altered(resource: AlterConfigsResource) -> AlteredResource:
    changes = tuple(ConfigChange(c.name, c.value) for c in resource.configs)
    return AlteredResource(resource.resource_type, resource.resource_name, changes)


def _response(outcome: ConfigOutcome) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(outcome.error, outcome.message, outcome.type, outcome.name)
