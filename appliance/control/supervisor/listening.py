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

from appliance.config import NetworkSettings, Settings
from appliance.errors import OperatorFault

_logger = logging.getLogger(__name__)


class PortTaken(OperatorFault):
    """Another program listens on the port."""


def listeners(settings: Settings, given: Sequence[socket.socket] = ()) -> dict[int, socket.socket]:
    """Return slot → listening socket on `port + slot`, non-blocking.

    Args:
        settings: host, ports and socket options.
        given: sockets that systemd bound for us; one with a slot's port is used in place of `host`.

    Raises:
        PortTaken: somebody else has a port.
        OperatorFault: the host's address does not exist here, the port is not allowed to us, or a given socket is of
            no use to any slot.
    """
    by_port = _by_port(settings, given)
    bound: dict[int, socket.socket] = {}
    try:
        for slot in range(settings.slots):
            port = settings.port + slot
            inherited = by_port.pop(port, None)
            sock = inherited or _bind(settings.host, port, slot=slot)
            if inherited is not None:
                _logger.info("slot %d listens on %s, on the socket passed by systemd", slot, address_of(sock))
            bound[slot] = sock
            _set_up(sock, settings.network)
    except BaseException:
        close_all(bound.values())
        raise
    return bound


def address_of(sock: socket.socket) -> str:
    """Return where a socket listens: `127.0.0.1:9092`, `[::1]:9092`."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening_host(settings: Settings, bound: Mapping[int, socket.socket]) -> str:
    """Return the host that the sockets are really bound to: `host`, unless systemd passed other ones.

    Where they are bound to several, it is the wildcard, so that clients are told the address that they came by.
    """
    hosts = {sock.getsockname()[0] for sock in bound.values()}
    if hosts == _resolved(settings.host, settings.port):
        return settings.host
    return hosts.pop() if len(hosts) == 1 else "0.0.0.0"


def open_to_other_hosts(bound: Mapping[int, socket.socket]) -> list[str]:
    """Return the addresses that other hosts may reach: all but those of the loopback interface."""
    return [address_of(sock) for sock in bound.values() if not _is_loopback(sock.getsockname()[0])]


def _is_loopback(host: str) -> bool:
    return host.removeprefix("::ffff:").startswith("127.") or host == "::1"


def _resolved(host: str, port: int) -> set[str]:
    with suppress(OSError):
        return {str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])}
    return set()


def _by_port(settings: Settings, given: Sequence[socket.socket]) -> dict[int, socket.socket]:
    """Return port → socket that systemd passed. Every one must be of use: its unit says that somebody listens there."""
    last = settings.port + settings.slots - 1
    wanted = f"port {settings.port}" if settings.slots == 1 else f"ports {settings.port} to {last}"
    found: dict[int, socket.socket] = {}
    for sock in given:
        if sock.family not in {socket.AF_INET, socket.AF_INET6} or sock.type != socket.SOCK_STREAM:
            raise OperatorFault(
                f"systemd passed a socket that is not TCP ({sock.getsockname()!r}): correct ListenStream= in the"
                " socket's unit"
            )
        port = sock.getsockname()[1]
        if not settings.port <= port <= last:
            raise OperatorFault(
                f"systemd passed a socket on {address_of(sock)}, and the appliance listens on {wanted}: correct"
                " ListenStream= in the socket's unit, or the options port and slots"
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


def _bind(host: str, port: int, *, slot: int) -> socket.socket:
    where = f"{host}:{port} (slot {slot})"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OperatorFault(f"cannot listen on {where}: {host} is no address ({error})") from error
    sock = socket.socket(family, kind, protocol)
    try:
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
