"""Which groups a request of a group API names, and one response out of the responses of several coordinators.

    of one group     JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch 1-7, OffsetDelete,
                     ConsumerGroupHeartbeat     the group's id is the first field of the body, in every version
    of many groups   DescribeGroups, DeleteGroups, ConsumerGroupDescribe, OffsetFetch 8+
                                                an array is the first field; an element begins with a group's id
    of all groups    ListGroups

The responses of the APIs of many and of all groups end with an array of groups, so the elements of several responses
can stand one behind the other:

    response of a   ┌ head ┐ count 2 a b ┌ tail ┐        head: correlation id, throttle time, error of ListGroups
    response of b   ┌ head ┐ count 1 c   ┌ tail ┐        tail: tagged fields, none in versions that are not flexible
    merged          ┌ head ┐ count 3 a b c ┌ tail ┐
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeResponse
from appliance.protocol.apis.delete_groups import DeleteGroupsResponse
from appliance.protocol.apis.describe_groups import DescribeGroupsResponse
from appliance.protocol.apis.list_groups import ListGroupsResponse
from appliance.protocol.apis.offset_fetch import OffsetFetchResponse
from appliance.protocol.coordinator_errors import OFFSET_FETCH_GROUPS_SINCE
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import encode_response
from appliance.protocol.primitives import INT16, INT32, Cursor, uvarint_at, uvarint_bytes

_LIST_GROUPS: Final = int(ApiKey.LIST_GROUPS)
_OFFSET_FETCH: Final = int(ApiKey.OFFSET_FETCH)
_MANY: Final[Mapping[int, tuple[str, Callable[[], Any]]]] = {
    int(ApiKey.DESCRIBE_GROUPS): ("groups", lambda: DescribeGroupsResponse(())),
    int(ApiKey.DELETE_GROUPS): ("groups_names", lambda: DeleteGroupsResponse(())),
    int(ApiKey.CONSUMER_GROUP_DESCRIBE): ("group_ids", lambda: ConsumerGroupDescribeResponse(())),
    _OFFSET_FETCH: ("groups", OffsetFetchResponse),
    _LIST_GROUPS: ("", ListGroupsResponse),
}
"""The field of the request that names groups, and the response without any."""
_GROUP_BYTES_MIN: Final = 1


def _is_flexible(api_key: int, version: int) -> bool:
    return version >= ApiKey(api_key).first_flexible


def names_many(api_key: int, version: int) -> bool:
    """Return whether a request of this API and version is of many groups, or of all."""
    return api_key in _MANY and (api_key != _OFFSET_FETCH or version >= OFFSET_FETCH_GROUPS_SINCE)


def group_named(api_key: int, version: int, view: memoryview, position: int, end: int) -> str | None:
    """Return the id of the one group that the request names; None where it names none or several.

    Raises:
        MalformedFrame: the body does not begin as it should.
    """
    cursor = Cursor(view, position, end)
    is_flexible = _is_flexible(api_key, version)
    if names_many(api_key, version):
        if api_key == _LIST_GROUPS:
            return None
        count = cursor.compact_array_count if is_flexible else cursor.array_count
        if count(_GROUP_BYTES_MIN) != 1:
            return None
    return cursor.compact_string() if is_flexible else cursor.string()


def restricted(api_key: int, version: int, request: Any, is_wanted: Callable[[str], bool]) -> Any:
    """Return the request with nothing but the groups that `is_wanted`; one that names a single group is not changed."""
    if not names_many(api_key, version) or api_key == _LIST_GROUPS:
        return request
    field = _MANY[api_key][0]
    named = getattr(request, field)
    if api_key == _OFFSET_FETCH:
        kept = tuple(group for group in named if is_wanted(group.group_id))
    else:
        kept = tuple(group for group in named if is_wanted(group))
    return request if len(kept) == len(named) else msgspec.structs.replace(request, **{field: kept})


def restricted_in_pieces(
    api_key: int, version: int, request: Any, is_wanted: Callable[[str], bool]
) -> Generator[None, None, Any]:
    """`restricted`; yields after each group, because to hash one long id takes milliseconds."""
    if not names_many(api_key, version) or api_key == _LIST_GROUPS:
        return request
    field = _MANY[api_key][0]
    named = getattr(request, field)
    kept: list[Any] = []
    for group in named:
        if is_wanted(group.group_id if api_key == _OFFSET_FETCH else group):
            kept.append(group)
        yield None
    return request if len(kept) == len(named) else msgspec.structs.replace(request, **{field: tuple(kept)})


def merged(api_key: int, version: int, frames: Sequence[bytes]) -> bytes:
    """Return the response frame with the groups of all `frames`, which answer one request, under the head of the first.

    A ListGroups response with an error is returned as it is, because it lists nothing.
    """
    is_flexible = _is_flexible(api_key, version)
    head_bytes = _head_bytes(api_key, version)
    tail_bytes = 1 if is_flexible else 0
    begin = SIZE.size + head_bytes
    total = 0
    elements: list[bytes] = []
    for frame in frames:
        if api_key == _LIST_GROUPS and INT16.unpack_from(frame, begin - INT16.size)[0]:
            return frame
        if is_flexible:
            count, at = uvarint_at(memoryview(frame), begin, len(frame))
            count -= 1
        else:
            (count,) = INT32.unpack_from(frame, begin)
            at = begin + INT32.size
        total += count
        elements.append(frame[at : len(frame) - tail_bytes])
    count_bytes = uvarint_bytes(total + 1) if is_flexible else INT32.pack(total)
    first = frames[0]
    parts = [first[SIZE.size : begin], count_bytes, *elements, first[len(first) - tail_bytes :]]
    return b"".join((SIZE.pack(sum(map(len, parts))), *parts))


@cache
def _head_bytes(api_key: int, version: int) -> int:
    """Return how much of a response stands before its array of groups."""
    empty = encode_response(api_key, version, _MANY[api_key][1](), 0)
    # Behind the head: a count of one byte and the tail, or a count of four.
    return len(empty) - SIZE.size - (2 if _is_flexible(api_key, version) else INT32.size)
