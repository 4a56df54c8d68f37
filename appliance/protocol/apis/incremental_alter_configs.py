"""IncrementalAlterConfigs (44), versions 0-1 (KIP-339)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ConfigOperation(IntEnum):
    """What is done to one setting (`AlterConfigOp.java`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class AlterableConfig:
    """`config_operation` is a number of `ConfigOperation`, or one that nobody knows."""

    name: str
    config_operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class AlterConfigsResource:
    """`resource_type` as in DescribeConfigs; an empty name of a broker means all brokers."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigsResourceResponse:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsResponse:
    responses: tuple[AlterConfigsResourceResponse, ...]
    throttle_time_ms: int = 0
