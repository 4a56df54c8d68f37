"""The acceptor's book against a model that keeps nothing but a list of connections."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from appliance.channels.connection_channel import GENERATION_SHIFT
from appliance.config.sections.network import connections_by_address
from appliance.netproc.acceptor_book import ConnectionBook

HOSTS = ("10.0.0.1", "10.0.0.2", "::1")
MAX, MAX_PER_IP = 12, 5


class BookAgainstModel(RuleBasedStateMachine):
    """Connections come, go and die with their network process, in any order."""

    connections: Bundle[Any] = Bundle("connections")

    def __init__(self) -> None:
        super().__init__()
        self.book = ConnectionBook(3, connections_max=MAX, connections_max_per_ip=MAX_PER_IP)
        self.held: dict[int, dict[int, str]] = {}
        self.generations: dict[int, int] = {}
        self.given: set[int] = set()

    @rule(netproc=st.integers(0, 3), held=st.lists(st.sampled_from(HOSTS), max_size=3))
    def up(self, netproc: int, held: list[str]) -> None:
        self.generations[netproc] = self.generations.get(netproc, 0) + 1
        assert self.book.netproc_up(netproc, self.generations[netproc], held=Counter(held))
        # Those of an earlier life have ids that are not given out any more.
        self.held[netproc] = dict(enumerate(held, -len(held)))

    @rule(netproc=st.integers(0, 3), age=st.integers(0, 1))
    def down(self, netproc: int, age: int) -> None:
        generation = self.generations.get(netproc, 1) - age
        is_known = netproc in self.held and age == 0
        assert self.book.netproc_down(netproc, generation) == is_known
        if is_known:
            del self.held[netproc]

    @rule(target=connections, host=st.sampled_from(HOSTS))
    def connect(self, host: str) -> Any:
        hosts = [each for shelf in self.held.values() for each in shelf.values()]
        is_full = len(hosts) >= MAX or hosts.count(host) >= MAX_PER_IP
        assert (self.book.refusal(host) is not None) == is_full
        chosen = self.book.least_loaded()
        assert (chosen is None) == (not self.held)
        if is_full or chosen is None:
            return multiple()
        assert len(self.held[chosen]) == min(len(shelf) for shelf in self.held.values())
        connection_id = self.book.assign(chosen, host)
        assert connection_id not in self.given
        assert connection_id >> GENERATION_SHIFT == 3
        self.given.add(connection_id)
        self.held[chosen][connection_id] = host
        return (chosen, connection_id)

    @rule(connection=consumes(connections))
    def close(self, connection: tuple[int, int]) -> None:
        netproc, connection_id = connection
        if (host := self.held.get(netproc, {}).pop(connection_id, None)) is not None:
            self.book.closed(netproc, {host: 1, "10.9.9.9": 2})

    @rule(netproc=st.integers(0, 3), host=st.sampled_from(HOSTS), more=st.integers(0, 2))
    def close_all_from(self, netproc: int, host: str, more: int) -> None:
        shelf = self.held.get(netproc, {})
        gone = [connection_id for connection_id, each in shelf.items() if each == host]
        if gone or more:
            self.book.closed(netproc, {host: len(gone) + more})
        for connection_id in gone:
            del shelf[connection_id]

    @invariant()
    def agrees(self) -> None:
        statistics = self.book.statistics()
        assert statistics.by_netproc == {netproc: len(shelf) for netproc, shelf in self.held.items()}
        assert statistics.connections == self.book.connections == sum(map(len, self.held.values()))


TestBookAgainstModel = BookAgainstModel.TestCase
TestBookAgainstModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def book_of_two() -> ConnectionBook:
    book = ConnectionBook(1, connections_max=100, connections_max_per_ip=100)
    book.netproc_up(0, 1)
    book.netproc_up(1, 1)
    return book


def test_paused_network_process_gets_connections_only_when_all_are_paused() -> None:
    book = book_of_two()
    book.set_paused(0, True)
    for _ in range(3):
        assert book.least_loaded() == 1
        book.assign(1, "10.0.0.1")
    book.set_paused(1, True)
    assert book.least_loaded() == 0


def test_network_process_without_room_gets_nothing() -> None:
    book = book_of_two()
    book.set_room(0, False)
    book.set_room(1, False)
    assert book.least_loaded() is None
    book.set_room(1, True)
    assert book.least_loaded() == 1


def test_older_generation_neither_replaces_nor_ends_a_newer_one() -> None:
    book = ConnectionBook(1, connections_max=100, connections_max_per_ip=100)
    book.netproc_up(0, 5)
    book.assign(0, "10.0.0.1")
    assert not book.netproc_up(0, 4)
    assert not book.netproc_down(0, 4)
    assert book.connections == 1


@pytest.mark.parametrize("generation", [1, 2])
def test_connection_ids_of_two_lives_never_meet(generation: int) -> None:
    book = ConnectionBook(generation, connections_max=100, connections_max_per_ip=100)
    book.netproc_up(0, 1)
    assert book.assign(0, "10.0.0.1") >> GENERATION_SHIFT == generation


def test_an_ipv4_client_is_the_same_one_at_an_ipv6_listener() -> None:
    book = ConnectionBook(3, connections_max=100, connections_max_per_ip=9)
    overrides = connections_by_address("10.0.0.7:2,[::ffff:10.0.0.8]:1,2001:DB8:0:0:0:0:0:1:1")
    book.set_limits(connections_max=100, connections_max_per_ip=9, overrides=overrides)
    book.netproc_up(0, 1, held={"::ffff:10.0.0.7": 1})
    assert book.refusal("10.0.0.7") is None
    book.assign(0, "10.0.0.7")
    for spelled in ("10.0.0.7", "::ffff:10.0.0.7"):
        assert book.refusal(spelled) == "max.connections.per.ip = 2 are held from 10.0.0.7"
    book.closed(0, {"10.0.0.7": 1, "::ffff:10.0.0.7": 1})
    assert (book.held_from("::ffff:10.0.0.7"), book.connections) == (0, 0)
    for spelled in ("::ffff:10.0.0.8", "2001:db8::1"):
        book.assign(0, spelled)
        assert book.refusal(spelled) is not None


def book_for_many() -> ConnectionBook:
    book = ConnectionBook(1, connections_max=10_000, connections_max_per_ip=10_000)
    for netproc in range(2):
        book.netproc_up(netproc, 1)
    return book


def test_sessions_that_are_promised_at_once_are_spread() -> None:
    book = book_for_many()
    assert Counter(book.promise_session() for _ in range(100)) == {0: 50, 1: 50}


def test_hellos_without_a_session_do_not_turn_later_clients_away_from_a_process() -> None:
    book = book_for_many()
    for _ in range(1000):
        book.promise_session()
    opened: Counter[int] = Counter()
    for _ in range(40):
        chosen = book.promise_session()
        assert chosen is not None
        opened[chosen] += 1
        book.set_sessions(chosen, opened[chosen])
    assert opened == {0: 20, 1: 20}
    assert book.least_loaded() == 0
