"""Listeners for ZeroMQ clients (docs/zeromq.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

_MIB: Final = 2**20
_PORT_MAX: Final = 65535
_TCP: Final = re.compile(r"tcp://(?P<host>\*|\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")
_EVERY_ADDRESS: Final = frozenset(("0.0.0.0", "[::]"))
IPC_PREFIX: Final = "ipc://"
TCP_PREFIX: Final = "tcp://"
PATH_BYTES_MAX: Final = 107
"""The longest path of a Unix socket (`sun_path` in unix(7), without the terminating zero)."""
LOCK_SUFFIX: Final = ".lock"
NETPROC_SUFFIX_BYTES: Final = 3
"""`.63`: what the name of a network process's socket has behind the listener's."""


@dataclass(frozen=True, slots=True)
class ZeroMqSettings:
    """What ZeroMQ clients may connect to, who they may be, and what one of them may hold."""

    listeners: tuple[str, ...] = option(
        (),
        "listeners.zeromq",
        doc="Endpoints for ZeroMQ clients, separated by commas: ipc:///PATH or tcp://HOST:PORT. For "
        "each endpoint, network process N also binds the endpoint ipc:///PATH.N or the port PORT + "
        "1 + N. See docs/zeromq.md.",
    )
    allowed_users: tuple[str, ...] = option(
        (),
        "zeromq.allowed.users",
        doc="Users of this host, by name or number, that may connect to ipc endpoints. The user that "
        "runs the appliance may always connect.",
    )
    curve_secret_key_file: str | None = option(
        None,
        "zeromq.curve.secret.key.file",
        doc="File with the CURVE key pair of the tcp endpoints, as zmq.auth.create_certificates writes "
        "it (NAME.key_secret). With tcp endpoints, set either this file or zeromq.tcp.insecure.",
    )
    curve_client_keys_dir: str | None = option(
        None,
        "zeromq.curve.client.keys.dir",
        doc="Directory with the public keys of the clients that may connect to tcp endpoints. The key "
        "of a client is in a file NAME.key. When the directory changes, the appliance reads it "
        "again.",
    )
    tcp_insecure: bool = option(
        False,
        "zeromq.tcp.insecure",
        doc="Whether the appliance serves tcp endpoints without authentication and encryption. Anybody "
        "who can connect to the port can then read, write and delete everything.",
    )
    sessions_max: int = option(
        1000,
        "zeromq.sessions.max",
        unit="sessions",
        minimum=1,
        maximum=100_000,
        doc="Maximum number of ZeroMQ sessions of one network process.",
    )
    session_timeout_ms: int = option(
        10_000,
        "zeromq.session.timeout.ms",
        unit="ms",
        minimum=500,
        maximum=3_600_000,
        doc="Time after which a ZeroMQ session ends if the client sends nothing. A client that has sent"
        " nothing for a fifth of this time sends a heartbeat.",
    )
    bytes_in_flight_max: int = option(
        16 * _MIB,
        "zeromq.bytes.in.flight.max",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=1024,
        doc="Maximum size of all unanswered requests of one ZeroMQ session together. A single request may "
        "be larger, up to socket.request.max.bytes, if no other request is unanswered.",
    )
    window_max_bytes: int = option(
        16 * _MIB,
        "zeromq.window.max.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=65536,
        maximum=1024 * _MIB,
        doc="Maximum number of bytes that the broker sends to a ZeroMQ client before the client "
        "acknowledges them. If a client asks for a larger window, the broker uses this maximum.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        seen: set[str] = set()
        for listener in self.listeners:
            why = _fault_of(listener)
            if why is None and listener in seen:
                why = "it is listed twice"
            if why is not None:
                raise ConfigurationError(f"listeners.zeromq = {listener!r}: {why}")
            seen.add(listener)
        has_keys = self.curve_secret_key_file is not None and self.curve_client_keys_dir is not None
        if any(is_tcp(listener) for listener in self.listeners) and not (self.tcp_insecure or has_keys):
            raise ConfigurationError(
                "listeners.zeromq: a tcp endpoint needs zeromq.curve.secret.key.file and "
                "zeromq.curve.client.keys.dir, or zeromq.tcp.insecure = true"
            )
        if self.tcp_insecure and self.curve_secret_key_file is not None:
            raise ConfigurationError(
                "zeromq.tcp.insecure and zeromq.curve.secret.key.file exclude each other: remove one of them"
            )


def is_tcp(listener: str) -> bool:
    """Return whether clients reach the listener by TCP; else it is a Unix socket."""
    return listener.startswith(TCP_PREFIX)


def ipc_path(listener: str) -> str:
    """Return the path of an ipc listener's socket."""
    return listener.removeprefix(IPC_PREFIX)


def tcp_address(listener: str) -> tuple[str, int]:
    """Return host and port of a tcp listener; the host may be `*`, or an IPv6 address in brackets."""
    match = _TCP.fullmatch(listener)
    assert match is not None
    return match["host"], int(match["port"])


def netproc_endpoint(listener: str, netproc: int) -> str:
    """Return the endpoint of network process `netproc` (from 0) beside `listener`."""
    if not is_tcp(listener):
        return f"{listener}.{netproc}"
    host, port = tcp_address(listener)
    return f"{TCP_PREFIX}{host}:{port + 1 + netproc}"


def told_endpoint(listener: str, netproc: int) -> str:
    """Return the endpoint of a network process as clients see it: `*` stands for each address of the host."""
    endpoint = netproc_endpoint(listener, netproc)
    if is_tcp(endpoint):
        host, port = tcp_address(endpoint)
        if host in _EVERY_ADDRESS:
            return f"{TCP_PREFIX}*:{port}"
    return endpoint


def overlap_of(listeners: Sequence[str], netprocs: int) -> tuple[str, str] | None:
    """Return two listeners that need the same port or file, because each one needs one for each network process, too.

    Two names of one address, such as localhost and 127.0.0.1, count as two addresses.
    """
    taken: dict[str, dict[str, str]] = {}  # a port or file → address → listener
    for listener in listeners:
        for place, address in _places(listener, netprocs):
            others = taken.setdefault(place, {})
            for other_address, other in others.items():
                if other != listener and (address == other_address or "*" in (address, other_address)):
                    return other, listener
            others[address] = listener
    return None


def _places(listener: str, netprocs: int) -> Iterator[tuple[str, str]]:
    """Yield the port or file, and the address, of each endpoint of a listener."""
    endpoints = (listener, *(netproc_endpoint(listener, each) for each in range(netprocs)))
    if is_tcp(listener):
        for host, port in map(tcp_address, endpoints):
            yield str(port), "*" if host in _EVERY_ADDRESS else host
    else:
        for path in (*map(ipc_path, endpoints), f"{ipc_path(listener)}{LOCK_SUFFIX}"):
            yield os.path.normpath(path), ""


def _fault_of(listener: str) -> str | None:
    """Return what is wrong with an endpoint, or None."""
    if listener.startswith(IPC_PREFIX):
        path = ipc_path(listener)
        if path.startswith("@"):
            return "an abstract name has no file mode, so everybody could connect: use a path"
        if not path.startswith("/"):
            return "the path must be absolute: ipc:///PATH"
        if len(path.encode()) + NETPROC_SUFFIX_BYTES > PATH_BYTES_MAX:
            return f"the path must not have more than {PATH_BYTES_MAX - NETPROC_SUFFIX_BYTES} bytes"
        return None
    match = _TCP.fullmatch(listener)
    if match is None:
        return "must be ipc:///PATH or tcp://HOST:PORT"
    if not 1 <= int(match["port"]) <= _PORT_MAX:
        return f"the port must be from 1 to {_PORT_MAX}"
    return None
