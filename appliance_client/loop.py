"""Runs the core of an asyncio client on the running event loop. No thread."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from appliance_client.connection import Connection
from appliance_client.core import Core
from appliance_client.errors import ClosedError, ForkedError, TimedOutError, TransportError
from appliance_client.options import ConnectionOptions
from appliance_client.scheduling import Outcome, Scheduler
from appliance_client.tcp import kind_of, reason_of
from appliance_client.transport import READABLE, WRITABLE, do_what_is_wanted, transport_for

T = TypeVar("T")


class _TcpLink(asyncio.BufferedProtocol):
    """A connection's socket, as asyncio has it."""

    def __init__(self, io: LoopIo, connection: Connection) -> None:
        self._io = io
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._may_write = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._connection.link is not self:
            transport.abort()  # the core gave this attempt up
            return
        self._transport = transport
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection.opened()
        self._io.kick()

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._connection.room()

    def buffer_updated(self, length_bytes: int) -> None:
        self._connection.filled(length_bytes)
        self._io.kick()

    def connection_lost(self, error: Exception | None) -> None:
        if self._connection.link is self:
            self._connection.link = None
            if isinstance(error, ssl.SSLError):
                self._connection.lost(f"TLS: {reason_of(error)}", kind_of(error))
            else:
                self._connection.lost(str(error) if error else "closed by the broker")
            self._io.kick()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self.flush()

    def flush(self) -> None:
        """Write what is to go out, unless the transport holds too much already."""
        outgoing = self._connection.outgoing
        if self._transport is None or not self._may_write or not outgoing:
            return
        pieces = list(outgoing)
        outgoing.clear()
        self._transport.writelines(pieces)

    def close(self) -> None:
        """Close the socket; what it still says is for nobody."""
        if self._transport is not None:
            self._transport.abort()


class _TcpTransport:
    """Opens TCP connections with asyncio's own transports."""

    def __init__(self, io: LoopIo, tls: ssl.SSLContext | None) -> None:
        self._io = io
        self._tls = tls
        self._opening: set[asyncio.Task[None]] = set()

    def open(self, connection: Connection) -> None:
        """Connect in a task of its own."""
        link = _TcpLink(self._io, connection)
        connection.link = link
        task = self._io.loop.create_task(self._open(connection, link))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: Connection, link: _TcpLink) -> None:
        host, port = connection.address
        try:
            async with asyncio.timeout(connection.setup_timeout_s):
                used = await self._connected(host, port, connection.failures)
                await self._io.loop.create_connection(
                    lambda: link, sock=used, ssl=self._tls, server_hostname=host if self._tls else None
                )
        except ssl.SSLError as error:
            self._lost(connection, link, f"TLS: {reason_of(error)}", kind_of(error))
        except (OSError, TimeoutError, ValueError, OverflowError) as error:
            self._lost(connection, link, f"cannot connect: {error or 'no answer in time'}", TransportError)

    async def _connected(self, host: str, port: int, failures: int) -> socket.socket:
        """A socket that is connected to one of the name's addresses, after a silent one to the next, as in `tcp.py`."""
        loop = self._io.loop
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        first = failures % len(addresses)
        failed: OSError | None = None
        for family, kind, protocol, _, address in addresses[first:] + addresses[:first]:
            try:
                made = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
            except OSError as error:
                failed = error
                continue
            try:
                await loop.sock_connect(made, address)
                if made.getsockname() != made.getpeername():
                    return made
                # A port that nobody listens on may be connected to itself.
                raise OSError("connected to itself")
            except OSError as error:
                made.close()
                failed = error
            except BaseException:
                made.close()
                raise
        raise failed or OSError("no address")

    def _lost(self, connection: Connection, link: _TcpLink, reason: str, kind: type[TransportError]) -> None:
        if connection.link is link:
            connection.link = None
            connection.lost(reason, kind)
            self._io.kick()

    def may_sleep(self) -> bool:
        """The loop tells of everything."""
        return True

    def woken(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Give up what is not connected yet."""
        for task in list(self._opening):
            task.cancel()


class LoopIo:
    """Runs a core on the running loop."""

    def __init__(self, core: Core) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self.forked = False
        self.after_fork: Callable[[], None] = lambda: None
        """Called in the child of a fork."""
        self._core = core
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._watched: dict[int, tuple[Callable[[int], None], int]] = {}
        self._transport = transport_for(core.network.options, self, _tcp)
        self._aside: set[asyncio.Task[None]] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        core.network.run_aside = self._run_aside
        _living.add(self)
        self.before_sleep: Callable[[float], bool] = lambda _wake_s: True

    def check(self) -> None:
        """Raise where nothing can be asked any more."""
        if self.forked:
            raise ForkedError(
                "the process was forked after this client was made; make another one in the child"
            )
        if self.closed:
            raise ClosedError("the client is closed")
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self.loop:
            raise ForkedError("this client belongs to another event loop")

    @property
    def scheduler(self) -> Scheduler:
        return self._core.scheduler

    def watch(self, descriptor: int, call: Callable[[int], None], events: int = READABLE) -> None:
        """Call with what is ready of a descriptor; see `transport.Io`."""
        self._watched[descriptor] = (call, events)
        if events & READABLE:
            self.loop.add_reader(descriptor, self._ready, descriptor, READABLE)
        else:
            self.loop.remove_reader(descriptor)
        if events & WRITABLE:
            self.loop.add_writer(descriptor, self._ready, descriptor, WRITABLE)
        else:
            self.loop.remove_writer(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor."""
        if self._watched.pop(descriptor, None) is not None and not self.loop.is_closed():
            self.loop.remove_reader(descriptor)
            self.loop.remove_writer(descriptor)

    def _run_aside(self, work: Callable[[], Any], outcome: Outcome[Any]) -> None:
        """Run a function of the application: a coroutine function here, another one on a thread."""

        async def run() -> None:
            try:
                value = work() if inspect.iscoroutinefunction(work) else await asyncio.to_thread(work)
                if inspect.isawaitable(value):
                    value = await value
            except Exception as error:
                outcome.reject(error)
            else:
                outcome.resolve(value)
            self.kick()

        task = self.loop.create_task(run())
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    def _ready(self, descriptor: int, event: int) -> None:
        found = self._watched.get(descriptor)
        if found is None or not found[1] & event:
            return
        self._core.scheduler.advance(time.monotonic())
        found[0](event)
        self.kick()

    def kick(self) -> None:
        """Run the core with the loop's next turn."""
        if self._soon is None and not self.forked and not self.loop.is_closed():
            self._core.touch()
            self._soon = self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._soon = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        core = self._core
        core.scheduler.advance(time.monotonic())
        self._transport.woken()
        core.run(time.monotonic())
        do_what_is_wanted(self._core.network, self._transport)
        if self.closed:
            return
        next_s = core.next_s()
        wake_s = time.monotonic() + 60.0 if next_s is None else next_s
        if not self._transport.may_sleep() or not self.before_sleep(wake_s):
            self.kick()
            return
        self._later = self.loop.call_later(max(0.0, wake_s - time.monotonic()), self.kick)

    async def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None, what: str) -> T:
        """Run a coroutine of the core and wait for it.

        Raises:
            TimedOutError: it was not done after `timeout_s`; it is cancelled.
            ClosedError: the client is closed, or was while waiting.
        """
        try:
            self.check()
        except Exception:
            coroutine.close()
            raise
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.add(waiter)
        task = self._core.scheduler.spawn(coroutine)

        def wake(_done: Outcome[T]) -> None:
            if not waiter.done():
                waiter.set_result(None)

        task.when_done(wake)
        self.kick()
        try:
            await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            task.cancel()
            self.kick()
            raise TimedOutError(f"{what}: not done within {timeout_s} s") from None
        except asyncio.CancelledError:
            task.cancel()
            self.kick()
            raise
        finally:
            self._waiters.discard(waiter)
        return task.result()

    async def close(self) -> None:
        """Close every socket."""
        self._shut()
        await asyncio.sleep(0)  # lets the transports close their sockets

    def abandon(self) -> None:
        """From any thread: close every socket soon. The client is forgotten."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._shut)

    def _shut(self) -> None:
        if self.closed or self.forked:
            return
        self.closed = True
        self._core.network.close()
        self._core.run(time.monotonic())
        do_what_is_wanted(self._core.network, self._transport)
        for waiter in self._waiters:
            if not waiter.done():  # nobody runs the core any more
                waiter.set_exception(ClosedError("the client was closed"))
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        self._transport.close()
        for descriptor in list(self._watched):
            self.unwatch(descriptor)


def _tcp(io: Any, options: ConnectionOptions) -> _TcpTransport:
    return _TcpTransport(io, options.tls)


_living: weakref.WeakSet[LoopIo] = weakref.WeakSet()


def _mark_forked() -> None:
    for each in _living:
        each.forked = True
        each.after_fork()


os.register_at_fork(after_in_child=_mark_forked)
