"""Costly operations take turns: connection by connection, and in order within each."""

from __future__ import annotations

from appliance.channels.request_channel import ACKS, CONNECTION, OP, REQUEST_ID, Op
from appliance.channels.roles import Role, RoleKind
from appliance.ioproc.costly_requests import CostlyRequests

NETPROC = Role(RoleKind.NETPROC, index=0)
OTHER = Role(RoleKind.NETPROC, index=1)


def request(connection: int, request_id: int, acks: int = 1) -> tuple[int, ...]:
    fields = [0] * 14
    fields[OP], fields[ACKS] = int(Op.PRODUCE), acks
    fields[CONNECTION], fields[REQUEST_ID] = connection, request_id
    return tuple(fields)


def served(costly: CostlyRequests) -> list[tuple[Role, int, int]]:
    """Who is served in which order: process, connection, request."""
    order = []
    while costly:
        peer, message = costly.next()
        order.append((peer, message[CONNECTION], message[REQUEST_ID]))
    return order


def test_connections_take_turns_and_each_keeps_its_order() -> None:
    costly = CostlyRequests()
    for request_id in (1, 2, 3):
        costly.add(NETPROC, request(7, request_id))
    costly.add(NETPROC, request(8, 4))
    costly.add(OTHER, request(7, 5))  # another client: connections are counted by their network process
    assert served(costly) == [
        (NETPROC, 7, 1),
        (NETPROC, 8, 4),
        (OTHER, 7, 5),
        (NETPROC, 7, 2),
        (NETPROC, 7, 3),
    ]


def test_a_request_waits_behind_what_its_own_connection_has_waiting_and_behind_nobody_else() -> None:
    costly = CostlyRequests()
    costly.add(NETPROC, request(7, 1))
    assert costly.has(NETPROC, request(7, 2))
    assert not costly.has(NETPROC, request(8, 2))
    assert not costly.has(OTHER, request(7, 2))
    costly.next()
    assert not costly.has(NETPROC, request(7, 2))


def test_what_a_closed_connection_asked_is_returned_once_and_served_never() -> None:
    costly = CostlyRequests()
    for request_id in (1, 2):
        costly.add(NETPROC, request(7, request_id))
    costly.add(NETPROC, request(8, 3))
    assert [each[REQUEST_ID] for each in costly.drop_connection(NETPROC, 7)] == [1, 2]
    assert costly.drop_connection(NETPROC, 7) == []
    assert served(costly) == [(NETPROC, 8, 3)]


def test_batches_that_expect_no_answer_stay_when_their_connection_closes() -> None:
    costly = CostlyRequests()
    costly.add(NETPROC, request(7, 1, acks=0))
    costly.add(NETPROC, request(7, 2))
    costly.add(NETPROC, request(7, 3, acks=0))
    assert [each[REQUEST_ID] for each in costly.drop_connection(NETPROC, 7)] == [2]
    assert served(costly) == [(NETPROC, 7, 1), (NETPROC, 7, 3)]


def test_what_a_dead_network_process_asked_is_forgotten() -> None:
    costly = CostlyRequests()
    costly.add(NETPROC, request(7, 1))
    costly.add(NETPROC, request(8, 2))
    costly.add(OTHER, request(7, 3))
    costly.drop_peer(NETPROC)
    assert costly.statistics() == {"costly_waiting": 1, "costly_connections": 1}
    assert served(costly) == [(OTHER, 7, 3)]
