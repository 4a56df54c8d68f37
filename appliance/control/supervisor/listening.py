"""The listening sockets: bound by the supervisor, kept over every restart, accepted from by the acceptor.

What is set on a listening socket, the system gives on to each connection it accepts (TCP_NODELAY,
keep-alive, buffer sizes): no system call per connection.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from appliance.config import NetworkSettings, Settings
from appliance.config.sections.listeners import Listener, host_and_port
from appliance.errors import OperatorFault

_logger = logging.getLogger(__name__)

_ROWS_TRIED = 100

_AUTHENTICATION = "SASL_SSL, or SSL with ssl.client.auth = required"


class PortTaken(OperatorFault):
    """Another program listens on the port."""


Bound = Mapping[tuple[str, int], socket.socket]
"""Name of the listener and slot → listening socket."""


def listeners(
    settings: Settings, given: Sequence[socket.socket] = (), *, chosen: Sequence[socket.socket] = ()
) -> Bound:
    """Return the listening sockets, non-blocking; a listener's socket for slot n is on its port plus n.

    Nobody can connect before every listener is known to be allowed.

    Args:
        settings: listeners and socket options.
        given: sockets that systemd bound for us; one with the port of a listener's slot is used for it.
        chosen: sockets that `free_ports` bound, each used in the same way.

    Raises:
        PortTaken: somebody else has a port.
        OperatorFault: a host's address does not exist here, a port is not allowed to us, a given socket is of
            no use to any slot, or other hosts reach a listener that authenticates nobody.
    """
    by_port = _by_port(settings, given)
    own = {sock.getsockname()[1]: sock for sock in chosen}
    bound: dict[tuple[str, int], socket.socket] = {}
    try:
        for listener in settings.listeners:
            for slot in range(settings.slots):
                port = listener.port + slot
                inherited = by_port.pop(port, None)
                sock = inherited or own.pop(port, None) or _bind(listener.host, port, slot=slot)
                if inherited is not None:
                    _logger.info(
                        "slot %d listens on %s, on the socket passed by systemd", slot, address_of(sock)
                    )
                bound[listener.name, slot] = sock
        _refuse_open(settings, bound)
        for sock in bound.values():
            _set_up(sock, settings.network)
    except BaseException:
        close_all(bound.values())
        raise
    return bound


def free_ports(host: str, count: int) -> list[socket.socket]:
    """Return sockets bound to `count` ports in a row that the system chose, for slots 0 to `count` - 1.

    They are bound and not only looked for: test runners start several brokers at the same time.

    Raises:
        OperatorFault: the host is no address of this machine, or no such row is free.
    """
    for _ in range(_ROWS_TRIED):
        sockets = [_bind(host, 0, slot=0, alone=True)]
        try:
            first = sockets[0].getsockname()[1]
            sockets += [_bind(host, first + slot, slot=slot, alone=True) for slot in range(1, count)]
            for (
                sock
            ) in sockets:  # for a later start on the same port, while old connections wait for their end
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return sockets
        except (PortTaken, OverflowError):  # beyond port 65535
            close_all(sockets)
        except BaseException:
            close_all(sockets)
            raise
    raise OperatorFault(f"found no {count} free ports in a row on {host} in {_ROWS_TRIED} tries")


def address_of(sock: socket.socket) -> str:
    """Return where a socket listens: `127.0.0.1:9092`, `[::1]:9092`."""
    host, port = sock.getsockname()[:2]
    return host_and_port(host, port)


def as_bound(settings: Settings, bound: Bound) -> Settings:
    """Return the settings with the hosts that the sockets are really bound to: systemd may have passed other ones.

    Where a listener is bound to several, it is the wildcard, so that clients are told the address that they came by.
    """
    told = [replace(each, host=_bound_host(each, bound)) for each in settings.listeners]
    if tuple(told) == settings.listeners:
        return settings
    if not settings.listener.listeners:
        return replace(settings, host=told[0].host)
    texts = tuple(each.text() for each in told)
    return replace(settings, listener=replace(settings.listener, listeners=texts))


def open_to_other_hosts(settings: Settings, bound: Bound) -> list[str]:
    """Return the addresses that other hosts may reach without authentication."""
    return [
        address_of(bound[each.name, slot])
        for each in settings.listeners
        if not settings.authenticates(each)
        for slot in range(settings.slots)
        if not is_loopback(bound[each.name, slot].getsockname()[0])
    ]


def _refuse_open(settings: Settings, bound: Bound) -> None:
    if settings.listener.insecure:
        return
    for listener in settings.listeners:
        if settings.authenticates(listener):
            continue
        for slot in range(settings.slots):
            sock = bound[listener.name, slot]
            if not is_loopback(sock.getsockname()[0]):
                raise OperatorFault(
                    f"listener {listener.name} on {address_of(sock)} authenticates nobody, and other hosts reach it: "
                    f"use an address of loopback, {_AUTHENTICATION}, or set insecure = true if everybody may read, "
                    "write and delete everything"
                )


def _bound_host(listener: Listener, bound: Bound) -> str:
    hosts = {sock.getsockname()[0] for (name, _), sock in bound.items() if name == listener.name}
    if hosts == _resolved(listener.host, listener.port):
        return listener.host
    return hosts.pop() if len(hosts) == 1 else "0.0.0.0"


def is_loopback(host: str) -> bool:
    """Return whether an address is of this host alone."""
    return host.removeprefix("::ffff:").startswith("127.") or host == "::1"


def _resolved(host: str, port: int) -> set[str]:
    with suppress(OSError):
        return {str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])}
    return set()


def _by_port(settings: Settings, given: Sequence[socket.socket]) -> dict[int, socket.socket]:
    """Return port → socket that systemd passed. Every one must be of use: its unit says that somebody listens there."""
    ranges = [(each.port, each.port + settings.slots - 1) for each in settings.listeners]
    ports = {port for first, last in ranges for port in range(first, last + 1)}
    wanted = ", ".join(
        f"port {first}" if first == last else f"ports {first} to {last}" for first, last in ranges
    )
    found: dict[int, socket.socket] = {}
    for sock in given:
        if sock.family not in {socket.AF_INET, socket.AF_INET6} or sock.type != socket.SOCK_STREAM:
            raise OperatorFault(
                f"systemd passed a socket that is not TCP ({sock.getsockname()!r}): correct ListenStream= in the"
                " socket's unit"
            )
        port = sock.getsockname()[1]
        if port not in ports:
            raise OperatorFault(
                f"systemd passed a socket on {address_of(sock)}, and the appliance listens on {wanted}: correct"
                " ListenStream= in the socket's unit, or the options port, listeners and slots"
            )
        if port in found:
            raise OperatorFault(
                f"systemd passed two sockets for port {port} ({address_of(found[port])}, {address_of(sock)}), and a"
                " slot listens on one: use ListenStream=[::]:PORT for all addresses"
            )
        found[port] = sock
    return found


def close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _bind(host: str, port: int, *, slot: int, alone: bool = False) -> socket.socket:
    """Return a bound socket; `alone`: nobody else may bind the port before it listens."""
    where = f"{host_and_port(host, port)} (slot {slot})"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OperatorFault(f"cannot listen on {where}: {host} is no address ({error})") from error
    sock = socket.socket(family, kind, protocol)
    try:
        if not alone:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        match error.errno:
            case errno.EADDRINUSE:
                raise PortTaken(f"port {port} is taken: another program listens on {where}") from error
            case errno.EACCES:
                raise OperatorFault(f"cannot listen on {where}: ports under 1024 need a privilege") from error
            case errno.EADDRNOTAVAIL:
                raise OperatorFault(f"cannot listen on {where}: {host} is no address of this host") from error
            case _:
                raise OperatorFault(f"cannot listen on {where}: {error.strerror}") from error
    return sock


def _set_up(sock: socket.socket, network: NetworkSettings) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if network.socket_send_buffer_bytes > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, network.socket_send_buffer_bytes)
    if network.socket_receive_buffer_bytes > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, network.socket_receive_buffer_bytes)
    try:
        # Two programs may bind one port with SO_REUSEADDR; only the first of them may listen.
        sock.listen(network.listen_backlog)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        host, port = sock.getsockname()[:2]
        raise PortTaken(f"port {port} is taken: another program listens on {host}:{port}") from error
