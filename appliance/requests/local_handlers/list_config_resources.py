"""ListConfigResources 0-1 (KIP-1142): everything that DescribeConfigs could be asked about.

Groups are those on which something was set, and so are subscriptions to client metrics, which are all that v0 asks for.
"""

from __future__ import annotations

from appliance.protocol.apis.describe_configs import ResourceType
from appliance.protocol.apis.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView

_KNOWN = frozenset(ResourceType) - {ResourceType.UNKNOWN}


def list_config_resources(
    request: ListConfigResourcesRequest, view: LocalView
) -> ListConfigResourcesResponse:
    """Topics, broker slots, their loggers, groups; a type that nobody knows is UNSUPPORTED_VERSION, as with Kafka."""
    subscriptions = [ConfigResource(name, ResourceType.CLIENT_METRICS) for name in view.image.client_metrics]
    if request.resource_types is None:
        return ListConfigResourcesResponse(tuple(subscriptions))
    wanted = frozenset(request.resource_types) or _KNOWN
    if not wanted <= _KNOWN:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found: list[ConfigResource] = []
    if ResourceType.TOPIC in wanted:
        found += [ConfigResource(name, ResourceType.TOPIC) for name in view.image.topics]
    if ResourceType.BROKER in wanted:
        found += [ConfigResource(str(slot.node_id), ResourceType.BROKER) for slot in view.brokers()]
    if ResourceType.BROKER_LOGGER in wanted:
        found += [ConfigResource(str(slot.node_id), ResourceType.BROKER_LOGGER) for slot in view.brokers()]
    if ResourceType.GROUP in wanted:
        found += [ConfigResource(group_id, ResourceType.GROUP) for group_id in view.image.group_configs]
    if ResourceType.CLIENT_METRICS in wanted:
        found += subscriptions
    return ListConfigResourcesResponse(tuple(found))
