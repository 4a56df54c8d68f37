"""Descriptors between processes: SCM_RIGHTS over a SEQPACKET Unix socket, one descriptor and one small
payload a message.

Nothing leaks: a descriptor that arrives with a message that cannot be used is closed here, and every received
descriptor is close-on-exec. The sender keeps its own copy and closes it after `send_descriptor` returned
True.
"""

from __future__ import annotations

import array
import os
import socket
from typing import NamedTuple

from appliance.ipc.errors import DescriptorLost, PeerGone

PAYLOAD_BYTES_MAX = 512

# Room for more than the one we expect: a surplus must reach us to be closed, not be cut off unseen.
_DESCRIPTORS_MAX = 4
_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DESCRIPTORS_MAX * _DESCRIPTOR_BYTES)


def send_descriptor(channel: socket.socket, descriptor: int, payload: bytes) -> bool:
    """Hands a copy of `descriptor` over with 1 to 512 bytes of `payload`. False when the channel is full.

    Raises:
        PeerGone: nobody is at the other end.
    """
    if not 0 < len(payload) <= PAYLOAD_BYTES_MAX:
        raise ValueError(f"a descriptor travels with 1 to {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}")
    rights = array.array("i", [descriptor])
    try:
        channel.sendmsg([payload], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except BlockingIOError:
        return False
    except (BrokenPipeError, ConnectionError) as error:
        raise PeerGone(f"descriptor channel: {error}") from error
    return True


class Received(NamedTuple):
    """What came in one message; the descriptor is this process's own and must be closed by it."""

    payload: bytes
    descriptor: int


def receive_descriptor(channel: socket.socket) -> Received | None:
    """The next payload with its descriptor, now this process's own. None when nothing waits.

    Raises:
        PeerGone: the other end is closed and everything sent was received.
        DescriptorLost: the message came without a usable descriptor; the next message may be whole.
    """
    try:
        payload, ancillary, flags, _ = channel.recvmsg(
            PAYLOAD_BYTES_MAX, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        return None
    except ConnectionError as error:
        raise PeerGone(f"descriptor channel: {error}") from error
    descriptors: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % _DESCRIPTOR_BYTES
            descriptors += array.array("i", data[:whole])
    if len(descriptors) == 1 and payload and not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        return Received(payload, descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)
    if not payload and not descriptors:
        raise PeerGone("descriptor channel: closed by the other end")
    raise DescriptorLost(f"a message of {len(payload)} bytes came with {len(descriptors)} descriptors")
