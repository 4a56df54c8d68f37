"""DescribeConfigs 1-4: topics, broker slots and groups, with sources and synonyms as Kafka's.

A topic is described as the slot that was asked sees it. Left out on purpose until their issues: broker loggers,
client metrics. Any group has settings, whether it exists or not, as with Kafka; those of share and streams groups are
not there.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.cluster import topic_name_fault
from appliance.config import ConfigEntry as DeclaredEntry
from appliance.config import describe_all_brokers, describe_broker, describe_group, describe_topic
from appliance.netproc.local_handlers.view import LocalView
from appliance.netproc.steps import Steps
from appliance.protocol.apis.describe_configs import (
    ConfigEntry,
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedResource,
    ResourceType,
)
from appliance.protocol.errors import ErrorCode


def describe_configs(request: DescribeConfigsRequest, view: LocalView) -> Steps[DescribeConfigsResponse]:
    """One result for each resource, in the order asked; the same question, over and over, is answered once."""
    seen: set[DescribedResource] = set()
    results: list[DescribeConfigsResult] = []
    for resource in request.resources:
        if resource not in seen:
            seen.add(resource)
            results.append(_result(resource, request, view))
            yield None
    return DescribeConfigsResponse(tuple(results))


def _result(
    resource: DescribedResource, request: DescribeConfigsRequest, view: LocalView
) -> DescribeConfigsResult:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        fault = topic_name_fault(name)
        if fault is not None:
            return _refused(resource, ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        topic = view.image.topics.get(name)
        if topic is None:
            return _refused(resource, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        entries: Iterable[DeclaredEntry] = describe_topic(
            view.settings, topic.configs, view.broker_configs(view.slot)
        )
    elif resource.resource_type == ResourceType.BROKER:
        # A stopped slot has settings too: that it is stopped is one of them.
        if name not in {str(slot) for slot in range(view.settings.slots)} | {""}:
            return _refused(resource, ErrorCode.INVALID_REQUEST, f"there is no broker slot {name!r} here")
        if name:
            entries = describe_broker(view.settings, int(name), view.broker_configs(int(name)))
        else:
            entries = describe_all_brokers(view.image.broker_configs.get("", {}))
    elif resource.resource_type == ResourceType.GROUP:
        if not name:
            return _refused(resource, ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        entries = describe_group(view.settings, view.image.group_configs.get(name, {}))
    else:
        return _refused(
            resource, ErrorCode.INVALID_REQUEST, f"unexpected resource type {resource.resource_type}"
        )
    wanted = frozenset(resource.configuration_keys or ())
    return DescribeConfigsResult(
        resource.resource_type,
        name,
        tuple(_entry(e, request) for e in entries if not wanted or e.name in wanted),
    )


def _entry(entry: DeclaredEntry, request: DescribeConfigsRequest) -> ConfigEntry:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return ConfigEntry(
        name=entry.name,
        value=None if entry.sensitive else entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.sensitive,
        synonyms=tuple(ConfigSynonym(s.name, s.value, int(s.source)) for s in synonyms),
        config_type=int(entry.type),
        documentation=entry.documentation if request.include_documentation else None,
    )


def _refused(
    resource: DescribedResource, error: ErrorCode, message: str | None = None
) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        resource.resource_type,
        resource.resource_name,
        error_code=error,
        error_message=message or error.message,
    )
