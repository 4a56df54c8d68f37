"""The written order of a stop, and how the time for it is shared out.

Who takes requests in goes before who serves them: no new connection, then no new request, then the logs are
flushed and marked clean, then those everybody leans on. Replicas go before the workers, who mark directories that both
use as clean. What a stage leaves unused, the later ones have. The first has a share that lets it lose its processor for
a second: it does little in a stop, but one in which anybody is killed does not count as clean.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.channels.roles import RoleKind


@dataclass(frozen=True, slots=True)
class Stage:
    """These kinds stop together; they are killed once `share_percent` of the whole time is over."""

    kinds: frozenset[RoleKind]
    share_percent: int


STAGES: tuple[Stage, ...] = (
    Stage(frozenset({RoleKind.ACCEPTOR}), 20),
    Stage(frozenset({RoleKind.NETPROC}), 35),
    Stage(
        frozenset(
            {
                RoleKind.COORDINATOR,
                RoleKind.CLEANER,
                RoleKind.AUDITOR,
                RoleKind.KEYS,
                RoleKind.METRICS,
                RoleKind.CONSOLE,
                RoleKind.SERVICES,
            }
        ),
        45,
    ),
    Stage(frozenset({RoleKind.REPLICA}), 65),
    Stage(frozenset({RoleKind.IOPROC}), 90),
    Stage(frozenset({RoleKind.PURGATORY}), 95),
    Stage(frozenset({RoleKind.CONTROLLER}), 100),
)

# What a child is told is less than what it gets: one that uses all of it is not killed at the finishing line.
TOLD_PERCENT = 90

# A second Ctrl-C leaves this much for everything that still runs.
HURRY_MS = 1_000


def deadline_ns(stage: Stage, started_ns: int, total_ms: int) -> int:
    """When `stage` is killed, in a stop that began at `started_ns` and may take `total_ms`."""
    return started_ns + total_ms * stage.share_percent * 10_000


def told_ms(stage_deadline_ns: int, now_ns: int) -> int:
    """The `within_ms` that the children of a stage are told."""
    return max(0, stage_deadline_ns - now_ns) * TOLD_PERCENT // 100_000_000
