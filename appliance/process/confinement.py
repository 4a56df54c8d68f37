"""What each role gives up before its first turn, because it never needs it.

| role | capabilities that it keeps, if it has them | what it may change in the file system |
|---|---|---|
| netproc, coordinator, purgatory, metrics, console, services | DAC_READ_SEARCH | opens shared memory for writing |
| services | as above | the same, and the files of the index of delayed records |
| services, metrics with the endpoint of a collector | as above | the same; they may connect to its port |
| metrics, console with a port below 1024 | that to bind it, too | the same |
| acceptor | DAC_READ_SEARCH | the same, and makes its sockets |
| metrics with metrics.client.telemetry | as above | the same, and makes its socket |
| netproc, acceptor with ZeroMQ listeners | those to bind them, too | the sockets of these listeners, too |
| ioproc, replica, cleaner, controller, auditor | those over files: they write logs, metadata, audit.log | everything |
| keys | those over files; it must connect to the identity provider | everything |

netproc, acceptor, coordinator, metrics and console handle bytes of strangers. So the kernel refuses them, and the
purgatory, which writes no file either, every other change (`landlock.py`): to open a segment or the metadata store for
writing, to create or remove a name elsewhere, to start a program, to connect to a TCP port (the console: to any port
but those of the broker slots and of the schema registry), to signal other processes, to trace them or read their
memory. It also refuses them system calls that they never make (`refused_calls.py`). No process, the supervisor
included, can get new privileges.

DAC_READ_SEARCH stays because an adopted segment may belong to the user of Apache Kafka (docs/adopting.md).

Where the kernel has no Landlock, or a container's filter hides it, the supervisor logs one line, and the processes run
without it. Decision 0116 has the reasons.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.channels.roles import RoleKind
from appliance.channels.wiring import Wiring
from appliance.config import Settings
from appliance.config.collector_url import collector_port
from appliance.config.sections.services import INDEX_DIRECTORY
from appliance.config.sections.shared_memory import LANE_DIRECTORY, LANE_SOCKET
from appliance.config.sections.zeromq import ipc_path, is_tcp
from appliance.process import capabilities
from appliance.process.capabilities import Capability, keep_only
from appliance.process.landlock import Right, restrict, version
from appliance.process.refused_calls import refuse_calls

WRITE_NO_FILES: Final = frozenset(
    {
        RoleKind.NETPROC,
        RoleKind.ACCEPTOR,
        RoleKind.COORDINATOR,
        RoleKind.PURGATORY,
        RoleKind.METRICS,
        RoleKind.CONSOLE,
        RoleKind.SERVICES,
    }
)
"""Roles that write to no log and to no metadata."""

PRIVILEGED_PORTS: Final = 1024
"""Ports below need a capability (capabilities(7))."""

_ACCEPT: Final = frozenset({RoleKind.NETPROC, RoleKind.ACCEPTOR})
_OVER_FILES: Final = frozenset(
    {
        Capability.CHOWN,
        Capability.DAC_OVERRIDE,
        Capability.DAC_READ_SEARCH,
        Capability.FOWNER,
        Capability.FSETID,
    }
)
_FILES: Final = Right.WRITE_FILE | Right.MAKE_REG | Right.REMOVE_FILE | Right.TRUNCATE
_SOCKETS: Final = Right.MAKE_SOCK | Right.REMOVE_FILE

_logger = logging.getLogger(__name__)


def confine(kind: RoleKind, wiring: Wiring) -> None:
    """Give up what this role does not need. Call it in the new process, before it has a second thread.

    The process goes on where the kernel refuses a part of it; a line says so.
    """
    settings = wiring.settings
    steps: list[Callable[[], object]] = [lambda: keep_only(capabilities_of(kind, settings))]
    if kind in WRITE_NO_FILES:
        _prepare_directories(kind, settings)
        ports = ports_of(kind, settings)
        steps = [lambda: restrict(changes_of(kind, wiring), connect_ports=ports), *steps, refuse_calls]
    for step in steps:
        try:
            step()
        except OSError as error:
            _logger.warning("this process keeps rights that it does not need: %s", error)


def _prepare_directories(kind: RoleKind, settings: Settings) -> None:
    """Create the only directory that a role would create, so that it need not have the right to.

    Without lanes remove the socket that an earlier start left, because a client would ask there instead of over TCP.
    """
    if kind is RoleKind.ACCEPTOR:
        lanes = settings.data_dir / LANE_DIRECTORY
        with suppress(OSError):  # the door tells what is wrong with it
            if settings.shared_memory.lanes_max:
                os.mkdir(lanes, 0o700)
            else:
                os.unlink(lanes / LANE_SOCKET)
    if kind is RoleKind.SERVICES:
        with suppress(OSError):  # a line says so when the first file cannot be written
            os.mkdir(settings.data_dir / INDEX_DIRECTORY, 0o700)


def give_up_new_privileges() -> None:
    """Give up new privileges, for this process and its children; a line says where the kernel refuses."""
    try:
        capabilities.give_up_new_privileges()
    except OSError as error:
        _logger.warning("the appliance could gain privileges by a set-user-ID program: %s", error)


def say_what_is_missing() -> None:
    """Log one line where this kernel cannot confine the processes."""
    if not version():
        _logger.info(
            "the kernel offers no Landlock: network processes have only the file modes between them and the logs"
        )


def capabilities_of(kind: RoleKind, settings: Settings) -> frozenset[Capability]:
    """Return what a role keeps, if it has it."""
    if kind not in WRITE_NO_FILES:
        return _OVER_FILES
    kept = {Capability.DAC_READ_SEARCH}
    if kind in _ACCEPT:
        for listener in settings.zeromq.listeners:
            # The directory of the sockets may belong to the clients' user.
            kept.add(Capability.NET_BIND_SERVICE if is_tcp(listener) else Capability.DAC_OVERRIDE)
    for of, section in ((RoleKind.METRICS, settings.metrics), (RoleKind.CONSOLE, settings.console)):
        if kind is of and section.is_on and section.address[1] < PRIVILEGED_PORTS:
            kept.add(Capability.NET_BIND_SERVICE)
    if kind is RoleKind.ACCEPTOR and settings.shared_memory.group is not None:
        kept |= {Capability.CHOWN, Capability.FSETID}
    return frozenset(kept)


def ports_of(kind: RoleKind, settings: Settings) -> Sequence[int]:
    """Return the TCP ports to which a role of WRITE_NO_FILES may connect.

    The console is a client of each slot, and of a schema registry. A services process sends traces to a collector, a
    metrics process metrics.
    """
    listener = settings.console_listener
    if kind is RoleKind.CONSOLE and listener is not None:
        registry = settings.console.registry_port
        slots = range(listener.port, listener.port + settings.slots)
        return slots if registry is None else (*slots, registry)
    collectors = {
        RoleKind.SERVICES: settings.services.trace_otlp_endpoint,
        RoleKind.METRICS: settings.metrics.otlp_endpoint,
    }
    port = collector_port(collectors.get(kind, ""))
    return () if port is None else (port,)


def changes_of(kind: RoleKind, wiring: Wiring) -> Mapping[Path, Right]:
    """Return path → what a role of WRITE_NO_FILES may do there."""
    settings = wiring.settings
    shared_memory = Right.WRITE_FILE
    allowed: dict[Path, Right] = {Path("/dev/null"): Right.WRITE_FILE}
    if kind is RoleKind.ACCEPTOR:
        shared_memory |= _SOCKETS
        if settings.shared_memory.lanes_max:
            allowed[settings.data_dir / LANE_DIRECTORY] = _SOCKETS
    if kind is RoleKind.METRICS and settings.metrics.takes_telemetry:
        shared_memory |= _SOCKETS
    if kind is RoleKind.SERVICES:
        allowed[settings.data_dir / INDEX_DIRECTORY] = _FILES
    if kind in _ACCEPT:
        for listener in settings.zeromq.listeners:
            if not is_tcp(listener):
                allowed[Path(ipc_path(listener)).parent] = _SOCKETS
    allowed[wiring.runtime_dir] = shared_memory
    return allowed
