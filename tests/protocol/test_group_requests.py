"""Which groups a request names, and one response out of several, in every version that is served."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.apis.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
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
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.heartbeat import HeartbeatRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.join_group import JoinGroupRequest
from appliance.protocol.apis.leave_group import LeaveGroupRequest
from appliance.protocol.apis.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from appliance.protocol.apis.list_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from appliance.protocol.apis.offset_commit import OffsetCommitRequest
from appliance.protocol.apis.offset_delete import OffsetDeleteRequest
from appliance.protocol.apis.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from appliance.protocol.apis.sync_group import SyncGroupRequest
from appliance.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from appliance.protocol.coordinator_errors import OFFSET_FETCH_GROUPS_SINCE
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_requests import (
    MANY_TRANSACTIONS_SINCE,
    group_named,
    has_transactional_id,
    merged,
    names_many,
    names_transactions,
    restricted,
    restricted_in_pieces,
)
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import encode_request, encode_response
from appliance.requests.api_table import API_TABLE, Scope

GROUP = "gruppe ä"
ONE: dict[ApiKey, Any] = {
    ApiKey.JOIN_GROUP: JoinGroupRequest(GROUP, 1, "m", "consumer", ()),
    ApiKey.SYNC_GROUP: SyncGroupRequest(GROUP, 1, "m"),
    ApiKey.HEARTBEAT: HeartbeatRequest(GROUP, 1, "m"),
    ApiKey.LEAVE_GROUP: LeaveGroupRequest(GROUP),
    ApiKey.OFFSET_COMMIT: OffsetCommitRequest(GROUP),
    ApiKey.OFFSET_DELETE: OffsetDeleteRequest(GROUP, ()),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatRequest(GROUP, "m", 0),
    ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommitRequest("transaction", GROUP, 1, 0),
    ApiKey.INIT_PRODUCER_ID: InitProducerIdRequest(GROUP, 1000),
    ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxnRequest(GROUP, 1, 0, "group"),
    ApiKey.END_TXN: EndTxnRequest(GROUP, 1, 0, committed=True),
}


def result_of(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value


def many(api: ApiKey, groups: tuple[str, ...]) -> Any:
    match api:
        case ApiKey.DESCRIBE_GROUPS:
            return DescribeGroupsRequest(groups)
        case ApiKey.DELETE_GROUPS:
            return DeleteGroupsRequest(groups)
        case ApiKey.CONSUMER_GROUP_DESCRIBE:
            return ConsumerGroupDescribeRequest(groups)
        case ApiKey.OFFSET_FETCH:
            return OffsetFetchRequest(groups=tuple(OffsetFetchGroup(group, ()) for group in groups))
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return AddPartitionsToTxnRequest(
                tuple(AddPartitionsToTxnTransaction(name, 1, 0) for name in groups)
            )
        case ApiKey.DESCRIBE_TRANSACTIONS:
            return DescribeTransactionsRequest(groups)
    raise AssertionError(api)


def answer(api: ApiKey, groups: tuple[str, ...]) -> Any:
    match api:
        case ApiKey.DESCRIBE_GROUPS:
            return DescribeGroupsResponse(tuple(DescribedGroup(group) for group in groups))
        case ApiKey.DELETE_GROUPS:
            return DeleteGroupsResponse(tuple(DeletableGroupResult(group, 16) for group in groups))
        case ApiKey.CONSUMER_GROUP_DESCRIBE:
            return ConsumerGroupDescribeResponse(tuple(DescribedConsumerGroup(group) for group in groups))
        case ApiKey.OFFSET_FETCH:
            return OffsetFetchResponse(groups=tuple(OffsetFetchGroupResponse(group) for group in groups))
        case ApiKey.LIST_GROUPS:
            return ListGroupsResponse(groups=tuple(ListedGroup(group, "consumer") for group in groups))
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return AddPartitionsToTxnResponse(
                results_by_transaction=tuple(AddPartitionsToTxnResult(name) for name in groups)
            )
        case ApiKey.DESCRIBE_TRANSACTIONS:
            return DescribeTransactionsResponse(tuple(DescribedTransaction(name) for name in groups))
        case ApiKey.LIST_TRANSACTIONS:
            return ListTransactionsResponse(
                unknown_state_filters=("Asleep", "Über"),
                transaction_states=tuple(ListedTransaction(name, 1, "Ongoing") for name in groups),
            )
    raise AssertionError(api)


MANY = (
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.OFFSET_FETCH,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.DESCRIBE_TRANSACTIONS,
)
MANY_SINCE = {
    ApiKey.OFFSET_FETCH: OFFSET_FETCH_GROUPS_SINCE,
    ApiKey.ADD_PARTITIONS_TO_TXN: MANY_TRANSACTIONS_SINCE,
}
LISTS = (ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS)


def versions(api: ApiKey) -> range:
    return range(MANY_SINCE.get(api, api.min_version), api.max_version + 1)


MANY_VERSIONS = [(api, version) for api in MANY for version in versions(api)]
ONE_VERSIONS = [(api, version) for api in ONE for version in range(api.min_version, api.max_version + 1)]
MERGED_VERSIONS = [
    *MANY_VERSIONS,
    *((api, version) for api in LISTS for version in versions(api)),
]


def named(api: ApiKey, version: int, request: Any) -> str | None:
    frame = encode_request(api, version, request, 7, client_id="c")[4:]
    header = parse_request_header(memoryview(frame), 0, len(frame))
    return group_named(api, version, memoryview(frame), header.body_position, len(frame))


def test_every_api_of_the_coordinators_is_covered() -> None:
    covered = {int(api) for api in (*ONE, *MANY, *LISTS)}
    assert covered == {
        int(api.key) for api in API_TABLE if api.scope is Scope.COORDINATOR or api.route is not None
    }


def test_requests_by_transactional_id_are_for_the_coordinators_of_transactions() -> None:
    by_id = {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
    assert {api.key for api in API_TABLE if names_transactions(api.key)} == by_id


def test_producer_has_a_transactional_id_or_none_in_every_version() -> None:
    api = ApiKey.INIT_PRODUCER_ID
    for version in range(api.min_version, api.max_version + 1):
        for name in (None, "", GROUP):
            frame = encode_request(api, version, InitProducerIdRequest(name, 1000), 7, client_id="c")[4:]
            view = memoryview(frame)
            header = parse_request_header(view, 0, len(frame))
            found = has_transactional_id(version, view, header.body_position, len(frame))
            assert found is (name is not None)


def test_old_addition_of_partitions_names_one_transaction() -> None:
    for version in range(MANY_TRANSACTIONS_SINCE):
        request = AddPartitionsToTxnRequest(transactional_id=GROUP, producer_id=1, producer_epoch=0)
        assert named(ApiKey.ADD_PARTITIONS_TO_TXN, version, request) == GROUP


@pytest.mark.parametrize(("api", "version"), ONE_VERSIONS)
def test_group_of_a_request_is_read_from_its_first_bytes(api: ApiKey, version: int) -> None:
    assert not names_many(api, version)
    assert named(api, version, ONE[api]) == GROUP
    assert restricted(api, version, ONE[api], lambda _: False) is ONE[api]


def test_old_fetch_of_offsets_names_one_group() -> None:
    for version in range(ApiKey.OFFSET_FETCH.min_version, OFFSET_FETCH_GROUPS_SINCE):
        assert named(ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(GROUP, ())) == GROUP


@pytest.mark.parametrize(("api", "version"), MANY_VERSIONS)
def test_request_of_many_groups_names_one_only_where_there_is_no_other(api: ApiKey, version: int) -> None:
    assert names_many(api, version)
    assert named(api, version, many(api, (GROUP,))) == GROUP
    assert named(api, version, many(api, (GROUP, "b"))) is None
    assert named(api, version, many(api, ())) is None


@pytest.mark.parametrize(("api", "version"), MANY_VERSIONS)
def test_request_is_restricted_to_the_groups_that_are_wanted(api: ApiKey, version: int) -> None:
    request = many(api, ("a", "b", "c", "b"))
    assert restricted(api, version, request, lambda group: group == "b") == many(api, ("b", "b"))
    assert restricted(api, version, request, lambda _: True) is request


@pytest.mark.parametrize(("api", "version"), MANY_VERSIONS)
@pytest.mark.parametrize("wanted", ["b", "abc", ""])
def test_request_is_restricted_in_pieces_as_it_is_at_once(api: ApiKey, version: int, wanted: str) -> None:
    request = many(api, ("a", "b", "c", "b"))
    steps = restricted_in_pieces(api, version, request, wanted.__contains__)
    assert result_of(steps) == restricted(api, version, request, wanted.__contains__)


@pytest.mark.parametrize(("api", "version"), MERGED_VERSIONS)
@pytest.mark.parametrize(
    "parts",
    [
        [("a",), ("b", "c")],
        [(), ("b",)],
        [("a",), ()],
        [(), ()],
        [tuple(map(str, range(200))), ("x",), ("y",)],
    ],
    ids=["both", "second", "first", "neither", "three, one long"],
)
def test_merged_response_is_that_of_all_groups_at_once(
    api: ApiKey, version: int, parts: list[tuple[str, ...]]
) -> None:
    frames = [encode_response(api, version, answer(api, part), 99) for part in parts]
    whole = tuple(group for part in parts for group in part)
    assert merged(api, version, frames) == encode_response(api, version, answer(api, whole), 99)


def test_list_of_which_a_part_failed_is_the_failure() -> None:
    for version in versions(ApiKey.LIST_GROUPS):
        loading = ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        failed = encode_response(ApiKey.LIST_GROUPS, version, loading, 1)
        listed = encode_response(ApiKey.LIST_GROUPS, version, answer(ApiKey.LIST_GROUPS, ("a",)), 1)
        assert merged(ApiKey.LIST_GROUPS, version, [listed, failed]) == failed
        assert merged(ApiKey.LIST_GROUPS, version, [failed, listed]) == failed
    assert named(ApiKey.LIST_GROUPS, 4, ListGroupsRequest()) is None


def test_list_of_transactions_of_which_a_part_failed_is_the_failure() -> None:
    api = ApiKey.LIST_TRANSACTIONS
    for version in versions(api):
        loading = ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        failed = encode_response(api, version, loading, 1)
        listed = encode_response(api, version, answer(api, ("a",)), 1)
        assert merged(api, version, [listed, failed]) == merged(api, version, [failed, listed]) == failed
        assert named(api, version, ListTransactionsRequest()) is None


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\x09abc", b"\xff\xff"])
def test_body_that_does_not_begin_with_a_group_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        group_named(ApiKey.HEARTBEAT, 3, memoryview(body), 0, len(body))
