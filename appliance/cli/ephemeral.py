"""`appliance serve --ephemeral`: a broker for tests, on a free port, whose data are thrown away with it.

It prints where it listens, as one line on standard output, once clients can connect; everything else goes to standard
error. It ends with the process that started it. `appliance.testing` starts it for pytest and other test runners.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from appliance import started_by
from appliance.config import Settings, load_settings
from appliance.config.sections.listeners import host_and_port
from appliance.control.supervisor.scratch import MEMORY, Scratch

DEFAULTS: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "network.processes": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
"""What tests want otherwise than a service: no wait for members that will not come, and few processes and logs."""

SMALL_MEMORY: Final[Mapping[str, str]] = {
    "coordinator.pool.bytes": str(4 << 20),
    "network.pool.bytes": str(16 << 20),
    "socket.request.max.bytes": str(8 << 20),
    "network.ring.slots": "1024",
}
"""For a /dev/shm of 64 MiB, which Docker gives a container: buffers take 20 MiB of it, and requests may have 8 MiB."""
SMALL_BYTES: Final = 512 << 20

PARENT_VARIABLE: Final = "APPLIANCE_EPHEMERAL_PARENT"
"""The process id of a parent that may end before the broker can look for it: while Python itself starts."""


def serve_ephemeral(
    given: Mapping[str, str], config_path: Path | None, *, scratch: Path | None, as_json: bool
) -> int:
    """Serve until stopped, or until the parent process ends. Return the exit code.

    Args:
        given: option name → text, from flags.
        config_path: a TOML file of options.
        scratch: a directory that the parent made and removes; None for one of this broker's own.
        as_json: print the address as a JSON object with more facts.

    Raises:
        ConfigurationError: an option is wrong.
        OperatorFault: the parent has ended, or no port is free.
        HostFault: there is no place for the directory.
    """
    from appliance.control.supervisor.parent import watch_parent

    expected = os.environ.pop(PARENT_VARIABLE, "")
    parent_pid = int(expected) if expected.isdecimal() else started_by.parent()
    parent = watch_parent(parent_pid)
    held = Scratch.make() if scratch is None else Scratch.join(scratch)
    try:
        code = _serve(given, config_path, held, parent=parent, as_json=as_json)
    except BaseException:
        if scratch is None:
            held.remove()
        raise
    if scratch is None or os.getppid() != parent_pid:
        held.remove()
    return code


def _serve(
    given: Mapping[str, str], config_path: Path | None, held: Scratch, *, parent: int, as_json: bool
) -> int:
    from appliance.control.supervisor.listening import free_ports
    from appliance.control.supervisor.main import Ephemeral, run
    from appliance.control.supervisor.memory_room import shared_memory_free_bytes

    is_small = shared_memory_free_bytes() < SMALL_BYTES
    defaults = {**DEFAULTS, **(SMALL_MEMORY if is_small else {})}
    own = {"data.dir": str(held.data_dir)}
    settings = load_settings(config_path, {**given, **own}, without=own, defaults=defaults)
    sockets = []
    if not settings.listener.listeners and "port" not in settings.configured:
        sockets = free_ports(settings.host, settings.slots)
        settings = replace(settings, port=sockets[0].getsockname()[1])
    if is_small:
        click.echo(
            f"appliance: {MEMORY} has less than {SMALL_BYTES >> 20} MiB free: buffers are small, requests may have at"
            f" most {settings.network.request_max_bytes >> 20} MiB, and data are in {held.path.parent}"
            " (a container: --shm-size)",
            err=True,
        )

    def say_ready() -> None:
        with suppress(OSError):
            click.echo(json.dumps(facts(settings)) if as_json else bootstrap_servers(settings))

    return run(settings, ephemeral=Ephemeral(sockets, parent, say_ready))


def bootstrap_servers(settings: Settings) -> str:
    """Return `host:port` of each slot's main listener, separated by commas."""
    first = settings.main_listener.client_port
    return ",".join(host_and_port(settings.client_host, first + slot) for slot in range(settings.slots))


def facts(settings: Settings) -> dict[str, object]:
    """Return what `--json` prints; the keys are stable."""
    return {
        "bootstrap_servers": bootstrap_servers(settings),
        "port": settings.main_listener.client_port,
        "slots": settings.slots,
        "security_protocol": settings.main_listener.protocol,
        "data_dir": str(settings.data_dir),
        "pid": os.getpid(),
    }
