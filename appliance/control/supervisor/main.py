"""The supervisor process: sets an instance up, hands over to the duty cycle, takes it down again."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import setproctitle

from appliance import journal
from appliance.build import build
from appliance.channels.roles import SUPERVISOR, RoleKind
from appliance.clock import SystemClock
from appliance.config import Settings
from appliance.control.supervisor.data_directory import DataDirectory
from appliance.control.supervisor.entry_points import ENTRY_POINTS, load_all
from appliance.control.supervisor.listening import PortTaken, close_all, listeners
from appliance.control.supervisor.signals import SUPERVISOR_SIGNALS
from appliance.control.systemd import Notifier, listening_sockets
from appliance.errors import ApplianceDefect, ApplianceError, DataDirectoryInUse, OperatorFault
from appliance.ipc.doorbell import Doorbell
from appliance.log.file_names import CLEAN_SHUTDOWN, META_PROPERTIES

# 0 is a clean stop; 1 a failure, 4 a stop in which something had to be killed (duty_cycle.py).
EXIT_REFUSED = 2
EXIT_IN_USE = 3
EXIT_PORT_TAKEN = 5

# Above the time of a stop: children of a killed supervisor may use all of that before they let go of the
# directory.
ORPHANS_EXTRA_MS = 1_000

# A Unix socket's path has 107 bytes; ZeroMQ and the names of our sockets want some of them.
RUNTIME_PATH_BYTES_MAX = 80

_logger = logging.getLogger(__name__)


def run(settings: Settings, *, entry_points: Mapping[RoleKind, str] = ENTRY_POINTS) -> int:
    """Serves until told to stop; the exit code of the command.

    Says `appliance ready on HOST:PORT (data DIR, pid N)` on standard output once every process serves, and
    everything else on standard error.

    Args:
        settings: what the operator decided.
        entry_points: kind of role → `module:function` to run for it.
    """
    # First of all: the title is found through the environment's first variable, which we may take out below.
    setproctitle.setproctitle(f"appliance: {SUPERVISOR}")
    journal.start(str(SUPERVISOR))
    notifier = Notifier.from_environment()
    try:
        return _run(settings, entry_points, notifier)
    except DataDirectoryInUse as fault:
        _logger.critical("%s", fault)
        return EXIT_IN_USE
    except PortTaken as fault:
        _logger.critical("%s", fault)
        return EXIT_PORT_TAKEN
    except OperatorFault as fault:
        _logger.critical("%s", fault)
        return EXIT_REFUSED
    except ApplianceDefect:
        raise
    except ApplianceError as fault:
        _logger.critical("%s", fault)
        return 1
    finally:
        notifier.close()


def _run(settings: Settings, entry_points: Mapping[RoleKind, str], notifier: Notifier) -> int:
    patience_ms = settings.broker.shutdown_timeout_ms + ORPHANS_EXTRA_MS
    directory = DataDirectory.hold(settings.data_dir, patience_ms=patience_ms)
    try:
        bound = listeners(settings, listening_sockets())
        try:
            return _serve(settings, entry_points, directory=directory, bound=bound, notifier=notifier)
        finally:
            close_all(bound.values())
    finally:
        directory.release()


def _serve(
    settings: Settings,
    entry_points: Mapping[RoleKind, str],
    *,
    directory: DataDirectory,
    bound: Mapping[int, socket.socket],
    notifier: Notifier,
) -> int:
    # What is imported lives as long as we do: to look through it again and again takes a seventh of a start.
    gc.disable()
    # Numpy's linear algebra starts a thread per core when a child imports it; nobody needs any of it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from appliance.channels import wiring as wires
    from appliance.channels.roles import running_roles
    from appliance.control.supervisor.duty_cycle import Supervisor

    roles = running_roles(settings)
    instance = wires.instance_name(settings.data_dir)
    runtime_dir = wires.runtime_dir(instance)
    if len(os.fsencode(runtime_dir)) > RUNTIME_PATH_BYTES_MAX:
        raise OperatorFault(f"runtime directory {runtime_dir} is too long for the path of a Unix socket")
    stale = wires.remove_stale(instance)
    if stale:
        _logger.info("removed %d shared memory names that a killed instance left", len(stale))
    _empty(runtime_dir)
    _raise_descriptor_limit(settings)

    # A stop ordered from here on waits for the duty cycle, so that nothing is left behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISOR_SIGNALS)
    doorbells = {role: Doorbell.create_eventfd() for role in roles}
    # Before the first fork: a worker makes itself at home in whatever it finds.
    wiring = wires.Wiring(
        settings, instance, runtime_dir, doorbells, _emptied_slots(settings), _clean_directories(settings)
    )
    address = f"{settings.host}:{settings.port}"

    def say_ready() -> None:
        with suppress(OSError):
            print(f"appliance ready on {address} (data {settings.data_dir}, pid {os.getpid()})", flush=True)

    supervisor = Supervisor(
        wiring,
        load_all(entry_points, {role.kind for role in roles}),
        listeners=bound,
        clock=SystemClock(),
        notifier=notifier,
        on_ready=say_ready,
    )
    try:
        wiring.create_standing_regions()
        directory.write_run_file(_run_facts(settings, instance))
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        supervisor.start()
        gc.enable()
        return supervisor.run()
    finally:
        supervisor.close()
        for eventfd in doorbells.values():
            os.close(eventfd)
        wires.remove_stale(instance)
        _empty(runtime_dir)
        with suppress(OSError):
            runtime_dir.rmdir()


def _emptied_slots(settings: Settings) -> frozenset[int]:
    """Slots of which no log directory is marked as theirs."""
    return frozenset(
        slot
        for slot in range(settings.slots)
        if not any((path / META_PROPERTIES).exists() for path in settings.log_directories(slot))
    )


def _clean_directories(settings: Settings) -> dict[Path, str]:
    """Log directories that were closed in good order, where several processes are to be told so."""
    if settings.slots == 1 and settings.io.workers == 1:
        return {}
    life = os.urandom(16).hex()
    paths = (path for slot in range(settings.slots) for path in settings.log_directories(slot))
    return {path: life for path in paths if (path / CLEAN_SHUTDOWN).exists()}


def _run_facts(settings: Settings, instance: str) -> dict[str, object]:
    return {
        "instance": instance,
        "build": build(),
        "pid": os.getpid(),
        "host": settings.host,
        "port": settings.port,
        "slots": settings.slots,
        "log_dirs": [list(map(str, settings.log_directories(slot))) for slot in range(settings.slots)],
        "started_ms": SystemClock().now_ms(),
    }


def _empty(runtime_dir: Path) -> None:
    """Removes the sockets that an instance left; called only while the data directory is held."""
    for entry in runtime_dir.iterdir():
        if not entry.is_dir():
            entry.unlink(missing_ok=True)


def _raise_descriptor_limit(settings: Settings) -> None:
    """As many descriptors as the system lets us have; says so where that is less than the connections
    allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if 0 <= soft < settings.network.connections_max:
        _logger.warning(
            "the system allows %d descriptors a process, max.connections is %d",
            soft,
            settings.network.connections_max,
        )
