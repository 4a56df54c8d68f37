"""Connections, frames, and the memory they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from appliance.config.declaration import INT32_MAX, ConfigType, Effect
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

_MIB: Final = 2**20
FEW_CONNECTIONS: Final = 100
"""With fewer in all, one address may hold them all unless told otherwise."""


def from_one_address(connections_max: int, connections_max_per_ip: int) -> int:
    """Return how many connections one address may hold: a tenth stays for others, unless the option says a number."""
    if connections_max_per_ip >= 0:
        return connections_max_per_ip
    return connections_max - (connections_max // 10 if connections_max >= FEW_CONNECTIONS else 0)


def connections_by_address(text: str) -> dict[str, int]:
    """Return what `max.connections.per.ip.overrides` says: address → how many connections it may hold.

    Raises:
        ConfigurationError: it says something else. A host name is no address.
    """
    found: dict[str, int] = {}
    if not text:
        return found
    from ipaddress import ip_address  # which few need

    for entry in filter(None, map(str.strip, text.split(","))):
        address, _, number = entry.rpartition(":")
        try:
            most = int(number)
            host = str(_unmapped(ip_address(address.strip("[]"))))
        except ValueError:
            most, host = -1, ""
        if most < 0:
            raise ConfigurationError(
                f"max.connections.per.ip.overrides: {entry[:100]!r}: must be address:number, for example 10.0.0.7:50"
            )
        found[host] = most
    return found


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 listener sees of an IPv4 client."""
    return getattr(address, "ipv4_mapped", None) or address


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Acceptor and network processes."""

    processes: int = option(
        2,
        "network.processes",
        unit="processes",
        minimum=1,
        maximum=64,
        doc="Number of network processes. The network processes divide the connections among themselves. "
        "You can also use Kafka's name num.network.threads.",
    )
    pool_bytes: int = option(
        256 * _MIB,
        "network.pool.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=_MIB,
        doc="Memory for requests in flight in one network process. While this memory is full, the "
        "network process reads from no socket.",
    )
    ring_slots: int = option(
        4096,
        "network.ring.slots",
        unit="messages",
        minimum=64,
        maximum=2**20,
        doc="Number of messages in each ring. A ring is a queue between two processes. The number must "
        "be a power of two.",
    )
    connections_max: int = option(
        10_000,
        "max.connections",
        unit="connections",
        minimum=1,
        effect=Effect.AT_ONCE,
        doc="Maximum number of connections. If a client opens one more connection, the appliance closes "
        "the new connection at once.",
    )
    connections_max_per_ip: int = option(
        -1,
        "max.connections.per.ip",
        unit="connections",
        minimum=1,
        special=(-1,),
        effect=Effect.AT_ONCE,
        doc="Maximum number of connections from one address. With -1, one address may have nine tenths "
        "of max.connections. If max.connections is below 100, -1 means no limit for one address.",
    )
    connections_per_ip_overrides: str = option(
        "",
        "max.connections.per.ip.overrides",
        effect=Effect.AT_ONCE,
        doc="Addresses with a maximum that differs from max.connections.per.ip, as `address:number`, "
        "separated by commas.",
    )
    connection_creation_rate: int = option(
        INT32_MAX,
        "max.connection.creation.rate",
        unit="connections a second",
        minimum=1,
        effect=Effect.AT_ONCE,
        doc="Maximum rate of new connections. Above this rate, new connections wait until the appliance "
        "accepts them. Connections over ZeroMQ and shared memory do not count.",
    )
    connections_max_idle_ms: int = option(
        600_000,
        "connections.max.idle.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="Time after which the broker closes a connection on which the client sends nothing.",
    )
    request_max_bytes: int = option(
        104_857_600,
        "socket.request.max.bytes",
        unit="bytes",
        minimum=1024,
        doc="Maximum size of a request. If a request is larger, the broker closes the connection before"
        " it allocates memory for the request.",
    )
    requests_in_flight_per_connection: int = option(
        64,
        "network.requests.in.flight.per.connection",
        unit="requests",
        minimum=1,
        maximum=4096,
        doc="Maximum number of produce requests of one connection in flight. At this number the network"
        " process stops reading from the socket. A request of any other kind waits until all "
        "earlier requests of the connection are answered.",
    )
    waiting_fetch_partitions_max: int = option(
        200_000,
        "network.waiting.fetch.partitions.max",
        unit="partitions",
        minimum=1000,
        doc="Maximum number of partitions in all waiting fetches of one network process. Each of these "
        "partitions needs about 500 bytes. Above the maximum, the network process answers a fetch "
        "early. It chooses the fetch that has waited longest among the fetches of many partitions.",
    )
    request_stall_grace_ms: int = option(
        1000,
        "network.request.stall.grace.ms",
        unit="ms",
        minimum=1,
        doc="Time for which an incomplete request may keep its space in the pool while other requests "
        "wait for space.",
    )
    closed_lines_per_minute: int = option(
        100,
        "network.closed.lines.per.minute",
        unit="lines",
        minimum=0,
        doc="Maximum number of log lines that one network process writes per minute about connections with "
        "invalid data. If there are more of these connections, one more line shows their number.",
    )
    socket_send_buffer_bytes: int = option(
        -1,
        "socket.send.buffer.bytes",
        unit="bytes",
        minimum=1,
        special=(-1,),
        doc="Size of the send buffer of client sockets (SO_SNDBUF). With -1, the kernel chooses the "
        "size for each connection.",
    )
    socket_receive_buffer_bytes: int = option(
        -1,
        "socket.receive.buffer.bytes",
        unit="bytes",
        minimum=1,
        special=(-1,),
        doc="Size of the receive buffer of client sockets (SO_RCVBUF). With -1, the kernel chooses the "
        "size for each connection.",
    )
    listen_backlog: int = option(
        1024,
        "socket.listen.backlog.size",
        unit="connections",
        minimum=1,
        maximum=65535,
        doc="Maximum number of new connections that the kernel queues until the appliance accepts them.",
    )

    @property
    def connections_from_one_address(self) -> int:
        """How many connections one address may hold: never all, unless that is asked for."""
        return from_one_address(self.connections_max, self.connections_max_per_ip)

    def __post_init__(self) -> None:
        check_fields(self)
        connections_by_address(self.connections_per_ip_overrides)
        if self.ring_slots & (self.ring_slots - 1):
            raise ConfigurationError(f"network.ring.slots = {self.ring_slots}: must be a power of two")
        if self.pool_bytes < self.request_max_bytes:
            raise ConfigurationError(
                f"network.pool.bytes = {self.pool_bytes}: must not be below socket.request.max.bytes = "
                f"{self.request_max_bytes}, because a request of that size could never be received"
            )
