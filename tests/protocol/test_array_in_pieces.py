"""A response that was encoded in pieces is byte for byte the one that is encoded at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_describe import (
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from appliance.protocol.apis.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from appliance.protocol.apis.describe_groups import DescribedGroup, DescribeGroupsResponse
from appliance.protocol.apis.list_groups import ListedGroup, ListGroupsResponse
from appliance.protocol.apis.offset_fetch import (
    OffsetFetchGroupResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchResponse,
    OffsetFetchTopicResponse,
)
from appliance.protocol.array_in_pieces import ArrayInPieces
from appliance.protocol.messages import encode_response

Make = Callable[[tuple[Any, ...]], Any]


def topic(number: int) -> OffsetFetchTopicResponse:
    return OffsetFetchTopicResponse(
        f"t{number}", UUID(int=number), (OffsetFetchPartitionResponse(number, number, "note"),)
    )


CASES: list[tuple[ApiKey, range, Make, Callable[[int], Any]]] = [
    (
        ApiKey.LIST_GROUPS,
        range(6),
        lambda groups: ListGroupsResponse(groups=groups),
        lambda number: ListedGroup(f"g{number}", "consumer", group_state="Stable", group_type="classic"),
    ),
    (
        ApiKey.DESCRIBE_GROUPS,
        range(7),
        lambda groups: DescribeGroupsResponse(groups=groups),
        lambda number: DescribedGroup(f"g{number}", group_state="Dead"),
    ),
    (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        range(2),
        lambda groups: ConsumerGroupDescribeResponse(groups=groups),
        lambda number: DescribedConsumerGroup(f"g{number}", group_state="Empty"),
    ),
    (
        ApiKey.DELETE_GROUPS,
        range(3),
        lambda results: DeleteGroupsResponse(results=results),
        lambda number: DeletableGroupResult(f"g{number}", error_code=number % 3),
    ),
    (ApiKey.OFFSET_FETCH, range(1, 8), lambda topics: OffsetFetchResponse(topics, 0), topic),
    (
        ApiKey.OFFSET_FETCH,
        range(8, 11),
        lambda topics: OffsetFetchResponse(groups=(OffsetFetchGroupResponse("group", topics),)),
        topic,
    ),
    (
        ApiKey.OFFSET_FETCH,
        range(8, 11),
        lambda groups: OffsetFetchResponse(groups=groups),
        lambda number: OffsetFetchGroupResponse(f"g{number}", (topic(number),)),
    ),
]


@pytest.mark.parametrize(
    ("api", "version", "make", "element"),
    [(api, version, make, element) for api, versions, make, element in CASES for version in versions],
)
@pytest.mark.parametrize("pieces", [(), (1,), (3,), (1, 0, 2), (127,), (126, 2), (1, 300)])
def test_response_in_pieces_is_the_response_at_once(
    api: ApiKey, version: int, make: Make, element: Callable[[int], Any], pieces: tuple[int, ...]
) -> None:
    def encode(elements: tuple[Any, ...]) -> bytes:
        return encode_response(api, version, make(elements), 0x01020304)

    array = ArrayInPieces(encode)
    elements: tuple[Any, ...] = ()
    for count in pieces:
        some = tuple(element(number) for number in range(len(elements), len(elements) + count))
        array.add(some)
        elements += some
    assert array.frame() == encode(elements)
