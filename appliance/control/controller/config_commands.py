"""What becomes of a request to alter settings: Kafka's checks, Kafka's error codes, nothing done yet.

Pure: from one resource of a request and what is set to *all that will be set on it*, or a refusal
(`RejectedRequest`). A resource is altered whole or not at all; the others of its request are not its concern.

| refused with | when |
|---|---|
| INVALID_REQUEST | a resource or a setting named twice; null for a value; an unknown operation or type |
| INVALID_REQUEST | `slot.stopped` of all brokers, or of the last one that is not stopped |
| INVALID_REQUEST | of one of several brokers, a setting of a process that they share |
| INVALID_REQUEST | the empty topic name; no such broker; a broker cannot change it while it runs, or to that |
| INVALID_CONFIG | a logger that is not there, or a level that is none |
| INVALID_CONFIG | a topic takes no such setting or value; adding to, or taking from, what is no list |
| INVALID_TOPIC_EXCEPTION | an illegal name |
| POLICY_VIOLATION | of a topic of delayed delivery, a setting that decides whether records stay |
| UNKNOWN_TOPIC_OR_PARTITION | no such topic; said after what is wrong with the values, as Kafka does |
| INVALID_REQUEST | the empty group id |
| INVALID_CONFIG | a group takes no such setting or value |
| INVALID_REQUEST | the empty name of a subscription to client metrics; no such setting; its interval is out of range |
| INVALID_CONFIG | a subscription takes no such value |
| POLICY_VIOLATION | more than 1,000 subscriptions |
| POLICY_VIOLATION | settings for more than 10,000 groups: every process holds them all |

Source: Kafka's `ConfigAdminManager.scala`, `ConfigurationControlManager.java` and
`ControllerConfigurationValidator.scala`, release 4.3. Where we differ: an unknown operation on a topic is
INVALID_REQUEST (Kafka: UNKNOWN_SERVER_ERROR), and any slot takes the settings of any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from appliance.channels.control_channel import AlteredResource, ConfigChange
from appliance.cluster import DELAYED_PREFIX, TopicImage, topic_name_fault
from appliance.config import (
    GroupSettings,
    WrongRange,
    topic_config_declarations,
    validate_broker_configs,
    validate_client_metrics,
    validate_group_configs,
    validate_topic_configs,
)
from appliance.config.declaration import ConfigType, Declaration, text_of
from appliance.config.dynamic import DYNAMIC_BROKER_CONFIGS, PER_SLOT, SHARED_BY_SLOTS, SLOT_STOPPED
from appliance.config.loggers import LOGGERS, ROOT, place_of_levels, setting_of
from appliance.config.sections.logging import LEVELS
from appliance.errors import ConfigurationError, RejectedRequest
from appliance.protocol.apis.describe_configs import ResourceType
from appliance.protocol.apis.incremental_alter_configs import ConfigOperation
from appliance.protocol.errors import ErrorCode

_OPERATIONS: Final = frozenset(map(int, ConfigOperation))
_TOPIC_CONFIGS: Final = {each.name: each for each in topic_config_declarations()}
_OF_DELAYED: Final = frozenset(
    {
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "min.insync.replicas",
        "preallocate",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)
"""Settings of the topics of delayed delivery that can change. Any other one could lose records that wait."""
SUBSCRIPTIONS_MAX: Final = 1_000
"""Subscriptions to metrics of clients: each is matched with every client."""
GROUPS_MAX: Final = 10_000
"""Groups that may have settings of their own: the image holds them."""


class Altering(msgspec.Struct, frozen=True):
    """What the checks look at.

    Args:
        topics: topics that exist, by name.
        broker_configs: node id, or "" for all brokers → what is set there.
        group_configs: group id → what is set there.
        node_ids: of the slots.
        topic_defaults: what the brokers make of the topic settings.
        groups: what groups may be given.
        can_delay: topics may have delayed delivery.
        client_metrics: name of a subscription → what is set there.
    """

    topics: Mapping[str, TopicImage]
    broker_configs: Mapping[str, Mapping[str, str]]
    group_configs: Mapping[str, Mapping[str, str]]
    node_ids: Collection[int]
    topic_defaults: Mapping[str, str]
    groups: GroupSettings
    can_delay: bool = True
    client_metrics: Mapping[str, Mapping[str, str]] = {}


def named_twice(resources: Sequence[AlteredResource]) -> set[tuple[int, str]]:
    """(type, name) of resources that stand in a request more than once."""
    counts = Counter((each.type, each.name) for each in resources)
    return {key for key, count in counts.items() if count > 1}


def plan_alteration(resource: AlteredResource, altering: Altering, *, replace: bool) -> dict[str, str]:
    """All that will be set on the resource. `replace`: what is not named is taken away.

    Raises:
        RejectedRequest: as the table above says.
    """
    _check_changes(resource.changes)
    if resource.type == ResourceType.TOPIC:
        return _topic(resource, altering, replace)
    if resource.type == ResourceType.BROKER:
        return _broker(resource, altering, replace)
    if resource.type == ResourceType.GROUP:
        return _group(resource, altering, replace)
    if resource.type == ResourceType.BROKER_LOGGER:
        if replace:
            raise RejectedRequest(
                ErrorCode.INVALID_REQUEST, "Levels of loggers are changed with IncrementalAlterConfigs only."
            )
        return _loggers(resource, altering)
    if resource.type == ResourceType.CLIENT_METRICS:
        return _client_metrics(resource, altering, replace)
    raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.type}")


def _check_changes(changes: Sequence[ConfigChange]) -> None:
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    without = [c.name for c in changes if c.value is None and c.operation != ConfigOperation.DELETE]
    if without:
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(without)[:200]}"
        )
    for change in changes:
        if change.operation not in _OPERATIONS:
            raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}")


def _topic(resource: AlteredResource, altering: Altering, replace: bool) -> dict[str, str]:
    name = resource.name
    topic = altering.topics.get(name)
    configs = _changed(
        {} if replace or topic is None else topic.configs, resource.changes, declarations=_TOPIC_CONFIGS
    )
    if not name:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    fault = topic_name_fault(name)
    if fault is not None:
        raise RejectedRequest(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{fault}.")
    try:
        validate_topic_configs(configs, altering.topic_defaults, can_delay=altering.can_delay)
    except ConfigurationError as refusal:
        raise RejectedRequest(ErrorCode.INVALID_CONFIG, str(refusal)) from refusal
    if topic is None:
        raise RejectedRequest(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if name.startswith(DELAYED_PREFIX):
        _check_delayed(topic, configs)
    return configs


def _check_delayed(topic: TopicImage, configs: Mapping[str, str]) -> None:
    before = topic.configs
    changed = {
        each for each in before.keys() | configs.keys() if before.get(each) != configs.get(each)
    } - _OF_DELAYED
    if changed:
        raise RejectedRequest(
            ErrorCode.POLICY_VIOLATION,
            f"{', '.join(sorted(changed))}: cannot change for the internal topic '{topic.name}', because "
            "delayed records could be lost.",
        )


def _broker(resource: AlteredResource, altering: Altering, replace: bool) -> dict[str, str]:
    name = resource.name
    if name and not (name.isascii() and name.isdigit()):
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name[:100]}"
        )
    known = {str(node_id) for node_id in altering.node_ids}
    if name and name not in known:
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected one of {', '.join(sorted(known, key=int))}, but received {name[:100]}",
        )
    before: Mapping[str, str] = {} if replace else altering.broker_configs.get(name, {})
    configs = _changed(before, resource.changes, declarations=DYNAMIC_BROKER_CONFIGS)
    try:
        validate_broker_configs(configs)
    except ConfigurationError as refusal:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, str(refusal)) from refusal
    _check_stop(name, configs, altering)
    if name and len(known) > 1 and (shared := sorted(SHARED_BY_SLOTS & configs.keys())):
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST,
            f"{', '.join(shared)}: this setting is shared by all brokers; set it on all of them (--all-brokers).",
        )
    return configs


def _group(resource: AlteredResource, altering: Altering, replace: bool) -> dict[str, str]:
    name = resource.name
    if not name:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    before: Mapping[str, str] = {} if replace else altering.group_configs.get(name, {})
    configs = _changed(before, resource.changes, declarations={})
    try:
        validate_group_configs(configs, altering.groups)
    except ConfigurationError as refusal:
        raise RejectedRequest(ErrorCode.INVALID_CONFIG, str(refusal)) from refusal
    if configs and name not in altering.group_configs and len(altering.group_configs) >= GROUPS_MAX:
        raise RejectedRequest(
            ErrorCode.POLICY_VIOLATION, f"{GROUPS_MAX} groups have settings of their own already."
        )
    return configs


def _client_metrics(resource: AlteredResource, altering: Altering, replace: bool) -> dict[str, str]:
    name, stored = resource.name, altering.client_metrics
    if not name:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    before: Mapping[str, str] = {} if replace else stored.get(name, {})
    configs = _changed(before, resource.changes, declarations={})
    try:
        validate_client_metrics(configs)
    except WrongRange as refusal:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, str(refusal)) from refusal
    except ConfigurationError as refusal:
        raise RejectedRequest(ErrorCode.INVALID_CONFIG, str(refusal)) from refusal
    if configs and name not in stored and len(stored) >= SUBSCRIPTIONS_MAX:
        raise RejectedRequest(
            ErrorCode.POLICY_VIOLATION,
            f"There are {SUBSCRIPTIONS_MAX} subscriptions to client metrics already.",
        )
    return configs


def _loggers(resource: AlteredResource, altering: Altering) -> dict[str, str]:
    """Return what will be set at `place_of_levels`: a level of a logger is a setting of brokers (`config.loggers`)."""
    name = resource.name
    if not (name.isascii() and name.isdigit()):
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name[:100]}"
        )
    if int(name[:10]) not in altering.node_ids:
        known = ", ".join(map(str, sorted(altering.node_ids)))
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected one of {known}, but received {name[:100]}",
        )
    configs = dict(altering.broker_configs.get(place_of_levels(len(altering.node_ids)), {}))
    for change in resource.changes:
        if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            operation = ConfigOperation(change.operation).name
            raise RejectedRequest(
                ErrorCode.INVALID_REQUEST,
                f"{operation} operation is not allowed for the BROKER_LOGGER resource",
            )
        if change.name not in LOGGERS:
            raise RejectedRequest(ErrorCode.INVALID_CONFIG, f"Logger {change.name[:100]} does not exist!")
        if change.operation == ConfigOperation.DELETE:
            if change.name == ROOT:
                raise RejectedRequest(
                    ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"
                )
            configs.pop(setting_of(change.name), None)
            continue
        assert change.value is not None, "refused by _check_changes"
        if change.value not in LEVELS:
            raise RejectedRequest(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {change.name} to {change.value[:100]} as it is not a supported log level."
                f" Valid log levels are {', '.join(LEVELS)}",
            )
        configs[setting_of(change.name)] = change.value
    return configs


def _check_stop(name: str, configs: Mapping[str, str], altering: Altering) -> None:
    if not name and (of_one := sorted(PER_SLOT.keys() & configs.keys())):
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST,
            f"{', '.join(of_one)}: can be set on a single broker only, not on all of them.",
        )
    if configs.get(SLOT_STOPPED) != "true":
        return
    others = [str(each) for each in altering.node_ids if str(each) != name]
    if all(altering.broker_configs.get(each, {}).get(SLOT_STOPPED) == "true" for each in others):
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "The last broker cannot be stopped.")


def _changed(
    before: Mapping[str, str], changes: Sequence[ConfigChange], *, declarations: Mapping[str, Declaration]
) -> dict[str, str]:
    """`before` with the changes made, not yet validated."""
    configs = dict(before)
    for change in changes:
        name, value = change.name, change.value
        if change.operation == ConfigOperation.DELETE:
            configs.pop(name, None)
            continue
        assert value is not None, "refused by _check_changes"
        if change.operation != ConfigOperation.SET:
            value = _list_changed(configs.get(name), change, value, declared=declarations.get(name))
        configs[name] = value
    return configs


def _list_changed(
    before: str | None, change: ConfigChange, value: str, *, declared: Declaration | None
) -> str:
    """A list with `value`'s members appended where they are missing, or taken out once each."""
    if declared is None or declared.type is not ConfigType.LIST:
        operation = ConfigOperation(change.operation).name
        raise RejectedRequest(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation} to key {change.name[:100]} because its type is not LIST.",
        )
    text = (text_of(declared.default) or "") if before is None else before
    members = [member for member in text.split(",") if member]
    for member in value.split(","):
        if change.operation == ConfigOperation.SUBTRACT:
            if member in members:
                members.remove(member)
        elif member not in members:
            members.append(member)
    return ",".join(members)
