"""AlterConfigs 0-2 (KIP-133): what is not named is taken away. Otherwise as IncrementalAlterConfigs.

Where we differ: a resource that is named twice is refused; Apache Kafka 4.3 leaves such a request without an answer.
"""

from __future__ import annotations

from appliance.channels.control_channel import AlterConfigs, AlteredResource, Body, ConfigChange
from appliance.netproc.local_handlers.create_topics import TIMEOUT_MS_MAX
from appliance.netproc.local_handlers.incremental_alter_configs import outcomes_of
from appliance.netproc.local_handlers.view import AskController, LocalView
from appliance.protocol.apis.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def alter_configs(request: AlterConfigsRequest, _view: LocalView) -> AlterConfigsResponse | AskController:
    """One question for the whole request."""
    if not request.resources:
        return AlterConfigsResponse(())
    resources = tuple(
        AlteredResource(
            each.resource_type,
            each.resource_name,
            tuple(ConfigChange(c.name, c.value) for c in each.configs),
        )
        for each in request.resources
    )

    def then(answers: tuple[Body | None, ...]) -> AlterConfigsResponse:
        return AlterConfigsResponse(
            tuple(
                AlterConfigsResourceResponse(each.error, each.message, each.type, each.name)
                for each in outcomes_of(answers[0], resources)
            )
        )

    question = AlterConfigs(resources, replace=True, validate_only=request.validate_only)
    return AskController((question,), then, TIMEOUT_MS_MAX)
