"""The controller's ROUTER: where workers and network processes reach it.

ZeroMQ's descriptor is edge-triggered, so before the loop sleeps it asks `is_empty`, which looks at the socket
itself. What does not decode is dropped with a line in the log. Only processes of this user can send: the socket lies in
a directory that no other user may enter, and ZeroMQ asks the kernel who connects (channels/own_user.py).
"""

from __future__ import annotations

import logging

import msgspec
import zmq

from appliance.channels.control_channel import Envelope, decode, encode
from appliance.channels.own_user import bind_router

MESSAGES_AT_ONCE = 256
QUEUE_MESSAGES = 10_000
LINGER_MS = 200

_logger = logging.getLogger(__name__)


class ControlSocket:
    """Messages whole, non-blocking. What is sent to a process that is gone is dropped."""

    __slots__ = ("_context", "_socket")

    def __init__(self, address: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        bind_router(self._socket, address)

    def fileno(self) -> int:
        """ZeroMQ's descriptor, for EPOLLIN."""
        return int(self._socket.getsockopt(zmq.FD))

    def is_empty(self) -> bool:
        """Whether nothing waits to be received."""
        return not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN

    def receive(self) -> list[tuple[bytes, Envelope]]:
        """Messages that have arrived, with the identity of their senders; at most MESSAGES_AT_ONCE."""
        arrived: list[tuple[bytes, Envelope]] = []
        for _ in range(MESSAGES_AT_ONCE):
            try:
                sender, *frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                break
            try:
                arrived.append((sender, decode(b"".join(frames))))
            except msgspec.DecodeError as error:
                _logger.warning("invalid message from %s dropped: %s", sender.decode(errors="replace"), error)
        return arrived

    def send(self, receiver: bytes, envelope: Envelope) -> None:
        try:
            self._socket.send_multipart((receiver, encode(envelope)), zmq.DONTWAIT)
        except zmq.ZMQError as error:
            _logger.warning("cannot send a message to %s: %s", receiver.decode(errors="replace"), error)

    def close(self) -> None:
        self._socket.close()
        self._context.term()
