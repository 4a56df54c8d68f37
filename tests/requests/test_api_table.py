"""The table of APIs is whole: what is served has one row, and each row says who answers and what it needs."""

from __future__ import annotations

import inspect
from collections import Counter

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnRequest
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.describe_transactions import DescribeTransactionsRequest
from appliance.protocol.apis.offset_commit import OffsetCommitRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchRequest
from appliance.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from appliance.protocol.coordinator_errors import NEEDS_REQUEST, coordinator_error_response
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import encode_response
from appliance.requests.api_table import API_TABLE, Api, Scope, Throttle
from appliance.requests.log_handlers.fetch import FetchHandler
from appliance.requests.log_handlers.partitioned import PartitionedHandler
from appliance.requests.log_handlers.produce import ProduceHandler

COORDINATOR = [api for api in API_TABLE if api.scope is Scope.COORDINATOR or api.route is not None]
EMPTY_REQUESTS = {
    ApiKey.OFFSET_COMMIT: OffsetCommitRequest("g"),
    ApiKey.OFFSET_FETCH: OffsetFetchRequest(),
    ApiKey.DESCRIBE_GROUPS: DescribeGroupsRequest(()),
    ApiKey.DELETE_GROUPS: DeleteGroupsRequest(()),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribeRequest(()),
    ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnRequest(),
    ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommitRequest("t", "g", 1, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest(),
}


def title(api: Api) -> str:
    return api.key.title


def test_each_served_key_has_exactly_one_row_and_each_row_a_served_key() -> None:
    assert Counter(api.key for api in API_TABLE) == Counter(key for key in ApiKey if key.served)


def test_rows_stand_in_the_order_of_their_keys() -> None:
    assert [api.key for api in API_TABLE] == sorted(api.key for api in API_TABLE)


@pytest.mark.parametrize("api", API_TABLE, ids=title)
def test_the_handler_of_a_row_is_of_the_kind_that_its_scope_needs(api: Api) -> None:
    match api.scope:
        case Scope.LOCAL | Scope.CONTROLLER:
            assert api.is_local
            assert inspect.isfunction(api.handler)
            assert next(iter(inspect.signature(api.handler).parameters)) == "request"
        case Scope.PARTITION:
            assert inspect.isclass(api.handler)
            assert issubclass(api.handler, PartitionedHandler | ProduceHandler | FetchHandler)
        case Scope.COORDINATOR:
            assert api.handler is None


@pytest.mark.parametrize("api", COORDINATOR, ids=title)
def test_what_the_coordinator_answers_can_be_answered_in_its_stead_in_every_version(api: Api) -> None:
    assert (api.key in EMPTY_REQUESTS) == (api.key in NEEDS_REQUEST)
    error = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    for version in range(api.key.min_version, api.key.max_version + 1):
        response = coordinator_error_response(api.key, version, EMPTY_REQUESTS.get(api.key), error)
        assert encode_response(api.key, version, response, 1)


def test_produce_and_fetch_count_against_bytes_and_all_else_against_time() -> None:
    throttled = {api.key: api.throttled for api in API_TABLE if api.throttled is not Throttle.REQUEST}
    assert throttled == {ApiKey.PRODUCE: Throttle.PRODUCE, ApiKey.FETCH: Throttle.FETCH}


def test_only_questions_before_the_principal_is_known_of_owners_and_of_telemetry_need_no_permission() -> None:
    assert [api.key for api in API_TABLE if api.acl is None] == [
        ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
    ]
