"""The acceptor's book: how many connections each network process has, and which gets the next. No socket, no clock.

Addresses are counted in one spelling (`access.addresses`): an IPv4 client of an IPv6 listener is the same client as at
an IPv4 listener.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from appliance.access.addresses import one_spelling
from appliance.channels.connection_channel import GENERATION_SHIFT, LANE
from appliance.netproc.address_counts import AddressCounts

_NONE: Final[Mapping[str, int]] = {}


class BookStatistics(msgspec.Struct, frozen=True):
    """Connections held in total, and by network process."""

    connections: int
    by_netproc: dict[int, int]


class _Shelf(msgspec.Struct):
    """What one network process holds."""

    generation: int
    held: AddressCounts
    sessions: int = 0  # ZeroMQ sessions that it has reported
    promised: int = 0  # HELLOs that were sent to it since any network process has reported its sessions
    is_paused: bool = False
    has_room: bool = True


class ConnectionBook:
    """Counts connections by network process and by address; keeps nothing of a single one.

    Running times: `refusal` and `least_loaded` O(network processes), `assign` and `closed` per address O(1).

    Args:
        generation: the acceptor's, which makes its connection ids its own.
        connections_max: connections held at once, over all network processes.
        connections_max_per_ip: connections held at once from one address.
    """

    def __init__(self, generation: int, *, connections_max: int, connections_max_per_ip: int) -> None:
        self._next_id = (generation << GENERATION_SHIFT) + 1
        self._connections_max = connections_max
        self._connections_max_per_ip = connections_max_per_ip
        self._overrides: Mapping[str, int] = {}
        self._shelves: dict[int, _Shelf] = {}

    def set_limits(
        self, *, connections_max: int, connections_max_per_ip: int, overrides: Mapping[str, int] = _NONE
    ) -> None:
        """Goes by new limits from the next connection on; those that are held stay.

        `overrides`: address → how many it may hold, instead of `connections_max_per_ip`.
        """
        self._overrides = overrides
        self._connections_max = connections_max
        self._connections_max_per_ip = connections_max_per_ip

    @property
    def connections(self) -> int:
        return sum(shelf.held.total for shelf in self._shelves.values())

    def refusal(self, host: str) -> str | None:
        """Why a connection from `host` is closed at once, or None."""
        if self.connections >= self._connections_max:
            return f"max.connections = {self._connections_max} are held"
        if host == LANE:
            return None
        host = one_spelling(host)
        most = self._overrides.get(host, self._connections_max_per_ip)
        if self.held_from(host) >= most:
            return f"max.connections.per.ip = {most} are held from {host}"
        return None

    def held_from(self, host: str) -> int:
        """Return how many connections from `host` are held."""
        host = one_spelling(host)
        return sum(shelf.held.by_host.get(host, 0) for shelf in self._shelves.values())

    def least_loaded(self) -> int | None:
        """The network process for the next connection: one that is not paused first, then the one with
        fewest. None when none is there, or none has room for another descriptor.
        """
        best: int | None = None
        best_rank = (True, 0)
        for netproc, shelf in self._shelves.items():
            if shelf.has_room:
                rank = (shelf.is_paused, shelf.held.total + shelf.sessions + shelf.promised)
                if best is None or rank < best_rank:
                    best, best_rank = netproc, rank
        return best

    def assign(self, netproc: int, host: str) -> int:
        """Books a new connection; its id."""
        connection_id = self._next_id
        self._next_id += 1
        self._shelves[netproc].held.add(one_spelling(host))
        return connection_id

    def promise_session(self) -> int | None:
        """Book a ZeroMQ session with the least loaded network process and return it; None when none is there.

        A client that has said HELLO may never open its session. So a promise counts until the next report, of whichever
        process: else a process with many of them would get no client any more, and so would have nothing to report.
        """
        netproc = self.least_loaded()
        if netproc is not None:
            self._shelves[netproc].promised += 1
        return netproc

    def set_sessions(self, netproc: int, sessions: int) -> None:
        """Take how many ZeroMQ sessions a network process has."""
        shelf = self._shelves.get(netproc)
        if shelf is not None and shelf.sessions != sessions:
            shelf.sessions = sessions
            for each in self._shelves.values():
                each.promised = 0

    def closed(self, netproc: int, by_host: Mapping[str, int]) -> None:
        """Take connections off. Those that are not in the book belonged to an earlier generation and are ignored."""
        if (shelf := self._shelves.get(netproc)) is not None:
            for host, count in by_host.items():
                shelf.held.remove(one_spelling(host), count)

    def netproc_up(self, netproc: int, generation: int, *, held: Mapping[str, int] | None = None) -> bool:
        """A network process is there, with what it `held` before. False for a generation older than known."""
        known = self._shelves.get(netproc)
        if known is not None and known.generation > generation:
            return False
        counts = AddressCounts()
        for host, count in (held or {}).items():
            counts.add(one_spelling(host), count)
        self._shelves[netproc] = _Shelf(generation, counts)
        return True

    def netproc_down(self, netproc: int, generation: int) -> bool:
        """That generation is dead, and its connections with it. False when it was not in the book."""
        shelf = self._shelves.get(netproc)
        if shelf is None or shelf.generation != generation:
            return False
        del self._shelves[netproc]
        return True

    def set_paused(self, netproc: int, is_paused: bool) -> None:
        """Its pool is full: prefer others."""
        if (shelf := self._shelves.get(netproc)) is not None:
            shelf.is_paused = is_paused

    def set_room(self, netproc: int, has_room: bool) -> None:
        """Whether its descriptor channel takes another one now."""
        if (shelf := self._shelves.get(netproc)) is not None:
            shelf.has_room = has_room

    def statistics(self) -> BookStatistics:
        by_netproc = {netproc: shelf.held.total for netproc, shelf in self._shelves.items()}
        return BookStatistics(self.connections, by_netproc)
