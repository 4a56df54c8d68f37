"""Sockets between processes of one instance: the kernel says who connects, and another user is refused.

These sockets are in a directory that only the service's user may enter (runtime_directory.py). The checks here hold
also if somebody widens the mode of this directory, or hands a descriptor of it to another user. A socket whose own mode
lets others in is refused at the start.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from typing import Final

import zmq

from appliance.errors import HostFault

_CREDENTIALS: Final = struct.Struct("3i")
_OTHERS: Final = 0o077
_IPC: Final = "ipc://"


def peer_of(sock: socket.SocketType) -> tuple[int, int]:
    """Return process id and user id of who connected."""
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


def bind_router(router: zmq.Socket[bytes], address: str) -> None:
    """Bind a ZeroMQ socket to `ipc://PATH`, for processes of this user alone.

    ZeroMQ drops the connection of any other user before it reads a byte.

    Raises:
        HostFault: the path cannot be bound, or others may connect to it.
    """
    path = address.removeprefix(_IPC)
    router.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
    before = os.umask(_OTHERS)
    try:
        router.bind(address)
    except zmq.ZMQError as error:
        raise HostFault(f"cannot bind {path}: {error.strerror}") from error
    finally:
        os.umask(before)
    _check(path)


def bind_socket(sock: socket.socket, path: str) -> None:
    """Bind a Unix socket to `path`, for processes of this user alone; what lies there is removed.

    Whoever accepts must look at `peer_of` each connection, too.

    Raises:
        HostFault: the path cannot be bound, or others may connect to it.
    """
    before = os.umask(_OTHERS)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        sock.bind(path)
    except OSError as error:
        raise HostFault(f"cannot bind {path}: {error.strerror}") from error
    finally:
        os.umask(before)
    _check(path)


def _check(path: str) -> None:
    """Refuse a socket that is not this user's alone."""
    try:
        found = os.lstat(path)
    except OSError as error:
        raise HostFault(f"{path}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise HostFault(
            f"{path}: not a socket of user {os.geteuid()} alone"
            f" (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})"
        )
