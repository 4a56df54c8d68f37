"""DescribeConfigs 1-4: topics, broker slots, groups, loggers and client metrics, with sources and synonyms as Kafka's.

A topic is described as the slot that was asked sees it. Any group and any subscription to client metrics has settings,
whether it exists or not, as with Kafka.

Left out: subscriptions to client metrics, because the
broker does not collect them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from appliance.cluster import topic_name_fault
from appliance.config import ConfigEntry as DeclaredEntry
from appliance.config import describe_all_brokers, describe_broker, describe_group, describe_topic
from appliance.config.loggers import LOGGERS, ROOT, levels
from appliance.errors import RejectedRequest
from appliance.protocol.apis.describe_configs import (
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedResource,
    ResourceType,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps

_NO_SUBSCRIPTION = tuple(
    ConfigEntry(name=name, value=value, config_source=int(ConfigSource.DEFAULT_CONFIG), config_type=int(kind))
    for name, value, kind in (
        ("interval.ms", "300000", ConfigType.INT),
        ("match", "", ConfigType.LIST),
        ("metrics", "", ConfigType.LIST),
    )
)
"""What Apache Kafka 4.3 answers for a subscription that nobody made."""


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
    describe = _DESCRIBERS.get(resource.resource_type)
    try:
        if describe is None:
            raise RejectedRequest(
                ErrorCode.INVALID_REQUEST, f"unexpected resource type {resource.resource_type}"
            )
        entries = describe(resource.resource_name, view)
    except RejectedRequest as refusal:
        return DescribeConfigsResult(
            resource.resource_type,
            resource.resource_name,
            error_code=refusal.code,
            error_message=str(refusal),
        )
    wanted = frozenset(resource.configuration_keys or ())
    return DescribeConfigsResult(
        resource.resource_type,
        resource.resource_name,
        tuple(
            each if isinstance(each, ConfigEntry) else _entry(each, request)
            for each in entries
            if not wanted or each.name in wanted
        ),
    )


Entries = Iterable[DeclaredEntry | ConfigEntry]


def _topic(name: str, view: LocalView) -> Entries:
    fault = topic_name_fault(name)
    if fault is not None:
        raise RejectedRequest(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    topic = view.image.topics.get(name)
    if topic is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise RejectedRequest(unknown, unknown.message)
    return describe_topic(view.settings, topic.configs, view.broker_configs(view.slot))


def _broker(name: str, view: LocalView) -> Entries:
    # A stopped slot has settings too: that it is stopped is one of them.
    if name not in {str(slot) for slot in range(view.settings.slots)} | {""}:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"there is no broker slot {name!r} here")
    if name:
        return describe_broker(view.settings, int(name), view.broker_configs(int(name)))
    return describe_all_brokers(view.image.broker_configs.get("", {}))


def _group(name: str, view: LocalView) -> Entries:
    if not name:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    return describe_group(view.settings, view.image.group_configs.get(name, {}))


def _broker_logger(name: str, view: LocalView) -> Entries:
    fault = _logger_fault(name, view.settings.slots)
    if fault is not None:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, fault)
    found = levels(view.settings.logging.level, view.image.broker_configs.get("", {}))
    return [
        ConfigEntry(
            name=logger,
            value=found.get(logger, found[ROOT]),
            read_only=False,
            config_source=int(ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG),
            documentation="",
        )
        for logger in LOGGERS
    ]


def _client_metrics(name: str, _view: LocalView) -> Entries:
    if not name:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    return _NO_SUBSCRIPTION


_DESCRIBERS: dict[int, Callable[[str, LocalView], Entries]] = {
    ResourceType.TOPIC: _topic,
    ResourceType.BROKER: _broker,
    ResourceType.GROUP: _group,
    ResourceType.BROKER_LOGGER: _broker_logger,
    ResourceType.CLIENT_METRICS: _client_metrics,
}


def _logger_fault(name: str, slots: int) -> str | None:
    """What is wrong with the broker whose loggers are asked about, in Kafka's words."""
    if not name:
        return "Broker id must not be empty"
    if not (name.isascii() and name.isdigit()):
        return f"Broker id must be an integer, but it is: {name[:100]}"
    if len(name) > 9 or int(name) >= slots:
        return f"Unexpected broker id, expected one of 0 to {slots - 1} but received {name[:100]}"
    return None


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
