"""Lines of the audit journal, from network processes to the process that writes them: ZeroMQ, PUSH → PULL.

    netproc 0 ─┐
    netproc 1 ─┼─→ ipc://runtime_dir/audit.zmq ─→ auditor          one message: whole lines, each with its line end
    …         ─┘

Nobody waits for anybody. A message waits in a queue of QUEUE_MESSAGES on either side; `send` answers False when the
sender's is full. ZeroMQ connects again when the writer has been restarted. What lay in the queues of a process that
died is lost. Only processes of this user can send: nobody else can forge an entry (own_user.py).
"""

from __future__ import annotations

import zmq

from appliance.channels.own_user import bind_router
from appliance.channels.wiring import Wiring

AUDIT_SOCKET = "audit.zmq"
QUEUE_MESSAGES = 16
"""Of up to `recorder.MESSAGE_BYTES_MAX` each."""
TAKEN_AT_ONCE = 16


class AuditLink:
    """The sending end, in a network process."""

    __slots__ = ("_socket",)

    def __init__(self, wiring: Wiring, *, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PUSH)
        # A little, for the last lines of a process that stops.
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.connect(wiring.zmq_address(AUDIT_SOCKET))

    def send(self, lines: bytes) -> bool:
        """Send whole lines without waiting; False when the queue towards the writer is full."""
        try:
            self._socket.send(lines, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


class AuditInbox:
    """The receiving end, in the writer. An inbox of its duty cycle."""

    __slots__ = ("_socket",)

    def __init__(self, wiring: Wiring, *, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        bind_router(self._socket, wiring.zmq_address(AUDIT_SOCKET))

    def fileno(self) -> int:
        """ZeroMQ's descriptor, for EPOLLIN; it is edge-triggered, as `ControllerLink` says."""
        return int(self._socket.getsockopt(zmq.FD))

    def is_empty(self) -> bool:
        """For the duty cycle: whether nothing waits to be received."""
        return not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN

    def take(self) -> list[bytes]:
        """Return what has arrived, TAKEN_AT_ONCE messages at most."""
        arrived: list[bytes] = []
        while len(arrived) < TAKEN_AT_ONCE:
            try:
                arrived.append(self._socket.recv(zmq.DONTWAIT))
            except zmq.Again:
                break
        return arrived

    def close(self) -> None:
        self._socket.close()
