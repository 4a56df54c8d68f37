"""Between a connection and its broker: what a transport is, what it is given, and which one an address names.

    core ── network.to_open, to_close, dirty ──▶ driver ── open, flush, close ──▶ Transport, Link
                                                   ◀── watch, unwatch, scheduler ──
    core ◀── opened, room/filled or answered, lost ────────────────────────────── Link

A driver is the I/O thread of the sync face (`thread.py`) or the event loop (`loop.py`). It runs the core, and owns
what transports wait for: readiness of descriptors, and the core's own timers. So a transport is written once for both
faces. It does not wait, starts no thread and reads no clock but the scheduler's. TCP alone is made twice, because
asyncio brings its own.

A new transport is a class `Transport` in a module of its own, and a line in `TRANSPORTS`.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from appliance_client.errors import OptionError
from appliance_client.options import TRANSPORTS, ConnectionOptions
from appliance_client.scheduling import Scheduler

if TYPE_CHECKING:
    from appliance_client.connection import Connection
    from appliance_client.network import Network

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT


class Io(Protocol):
    """What a driver gives to a transport. All of it is for the driver's thread."""

    @property
    def scheduler(self) -> Scheduler:
        """The clock (`now_s`), and timers (`call_at`)."""

    def watch(self, descriptor: int, call: Callable[[int], None], events: int = READABLE) -> None:
        """Call with what is ready, as long as it is ready. A second `watch` replaces the first.

        An error or hang-up of the descriptor is told as READABLE and WRITABLE together.
        """

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor, before it is closed. One that is not watched is fine."""


class Link(Protocol):
    """What a transport keeps for one connection, in `connection.link`."""

    def flush(self) -> None:
        """Send what the connection has to send, as far as that can be done now; the rest when there is room.

        A stream takes pieces from `connection.outgoing`, a transport of messages calls `connection.next_request()`.
        """

    def close(self) -> None:
        """Let go of the broker, and say nothing more to the connection. Called once."""


class Transport(Protocol):
    """Opens connections. One for each client, made by `transport_for`."""

    def open(self, connection: Connection) -> None:
        """Begin to open: set `connection.link`, then some time `connection.opened()` or `connection.lost(reason)`.

        Which broker: `connection.address` and `connection.broker_id`. The transport gives up by itself after
        `connection.setup_timeout_s`. Before `lost` it lets go of everything and sets `connection.link` to None.
        """

    def may_sleep(self) -> bool:
        """Asked before the driver waits. False where there is something to do, so that it must not."""

    def woken(self) -> None:
        """Called after the driver has waited, and before anything that is ready is told."""

    def close(self) -> None:
        """Let go of what is common to all links. They are closed by then."""


Make = Callable[[Io, ConnectionOptions], Transport]


def do_what_is_wanted(network: Network, transport: Transport) -> None:
    """Close, open and flush what the core asked for, until it asks for nothing more. For the driver's thread."""
    while network.to_close or network.to_open or network.dirty:
        closing, network.to_close = network.to_close, []
        for connection in closing:
            if connection.link is not None:
                link, connection.link = connection.link, None
                link.close()
        opening, network.to_open = network.to_open, []
        for connection in opening:
            transport.open(connection)
        dirty, network.dirty = network.dirty, {}
        for connection in dirty:
            if connection.link is not None:
                connection.link.flush()


def transport_for(options: ConnectionOptions, io: Io, tcp: Make) -> Transport:
    """The transport that the bootstrap addresses name.

    Raises:
        OptionError: it needs a package that is not installed.
    """
    if options.scheme not in TRANSPORTS:
        return tcp(io, options)
    module, extra = TRANSPORTS[options.scheme]
    try:
        make: Make = import_module(module).Transport
    except ImportError as error:
        raise OptionError(
            f"{options.scheme}:// needs {error.name}: pip install 'log-appliance-client[{extra}]'"
        ) from error
    return make(io, options)
