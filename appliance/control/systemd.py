"""What systemd and a service say to each other: readiness, watchdog, listening sockets.

Sources: sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3). The variables are taken out of the
environment, so that no child believes they were meant for it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

LISTEN_FDS_START = 3


class Notifier:
    """Tells systemd how the service fares; silent where no systemd asked for it.

    Args:
        address: NOTIFY_SOCKET: a path, or `@` and an abstract name; None is silent.
        watchdog_ms: how often systemd wants to hear of us at least; 0 = not at all.
    """

    __slots__ = ("_address", "_socket", "watchdog_ms")

    def __init__(self, address: str | None = None, watchdog_ms: int = 0) -> None:
        self._address = f"\0{address[1:]}" if address and address.startswith("@") else address
        self._socket: socket.socket | None = None
        self.watchdog_ms = watchdog_ms
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Notifier:
        """Takes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of `environment`."""
        address = environment.pop("NOTIFY_SOCKET", None)
        watchdog_us = _number(environment.pop("WATCHDOG_USEC", "0"))
        meant_for = environment.pop("WATCHDOG_PID", str(os.getpid()))
        return cls(address, watchdog_us // 1000 if meant_for == str(os.getpid()) else 0)

    def send(self, *assignments: str) -> bool:
        """Sends `NAME=value` lines. False where nobody listens."""
        if self._socket is None or self._address is None:
            return False
        try:
            self._socket.sendto("\n".join(assignments).encode(), self._address)
        except OSError:
            return False
        return True

    def ready(self, status: str) -> None:
        self.send("READY=1", f"MAINPID={os.getpid()}", f"STATUS={status}")

    def reloading(self, monotonic_ns: int) -> None:
        """The service reads its configuration again; `ready` says that it has. `monotonic_ns`: CLOCK_MONOTONIC."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns // 1_000}")

    def status(self, text: str) -> None:
        self.send(f"STATUS={text}")

    def stopping(self) -> None:
        self.send("STOPPING=1", "STATUS=stopping")

    def alive(self) -> None:
        """The watchdog's ping."""
        self.send("WATCHDOG=1")

    def fileno(self) -> int:
        """The socket's descriptor, -1 where there is none."""
        return self._socket.fileno() if self._socket is not None else -1

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def listening_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The sockets that systemd bound for this process, in the order of its unit files; closed on exec."""
    meant_for = environment.pop("LISTEN_PID", "")
    count = _number(environment.pop("LISTEN_FDS", "0"))
    environment.pop("LISTEN_FDNAMES", None)
    if meant_for != str(os.getpid()):
        return []
    sockets: list[socket.socket] = []
    for descriptor in range(LISTEN_FDS_START, LISTEN_FDS_START + count):
        with suppress(OSError):
            os.set_inheritable(descriptor, False)
            sockets.append(socket.socket(fileno=descriptor))
    return sockets


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
