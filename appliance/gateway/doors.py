"""The listening sockets of one process: bound, guarded, and told apart by their transport.

    acceptor           listeners.zeromq as they stand
    network process N  the endpoint beside each of them (config/sections/zeromq.py)

Binding an ipc path replaces whatever socket lies there, a living broker's, too. The supervisor holds a lock for each
listener as long as a process of the instance lives (control/supervisor/zeromq_locks.py), so what lies there is a dead
one's.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from appliance.config.sections.zeromq import ZeroMqSettings, ipc_path, is_tcp, netproc_endpoint
from appliance.errors import ConfigurationError, HostFault
from appliance.gateway.admission import (
    CURVE_DOMAIN,
    INSECURE_DOMAIN,
    IPC_DOMAIN,
    ClientKeys,
    Doorkeeper,
    read_keys,
    user_ids,
)
from appliance.gateway.connections import Connections
from appliance.gateway.frames import Kind, broker_header

_OWNER_ONLY_UMASK: Final = 0o177
_EVERYBODY_UMASK: Final = 0o111
_BACKLOG: Final = 100
_SKIPPED_FRAMES: Final = 1024
"""Frames of a message that has too many, thrown away in one turn."""
_NOBLOCK: Final = int(zmq.NOBLOCK)
_SEND_MORE: Final = int(zmq.SNDMORE) | _NOBLOCK
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_KEEPALIVE: Final = 1


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The CURVE key pair of the broker, in Z85."""

    public: bytes
    secret: bytes


@dataclass(slots=True)
class Door:
    """A bound ROUTER. `listener` is the configured endpoint that it belongs to.

    While `is_skipping`, the next frames belong to a message that has too many. `is_quiet`: ZeroMQ said that nothing is
    to be read, and was called for nothing else since, so the descriptor tells of the next message. The gateway keeps
    it: where it calls the ROUTER it makes it False, and while it is True it need not ask before it sleeps.
    """

    listener: str
    router: zmq.Socket[bytes]
    descriptor: int
    connections: Connections
    is_skipping: bool = False
    is_quiet: bool = False

    @property
    def is_tcp(self) -> bool:
        """Whether clients may be on another host."""
        return is_tcp(self.listener)

    def is_empty(self) -> bool:
        """Whether nothing is to be read. It asks ZeroMQ, which is a system call."""
        self.is_quiet = not int(self.router.get(_EVENTS)) & _POLLIN
        return self.is_quiet

    def skip(self) -> bool:
        """Throw away frames of a message that has too many; return whether its end is reached."""
        self.is_skipping = True
        for _ in range(_SKIPPED_FRAMES):
            if not self.router.recv(_NOBLOCK, copy=False).more:
                self.is_skipping = False
                return True
        return False

    def tell(self, routing_id: bytes, kind: Kind, body: bytes) -> None:
        """Send a message to a connection, unless it is gone or does not read."""
        self.is_quiet = False
        with suppress(zmq.ZMQError):
            self.router.send(routing_id, _SEND_MORE)
            self.router.send(broker_header(kind), _SEND_MORE)
            self.router.send(body, _NOBLOCK)


def server_keys(settings: ZeroMqSettings) -> ServerKeys | None:
    """Return the configured CURVE keys; None without any.

    Raises:
        ConfigurationError: the file cannot be read, or has not both keys.
    """
    if settings.curve_secret_key_file is None:
        return None
    path = Path(settings.curve_secret_key_file)
    keys = read_keys(path)
    if keys.keys() < {"public-key", "secret-key"}:
        raise ConfigurationError(
            f"{path}: no public-key and secret-key in it (zmq.auth.create_certificates writes both)"
        )
    return ServerKeys(keys["public-key"], keys["secret-key"])


def make_doorkeeper(
    context: zmq.Context[zmq.Socket[bytes]],
    settings: ZeroMqSettings,
    warn: Callable[[str], object],
    refused: Callable[[str, str], None],
) -> Doorkeeper:
    """Return the one who answers the handshakes of `context`. Call it before a door is opened.

    Args:
        warn, refused: as of `Doorkeeper`.
    """
    directory = settings.curve_client_keys_dir
    return Doorkeeper(
        context,
        users=user_ids(os.getuid(), settings.allowed_users),
        keys=None if directory is None else ClientKeys(Path(directory)),
        warn=warn,
        refused=refused,
    )


def open_doors(
    context: zmq.Context[zmq.Socket[bytes]],
    settings: ZeroMqSettings,
    *,
    netproc: int | None,
    message_bytes_max: int,
    sent_max: int,
    received_max: int,
) -> list[Door]:
    """Bind a ROUTER for each listener. Nobody else may be creating files in this process meanwhile.

    Args:
        context: one with a doorkeeper.
        settings: the listeners, and who may come in.
        netproc: which network process this is; None for the acceptor.
        message_bytes_max: the longest frame. A longer one ends its connection before it is received.
        sent_max: messages that may wait for one client.
        received_max: messages of one client that may wait for us.

    Raises:
        HostFault: an endpoint cannot be bound.
    """
    keys = server_keys(settings)
    doors: list[Door] = []
    for listener in settings.listeners:
        router = context.socket(zmq.ROUTER)
        router.set(zmq.LINGER, 0)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.MAXMSGSIZE, message_bytes_max)
        router.set(zmq.SNDHWM, sent_max)
        router.set(zmq.RCVHWM, received_max)
        router.set(zmq.BACKLOG, _BACKLOG)
        domain = IPC_DOMAIN
        if is_tcp(listener):
            router.set(zmq.TCP_KEEPALIVE, _KEEPALIVE)
            router.set(zmq.IPV6, 1)
            domain = INSECURE_DOMAIN
            if keys is not None:
                domain = CURVE_DOMAIN
                router.set(zmq.CURVE_SERVER, 1)
                router.set(zmq.CURVE_PUBLICKEY, keys.public)
                router.set(zmq.CURVE_SECRETKEY, keys.secret)
        router.set(zmq.ZAP_DOMAIN, domain.encode())
        router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        endpoint = listener if netproc is None else netproc_endpoint(listener, netproc)
        connections = Connections(context, router, endpoint)
        _bind(router, endpoint, open_to_others=bool(settings.allowed_users))
        doors.append(Door(listener, router, int(router.get(zmq.FD)), connections))
    return doors


def watch(epoll: select.epoll, doorkeeper: Doorkeeper, doors: list[Door]) -> None:
    """Have the loop wake for whatever a door or its doorkeeper has to tell."""
    for descriptor in _descriptors(doorkeeper, doors):
        epoll.register(descriptor, select.EPOLLIN)


def unwatch(epoll: select.epoll, doorkeeper: Doorkeeper, doors: list[Door]) -> None:
    """Undo `watch`."""
    for descriptor in _descriptors(doorkeeper, doors):
        with suppress(OSError):
            epoll.unregister(descriptor)


def _descriptors(doorkeeper: Doorkeeper, doors: list[Door]) -> list[int]:
    own = [each for door in doors for each in (door.descriptor, door.connections.descriptor)]
    return [doorkeeper.fileno(), *own]


def close_doors(doors: list[Door], *, linger_ms: int) -> None:
    """Close them; what is sent and not received yet has `linger_ms` to leave."""
    for door in doors:
        door.connections.close()
        door.router.close(linger=linger_ms)
    doors.clear()


def _bind(router: zmq.Socket[bytes], endpoint: str, *, open_to_others: bool) -> None:
    """Bind with the file mode that lets in whom the doorkeeper admits, from the first moment on."""
    umask = os.umask(_EVERYBODY_UMASK if open_to_others else _OWNER_ONLY_UMASK)
    try:
        router.bind(endpoint)
    except zmq.ZMQError as error:
        where = endpoint if is_tcp(endpoint) else ipc_path(endpoint)
        raise HostFault(f"listeners.zeromq: cannot bind {where}: {error.strerror}") from error
    finally:
        os.umask(umask)
