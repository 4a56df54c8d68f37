"""The supervisor process: sets an instance up, hands over to the duty cycle, takes it down again."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import setproctitle

from appliance import journal
from appliance.build import build
from appliance.channels.roles import SUPERVISOR, RoleKind
from appliance.clock import SystemClock
from appliance.config import Settings
from appliance.config.sections.listeners import SASL_PLAINTEXT
from appliance.config.sections.sasl import PLAIN
from appliance.control.supervisor.data_directory import DataDirectory
from appliance.control.supervisor.entry_points import ENTRY_POINTS, load_all
from appliance.control.supervisor.listening import (
    Bound,
    PortTaken,
    address_of,
    as_bound,
    close_all,
    is_loopback,
    listeners,
    open_to_other_hosts,
)
from appliance.control.supervisor.memory_room import (
    memory_bytes,
    refuse_full_shared_memory,
    refuse_too_large_pools,
    shared_memory_bytes,
    shared_memory_free_bytes,
)
from appliance.control.supervisor.own_lines import OwnLines
from appliance.control.supervisor.permissions import PRIVATE_UMASK, check_log_directories, readers_group
from appliance.control.supervisor.signals import SUPERVISOR_SIGNALS
from appliance.control.supervisor.zeromq_locks import lock_endpoints, unlock
from appliance.control.systemd import Notifier, listening_sockets
from appliance.errors import (
    ApplianceDefect,
    ApplianceError,
    DataDirectoryInUse,
    HostFault,
    OperatorFault,
)
from appliance.extras import need
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.shared_memory import remove_directory
from appliance.log.file_names import CLEAN_SHUTDOWN, META_PROPERTIES
from appliance.version import VERSION

# 0 is a clean stop; 1 a failure, 4 a stop in which something had to be killed (duty_cycle.py).
EXIT_REFUSED = 2
EXIT_IN_USE = 3
EXIT_PORT_TAKEN = 5

# Above the time of a stop: children of a killed supervisor may use all of that before they let go of the
# directory.
ORPHANS_EXTRA_MS = 1_000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ephemeral:
    """What sets an ephemeral broker apart from a service.

    Args:
        sockets: bound to the ports that were chosen for it, one for each slot.
        parent: a pidfd of the process that it ends with.
        on_ready: called once every process serves, instead of saying so on standard output.
    """

    sockets: Sequence[socket.socket]
    parent: int
    on_ready: Callable[[], None]


def run(
    settings: Settings,
    *,
    entry_points: Mapping[RoleKind, str] = ENTRY_POINTS,
    when_ready: str = "",
    ephemeral: Ephemeral | None = None,
    settings_now: Callable[[], Settings] | None = None,
) -> int:
    """Serves until told to stop; the exit code of the command.

    Says `appliance ready on HOST:PORT (data DIR, pid N)` on standard output once every process serves, and
    everything else on standard error.

    Args:
        settings: what the operator decided.
        entry_points: kind of role → `module:function` to run for it.
        when_ready: printed below the line that says so, if it is not empty.
        ephemeral: None for a service.
        settings_now: reads the configuration again for a reload (SIGHUP); None: there is no file.
    """
    # First of all: the title is found through the environment's first variable, which we may take out below.
    setproctitle.setproctitle(f"appliance: {SUPERVISOR}")
    journal.style(settings.logging.format, {journal.ROOT: settings.logging.level})
    journal.start(str(SUPERVISOR))
    own_lines = OwnLines()
    if settings.console.is_on:
        journal.copy_to(own_lines.add)
    notifier = Notifier.from_environment()
    try:
        code = _run(
            settings,
            entry_points,
            notifier,
            when_ready,
            ephemeral=ephemeral,
            settings_now=settings_now,
            own_lines=own_lines,
        )
        if code == 0:
            _logger.info("stopped")
        return code
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


def _run(
    settings: Settings,
    entry_points: Mapping[RoleKind, str],
    notifier: Notifier,
    when_ready: str,
    *,
    ephemeral: Ephemeral | None,
    settings_now: Callable[[], Settings] | None,
    own_lines: OwnLines,
) -> int:
    _confine()
    refuse_too_large_pools(settings, shared_bytes=shared_memory_bytes(), memory_bytes=memory_bytes())
    _remove_dead()
    refuse_full_shared_memory(shared_memory_free_bytes())
    if settings.console.is_on:
        need("jinja2", needed_by="console.listener")
    _load_token_libraries(settings)
    patience_ms = settings.broker.shutdown_timeout_ms + ORPHANS_EXTRA_MS
    group = readers_group(settings)
    directory = DataDirectory.hold(settings.data_dir, patience_ms=patience_ms, group=group)
    # Whatever umask we were started with: what is created from here on is ours alone (permissions.py).
    os.umask(PRIVATE_UMASK)
    try:
        check_log_directories(settings, group)
        _check_certificates(settings)
        _prepare_sasl(settings, directory)
        chosen = () if ephemeral is None else ephemeral.sockets
        bound = listeners(settings, listening_sockets(), chosen=chosen)
        endpoints: list[int] = []
        try:
            endpoints = lock_endpoints(settings)
            settings = as_bound(settings, bound)
            _say_open_to_others(settings, bound)
            return _serve(
                settings,
                entry_points,
                directory=directory,
                bound=bound,
                notifier=notifier,
                when_ready=when_ready,
                ephemeral=ephemeral,
                settings_now=settings_now,
                own_lines=own_lines,
            )
        finally:
            close_all(bound.values())
            unlock(endpoints)
    finally:
        directory.release()


def _serve(
    settings: Settings,
    entry_points: Mapping[RoleKind, str],
    *,
    directory: DataDirectory,
    bound: Bound,
    notifier: Notifier,
    when_ready: str,
    ephemeral: Ephemeral | None,
    settings_now: Callable[[], Settings] | None,
    own_lines: OwnLines,
) -> int:
    # What is imported lives as long as we do: to look through it again and again takes a seventh of a start.
    gc.disable()
    # Numpy's linear algebra starts a thread per core when a child imports it; nobody needs any of it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from appliance.channels import runtime_directory
    from appliance.channels import wiring as wires
    from appliance.channels.roles import running_roles
    from appliance.control.supervisor.duty_cycle import Supervisor

    roles = running_roles(settings)
    instance = wires.instance_name(settings.data_dir)
    stale = runtime_directory.remove(settings.data_dir)
    if stale:
        _logger.info("removed %d shared memory files of a killed instance", stale)
    runtime_dir = directory.create_runtime_directory()
    held = runtime_directory.hold(runtime_dir)
    _raise_descriptor_limit(settings)

    # A stop ordered from here on waits for the duty cycle, so that nothing is left behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISOR_SIGNALS)
    doorbells = {role: Doorbell.create_eventfd() for role in roles}
    # Before the first fork: a worker makes itself at home in whatever it finds.
    wiring = wires.Wiring(
        settings, instance, runtime_dir, doorbells, _emptied_slots(settings), _clean_directories(settings)
    )
    address = _addresses(settings, bound)

    def say_ready() -> None:
        if ephemeral is not None:
            ephemeral.on_ready()
            return
        with suppress(OSError):
            print(f"appliance ready on {address} (data {settings.data_dir}, pid {os.getpid()})", flush=True)
            if when_ready:
                print(when_ready, flush=True)

    supervisor = Supervisor(
        wiring,
        load_all(entry_points, {role.kind for role in roles}),
        listeners=bound,
        clock=SystemClock(),
        notifier=notifier,
        on_ready=say_ready,
        parent=-1 if ephemeral is None else ephemeral.parent,
        settings_now=settings_now,
        own_lines=own_lines,
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
        with suppress(HostFault):
            remove_directory(runtime_dir)
            runtime_directory.forget(settings.data_dir)
        os.close(held)


def _remove_dead() -> None:
    """Remove what instances have left that no longer run, before the room is looked at: it may be what fills it."""
    from appliance.channels import runtime_directory

    for path in runtime_directory.remove_dead():
        _logger.info("removed %s, the shared memory of an instance that no longer runs", path)


def _confine() -> None:
    """Give up new privileges, also for the children, and tell what this kernel cannot refuse them (confinement.py)."""
    from appliance.process import confinement

    confinement.give_up_new_privileges()
    confinement.say_what_is_missing()


def _check_certificates(settings: Settings) -> None:
    """Refuse a start with TLS files that no network process could use.

    Raises:
        OperatorFault: it names the option and the file.
    """
    for listener in settings.listeners:
        if listener.is_tls:
            # Imported where it is used: without TLS nobody pays for it.
            from appliance.tls.certificates import server_context

            server_context(settings.tls_of(listener))


def _load_token_libraries(settings: Settings) -> None:
    """Load what validates the tokens of OAUTHBEARER, so that all processes share its pages.

    What reads the metrics of clients must be installed, too; the metrics process alone loads it.

    Raises:
        OperatorFault: a package is not installed, and the text names its extra; or the authorities of the identity
            provider cannot be read.
    """
    if settings.metrics.takes_telemetry:
        need("opentelemetry", needed_by="metrics.client.telemetry", extra="telemetry")
    if settings.validates_tokens:
        for package in ("cryptography", "jwt"):
            need(package, needed_by="sasl.enabled.mechanisms = OAUTHBEARER", extra="oauth")
            import_module(package)
        from appliance.control.keys.endpoint import EndpointFault, client_context

        try:
            client_context(settings.oauthbearer)
        except EndpointFault as fault:
            raise OperatorFault(str(fault)) from None


def _prepare_sasl(settings: Settings, directory: DataDirectory) -> None:
    """Refuse a start with a file of users that no network process could use, and make the secret that SCRAM needs.

    Raises:
        OperatorFault: it names the option and the file.
        HostFault: the data directory cannot be written.
    """
    if any(listener.is_sasl for listener in settings.listeners):
        # Imported where it is used: without SASL nobody pays for it.
        from appliance.sasl.password_file import read_passwords

        if settings.sasl.plain_users_file is not None:
            read_passwords(settings.sasl.plain_users_file)
        directory.make_salt_secret()


def _addresses(settings: Settings, bound: Bound) -> str:
    """Return where the appliance listens: slot 0's address, or each slot's where systemd passed different hosts.

    With `listeners`, each address has the name of its listener before it.
    """
    told = []
    for listener in settings.listeners:
        sockets = [bound[listener.name, slot] for slot in range(settings.slots)]
        several = len({sock.getsockname()[0] for sock in sockets}) > 1
        name = f"{listener.name}://" if settings.listener.listeners else ""
        told += [f"{name}{address_of(sock)}" for sock in (sockets if several else sockets[:1])]
    return ", ".join(told)


def _say_open_to_others(settings: Settings, bound: Bound) -> None:
    addresses = open_to_other_hosts(settings, bound)
    if addresses:
        _logger.warning(
            "listening without authentication on %s: anybody who reaches this port can read, write and delete"
            " everything",
            ", ".join(addresses),
        )
    in_clear = [
        address_of(bound[each.name, 0])
        for each in settings.listeners
        if each.protocol == SASL_PLAINTEXT
        and PLAIN in settings.sasl.mechanisms_of(each.name)
        and not is_loopback(bound[each.name, 0].getsockname()[0])
    ]
    if in_clear:
        _logger.warning(
            "passwords of PLAIN cross the network unencrypted on %s: use SASL_SSL, or SCRAM",
            ", ".join(in_clear),
        )
    if any(each.tells_arrival_address for each in settings.listeners):
        _logger.info(
            "clients get the address that they connected to; behind NAT or a port forward set %s",
            "advertised.listeners" if settings.listener.listeners else "advertised.host",
        )


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
        "version": VERSION,
        "build": build(),
        "pid": os.getpid(),
        "host": settings.host,
        "port": settings.port,
        "security_protocol": settings.main_listener.protocol,
        "slots": settings.slots,
        "data_dir": str(settings.data_dir.resolve()),
        "log_dirs": [list(map(str, settings.log_directories(slot))) for slot in range(settings.slots)],
        "zookeeper_connect": settings.metadata.zookeeper_connect,
        "started_ms": SystemClock().now_ms(),
    }


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
            "the limit of open files per process is %d, but max.connections is %d; raise"
            " the limit (ulimit -n, LimitNOFILE=)",
            soft,
            settings.network.connections_max,
        )
