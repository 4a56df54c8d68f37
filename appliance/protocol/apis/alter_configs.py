"""AlterConfigs (33), versions 0-2. What is not named in the request is taken away (KIP-133)."""

from __future__ import annotations

import msgspec


class AlterableConfig(msgspec.Struct, frozen=True):
    name: str
    value: str | None


class AlterConfigsResource(msgspec.Struct, frozen=True):
    """`resource_type` as in DescribeConfigs; an empty name of a broker means all brokers."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...] = ()


class AlterConfigsRequest(msgspec.Struct, frozen=True):
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


class AlterConfigsResourceResponse(msgspec.Struct, frozen=True):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class AlterConfigsResponse(msgspec.Struct, frozen=True):
    responses: tuple[AlterConfigsResourceResponse, ...]
    throttle_time_ms: int = 0
