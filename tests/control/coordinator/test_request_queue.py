"""Whose request the coordinator takes next: each connection's in order, connections in turns, none of who has left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from appliance.channels.roles import Role, RoleKind
from appliance.control.coordinator.request_queue import (
    LARGE_BYTES,
    LONG_BYTES,
    LONG_FROM,
    SLOW_MAX,
    SLOW_NS,
    Received,
    Reply,
    RequestQueue,
)
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.headers import RequestHeader

LEFT, RIGHT = Role(RoleKind.NETPROC, 0), Role(RoleKind.NETPROC, 1)
_NUMBERS: Iterator[int] = count(1)


def request(
    connection: int,
    api: ApiKey = ApiKey.HEARTBEAT,
    *,
    peer: Role = LEFT,
    body: bytes = b"",
    slot: int = 0,
    length_bytes: int = 100,
) -> Received:
    number = next(_NUMBERS)
    header = RequestHeader(api, 4, number, None, 0)
    reply = Reply(
        peer,
        1,
        request_id=number,
        header=header,
        length_bytes=length_bytes,
        slot=slot,
        host="/::1",
        connection=connection,
    )
    return Received(reply, memoryview(body), len(body))


def queue_of(*requests: Received) -> RequestQueue:
    queue = RequestQueue()
    for each in requests:
        queue.put(each)
    queue.check()
    return queue


def all_of(queue: RequestQueue) -> list[Received]:
    """Cheap ones first, as long as there are any."""
    taken = []
    while (each := queue.next_cheap() or queue.next_costly()) is not None:
        taken.append(each)
    queue.check()
    return taken


def test_connections_take_turns_however_many_requests_one_has_sent() -> None:
    many = [request(1) for _ in range(3)]
    first, second = request(2), request(3)
    queue = queue_of(*many, first, second)
    assert all_of(queue) == [many[0], first, second, many[1], many[2]]


def test_connections_of_two_network_processes_are_not_taken_for_one() -> None:
    left, right = request(7), request(7, peer=RIGHT)
    queue = queue_of(left, right)
    assert queue.drop(right.reply.key) == [right.reply]
    assert all_of(queue) == [left]


def test_listings_stand_in_a_lane_of_their_own() -> None:
    listing, beat = request(1, ApiKey.LIST_GROUPS), request(2)
    queue = queue_of(listing, beat)
    assert queue.next_cheap() is beat
    assert queue.next_cheap() is None
    assert queue.has_costly
    assert queue.next_costly() is listing


def test_what_comes_behind_a_listing_of_its_connection_waits_for_it() -> None:
    listing, beat = request(1, ApiKey.LIST_GROUPS), request(1)
    queue = queue_of(listing, beat)
    assert queue.next_cheap() is None
    assert queue.next_costly() is listing
    assert queue.next_cheap() is beat


def test_long_requests_are_costly_whatever_they_ask() -> None:
    commit = request(1, ApiKey.OFFSET_COMMIT, length_bytes=LONG_FROM[ApiKey.OFFSET_COMMIT] + 1)
    sync = request(2, ApiKey.SYNC_GROUP, length_bytes=LONG_FROM[ApiKey.SYNC_GROUP] + 1)
    leave = request(3, ApiKey.LEAVE_GROUP, length_bytes=LONG_BYTES + 1)
    short = request(4, ApiKey.SYNC_GROUP, length_bytes=LONG_FROM[ApiKey.SYNC_GROUP])
    queue = queue_of(commit, sync, leave, short)
    assert queue.next_cheap() is short
    assert queue.next_cheap() is None
    assert all_of(queue) == [commit, sync, leave]


def test_large_requests_wait_for_room_and_hold_no_others_up() -> None:
    large = [request(number, ApiKey.OFFSET_FETCH, length_bytes=LARGE_BYTES + 1) for number in range(2)]
    listing, other = request(2, ApiKey.LIST_GROUPS), request(3, ApiKey.LIST_GROUPS)
    queue = queue_of(*large, listing, other)
    assert (queue.has_costly, queue.has_large) == (True, True)
    assert queue.next_costly(with_large=False) is listing
    assert queue.next_costly(with_large=False) is other
    assert queue.next_costly(with_large=False) is None
    assert (queue.has_costly, queue.has_large) == (False, True)
    assert all_of(queue) == large


def test_costly_and_large_requests_take_turns() -> None:
    large = [request(number, ApiKey.OFFSET_FETCH, length_bytes=LARGE_BYTES + 1) for number in range(3)]
    costly = [request(10 + number, ApiKey.LIST_GROUPS) for number in range(3)]
    taken = all_of(queue_of(*large, *costly))
    assert {each in large for each in taken[:2]} == {each in large for each in taken[2:4]} == {True, False}


def test_large_request_of_a_closed_connection_is_forgotten() -> None:
    large = request(1, ApiKey.OFFSET_FETCH, length_bytes=LARGE_BYTES + 1)
    change = request(2, ApiKey.LEAVE_GROUP, length_bytes=LARGE_BYTES + 1)
    queue = queue_of(large, change)
    assert queue.drop(large.reply.key) == [large.reply]
    assert queue.drop(change.reply.key) == []
    assert queue.peer_down(LEFT) == 1
    assert not queue.has_large
    queue.check()


def test_what_a_closed_connection_asked_for_is_forgotten() -> None:
    gone = [request(1, ApiKey.LIST_GROUPS), request(1), request(1)]
    stays = request(2)
    queue = queue_of(*gone, stays)
    assert queue.drop(gone[0].reply.key) == [each.reply for each in gone]
    assert queue.drop(gone[0].reply.key) == []
    assert all_of(queue) == [stays]
    assert len(queue) == 0


def test_what_a_closed_connection_wanted_to_change_stays_in_its_order() -> None:
    commits = [request(1, ApiKey.OFFSET_COMMIT) for _ in range(2)]
    listing, leaving = request(1, ApiKey.LIST_GROUPS), request(1, ApiKey.LEAVE_GROUP)
    queue = queue_of(commits[0], listing, commits[1], leaving)
    assert queue.drop(listing.reply.key) == [listing.reply]
    assert all_of(queue) == [*commits, leaving]


def test_later_connection_with_the_same_number_is_another_one() -> None:
    queue = queue_of(request(1))
    queue.drop(request(1).reply.key)
    new = request(1)
    queue.put(new)
    assert all_of(queue) == [new]


def test_requests_of_a_network_process_that_died_are_forgotten() -> None:
    stays = request(1, peer=RIGHT)
    queue = queue_of(request(1), request(1), request(2, ApiKey.LIST_GROUPS), stays)
    assert queue.peer_down(LEFT) == 3
    assert all_of(queue) == [stays]


def test_one_listing_of_each_other_connection_is_like_the_first() -> None:
    own = [request(1, ApiKey.LIST_GROUPS, body=b"all") for _ in range(2)]
    others = [request(number, ApiKey.LIST_GROUPS, body=b"all") for number in (2, 2, 3)]
    unlike = [
        request(4, ApiKey.LIST_GROUPS, body=b"some"),
        request(5, ApiKey.LIST_GROUPS, body=b"all", slot=1),
        request(6, ApiKey.DESCRIBE_GROUPS, body=b"all"),
    ]
    queue = queue_of(*own, *others, *unlike)
    assert queue.next_costly() is own[0]
    assert queue.like(own[0]) == [others[0], others[2]]
    queue.check()
    assert all_of(queue) == [*unlike, own[1], others[1]]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.integers(0, 4),
            st.sampled_from((ApiKey.HEARTBEAT, ApiKey.LIST_GROUPS, ApiKey.OFFSET_FETCH)),
        ),
        st.tuples(st.sampled_from(("cheap", "costly", "like")), st.just(0), st.just(ApiKey.HEARTBEAT)),
        st.tuples(st.just("drop"), st.integers(0, 4), st.just(ApiKey.HEARTBEAT)),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_each_request_is_taken_once_in_its_connections_order_or_dropped(
    actions: list[tuple[str, int, ApiKey]],
) -> None:
    queue = RequestQueue()
    waiting: dict[int, list[Reply]] = {number: [] for number in range(5)}
    for action, number, api in actions:
        taken: list[Received] = []
        if action == "put":
            received = request(number, api)
            waiting[number].append(received.reply)
            queue.put(received)
        elif action == "drop":
            assert queue.drop(request(number).reply.key) == waiting[number]
            waiting[number] = []
        elif action == "cheap":
            taken = [each for each in (queue.next_cheap(),) if each is not None]
        elif (costly := queue.next_costly()) is not None:
            taken = [costly, *(queue.like(costly) if action == "like" else ())]
        for each in taken:
            assert waiting[each.reply.connection].pop(0) is each.reply
        queue.check()
        assert len(queue) == sum(map(len, waiting.values()))


def test_connection_whose_short_requests_take_long_is_costly_until_one_is_quick() -> None:
    queue = RequestQueue()
    queue.took(request(1).reply.key, SLOW_NS + 1)
    slow, quick = request(1), request(2)
    for each in (slow, quick):
        queue.put(each)
    queue.check()
    assert queue.next_cheap() is quick
    assert queue.next_cheap() is None
    assert queue.next_costly() is slow
    queue.took(slow.reply.key, SLOW_NS)
    queue.put(request(1))
    assert queue.has_cheap


def test_slow_connections_are_forgotten_with_them_and_beyond_a_number() -> None:
    queue = RequestQueue()
    for connection in range(SLOW_MAX):
        queue.took(request(connection).reply.key, SLOW_NS + 1)
    queue.drop(request(1).reply.key)
    for connection in (0, 1):
        queue.put(request(connection))
    assert len(all_of(queue)) == 2
    queue.took(request(SLOW_MAX).reply.key, SLOW_NS + 1)
    queue.took(request(SLOW_MAX + 1).reply.key, SLOW_NS + 1)
    queue.put(request(0))
    assert queue.has_cheap
