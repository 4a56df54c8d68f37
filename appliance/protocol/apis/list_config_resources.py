"""ListConfigResources (74), versions 0-1. v0, still called ListClientMetricsResources, knows client metrics only;
v1 names the types that are wanted, none for all of them (KIP-1142)."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.protocol.apis.describe_configs import ResourceType


@dataclass(frozen=True, slots=True)
class ListConfigResourcesRequest:
    """`resource_types` is None in v0, which cannot say."""

    resource_types: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConfigResource:
    resource_name: str
    resource_type: int = ResourceType.CLIENT_METRICS


@dataclass(frozen=True, slots=True)
class ListConfigResourcesResponse:
    config_resources: tuple[ConfigResource, ...] = ()
    error_code: int = 0
    throttle_time_ms: int = 0
