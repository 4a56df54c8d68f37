"""Guards of transactional requests. Source: `KafkaApis.scala`, release 4.3."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from appliance.protocol.apis.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from appliance.protocol.apis.list_transactions import ListTransactionsResponse
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartitionResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitTopicResponse,
)
from appliance.protocol.coordinator_errors import coordinator_error_response
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_requests import MANY_TRANSACTIONS_SINCE
from appliance.requests.guards.verdict import Caller, Narrowed, Refused, Verdict
from appliance.requests.steps import Steps

_ID: Final = ResourceType.TRANSACTIONAL_ID
_TOPIC: Final = ResourceType.TOPIC
_DENIED: Final = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
_TOPIC_DENIED: Final = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_GROUP_DENIED: Final = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
_CLUSTER_DENIED: Final = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
_UNKNOWN_PARTITION: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_NOT_ATTEMPTED: Final = int(ErrorCode.OPERATION_NOT_ATTEMPTED)


def init_producer_id(request: InitProducerIdRequest, caller: Caller) -> Steps[Verdict]:
    """WRITE on the transactional id; without one IDEMPOTENT_WRITE on the cluster, or WRITE on any topic."""
    yield None
    name = request.transactional_id
    if name is not None:
        allowed, error = caller.may(AclOperation.WRITE, _ID, name), _DENIED
    else:
        allowed = caller.may_of_cluster(AclOperation.IDEMPOTENT_WRITE) or caller.may_of_any(
            AclOperation.WRITE, _TOPIC
        )
        error = _CLUSTER_DENIED
    return None if allowed else Refused(InitProducerIdResponse(error_code=error))


def add_partitions_to_txn(request: AddPartitionsToTxnRequest, caller: Caller) -> Steps[Verdict]:
    """WRITE on the transactional id and on each topic. Brokers, which name many ids, need CLUSTER_ACTION."""
    api, version = ApiKey.ADD_PARTITIONS_TO_TXN, caller.version
    if version >= MANY_TRANSACTIONS_SINCE:
        if caller.may_of_cluster(AclOperation.CLUSTER_ACTION):
            return None
        return Refused(AddPartitionsToTxnResponse(error_code=_CLUSTER_DENIED))
    if not caller.may(AclOperation.WRITE, _ID, request.transactional_id):
        return Refused(coordinator_error_response(api, version, request, _DENIED))
    _allowed, denied = yield from caller.split(
        request.topics, lambda topic: caller.may(AclOperation.WRITE, _TOPIC, topic.name)
    )
    if not denied:
        return None
    # All or none: the others are not attempted.
    names = {topic.name for topic in denied}

    def error_of(topic: str, partition: int) -> int:
        if topic in names:
            return _TOPIC_DENIED
        return _NOT_ATTEMPTED if caller.has_partition(topic, partition) else _UNKNOWN_PARTITION

    return Refused(
        AddPartitionsToTxnResponse(
            results_by_topic=tuple(
                AddPartitionsToTxnTopicResult(
                    topic.name,
                    tuple(
                        AddPartitionsToTxnPartitionResult(number, error_of(topic.name, number))
                        for number in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )
    )


def add_offsets_to_txn(request: AddOffsetsToTxnRequest, caller: Caller) -> Steps[Verdict]:
    """WRITE on the transactional id, READ on the group."""
    yield None
    if not caller.may(AclOperation.WRITE, _ID, request.transactional_id):
        return Refused(AddOffsetsToTxnResponse(error_code=_DENIED))
    if not caller.may(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return Refused(AddOffsetsToTxnResponse(error_code=_GROUP_DENIED))
    return None


def end_txn(request: Any, caller: Caller) -> Steps[Verdict]:
    """WRITE on the transactional id."""
    yield None
    if caller.may(AclOperation.WRITE, _ID, request.transactional_id):
        return None
    return Refused(coordinator_error_response(ApiKey.END_TXN, caller.version, request, _DENIED))


def txn_offset_commit(request: TxnOffsetCommitRequest, caller: Caller) -> Steps[Verdict]:
    """WRITE on the transactional id, READ on the group and on each topic."""
    refuse = partial(coordinator_error_response, ApiKey.TXN_OFFSET_COMMIT, caller.version, request)
    if not caller.may(AclOperation.WRITE, _ID, request.transactional_id):
        return Refused(refuse(_DENIED))
    if not caller.may(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return Refused(refuse(_GROUP_DENIED))
    allowed, denied = yield from caller.split(
        request.topics, lambda topic: caller.may(AclOperation.READ, _TOPIC, topic.name)
    )
    if not denied:
        return None
    told = tuple(
        TxnOffsetCommitTopicResponse(
            topic.name,
            tuple(
                TxnOffsetCommitPartitionResponse(each.partition_index, _TOPIC_DENIED)
                for each in topic.partitions
            ),
        )
        for topic in denied
    )
    if not allowed:
        return Refused(TxnOffsetCommitResponse(told))
    return Narrowed(
        replace(request, topics=allowed),
        lambda response: replace(response, topics=response.topics + told),
    )


def describe_transactions(request: DescribeTransactionsRequest, caller: Caller) -> Steps[Verdict]:
    """DESCRIBE on each transactional id. Topics that one may not describe are left out."""
    allowed, denied = yield from caller.split(
        request.transactional_ids, lambda name: caller.may(AclOperation.DESCRIBE, _ID, name)
    )
    told = tuple(DescribedTransaction(name, _DENIED) for name in denied)

    def without_hidden(transaction: DescribedTransaction) -> DescribedTransaction:
        seen = (each for each in transaction.topics if caller.may(AclOperation.DESCRIBE, _TOPIC, each.topic))
        return replace(transaction, topics=tuple(seen))

    def amend(response: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        states = tuple(map(without_hidden, response.transaction_states))
        return replace(response, transaction_states=states + told)

    return Narrowed(replace(request, transactional_ids=allowed), amend)


def list_transactions(request: Any, caller: Caller) -> Steps[Verdict]:
    """Those that one may DESCRIBE."""
    yield None

    def amend(response: ListTransactionsResponse) -> ListTransactionsResponse:
        seen = (
            each
            for each in response.transaction_states
            if caller.may(AclOperation.DESCRIBE, _ID, each.transactional_id)
        )
        return replace(response, transaction_states=tuple(seen))

    return Narrowed(request, amend)
