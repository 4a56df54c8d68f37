"""DescribeConfigs (32), versions 1-4. v1 adds synonyms and sources, v3 type and documentation."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class ResourceType(IntEnum):
    """What a configuration belongs to (`ConfigResource.java`)."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from (`DescribeConfigsResponse.java`)."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigType(IntEnum):
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class DescribedResource(msgspec.Struct, frozen=True):
    """`configuration_keys` is None or empty for all."""

    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None


class DescribeConfigsRequest(msgspec.Struct, frozen=True):
    resources: tuple[DescribedResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


class ConfigSynonym(msgspec.Struct, frozen=True):
    name: str
    value: str | None
    source: int


class ConfigEntry(msgspec.Struct, frozen=True):
    """`value` is None for what is not set and for what is sensitive."""

    name: str
    value: str | None
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    config_type: int = ConfigType.UNKNOWN
    documentation: str | None = None


class DescribeConfigsResult(msgspec.Struct, frozen=True):
    resource_type: int
    resource_name: str
    configs: tuple[ConfigEntry, ...] = ()
    error_code: int = 0
    error_message: str | None = None


class DescribeConfigsResponse(msgspec.Struct, frozen=True):
    results: tuple[DescribeConfigsResult, ...]
    throttle_time_ms: int = 0
