"""Locks for the ZeroMQ endpoints, held as long as a process of the instance lives.

ZeroMQ binds an ipc path by replacing the socket that lies there, so a second broker would take the clients of a living
one. The supervisor therefore locks `PATH.lock` for each ipc listener before it forks; its children inherit the
descriptor, so the lock ends with the last of them. The lock file has mode 0600 and stays, because a removed one could
be locked by two (decision 0076). A tcp port cannot be taken over; a look at each of them tells the operator at the
start instead of each process for ever.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from appliance.config import Settings
from appliance.config.sections.zeromq import LOCK_SUFFIX, ipc_path, is_tcp, netproc_endpoint, tcp_address
from appliance.control.supervisor.listening import PortTaken
from appliance.errors import OperatorFault
from appliance.log.lock_file import user_named

_MODE: Final = 0o600
_OTHERS_WRITE: Final = stat.S_IWOTH

_logger = logging.getLogger(__name__)


def lock_endpoints(settings: Settings) -> list[int]:
    """Lock every ipc listener and look at every tcp port; return the descriptors to keep open.

    Raises:
        PortTaken: another program has an endpoint.
        OperatorFault: an endpoint cannot be bound.
    """
    held: list[int] = []
    try:
        for listener in settings.zeromq.listeners:
            endpoints = (
                listener,
                *(netproc_endpoint(listener, n) for n in range(settings.network.processes)),
            )
            if is_tcp(listener):
                for endpoint in endpoints:
                    _look_at(*tcp_address(endpoint))
            else:
                held.append(_lock(Path(ipc_path(listener))))
                for endpoint in endpoints:
                    _refuse_other_file(Path(ipc_path(endpoint)))
            _logger.info("ZeroMQ clients connect to %s", listener)
    except BaseException:
        unlock(held)
        raise
    if settings.zeromq.tcp_insecure and any(map(is_tcp, settings.zeromq.listeners)):
        _logger.warning(
            "zeromq.tcp.insecure: anybody who reaches the ZeroMQ ports can read, write and delete everything"
        )
    return held


def unlock(held: Iterable[int]) -> None:
    """Close this process's descriptors."""
    for descriptor in held:
        os.close(descriptor)


def _lock(path: Path) -> int:
    directory = path.parent
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        raise OperatorFault(
            f"listeners.zeromq: {directory}: {error.strerror}; create it with mode 0750"
        ) from error
    if mode & _OTHERS_WRITE and not mode & stat.S_ISVTX:
        raise OperatorFault(
            f"listeners.zeromq: everybody may write in {directory} and replace the socket; use a directory of mode 0750"
        )
    lock = path.with_name(f"{path.name}{LOCK_SUFFIX}")
    try:
        # Read-only is enough to lock, and children inherit it.
        descriptor = os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    except OSError as error:
        raise OperatorFault(f"listeners.zeromq: cannot lock {lock}: {error.strerror}") from error
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OperatorFault(
            f"listeners.zeromq: {lock} belongs to user {user_named(found.st_uid)}, who can lock it: remove it, and use"
            f" a directory of mode 0750 instead of {directory}"
        )
    if found.st_mode & 0o077:
        os.fchmod(descriptor, _MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise PortTaken(f"listeners.zeromq: another program serves {path} (it holds {lock.name})") from error
    return descriptor


def _refuse_other_file(path: Path) -> None:
    """ZeroMQ would remove whatever lies there."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OperatorFault(f"listeners.zeromq: {path} exists and is no socket; binding would remove it")


def _look_at(host: str, port: int) -> None:
    """Listen on a tcp port for a moment, on the first of the host's addresses that allows it.

    Raises:
        PortTaken: another program listens there.
        OperatorFault: no address of the host allows it.
    """
    last: OSError | None = None
    for family, kind, protocol, _, address in _addresses(host, port):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(1)
        except OSError as error:
            last = error
        else:
            return
        finally:
            sock.close()
    if last is not None and last.errno == errno.EADDRINUSE:
        raise PortTaken(f"listeners.zeromq: port {port} is taken: another program listens on {host}:{port}")
    raise OperatorFault(
        f"listeners.zeromq: cannot listen on {host}:{port}: {last.strerror if last else 'no such address'}"
    )


def _addresses(host: str, port: int) -> Sequence[tuple[int, int, int, str, tuple[object, ...]]]:
    name = None if host == "*" else host.strip("[]")
    try:
        return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OperatorFault(f"listeners.zeromq: {host} is no address of this host ({error})") from error
