"""How each API of a coordinator says one error: the whole response, in the shape of its version.

Where a response has an error of its own the request is not needed for it; where errors stand beside what was asked
(NEEDS_REQUEST), whoever may have to answer with one keeps the request until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnResponse
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from appliance.protocol.apis.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from appliance.protocol.apis.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from appliance.protocol.apis.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from appliance.protocol.apis.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from appliance.protocol.apis.end_txn import EndTxnResponse
from appliance.protocol.apis.heartbeat import HeartbeatResponse
from appliance.protocol.apis.init_producer_id import InitProducerIdResponse
from appliance.protocol.apis.join_group import JoinGroupResponse
from appliance.protocol.apis.leave_group import LeaveGroupResponse
from appliance.protocol.apis.list_groups import ListGroupsResponse
from appliance.protocol.apis.list_transactions import ListTransactionsResponse
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopicResponse,
)
from appliance.protocol.apis.offset_delete import OffsetDeleteResponse
from appliance.protocol.apis.offset_fetch import (
    OffsetFetchGroupResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    OffsetFetchTopicResponse,
)
from appliance.protocol.apis.sync_group import SyncGroupResponse
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartitionResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitTopicResponse,
)
from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from appliance.protocol.errors import ErrorCode

OFFSET_FETCH_GROUPS_SINCE: Final = 8
OFFSET_FETCH_ERROR_SINCE: Final = 2
_JOIN_GROUP_NULL_NAME_SINCE: Final = 7
_AWAY: Final = frozenset(
    {
        int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        int(ErrorCode.NOT_COORDINATOR),
    }
)
_TXN_OFFSET_COMMIT_LOADING_SINCE: Final = 2


def coordinator_error_response(api_key: int, version: int, request: Any, error: int) -> Any:
    """The response that says nothing but `error`. `request` is needed for the APIs of NEEDS_REQUEST only."""
    return _RESPONSES[api_key](request, version, error)


def refused_commit(request: OffsetCommitRequest, _version: int, error: int) -> OffsetCommitResponse:
    """Every partition has the error."""
    return OffsetCommitResponse(
        tuple(
            OffsetCommitTopicResponse(
                topic.name,
                topic.topic_id,
                tuple(OffsetCommitPartitionResponse(p.partition_index, error) for p in topic.partitions),
            )
            for topic in request.topics
        )
    )


def refused_transactional_commit(
    request: TxnOffsetCommitRequest, version: int, error: int
) -> TxnOffsetCommitResponse:
    """Every partition has the error."""
    error = told_to_committer(error, version)
    return TxnOffsetCommitResponse(
        tuple(
            TxnOffsetCommitTopicResponse(
                topic.name,
                tuple(TxnOffsetCommitPartitionResponse(p.partition_index, error) for p in topic.partitions),
            )
            for topic in request.topics
        )
    )


def told_to_committer(error: int, version: int) -> int:
    """What TxnOffsetCommit says where others say `error`.

    Producers before v2 crash when they hear that a coordinator loads (KAFKA-7296).
    """
    if version < _TXN_OFFSET_COMMIT_LOADING_SINCE and error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return error


def told_to_producer(error: int, *, knows_fenced: bool, knows_abortable: bool = True) -> int:
    """What a transactional producer hears where a coordinator has said `error`.

    Args:
        knows_fenced: the version of its request has PRODUCER_FENCED.
        knows_abortable: the version of its request has TRANSACTION_ABORTABLE.
    """
    if error == ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    if error == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return int(ErrorCode.INVALID_TXN_STATE)
    return int(error)


def refused_fetch(request: OffsetFetchRequest, version: int, error: int) -> OffsetFetchResponse:
    """Every group has the error; before v2, which has no place for that, every partition."""
    error = told_to_reader(error)
    if version >= OFFSET_FETCH_GROUPS_SINCE:
        return OffsetFetchResponse(
            groups=tuple(OffsetFetchGroupResponse(g.group_id, error_code=error) for g in request.groups)
        )
    if version >= OFFSET_FETCH_ERROR_SINCE:
        return OffsetFetchResponse(error_code=error)
    return OffsetFetchResponse(refused_topics(request.topics or (), error))


def told_to_reader(error: int) -> int:
    """What OffsetFetch says where others say `error`.

    A coordinator that is away for a moment is told as one that loads. Every client waits and asks again then; told that
    there is none, librdkafka's `committed` raises. With Apache Kafka the connection goes with the coordinator, so there
    nobody is told so.
    """
    if error == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return error


def refused_topics(topics: tuple[OffsetFetchTopic, ...], error: int) -> tuple[OffsetFetchTopicResponse, ...]:
    """Every partition of an OffsetFetch has the error."""
    return tuple(
        OffsetFetchTopicResponse(
            topic.name,
            topic.topic_id,
            tuple(OffsetFetchPartitionResponse(index, error_code=error) for index in topic.partition_indexes),
        )
        for topic in topics
    )


def _join(_request: Any, version: int, error: int) -> JoinGroupResponse:
    name = None if version >= _JOIN_GROUP_NULL_NAME_SINCE else ""
    return JoinGroupResponse(error_code=error, protocol_name=name)


def _describe(request: DescribeGroupsRequest, _version: int, error: int) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(tuple(DescribedGroup(group, error) for group in request.groups))


def _delete(request: DeleteGroupsRequest, _version: int, error: int) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(tuple(DeletableGroupResult(group, error) for group in request.groups_names))


def _describe_consumer(
    request: ConsumerGroupDescribeRequest, _version: int, error: int
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        tuple(DescribedConsumerGroup(group_id=group, error_code=error) for group in request.group_ids)
    )


def refused_addition(
    request: AddPartitionsToTxnRequest, _version: int, error: int
) -> AddPartitionsToTxnResponse:
    """Every partition has the error; the field for the whole request is for errors of all transactions at once."""
    return AddPartitionsToTxnResponse(
        results_by_transaction=tuple(
            AddPartitionsToTxnResult(each.transactional_id, _refused_topics_of(each.topics, error))
            for each in request.transactions
        ),
        results_by_topic=_refused_topics_of(request.topics, error),
    )


def _refused_topics_of(
    topics: tuple[AddPartitionsToTxnTopic, ...], error: int
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        AddPartitionsToTxnTopicResult(
            topic.name,
            tuple(AddPartitionsToTxnPartitionResult(number, error) for number in topic.partitions),
        )
        for topic in topics
    )


def _describe_transactions(
    request: DescribeTransactionsRequest, _version: int, error: int
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        tuple(DescribedTransaction(name, error) for name in request.transactional_ids)
    )


def _refused_markers(request: WriteTxnMarkersRequest, _version: int, error: int) -> WriteTxnMarkersResponse:
    """Every partition has the error, as one whose leader is away: who writes markers knows no other (`KafkaApis`)."""
    if error in _AWAY:
        error = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return WriteTxnMarkersResponse(
        tuple(
            WritableTxnMarkerResult(
                marker.producer_id,
                tuple(
                    WritableTxnMarkerTopicResult(
                        topic.name,
                        tuple(
                            WritableTxnMarkerPartitionResult(number, error)
                            for number in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


_RESPONSES: Final[Mapping[int, Callable[[Any, int, int], Any]]] = {
    ApiKey.OFFSET_COMMIT: refused_commit,
    ApiKey.OFFSET_FETCH: refused_fetch,
    ApiKey.TXN_OFFSET_COMMIT: refused_transactional_commit,
    ApiKey.OFFSET_DELETE: lambda _, __, error: OffsetDeleteResponse(error_code=error),
    ApiKey.JOIN_GROUP: _join,
    ApiKey.SYNC_GROUP: lambda _, __, error: SyncGroupResponse(error_code=error),
    ApiKey.HEARTBEAT: lambda _, __, error: HeartbeatResponse(error_code=error),
    ApiKey.LEAVE_GROUP: lambda _, __, error: LeaveGroupResponse(error_code=error),
    ApiKey.LIST_GROUPS: lambda _, __, error: ListGroupsResponse(error_code=error),
    ApiKey.DESCRIBE_GROUPS: _describe,
    ApiKey.DELETE_GROUPS: _delete,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda _, __, error: ConsumerGroupHeartbeatResponse(error_code=error),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_consumer,
    ApiKey.INIT_PRODUCER_ID: lambda _, __, error: InitProducerIdResponse(error_code=error),
    ApiKey.ADD_PARTITIONS_TO_TXN: refused_addition,
    ApiKey.ADD_OFFSETS_TO_TXN: lambda _, __, error: AddOffsetsToTxnResponse(error_code=error),
    ApiKey.END_TXN: lambda _, __, error: EndTxnResponse(error_code=error),
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.WRITE_TXN_MARKERS: _refused_markers,
    ApiKey.LIST_TRANSACTIONS: lambda _, __, error: ListTransactionsResponse(error_code=error),
}

NEEDS_REQUEST: Final = frozenset(
    int(api)
    for api in (
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.WRITE_TXN_MARKERS,
    )
)
"""Those whose errors stand beside what was asked. None of them waits for other clients."""
