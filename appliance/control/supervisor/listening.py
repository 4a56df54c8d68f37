"""The listening sockets: bound by the supervisor, kept over every restart, accepted from by the acceptor.

What is set on a listening socket, the system gives on to each connection it accepts (TCP_NODELAY,
keep-alive, buffer sizes): no system call per connection.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Sequence

from appliance.config import NetworkSettings, Settings
from appliance.errors import OperatorFault


class PortTaken(OperatorFault):
    """Another program listens on the port."""


def listeners(settings: Settings, given: Sequence[socket.socket] = ()) -> dict[int, socket.socket]:
    """Slot → listening socket on `port + slot`, non-blocking.

    Args:
        settings: host, ports and socket options.
        given: sockets that systemd bound for us; one with a slot's port is used, any other is closed.

    Raises:
        PortTaken: somebody else has a port.
        OperatorFault: the host's address does not exist here, or the port is not allowed to us.
    """
    by_port = {sock.getsockname()[1]: sock for sock in given if sock.family != socket.AF_UNIX}
    bound: dict[int, socket.socket] = {}
    try:
        for slot in range(settings.slots):
            port = settings.port + slot
            inherited = by_port.pop(port, None)
            sock = inherited or _bind(settings.host, port, slot=slot)
            bound[slot] = sock
            _set_up(sock, settings.network)
    except BaseException:
        close_all(bound.values())
        raise
    close_all(by_port.values())
    return bound


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
