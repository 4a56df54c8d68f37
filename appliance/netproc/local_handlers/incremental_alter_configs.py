"""IncrementalAlterConfigs 0-1 (KIP-339): the controller decides; answers when the workers go by the new settings.

Read your writes: what is produced after the answer meets the new settings, on any connection. Only a worker that
does not answer in time makes it REQUEST_TIMED_OUT; the change stays then, and reaches that worker later.

Left out: the levels of broker loggers, and client metrics (INVALID_REQUEST).
"""

from __future__ import annotations

from appliance.channels.control_channel import (
    AlterConfigs,
    AlteredResource,
    Body,
    ConfigChange,
    ConfigOutcome,
    ConfigOutcomes,
)
from appliance.netproc.local_handlers.create_topics import TIMEOUT_MS_MAX
from appliance.netproc.local_handlers.view import AskController, LocalView
from appliance.protocol.apis.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from appliance.protocol.errors import ErrorCode


def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, _view: LocalView
) -> IncrementalAlterConfigsResponse | AskController:
    """One question for the whole request."""
    if not request.resources:
        return IncrementalAlterConfigsResponse(())
    resources = tuple(
        AlteredResource(
            each.resource_type,
            each.resource_name,
            tuple(ConfigChange(c.name, c.value, c.config_operation) for c in each.configs),
        )
        for each in request.resources
    )

    def then(answers: tuple[Body | None, ...]) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(
            tuple(
                AlterConfigsResourceResponse(each.error, each.message, each.type, each.name)
                for each in outcomes_of(answers[0], resources)
            )
        )

    question = AlterConfigs(resources, validate_only=request.validate_only)
    return AskController((question,), then, TIMEOUT_MS_MAX)


def outcomes_of(answer: Body | None, resources: tuple[AlteredResource, ...]) -> tuple[ConfigOutcome, ...]:
    """The controller's answer, or what is said of every resource where none came in time."""
    if isinstance(answer, ConfigOutcomes):
        return answer.outcomes
    late = ErrorCode.REQUEST_TIMED_OUT
    return tuple(ConfigOutcome(each.type, each.name, int(late), late.message) for each in resources)
