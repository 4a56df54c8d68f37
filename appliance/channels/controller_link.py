"""A process's line to the controller: one ZeroMQ DEALER, fit for an epoll loop.

ZeroMQ's descriptor is edge-triggered: it says "something may have changed", once. So after every wake of the
descriptor, *and after every send*, `receive` must be called until it returns nothing; `wants_look` says so to the
loop before it sleeps.
"""

from __future__ import annotations

import itertools

import zmq

from appliance.channels.control_channel import Body, Envelope, decode, encode
from appliance.channels.roles import Role
from appliance.channels.wiring import Wiring

SEND_QUEUE_MESSAGES = 10_000
CONTROLLER_SOCKET = "controller.zmq"


class ControllerLink:
    """Connects at once, delivers when the controller is there; a restarted controller is reconnected to."""

    __slots__ = ("_ids", "_socket", "wants_look")

    def __init__(
        self, wiring: Wiring, role: Role, generation: int, *, context: zmq.Context[zmq.Socket[bytes]]
    ) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"{role.token}.g{generation}".encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.connect(wiring.zmq_address(CONTROLLER_SOCKET))
        self._ids = itertools.count(1)
        self.wants_look = True

    def fileno(self) -> int:
        """ZeroMQ's descriptor, for EPOLLIN."""
        return int(self._socket.getsockopt(zmq.FD))

    def ask(self, body: Body) -> int | None:
        """Sends a question; its id, or None when the controller has not read for too long."""
        identity = next(self._ids)
        return identity if self.send(Envelope(identity, body)) else None

    def send(self, envelope: Envelope) -> bool:
        """Sends without waiting; False when the queue towards the controller is full."""
        self.wants_look = True
        try:
            self._socket.send(encode(envelope), zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def receive(self, most: int | None = None) -> list[Envelope]:
        """Every message that has arrived, or the `most` oldest; then `wants_look` stays set."""
        self.wants_look = False
        arrived: list[Envelope] = []
        while len(arrived) != most:
            try:
                arrived.append(decode(self._socket.recv(zmq.DONTWAIT)))
            except zmq.Again:
                return arrived
        self.wants_look = True
        return arrived

    def is_empty(self) -> bool:
        """For the duty cycle: whether it may sleep without looking here."""
        return not self.wants_look

    def close(self) -> None:
        self._socket.close()
