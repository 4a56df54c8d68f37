"""Connections, frames, and the memory they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Acceptor and network processes."""

    processes: int = option(
        2,
        "network.processes",
        unit="processes",
        minimum=1,
        maximum=64,
        doc="Network processes that share the connections; Kafka's nearest word is num.network.threads.",
    )
    pool_bytes: int = option(
        256 * _MIB,
        "network.pool.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=_MIB,
        doc="Requests in flight that one network process holds at most; when full, sockets are not read.",
    )
    ring_slots: int = option(
        4096,
        "network.ring.slots",
        unit="messages",
        minimum=64,
        maximum=2**20,
        doc="Messages in each ring between two processes; a power of two.",
    )
    connections_max: int = option(
        10_000,
        "max.connections",
        unit="connections",
        minimum=1,
        doc="Connections held at once; one more is closed as soon as it is accepted.",
    )
    connections_max_per_ip: int = option(
        10_000,
        "max.connections.per.ip",
        unit="connections",
        minimum=1,
        doc="Connections held at once from one address.",
    )
    connections_max_idle_ms: int = option(
        600_000,
        "connections.max.idle.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="After how long a connection that sends nothing is closed.",
    )
    request_max_bytes: int = option(
        104_857_600,
        "socket.request.max.bytes",
        unit="bytes",
        minimum=1024,
        doc="Largest request; a longer one closes its connection before anything is allocated.",
    )
    requests_in_flight_per_connection: int = option(
        64,
        "network.requests.in.flight.per.connection",
        unit="requests",
        minimum=1,
        maximum=4096,
        doc="Produce requests of one connection in flight at once; beyond that its socket is not read. Any other "
        "request waits until those before it are answered.",
    )
    request_stall_grace_ms: int = option(
        1000,
        "network.request.stall.grace.ms",
        unit="ms",
        minimum=1,
        doc="How long a half-received request may hold pool space while others wait for that space.",
    )
    socket_send_buffer_bytes: int = option(
        -1,
        "socket.send.buffer.bytes",
        unit="bytes",
        minimum=1,
        special=(-1,),
        doc="SO_SNDBUF of client sockets; -1 leaves it to the system, which adapts it to the connection.",
    )
    socket_receive_buffer_bytes: int = option(
        -1,
        "socket.receive.buffer.bytes",
        unit="bytes",
        minimum=1,
        special=(-1,),
        doc="SO_RCVBUF of client sockets; -1 leaves it to the system, which adapts it to the connection.",
    )
    listen_backlog: int = option(
        1024,
        "socket.listen.backlog.size",
        unit="connections",
        minimum=1,
        maximum=65535,
        doc="Connections the system may hold ready before they are accepted.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.ring_slots & (self.ring_slots - 1):
            raise ConfigurationError(f"network.ring.slots = {self.ring_slots}: wants a power of two")
        if self.pool_bytes < self.request_max_bytes:
            raise ConfigurationError(
                f"network.pool.bytes = {self.pool_bytes}: under socket.request.max.bytes = "
                f"{self.request_max_bytes}, so a request of that size could never be received"
            )
