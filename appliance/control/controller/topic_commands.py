"""What becomes of a request to create, grow or delete topics: Kafka's checks, Kafka's error codes, nothing
done yet.

Pure: from a request and what exists to *plans* (to be carried out) and refusals (`RejectedRequest`, to be
answered). Checks run in Kafka's order, so that a request with two mistakes gets the answer it gets from
Kafka.

| refused with | when |
|---|---|
| INVALID_REQUEST | a topic named twice in one request; an assignment by hand beside a count |
| INVALID_TOPIC_EXCEPTION | an illegal name; a name that collides (`a.b`, `a_b`: alike in metric names) |
| INVALID_TOPIC_EXCEPTION | deleting an internal topic; creating one of delayed delivery as a client |
| TOPIC_ALREADY_EXISTS | it exists, or is being deleted |
| INVALID_PARTITIONS | a count of 0 or less; not more partitions than there are |
| INVALID_REPLICATION_FACTOR | 0 or less; more than there are slots |
| INVALID_REPLICA_ASSIGNMENT | see `placement.check_assignment`; partition numbers that are not 0, 1, 2 … |
| INVALID_CONFIG | see `appliance.config.validate_topic_configs` |
| POLICY_VIOLATION | more partitions than one request, or the appliance, may have |
| UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID | nothing to grow or delete |
| TOPIC_DELETION_DISABLED | `delete.topic.enable` is off |

Kafka 4.3 deletes internal topics when it is asked to: all committed offsets are lost. Here that is refused, with the
code by which Kafka refuses to delete records of an internal topic.

Source: Kafka's `ReplicationControlManager.java` and `Topic.java`, release 4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from appliance.channels.control_channel import CreatePartitions, NewTopic
from appliance.cluster import DELAYED_PREFIX, OBSERVING_TOPICS, TopicImage, is_internal, topic_name_fault
from appliance.config import BrokerSettings, validate_topic_configs
from appliance.control.controller.placement import (
    InvalidAssignment,
    check_assignment,
    place,
    start_for,
    start_of,
)
from appliance.errors import ConfigurationError, RejectedRequest
from appliance.protocol.errors import ErrorCode

BROKER_DEFAULT = -1


class Existing(msgspec.Struct, frozen=True):
    """What the checks look at.

    Args:
        topics: topics that exist, by name.
        deleting: names of topics whose deletion is under way.
        slots: node ids, ascending.
        partitions_left: how many more partitions the appliance may have.
        names_by_metric: name with `.` for `_` → names that exist.
    """

    topics: Mapping[str, TopicImage]
    deleting: Mapping[str, object]
    slots: Sequence[int]
    partitions_left: int
    names_by_metric: Mapping[str, set[str]]


class TopicPlan(msgspec.Struct, frozen=True):
    """A topic to create, or (`first` > 0) to grow: replicas of partitions `first`, `first` + 1, …"""

    name: str
    topic_id: UUID
    first: int
    replicas: tuple[tuple[int, ...], ...]
    configs: Mapping[str, str]

    @property
    def partition_count(self) -> int:
        return self.first + len(self.replicas)

    @property
    def replication_factor(self) -> int:
        return len(self.replicas[0])


def metric_name(topic: str) -> str:
    """Two topics with the same metric name collide. Source: Kafka's `Topic.unifyCollisionChars`."""
    return topic.replace(".", "_")


def duplicates(names: Sequence[str]) -> set[str]:
    """Names that stand in a request more than once."""
    return {name for name, times in Counter(names).items() if times > 1}


def plan_topic(
    wanted: NewTopic,
    existing: Existing,
    *,
    topic_id: UUID,
    broker: BrokerSettings,
    request_left: int,
    topic_defaults: Mapping[str, str] | None = None,
    can_delay: bool = True,
    by_services: bool = False,
) -> TopicPlan:
    """How `wanted` would be created. `request_left`: partitions that the request may still ask for;
    `topic_defaults`: what the brokers make of the topic settings; `can_delay`: topics may have delayed delivery;
    `by_services`: a services process asks.

    Raises:
        RejectedRequest: as the table above says.
    """
    _check_name(wanted.name, existing)
    if wanted.name.startswith(DELAYED_PREFIX) and not by_services:
        raise RejectedRequest(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{wanted.name}' is internal; the services process creates the topics of delayed records.",
        )
    if wanted.name in OBSERVING_TOPICS and not by_services:
        raise RejectedRequest(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{wanted.name}' is internal; the services process creates the topics of audit and trace.",
        )
    by_hand = bool(wanted.assignments)
    replicas = _by_hand(wanted, existing) if by_hand else _by_count(wanted, existing, topic_id, broker)
    try:
        validate_topic_configs(wanted.configs, topic_defaults, can_delay=can_delay)
    except ConfigurationError as fault:
        raise RejectedRequest(ErrorCode.INVALID_CONFIG, str(fault)) from fault
    configs = {name: text for name, text in wanted.configs.items() if text is not None}
    _check_limits(len(replicas), existing, request_left)
    return TopicPlan(wanted.name, topic_id, 0, tuple(replicas), configs)


def plan_growth(wanted: CreatePartitions, existing: Existing, *, request_left: int) -> TopicPlan:
    """Which partitions `wanted` would add.

    Raises:
        RejectedRequest: as the table above says.
    """
    topic = existing.topics.get(wanted.name)
    if topic is None:
        raise RejectedRequest(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic.")
    if topic.name.startswith(DELAYED_PREFIX):
        raise RejectedRequest(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{topic.name}' is internal; with another number of partitions, delayed records would be lost.",
        )
    if topic.name in OBSERVING_TOPICS:
        raise RejectedRequest(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' is internal; it has one partition."
        )
    there = len(topic.partitions)
    if wanted.count < there:
        raise RejectedRequest(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {wanted.name} currently has {there} partition(s); {wanted.count} would not be an increase.",
        )
    if wanted.count == there:
        raise RejectedRequest(ErrorCode.INVALID_PARTITIONS, f"Topic already has {there} partition(s).")
    added = wanted.count - there
    factor = len(topic.partitions[0].replicas)
    # Before placing: a count of two thousand million must not be laid out to be refused.
    _check_limits(added, existing, request_left)
    if wanted.assignments is None:
        if factor > len(existing.slots):
            raise RejectedRequest(
                ErrorCode.INVALID_REPLICATION_FACTOR, _too_few_brokers(factor, len(existing.slots))
            )
        start = start_of(topic.partitions[0].replicas, existing.slots)
        replicas = place(range(there, wanted.count), factor, slots=existing.slots, start=start)
    else:
        replicas = [tuple(each) for each in wanted.assignments]
        if len(replicas) != added:
            raise RejectedRequest(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only {len(replicas)} assignment(s) "
                "were specified.",
            )
        _check_by_hand([topic.partitions[0].replicas, *replicas], replicas, existing.slots)
    return TopicPlan(wanted.name, topic.topic_id, there, tuple(replicas), topic.configs)


def find_doomed(
    name_or_id: str | UUID, existing: Existing, names: Mapping[UUID, str], *, broker: BrokerSettings
) -> TopicImage:
    """The topic to delete. `names` has those of the ids that exist.

    Raises:
        RejectedRequest: as the table above says.
    """
    if not broker.delete_topic_enable:
        raise RejectedRequest(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    topic = _found(name_or_id, existing, names)
    if is_internal(topic.name):
        raise RejectedRequest(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{topic.name}' is internal; deleting it would lose what all clients have stored there.",
        )
    return topic


def _found(name_or_id: str | UUID, existing: Existing, names: Mapping[UUID, str]) -> TopicImage:
    if isinstance(name_or_id, str):
        topic = existing.topics.get(name_or_id)
        if topic is None:
            raise RejectedRequest(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic."
            )
        return topic
    topic = existing.topics.get(names.get(name_or_id, ""))
    if topic is not None and topic.topic_id == name_or_id:
        return topic
    raise RejectedRequest(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")


def _check_name(name: str, existing: Existing) -> None:
    fault = topic_name_fault(name)
    if fault is not None:
        raise RejectedRequest(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{fault}.")
    if name in existing.topics:
        raise RejectedRequest(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if name in existing.deleting:
        raise RejectedRequest(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
    alike = existing.names_by_metric.get(metric_name(name), set()) - {name}
    if alike:
        raise RejectedRequest(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {min(alike)}",
        )


def _by_count(
    wanted: NewTopic, existing: Existing, topic_id: UUID, broker: BrokerSettings
) -> list[tuple[int, ...]]:
    count, factor = wanted.partitions, wanted.replication_factor
    if count == BROKER_DEFAULT:
        count = broker.num_partitions
    if factor == BROKER_DEFAULT:
        factor = broker.default_replication_factor
    if count < 1:
        raise RejectedRequest(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    if factor < 1:
        raise RejectedRequest(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor was set to an invalid non-positive value.",
        )
    slots = existing.slots
    if factor > len(slots):
        raise RejectedRequest(ErrorCode.INVALID_REPLICATION_FACTOR, _too_few_brokers(factor, len(slots)))
    # Before placing: a count of two thousand million must not be laid out to be refused.
    _check_limits(count, existing, count)
    return place(range(count), factor, slots=slots, start=start_for(topic_id, len(slots)))


def _by_hand(wanted: NewTopic, existing: Existing) -> list[tuple[int, ...]]:
    if wanted.replication_factor != BROKER_DEFAULT:
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if wanted.partitions != BROKER_DEFAULT:
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    numbers = sorted(wanted.assignments)
    if numbers != list(range(len(numbers))):
        raise RejectedRequest(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Partitions should be a consecutive 0-based integer sequence.",
        )
    replicas = [tuple(wanted.assignments[number]) for number in numbers]
    _check_by_hand(replicas, replicas, existing.slots)
    return replicas


def _check_by_hand(
    alike: Sequence[Sequence[int]], given: Sequence[Sequence[int]], slots: Sequence[int]
) -> None:
    """`alike` must agree in length; `given` must name slots that there are."""
    try:
        check_assignment(given, slots)
    except InvalidAssignment as fault:
        raise RejectedRequest(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(fault)) from fault
    if len({len(replicas) for replicas in alike}) != 1:
        raise RejectedRequest(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment has {len(given[0])} replica(s) a partition, "
            f"but the topic has {len(alike[0])}.",
        )


def _check_limits(count: int, existing: Existing, request_left: int) -> None:
    if count > request_left:
        raise RejectedRequest(
            ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
        )
    if count > existing.partitions_left:
        raise RejectedRequest(
            ErrorCode.POLICY_VIOLATION,
            f"{count} more partition(s) would exceed max.partitions; {existing.partitions_left} are left.",
        )


def _too_few_brokers(factor: int, count: int) -> str:
    return (
        f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot "
        f"be reached because only {count} broker(s) are registered."
    )
