"""Guards of requests about topics and records: each topic by itself.

Source: `KafkaApis.scala` and `ControllerApis.scala`, release 4.3.

Produce, Fetch, Metadata and DescribeTopicPartitions look in their own handlers: the first two are on the hot path, and
the other two also list what was not asked for by name.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.apis.alter_configs import AlterConfigsResourceResponse as AlterConfigsResult
from appliance.protocol.apis.create_partitions import CreatePartitionsRequest, PartitionsTopicResult
from appliance.protocol.apis.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from appliance.protocol.apis.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopicResult,
)
from appliance.protocol.apis.delete_topics import DeletableTopicResult, DeleteTopicsRequest
from appliance.protocol.apis.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResult,
)
from appliance.protocol.apis.describe_configs import ResourceType as ConfigResourceType
from appliance.protocol.apis.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    TopicResponse,
)
from appliance.protocol.apis.incremental_alter_configs import AlterConfigsResourceResponse
from appliance.protocol.apis.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopicResponse,
)
from appliance.protocol.apis.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderTopicResult,
)
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.requests.guards.verdict import Caller, Narrowed, Verdict
from appliance.requests.steps import Steps

_TOPIC: Final = ResourceType.TOPIC
_DENIED: Final = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_MESSAGE: Final = "Authorization failed."
_CONFIG_RESOURCES: Final = {
    int(ConfigResourceType.TOPIC): (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    int(ConfigResourceType.GROUP): (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
}


def _added(field: str, more: tuple[Any, ...], response: Any) -> Any:
    """The response with more elements in one of its arrays."""
    return replace(response, **{field: getattr(response, field) + more})


def list_offsets(request: ListOffsetsRequest, caller: Caller) -> Steps[Verdict]:
    """DESCRIBE on each topic."""
    allowed, denied = yield from caller.split(
        request.topics, lambda topic: caller.may(AclOperation.DESCRIBE, _TOPIC, topic.name)
    )
    if not denied:
        return None
    told = tuple(
        ListOffsetsTopicResponse(
            topic.name,
            tuple(ListOffsetsPartitionResponse(each.partition_index, _DENIED) for each in topic.partitions),
        )
        for topic in denied
    )
    return Narrowed(replace(request, topics=allowed), partial(_added, "topics", told))


def offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, caller: Caller) -> Steps[Verdict]:
    """CLUSTER_ACTION on the cluster, or DESCRIBE on each topic."""
    if caller.might_of_cluster(AclOperation.CLUSTER_ACTION):
        return None
    allowed, denied = yield from caller.split(
        request.topics, lambda topic: caller.may(AclOperation.DESCRIBE, _TOPIC, topic.topic)
    )
    if not denied:
        return None
    told = tuple(
        OffsetForLeaderTopicResult(
            topic.topic, tuple(EpochEndOffset(each.partition, _DENIED) for each in topic.partitions)
        )
        for topic in denied
    )
    return Narrowed(replace(request, topics=allowed), partial(_added, "topics", told))


def delete_records(request: DeleteRecordsRequest, caller: Caller) -> Steps[Verdict]:
    """DELETE on each topic."""
    allowed, denied = yield from caller.split(
        request.topics, lambda topic: caller.may(AclOperation.DELETE, _TOPIC, topic.name)
    )
    if not denied:
        return None
    told = tuple(
        DeleteRecordsTopicResult(
            topic.name,
            tuple(
                DeleteRecordsPartitionResult(each.partition_index, error_code=_DENIED)
                for each in topic.partitions
            ),
        )
        for topic in denied
    )
    return Narrowed(replace(request, topics=allowed), partial(_added, "topics", told))


def describe_producers(request: DescribeProducersRequest, caller: Caller) -> Steps[Verdict]:
    """READ on each topic."""
    allowed, denied = yield from caller.split(
        request.topics, lambda topic: caller.may(AclOperation.READ, _TOPIC, topic.name)
    )
    if not denied:
        return None
    told = tuple(
        TopicResponse(
            topic.name, tuple(PartitionResponse(number, _DENIED) for number in topic.partition_indexes)
        )
        for topic in denied
    )
    return Narrowed(replace(request, topics=allowed), partial(_added, "topics", told))


def create_topics(request: CreateTopicsRequest, caller: Caller) -> Steps[Verdict]:
    """CREATE on the cluster, or on each topic. Who may not see the settings of a topic is not told them."""
    of_all = caller.might_of_cluster(AclOperation.CREATE)
    allowed, denied = yield from caller.split(
        request.topics, lambda topic: of_all or caller.may(AclOperation.CREATE, _TOPIC, topic.name)
    )
    told = tuple(
        CreatableTopicResult(topic.name, error_code=_DENIED, error_message=_MESSAGE) for topic in denied
    )

    def amend(response: CreateTopicsResponse) -> CreateTopicsResponse:
        return replace(response, topics=tuple(map(without_configs, response.topics)) + told)

    def without_configs(topic: CreatableTopicResult) -> CreatableTopicResult:
        if topic.error_code or caller.may(AclOperation.DESCRIBE_CONFIGS, _TOPIC, topic.name):
            return topic
        return replace(
            topic,
            configs=None,
            num_partitions=-1,
            replication_factor=-1,
            topic_config_error_code=_DENIED,
        )

    return Narrowed(replace(request, topics=allowed), amend)


def delete_topics(request: DeleteTopicsRequest, caller: Caller) -> Steps[Verdict]:
    """DELETE on the cluster or on each topic. Who names one by its id, and may not see it, does not learn its name."""
    if caller.might_of_cluster(AclOperation.DELETE):
        return None
    told: list[DeletableTopicResult] = []

    def is_allowed(topic: TopicSelector) -> bool:
        name = topic.name if topic.topic_id is None else caller.named(topic)
        if name is None:
            return True
        sees = caller.might(AclOperation.DESCRIBE, _TOPIC, name)
        if sees and not caller.exists(name):
            return True
        if caller.may(AclOperation.DELETE, _TOPIC, name):
            return True
        seen = topic.topic_id is None or sees
        told.append(DeletableTopicResult(name if seen else None, topic.topic_id, _DENIED, _MESSAGE))
        return False

    allowed, denied = yield from caller.split(request.topics, is_allowed)
    if not denied:
        return None
    return Narrowed(replace(request, topics=allowed), partial(_added, "responses", tuple(told)))


def create_partitions(request: CreatePartitionsRequest, caller: Caller) -> Steps[Verdict]:
    """ALTER on each topic."""
    allowed, denied = yield from caller.split(
        request.topics, lambda topic: caller.may(AclOperation.ALTER, _TOPIC, topic.name)
    )
    if not denied:
        return None
    told = tuple(PartitionsTopicResult(topic.name, _DENIED) for topic in denied)
    return Narrowed(replace(request, topics=allowed), partial(_added, "results", told))


def _of_configs(caller: Caller, operation: AclOperation, kind: int, name: str) -> int:
    """0, or the error of who may not do that to the settings of a resource."""
    resource = _CONFIG_RESOURCES.get(kind)
    if resource is None:
        allowed = caller.may_of_cluster(operation)
        return 0 if allowed else int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return 0 if caller.may(operation, resource[0], name) else int(resource[1])


def describe_configs(request: DescribeConfigsRequest, caller: Caller) -> Steps[Verdict]:
    """DESCRIBE_CONFIGS on each topic and group; on the cluster for everything else."""
    told: list[DescribeConfigsResult] = []

    def is_allowed(resource: Any) -> bool:
        kind, name = resource.resource_type, resource.resource_name
        error = _of_configs(caller, AclOperation.DESCRIBE_CONFIGS, kind, name)
        if error:
            told.append(
                DescribeConfigsResult(kind, name, error_code=error, error_message=ErrorCode(error).message)
            )
        return not error

    allowed, denied = yield from caller.split(request.resources, is_allowed)
    if not denied:
        return None
    return Narrowed(replace(request, resources=allowed), partial(_added, "results", tuple(told)))


def _altering(result: type[Any], request: Any, caller: Caller) -> Steps[Verdict]:
    told: list[Any] = []

    def is_allowed(resource: Any) -> bool:
        kind, name = resource.resource_type, resource.resource_name
        error = _of_configs(caller, AclOperation.ALTER_CONFIGS, kind, name)
        if error:
            told.append(result(error, ErrorCode(error).message, kind, name))
        return not error

    allowed, denied = yield from caller.split(request.resources, is_allowed)
    if not denied:
        return None
    return Narrowed(replace(request, resources=allowed), partial(_added, "responses", tuple(told)))


incremental_alter_configs = partial(_altering, AlterConfigsResourceResponse)
alter_configs = partial(_altering, AlterConfigsResult)
