"""IncrementalAlterConfigs 0-1 (KIP-339): the controller decides; answers when the workers go by the new settings.

Read your writes: what is produced after the answer meets the new settings, on any connection. Only a worker that
does not answer in time makes it REQUEST_TIMED_OUT; the change stays then, and reaches that worker later.

Left out: changes of client metrics, which get INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from appliance.channels.control_channel import (
    AlterConfigs,
    AlteredResource,
    ConfigChange,
    ConfigOutcome,
    ConfigOutcomes,
)
from appliance.protocol.apis.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.create_topics import TIMEOUT_MS_MAX
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps, chunks, in_pieces


def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, _view: LocalView
) -> Steps[IncrementalAlterConfigsResponse]:
    """One question for every ASKED_AT_ONCE resources."""
    resources = yield from in_pieces(_altered, request.resources)
    found = yield from asked_in_parts(resources, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse((yield from in_pieces(_response, found)))


def _altered(resource: AlterConfigsResource) -> AlteredResource:
    changes = tuple(ConfigChange(c.name, c.value, c.config_operation) for c in resource.configs)
    return AlteredResource(resource.resource_type, resource.resource_name, changes)


def _response(outcome: ConfigOutcome) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(outcome.error, outcome.message, outcome.type, outcome.name)


def asked_in_parts(
    resources: Sequence[AlteredResource], *, replace: bool = False, validate_only: bool = False
) -> Steps[list[ConfigOutcome]]:
    """What the controller says of each resource, in their order. A question is for ASKED_AT_ONCE of them, so what it
    cannot find, a resource named twice, is refused here."""
    times = Counter((each.type, each.name) for each in resources)
    found: dict[tuple[int, str], ConfigOutcome] = {}
    for part in chunks([each for each in resources if times[each.type, each.name] == 1]):
        question = AlterConfigs(tuple(part), replace=replace, validate_only=validate_only)
        answer = yield Ask(question, TIMEOUT_MS_MAX)
        if isinstance(answer, ConfigOutcomes):
            found.update({(each.type, each.name): each for each in answer.outcomes})
        yield None
    late, invalid = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_REQUEST
    return [
        found.get((each.type, each.name))
        or (
            ConfigOutcome(each.type, each.name, int(late), late.message)
            if times[each.type, each.name] == 1
            else ConfigOutcome(each.type, each.name, int(invalid), "Each resource must appear at most once.")
        )
        for each in resources
    ]
