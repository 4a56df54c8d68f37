"""What the frames of a received message say, wherever ZeroMQ has cut them."""

from __future__ import annotations

from typing import Final

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
