"""AlterConfigs (33), versions 0-2. What is not named in the request is taken away (KIP-133)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AlterableConfig:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class AlterConfigsResource:
    """`resource_type` as in DescribeConfigs; an empty name of a broker means all brokers."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigsResourceResponse:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True)
class AlterConfigsResponse:
    responses: tuple[AlterConfigsResourceResponse, ...]
    throttle_time_ms: int = 0
