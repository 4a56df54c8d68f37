"""Close sockets of clients that may have sent descriptors.

A message over a Unix socket can carry descriptors. If nobody takes them, the kernel closes them in the process that
reads the message or closes the socket. Closing one can take as long as its sender likes: a TCP socket with SO_LINGER
waits until its peer has taken everything. So a process that must not wait keeps two rules:

1. It looks at a message with `peek`, which closes nothing, and takes only a message without descriptors.
2. It closes the socket with `ClosingSockets`, which leaves a socket with such a message in it to a thread.

Linux can refuse descriptors for a socket only since version 6.16 (SO_PASSRIGHTS).
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

from appliance.lane.aside import Aside

QUEUED_MAX: Final = 64
"""So many unread messages are looked at. A socket with more of them is left to the thread."""
WAITING_MAX: Final = 64
"""See `ClosingSockets.is_full`."""

_CREDENTIALS_SPACE: Final = socket.CMSG_SPACE(12)  # struct ucred, which comes first and leaves no room


def peek(sock: socket.SocketType, length_bytes: int) -> tuple[bytes, bool]:
    """Return the first bytes of the next message, and whether it carries descriptors. The message stays.

    Raises:
        BlockingIOError: no message is there.
        OSError: the socket is broken.
    """
    message, _, flags, _ = sock.recvmsg(length_bytes, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return message, bool(flags & socket.MSG_CTRUNC)


class ClosingSockets:
    """Closes sockets, those that can take long in one thread."""

    def __init__(self) -> None:
        self.waiting = 0
        """How many sockets the thread has not closed, as far as `take_closed` knows."""
        self._aside = Aside("closing", _close)

    @property
    def is_full(self) -> bool:
        """Whether so many sockets wait that the caller should take no more clients for now."""
        self.take_closed()
        return self.waiting >= WAITING_MAX

    def close(self, sock: socket.SocketType) -> bool:
        """End a connection. Return whether the socket is closed; otherwise the thread closes it, see `take_closed`."""
        if _has_no_descriptors(sock):
            sock.close()
            return True
        self.waiting += 1
        self._aside.put(sock)
        return False

    def take_closed(self) -> int:
        """Return how many sockets the thread has closed since the last call."""
        count = self._aside.take_done()
        self.waiting -= count
        return count


def _close(sock: socket.SocketType) -> None:
    with suppress(OSError):
        sock.close()


def _has_no_descriptors(sock: socket.SocketType) -> bool:
    """End a connection, and return whether surely no unread message carries descriptors."""
    try:
        # From here on the client can send nothing, so what is there is all.
        sock.shutdown(socket.SHUT_RDWR)
        # With credentials a message without bytes is not taken for the end.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        for _ in range(QUEUED_MAX):
            message, ancillary, flags, _ = sock.recvmsg(
                1, _CREDENTIALS_SPACE, socket.MSG_PEEK | socket.MSG_DONTWAIT
            )
            if flags & socket.MSG_CTRUNC:
                return False
            if not (message or ancillary):
                return True
            sock.recv(1)
    except OSError:
        return False
    return False
