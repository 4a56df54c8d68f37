"""The acceptor's book: who holds how many connections, and who gets the next one. No socket, no clock."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

from appliance.channels.connection_channel import GENERATION_SHIFT
from appliance.errors import ApplianceDefect


class BookStatistics(msgspec.Struct, frozen=True):
    """Connections held in total, by network process, and addresses they come from."""

    connections: int
    by_netproc: dict[int, int]
    addresses: int


class _Shelf(msgspec.Struct):
    """What one network process holds: connection id → peer host."""

    generation: int
    held: dict[int, str] = msgspec.field(default_factory=dict)
    is_paused: bool = False
    has_room: bool = True


class ConnectionBook:
    """Counts connections by network process and by address.

    Running times: `refusal`, `assign` and `closed` per id O(1); `least_loaded` O(network processes).

    Args:
        generation: the acceptor's, which makes its connection ids its own.
        connections_max: connections held at once, over all network processes.
        connections_max_per_ip: connections held at once from one address.
    """

    def __init__(self, generation: int, *, connections_max: int, connections_max_per_ip: int) -> None:
        self._next_id = (generation << GENERATION_SHIFT) + 1
        self._connections_max = connections_max
        self._connections_max_per_ip = connections_max_per_ip
        self._shelves: dict[int, _Shelf] = {}
        self._by_host: dict[str, int] = {}
        self._connections = 0

    @property
    def connections(self) -> int:
        return self._connections

    def refusal(self, host: str) -> str | None:
        """Why a connection from `host` is closed at once, or None."""
        if self._connections >= self._connections_max:
            return f"max.connections = {self._connections_max} are held"
        if self._by_host.get(host, 0) >= self._connections_max_per_ip:
            return f"max.connections.per.ip = {self._connections_max_per_ip} are held from {host}"
        return None

    def least_loaded(self) -> int | None:
        """The network process for the next connection: one that is not paused first, then the one with
        fewest. None when none is there, or none has room for another descriptor.
        """
        best: int | None = None
        best_rank = (True, 0)
        for netproc, shelf in self._shelves.items():
            if shelf.has_room:
                rank = (shelf.is_paused, len(shelf.held))
                if best is None or rank < best_rank:
                    best, best_rank = netproc, rank
        return best

    def assign(self, netproc: int, host: str) -> int:
        """Books a new connection; its id."""
        connection_id = self._next_id
        self._next_id += 1
        self._shelves[netproc].held[connection_id] = sys.intern(host)  # many are of few
        self._count(host, 1)
        return connection_id

    def closed(self, netproc: int, connection_ids: Iterable[int]) -> None:
        """Takes connections off; an id that is not there was of another life and is nobody's loss."""
        shelf = self._shelves.get(netproc)
        if shelf is None:
            return
        for connection_id in connection_ids:
            host = shelf.held.pop(connection_id, None)
            if host is not None:
                self._count(host, -1)

    def netproc_up(self, netproc: int, generation: int, *, held: Iterable[tuple[int, str]] = ()) -> bool:
        """A network process is there, with what it `held` before. False for a generation older than known."""
        known = self._shelves.get(netproc)
        if known is not None and known.generation > generation:
            return False
        if known is not None:
            self.netproc_down(netproc, known.generation)
        shelf = self._shelves[netproc] = _Shelf(generation)
        for connection_id, host in held:
            shelf.held[connection_id] = sys.intern(host)
            self._count(host, 1)
        return True

    def netproc_down(self, netproc: int, generation: int) -> bool:
        """That generation is dead, and its connections with it. False when it was not in the book."""
        shelf = self._shelves.get(netproc)
        if shelf is None or shelf.generation != generation:
            return False
        del self._shelves[netproc]
        for host in shelf.held.values():
            self._count(host, -1)
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
        by_netproc = {netproc: len(shelf.held) for netproc, shelf in self._shelves.items()}
        return BookStatistics(self._connections, by_netproc, len(self._by_host))

    def check(self) -> None:
        """Raises ApplianceDefect unless all counts are what the shelves say."""
        by_host: dict[str, int] = {}
        for shelf in self._shelves.values():
            for host in shelf.held.values():
                by_host[host] = by_host.get(host, 0) + 1
        if by_host != self._by_host or sum(by_host.values()) != self._connections:
            raise ApplianceDefect(f"connection book: {self._by_host} by address, {by_host} on the shelves")

    def _count(self, host: str, change: int) -> None:
        self._connections += change
        left = self._by_host.get(host, 0) + change
        if left:
            self._by_host[host] = left
        else:
            del self._by_host[host]
