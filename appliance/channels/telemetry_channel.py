"""What clients push of their metrics, from the network processes to the metrics process: ZeroMQ, PUSH to PULL.

Nobody waits: a full queue, or a metrics process that is down for long, refuses a push, and its client hears that. So
each network process has at most QUEUED_MAX pushes on the way.
"""

from __future__ import annotations

import msgspec
import zmq

from appliance.channels.wiring import Wiring

TELEMETRY_SOCKET = "telemetry.zmq"
QUEUED_MAX = 8
HEAD_BYTES_MAX = 1 << 16
"""What stands beside the metrics in a message: names that a session keeps, which are bounded."""


class Pushed(msgspec.Struct, array_like=True, frozen=True):
    """One push. `instance` is the client's id as Kafka prints it; `metrics` are OTLP's MetricsData, by `codec`."""

    instance: str
    client_id: str
    software: str
    codec: int
    interval_ms: int
    metrics: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Pushed).decode


class TelemetryLink:
    """A network process's end."""

    __slots__ = ("_socket",)

    def __init__(self, wiring: Wiring, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_MAX)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        self._socket.connect(wiring.zmq_address(TELEMETRY_SOCKET))

    def send(self, pushed: Pushed) -> bool:
        """Send without waiting. False: the metrics process does not take it now."""
        try:
            self._socket.send(_encode(pushed), zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Let go of the socket, without what was not sent."""
        self._socket.close()


class TelemetryInbox:
    """The metrics process's end. ZeroMQ's descriptor is edge-triggered: see `controller_link`."""

    __slots__ = ("_socket", "wants_look")

    def __init__(self, wiring: Wiring, context: zmq.Context[zmq.Socket[bytes]], *, bytes_max: int) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, QUEUED_MAX)
        self._socket.setsockopt(zmq.MAXMSGSIZE, bytes_max + HEAD_BYTES_MAX)
        self._socket.bind(wiring.zmq_address(TELEMETRY_SOCKET))
        self.wants_look = True

    def fileno(self) -> int:
        """ZeroMQ's descriptor, for EPOLLIN."""
        return int(self._socket.getsockopt(zmq.FD))

    def receive(self) -> Pushed | None:
        """Return the next push; None if there is none, and then there is no need to look again before a wake."""
        try:
            return _decode(self._socket.recv(zmq.DONTWAIT))
        except zmq.Again:
            self.wants_look = False
            return None

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
