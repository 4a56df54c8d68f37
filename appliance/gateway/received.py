"""What a received message says, wherever ZeroMQ has cut its frames, and what ZeroMQ says about its connection."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import zmq

from appliance.gateway.admission import KEY_PROPERTY
from appliance.requests.session import ANONYMOUS

IPC_HOST: Final = "127.0.0.1"


def joined(frames: list[zmq.Frame]) -> bytes:
    """Return the body of a message."""
    return b"".join(frame.bytes for frame in frames)


def api_key(frames: list[zmq.Frame]) -> int:
    """Return the API key of a request, wherever its frames are cut; -1 where it is shorter than a key."""
    head = b""
    for frame in frames:
        head += bytes(frame.buffer[: 2 - len(head)])
        if len(head) == 2:
            return int.from_bytes(head, "big")
    return -1


def client_of(header: zmq.Frame) -> tuple[str, str, int]:
    """Return principal, host and process of the client that sent a frame, as the doorkeeper and the kernel say.

    The process is 0 for a client on another host.
    """
    try:
        principal = str(header.get("User-Id")) or ANONYMOUS
        address = str(header.get("Peer-Address"))
    except zmq.ZMQError:
        return ANONYMOUS, IPC_HOST, 0
    where, _, pid = address.rpartition(":")
    if where.startswith("localhost:") and pid.isdecimal():
        return principal, IPC_HOST, int(pid)
    return principal, address, 0


def key_of(header: zmq.Frame) -> str:
    """Return the public key of the client that sent a frame, in hexadecimal digits; empty for a client without one."""
    try:
        return str(header.get(KEY_PROPERTY))
    except zmq.ZMQError:
        return ""


@dataclass(frozen=True, slots=True)
class Wire:
    """The socket that ZeroMQ received a message from.

    The socket is ZeroMQ's, which closes it in a thread of its own. Its number may then be another connection's, so the
    inode tells whether it still is the same one.
    """

    descriptor: int
    inode: int

    @classmethod
    def of(cls, frame: zmq.Frame) -> Self:
        """Return the socket that a frame was received from."""
        return cls.at(int(frame.get(zmq.SRCFD)))

    @classmethod
    def at(cls, descriptor: int) -> Self:
        """Return the socket of this number; one that is closed already is no socket any more."""
        try:
            return cls(descriptor, os.fstat(descriptor).st_ino)
        except OSError:
            return cls(-1, 0)

    def address(self) -> str | int | None:
        """Return the address that the client connected to: a port, or a path. None where this is no such socket."""
        try:
            with self._own() as sock:
                name = sock.getsockname()
        except OSError:
            return None
        return name[1] if isinstance(name, tuple) else str(name)

    def cut(self) -> None:
        """Break the connection, if it still is there. ZeroMQ then frees what it has not sent to the client.

        A ROUTER cannot let go of one of its peers, so this goes past it: for ZeroMQ, the client has hung up.
        """
        with suppress(OSError), self._own() as sock:
            if os.fstat(sock.fileno()).st_ino == self.inode:
                sock.shutdown(socket.SHUT_RDWR)

    def _own(self) -> socket.socket:
        """Return the socket under a number of its own, which ZeroMQ cannot close meanwhile. Raises OSError."""
        own = os.dup(self.descriptor)
        try:
            return socket.socket(fileno=own)
        except OSError:
            os.close(own)
            raise
