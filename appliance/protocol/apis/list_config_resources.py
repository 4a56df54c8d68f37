"""ListConfigResources (74), versions 0-1. v0, still called ListClientMetricsResources, knows client metrics only;
v1 names the types that are wanted, none for all of them (KIP-1142)."""

from __future__ import annotations

import msgspec

from appliance.protocol.apis.describe_configs import ResourceType


class ListConfigResourcesRequest(msgspec.Struct, frozen=True):
    """`resource_types` is None in v0, which cannot say."""

    resource_types: tuple[int, ...] | None = None


class ConfigResource(msgspec.Struct, frozen=True):
    resource_name: str
    resource_type: int = ResourceType.CLIENT_METRICS


class ListConfigResourcesResponse(msgspec.Struct, frozen=True):
    config_resources: tuple[ConfigResource, ...] = ()
    error_code: int = 0
    throttle_time_ms: int = 0
