"""Whether the shared memory that the settings ask for can be had: asked before anything is started."""

from __future__ import annotations

import os
from typing import Final

from appliance.channels.roles import RoleKind, running_roles
from appliance.config import Settings
from appliance.errors import ConfigurationError, OperatorFault

SHARED_MEMORY: Final = "/dev/shm"
START_BYTES: Final = 32 << 20
"""What tables, rings and the first requests take of shared memory, with room to spare."""
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


def refuse_too_large_pools(settings: Settings, *, shared_bytes: int, memory_bytes: int) -> None:
    """Pools are mapped whole and filled as load needs it; beyond what there is, a process dies of SIGBUS under load.

    Args:
        settings: what the operator decided.
        shared_bytes: the size of the file system that holds shared memory.
        memory_bytes: the memory of the machine.

    Raises:
        ConfigurationError: the pools of all processes together are larger than either.
    """
    network = sum(role.kind is RoleKind.NETPROC for role in running_roles(settings))
    coordinators = sum(role.kind is RoleKind.COORDINATOR for role in running_roles(settings))
    wanted = network * settings.network.pool_bytes + coordinators * settings.broker.coordinator_pool_bytes
    each = f" in each of {coordinators} coordinators" if coordinators > 1 else ""
    for there, what in (
        (memory_bytes, "memory: set them lower"),
        (
            shared_bytes,
            f"shared memory ({SHARED_MEMORY}): set them lower, or enlarge it (a container: --shm-size)",
        ),
    ):
        if wanted > there:
            raise ConfigurationError(
                f"network.pool.bytes = {_shown(settings.network.pool_bytes)} in each of {network} network processes"
                f" and coordinator.pool.bytes = {_shown(settings.broker.coordinator_pool_bytes)}{each}"
                f" are {_shown(wanted)} together; this machine has {_shown(there)} of {what}"
            )


def refuse_full_shared_memory(free_bytes: int) -> None:
    """Refuse a start for which there is no room left: a process that touches a page beyond it dies of SIGBUS.

    Raises:
        OperatorFault: fewer than `START_BYTES` are free.
    """
    if free_bytes < START_BYTES:
        raise OperatorFault(
            f"shared memory ({SHARED_MEMORY}) has {_shown(free_bytes)} left, and a start needs {_shown(START_BYTES)}:"
            " see which program fills it, or enlarge it (a container: --shm-size)"
        )


def shared_memory_free_bytes() -> int:
    """What is left in the file system behind shared memory."""
    room = os.statvfs(SHARED_MEMORY)
    return room.f_bavail * room.f_frsize


def shared_memory_bytes() -> int:
    """The size of the file system behind shared memory."""
    room = os.statvfs(SHARED_MEMORY)
    return room.f_blocks * room.f_frsize


def memory_bytes() -> int:
    """The memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _shown(amount: float) -> str:
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if amount == int(amount) else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes everything")
