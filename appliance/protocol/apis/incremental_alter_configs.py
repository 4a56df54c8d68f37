"""IncrementalAlterConfigs (44), versions 0-1 (KIP-339)."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class ConfigOperation(IntEnum):
    """What is done to one setting (`AlterConfigOp.java`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterableConfig(msgspec.Struct, frozen=True):
    """`config_operation` is a number of `ConfigOperation`, or one that nobody knows."""

    name: str
    config_operation: int
    value: str | None


class AlterConfigsResource(msgspec.Struct, frozen=True):
    """`resource_type` as in DescribeConfigs; an empty name of a broker means all brokers."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...] = ()


class IncrementalAlterConfigsRequest(msgspec.Struct, frozen=True):
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


class AlterConfigsResourceResponse(msgspec.Struct, frozen=True):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class IncrementalAlterConfigsResponse(msgspec.Struct, frozen=True):
    responses: tuple[AlterConfigsResourceResponse, ...]
    throttle_time_ms: int = 0
