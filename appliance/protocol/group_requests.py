"""Which groups or transactions a request names, and one response out of the responses of several coordinators.

    of one group         JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch 1-7, OffsetDelete,
                         ConsumerGroupHeartbeat     the group's id is the first field of the body, in every version
                         TxnOffsetCommit            it is the second one, behind the transactional id
    of many groups       DescribeGroups, DeleteGroups, ConsumerGroupDescribe, OffsetFetch 8+
                                                    an array is the first field; an element begins with a group's id
    of all groups        ListGroups
    of one transaction   InitProducerId, AddPartitionsToTxn 0-3, AddOffsetsToTxn, EndTxn
                                                    the transactional id is the first field of the body
    of many              AddPartitionsToTxn 4+, DescribeTransactions
                                                    an array is the first field; an element begins with such an id
    of all               ListTransactions

The partition of `__consumer_offsets` or of `__transaction_state` that keeps a name follows from its hash, so both are
routed alike.

The responses of the APIs of many and of all end with an array, so the elements of several responses can stand one
behind the other:

    response of a   ┌ head ┐ count 2 a b ┌ tail ┐        head: correlation id, throttle time, error of a list
    response of b   ┌ head ┐ count 1 c   ┌ tail ┐        tail: tagged fields, none in versions that are not flexible
    merged          ┌ head ┐ count 3 a b c ┌ tail ┐

The head of ListTransactions ends with the filters of the request that no coordinator knows. It is the same in all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnResponse
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeResponse
from appliance.protocol.apis.delete_groups import DeleteGroupsResponse
from appliance.protocol.apis.describe_groups import DescribeGroupsResponse
from appliance.protocol.apis.describe_transactions import DescribeTransactionsResponse
from appliance.protocol.apis.list_groups import ListGroupsResponse
from appliance.protocol.apis.list_transactions import ListTransactionsResponse
from appliance.protocol.apis.offset_fetch import OffsetFetchResponse
from appliance.protocol.coordinator_errors import OFFSET_FETCH_GROUPS_SINCE
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import encode_response
from appliance.protocol.primitives import INT16, INT32, Cursor, uvarint_at, uvarint_bytes

_LIST_GROUPS: Final = int(ApiKey.LIST_GROUPS)
_LIST_TRANSACTIONS: Final = int(ApiKey.LIST_TRANSACTIONS)
_OF_ALL: Final = frozenset({_LIST_GROUPS, _LIST_TRANSACTIONS})
_OFFSET_FETCH: Final = int(ApiKey.OFFSET_FETCH)
_INIT_PRODUCER_ID: Final = int(ApiKey.INIT_PRODUCER_ID)
_ADD_PARTITIONS: Final = int(ApiKey.ADD_PARTITIONS_TO_TXN)
_TXN_OFFSET_COMMIT: Final = int(ApiKey.TXN_OFFSET_COMMIT)
MANY_TRANSACTIONS_SINCE: Final = 4
"""The version from which AddPartitionsToTxn names transactions in an array."""
_MANY_SINCE: Final[Mapping[int, int]] = {
    _OFFSET_FETCH: OFFSET_FETCH_GROUPS_SINCE,
    _ADD_PARTITIONS: MANY_TRANSACTIONS_SINCE,
}
_MANY: Final[Mapping[int, tuple[str, Callable[[], Any]]]] = {
    int(ApiKey.DESCRIBE_GROUPS): ("groups", lambda: DescribeGroupsResponse(())),
    int(ApiKey.DELETE_GROUPS): ("groups_names", lambda: DeleteGroupsResponse(())),
    int(ApiKey.CONSUMER_GROUP_DESCRIBE): ("group_ids", lambda: ConsumerGroupDescribeResponse(())),
    _OFFSET_FETCH: ("groups", OffsetFetchResponse),
    _LIST_GROUPS: ("", ListGroupsResponse),
    _ADD_PARTITIONS: ("transactions", AddPartitionsToTxnResponse),
    int(ApiKey.DESCRIBE_TRANSACTIONS): ("transactional_ids", DescribeTransactionsResponse),
    _LIST_TRANSACTIONS: ("", ListTransactionsResponse),
}
"""The field of the request that names groups or transactions, and the response without any."""
_NAME_OF: Final[Mapping[int, Callable[[Any], str]]] = {
    _OFFSET_FETCH: attrgetter("group_id"),
    _ADD_PARTITIONS: attrgetter("transactional_id"),
}
"""Takes the name out of an element, where the element is not a name itself."""
_OF_TRANSACTIONS: Final = frozenset(
    int(api)
    for api in (
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    )
)
_ERROR_IN_HEAD: Final = _OF_ALL | {_ADD_PARTITIONS}
_NAME_BYTES_MIN: Final = 1


def _is_flexible(api_key: int, version: int) -> bool:
    return version >= ApiKey(api_key).first_flexible


def names_transactions(api_key: int) -> bool:
    """Return whether a request of this API is for the coordinators of transactions, by `__transaction_state`."""
    return api_key in _OF_TRANSACTIONS


def has_transactional_id(version: int, view: memoryview, position: int, end: int) -> bool:
    """Return whether an InitProducerId request is of a transactional producer.

    Raises:
        MalformedFrame: the body does not begin as it should.
    """
    cursor = Cursor(view, position, end)
    if _is_flexible(_INIT_PRODUCER_ID, version):
        return cursor.compact_nullable_string() is not None
    return cursor.nullable_string() is not None


def is_commit_of_nobody(version: int, view: memoryview, position: int, end: int) -> bool:
    """Return whether an OffsetCommit request is of no member of its group: a tool, or a consumer in no group.

    Raises:
        MalformedFrame: the body does not begin as it should.
    """
    cursor = Cursor(view, position, end)
    if _is_flexible(ApiKey.OFFSET_COMMIT, version):
        cursor.compact_nullable_string()
    else:
        cursor.nullable_string()
    return cursor.int32() < 0


class TransactionalCommit(NamedTuple):
    """Whose transaction and which group a TxnOffsetCommit names, in the order of its first fields."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int


def transactional_commit(version: int, view: memoryview, position: int, end: int) -> TransactionalCommit:
    """Read the first fields of a TxnOffsetCommit, which may go on with very many partitions.

    Raises:
        MalformedFrame: the body does not begin as it should.
    """
    cursor = Cursor(view, position, end)
    text = cursor.compact_string if _is_flexible(_TXN_OFFSET_COMMIT, version) else cursor.string
    return TransactionalCommit(text(), text(), cursor.int64(), cursor.int16())


def names_many(api_key: int, version: int) -> bool:
    """Return whether a request of this API and version is of many groups or transactions, or of all."""
    return api_key in _MANY and version >= _MANY_SINCE.get(api_key, 0)


def group_named(api_key: int, version: int, view: memoryview, position: int, end: int) -> str | None:
    """Return the id of the one group or transaction that the request names; None where it names none or several.

    Raises:
        MalformedFrame: the body does not begin as it should.
    """
    cursor = Cursor(view, position, end)
    is_flexible = _is_flexible(api_key, version)
    if names_many(api_key, version):
        if api_key in _OF_ALL:
            return None
        count = cursor.compact_array_count if is_flexible else cursor.array_count
        if count(_NAME_BYTES_MIN) != 1:
            return None
    name = cursor.compact_string() if is_flexible else cursor.string()
    if api_key == _TXN_OFFSET_COMMIT:
        name = cursor.compact_string() if is_flexible else cursor.string()
    return name


def restricted(api_key: int, version: int, request: Any, is_wanted: Callable[[str], bool]) -> Any:
    """Return the request with nothing but the groups or transactions that `is_wanted`.

    One that names a single one, or all, is not changed.
    """
    if not _has_elements(api_key, version):
        return request
    field = _MANY[api_key][0]
    elements = getattr(request, field)
    name_of = _NAME_OF.get(api_key, str)
    kept = tuple(each for each in elements if is_wanted(name_of(each)))
    return request if len(kept) == len(elements) else msgspec.structs.replace(request, **{field: kept})


def restricted_in_pieces(
    api_key: int, version: int, request: Any, is_wanted: Callable[[str], bool]
) -> Generator[None, None, Any]:
    """`restricted`; yields after each name, because to hash one long id takes milliseconds."""
    if not _has_elements(api_key, version):
        return request
    field = _MANY[api_key][0]
    elements = getattr(request, field)
    name_of = _NAME_OF.get(api_key, str)
    kept: list[Any] = []
    for each in elements:
        if is_wanted(name_of(each)):
            kept.append(each)
        yield None
    return request if len(kept) == len(elements) else msgspec.structs.replace(request, **{field: tuple(kept)})


def _has_elements(api_key: int, version: int) -> bool:
    return names_many(api_key, version) and api_key not in _OF_ALL


def merged(api_key: int, version: int, frames: Sequence[bytes]) -> bytes:
    """Return the response frame with the elements of all `frames`, which answer one request, and one head.

    A response to ListGroups, ListTransactions or AddPartitionsToTxn with an error is returned as it is, because it
    holds nothing else.
    """
    is_flexible = _is_flexible(api_key, version)
    begin = SIZE.size + _head_bytes(api_key, version)
    tail_bytes = 1 if is_flexible else 0
    error_at = begin - INT16.size if api_key in _ERROR_IN_HEAD else 0
    total = 0
    elements: list[bytes] = []
    array_at = begin
    for frame in frames:
        if error_at and INT16.unpack_from(frame, error_at)[0]:
            return frame
        view = memoryview(frame)
        array_at = begin
        if api_key == _LIST_TRANSACTIONS:
            cursor = Cursor(view, begin, len(frame))
            for _ in range(cursor.compact_array_count(_NAME_BYTES_MIN)):
                cursor.compact_string()
            array_at = cursor.position
        if is_flexible:
            count, at = uvarint_at(view, array_at, len(frame))
            count -= 1
        else:
            (count,) = INT32.unpack_from(frame, array_at)
            at = array_at + INT32.size
        total += count
        elements.append(frame[at : len(frame) - tail_bytes])
    count_bytes = uvarint_bytes(total + 1) if is_flexible else INT32.pack(total)
    last = frames[-1]
    parts = [last[SIZE.size : array_at], count_bytes, *elements, last[len(last) - tail_bytes :]]
    return b"".join((SIZE.pack(sum(map(len, parts))), *parts))


@cache
def _head_bytes(api_key: int, version: int) -> int:
    """Return how much of a response stands before its array, and before the unknown filters of ListTransactions."""
    empty = encode_response(api_key, version, _MANY[api_key][1](), 0)
    # Behind the head: a count of one byte and the tail, or a count of four.
    filters_bytes = 1 if api_key == _LIST_TRANSACTIONS else 0
    return len(empty) - SIZE.size - filters_bytes - (2 if _is_flexible(api_key, version) else INT32.size)
