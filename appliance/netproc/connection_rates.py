"""How many connections a second may be opened: in all, at one listener, from one address (KIP-402, KIP-612).

    max.connection.creation.rate                                 accepting pauses
    listener.name.L.max.connection.creation.rate                 accepting pauses at listener L
    connection_creation_rate of an ip (a quota)                  the connection is closed, a moment later

A rate is what was opened in the WINDOW_S seconds up to now, divided by their length, which is 10 to 11 seconds. A pause
is what brings it down to the bound, at most PAUSE_MS_MAX. A connection that is closed does not count.

Only the acceptor accepts, so nothing is shared. Pure. Source: Kafka's `SocketServer.scala`, `ConnectionQuotas`, release
4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from appliance.access.addresses import one_spelling
from appliance.access.client_quotas import IpRates

WINDOW_S: Final = 11
PAUSE_MS_MAX: Final = 1_000
ADDRESSES_MAX: Final = 10_000
"""Addresses that are counted; with one more, those that opened nothing in the window are forgotten, else all are."""
_NS_PER_S: Final = 1_000_000_000


class Opening(NamedTuple):
    """What becomes of a connection. At most one of these is above 0.

    `closed_after_ms`: it is closed, after so long. `pause_ms`: nothing more is accepted for so long, at its listener,
    or anywhere if `of_all`.
    """

    closed_after_ms: int = 0
    pause_ms: int = 0
    of_all: bool = False


_OPENED: Final = Opening()


class _Rate:
    """Connections by second."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._seconds = [-1] * (WINDOW_S + 1)
        self._counts = [0] * (WINDOW_S + 1)

    def add(self, now_ns: int, count: int = 1) -> None:
        second = now_ns // _NS_PER_S
        place = second % (WINDOW_S + 1)
        if self._seconds[place] != second:
            self._seconds[place] = second
            self._counts[place] = 0
        self._counts[place] += count

    def total(self, now_ns: int) -> int:
        second = now_ns // _NS_PER_S
        pairs = zip(self._seconds, self._counts, strict=True)
        return sum(count for at, count in pairs if second - WINDOW_S < at <= second)

    def delay_ms(self, bound: float, now_ns: int) -> int:
        """Return how long it takes until the rate is within the bound."""
        length_s = WINDOW_S - 1 + now_ns % _NS_PER_S / _NS_PER_S
        over = self.total(now_ns) - bound * length_s
        return min(max(1, round(over / bound * 1_000)), PAUSE_MS_MAX) if over > 0 else 0


class ConnectionRates:
    """The rates of one acceptor."""

    __slots__ = ("_addresses", "_all", "_bound", "_by_listener", "_ips", "_listener_bounds")

    def __init__(self) -> None:
        self._all = _Rate()
        self._by_listener: dict[str, _Rate] = {}
        self._addresses: dict[str, _Rate] = {}
        self._bound: float | None = None
        self._listener_bounds: Mapping[str, float] = {}
        self._ips = IpRates(())

    def set_bounds(self, bound: float | None, by_listener: Mapping[str, float], ips: IpRates) -> None:
        """Go by these bounds from the next connection on; None, or no entry: there is none."""
        self._bound = bound
        self._listener_bounds = by_listener
        self._ips = ips
        if not ips:
            self._addresses.clear()

    @property
    def are_bounded(self) -> bool:
        return self._bound is not None or bool(self._listener_bounds) or bool(self._ips)

    def opened(self, listener: str, host: str, now_ns: int) -> Opening:
        """Count a connection, and return what becomes of it."""
        address = one_spelling(host)
        bound = self._ips.bound(address)
        if bound is not None:
            rate = self._address(address, now_ns)
            rate.add(now_ns)
            if closed_after_ms := rate.delay_ms(bound, now_ns):
                rate.add(now_ns, -1)
                return Opening(closed_after_ms=closed_after_ms)
        pause_ms = listener_pause_ms = 0
        if self._bound is not None:
            self._all.add(now_ns)
            pause_ms = self._all.delay_ms(self._bound, now_ns)
        if (listener_bound := self._listener_bounds.get(listener)) is not None:
            of_listener = self._by_listener.setdefault(listener, _Rate())
            of_listener.add(now_ns)
            listener_pause_ms = of_listener.delay_ms(listener_bound, now_ns)
        if listener_pause_ms > pause_ms:
            return Opening(pause_ms=listener_pause_ms)
        return Opening(pause_ms=pause_ms, of_all=True) if pause_ms else _OPENED

    def _address(self, address: str, now_ns: int) -> _Rate:
        rate = self._addresses.get(address)
        if rate is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                busy = {host: each for host, each in self._addresses.items() if each.total(now_ns)}
                self._addresses = busy if len(busy) < ADDRESSES_MAX else {}
            rate = self._addresses[address] = _Rate()
        return rate

    def statistics(self) -> dict[str, int]:
        """How many addresses are counted."""
        return {"addresses": len(self._addresses)}
