"""Lanes for clients of this host (docs/shared-memory.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option

_MIB = 2**20

LANE_DIRECTORY: Final = "shared-memory"
"""Name in the data directory: where the acceptor's socket for lanes is."""
LANE_SOCKET: Final = "hello"
"""Name of the socket in there."""


@dataclass(frozen=True, slots=True)
class SharedMemorySettings:
    """Whether there are lanes, who may have one, and how large one is."""

    lanes_max: int = option(
        0,
        "shared.memory.lanes.max",
        unit="lanes",
        minimum=0,
        maximum=100_000,
        doc="Maximum number of shared-memory lanes for clients of this host. 0 turns lanes off. See "
        "docs/shared-memory.md.",
    )
    group: str | None = option(
        None,
        "shared.memory.group",
        doc="Group whose members may also use a lane. Without this option, only the user that runs the "
        "appliance may use a lane. The members of the group also need permission to enter the data "
        "directory.",
    )
    pool_bytes: int = option(
        4 * _MIB,
        "shared.memory.pool.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=65536,
        maximum=1024 * _MIB,
        doc="Size of the pool of one lane. One half is for requests, and the other half is for answers. No "
        "request can be larger than one half. Pages of the pool that were never used take no memory of the "
        "host.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
