"""The connections of one door, as ZeroMQ accepts them: clients that only connect may not take every descriptor.

ZeroMQ accepts every connection, before it knows the client, and gives a handshake 30 seconds. A ROUTER can neither
refuse a connection nor let go of one. So the door listens to what ZeroMQ's monitor says about sockets, and shuts down
the oldest connections that have no session as soon as there are too many of them. For ZeroMQ they have hung up.

The monitor names a socket by its number, which may be another file's when the message is read. So a number counts only
while its socket has the door's own address, which no other file of the process has, and is shut down only while its
inode is the one that was seen first (`received.Wire`).
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Collection
from typing import Final

import zmq

from appliance.config.sections.zeromq import ipc_path, is_tcp, tcp_address
from appliance.gateway.received import Wire

_UNUSED_MAX: Final = 1000
_UNUSED_PART: Final = 4
"""So large a part of the process's descriptors may belong to connections without a session."""
_KEPT_PART: Final = 0.9
"""So many of them stay when some are shut down, so that not each connection that comes needs a look at all."""
_TURN_EVENTS: Final = 1000
_NOBLOCK: Final = int(zmq.NOBLOCK)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_EVENTS: Final = _ACCEPTED | int(zmq.EVENT_DISCONNECTED) | int(zmq.EVENT_CLOSED)
_EVENT_BYTES: Final = 2


class Connections:
    """Those of one bound ROUTER.

    Args:
        context: that of the ROUTER.
        router: before it is bound.
        endpoint: what it is bound to.
        unused_max: how many may have no session at once; None for the default.
    """

    __slots__ = ("_address", "_monitor", "_router", "_unused_max", "_wires", "descriptor")

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        router: zmq.Socket[bytes],
        endpoint: str,
        unused_max: int | None = None,
    ) -> None:
        self._router = router
        self._address: str | int = tcp_address(endpoint)[1] if is_tcp(endpoint) else ipc_path(endpoint)
        self._unused_max = default_unused_max() if unused_max is None else unused_max
        self._wires: dict[int, Wire] = {}  # by descriptor, the oldest first
        name = f"inproc://monitor.{id(self)}"
        router.monitor(name, _EVENTS)
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.set(zmq.LINGER, 0)
        self._monitor.set(zmq.RCVHWM, 0)  # ZeroMQ's thread would wait for us
        self._monitor.connect(name)
        self.descriptor = int(self._monitor.get(zmq.FD))
        self._monitor.get(zmq.EVENTS)  # the descriptor tells of a message only after a look that found none

    def __len__(self) -> int:
        """Return how many connections there are, as far as the monitor has been read."""
        return len(self._wires)

    def wire_of(self, frame: zmq.Frame) -> Wire:
        """Return the socket that a frame was received from; one that has gone meanwhile is no socket any more."""
        wire = Wire.of(frame)
        return wire if wire.address() == self._address else Wire(-1, 0)

    def turn(self, used: Callable[[], Collection[Wire]]) -> bool:
        """Take what the monitor says, and shut down what is too much; return whether it may say more.

        Args:
            used: returns the connections that have a session. Called only when there are too many.
        """
        is_all = False
        for _ in range(_TURN_EVENTS):
            try:
                event, _ = self._monitor.recv_multipart(_NOBLOCK)
            except zmq.Again:
                is_all = True
                break
            descriptor = int.from_bytes(event[_EVENT_BYTES : _EVENT_BYTES + 4], "little", signed=True)
            self._wires.pop(descriptor, None)
            if int.from_bytes(event[:_EVENT_BYTES], "little") == _ACCEPTED:
                wire = Wire.at(descriptor)
                if wire.address() == self._address:
                    self._wires[descriptor] = wire
        if len(self._wires) > self._unused_max:
            self._trim(used())
        return not is_all

    def _trim(self, used: Collection[Wire]) -> None:
        unused = [wire for wire in self._wires.values() if wire not in used]
        if len(unused) > self._unused_max:
            for wire in unused[: len(unused) - int(self._unused_max * _KEPT_PART)]:
                del self._wires[wire.descriptor]
                wire.cut()

    def close(self) -> None:
        """Listen no more."""
        self._router.disable_monitor()
        self._monitor.close(linger=0)


def default_unused_max() -> int:
    """Return how many connections of a door may be without a session, by the process's limit of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNUSED_MAX if soft == resource.RLIM_INFINITY else min(_UNUSED_MAX, soft // _UNUSED_PART)
