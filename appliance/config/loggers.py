"""Loggers of BROKER_LOGGER (KIP-412): one for each kind of process, and `root`; and from which level each logs.

A level is a setting of all slots: `log.level` of all processes, `log.level.<kind>` of one kind. DescribeConfigs and
IncrementalAlterConfigs show and change the same as levels of BROKER_LOGGER. The processes of a kind have one level,
because slots share most of them. Unlike Apache Kafka's, the levels stay after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.config.declaration import ConfigType, Declaration, Effect
from appliance.config.sections.logging import LEVELS

ROOT: Final = "root"
KINDS: Final = (
    "acceptor",
    "auditor",
    "cleaner",
    "controller",
    "coordinator",
    "ioproc",
    "keys",
    "metrics",
    "netproc",
    "purgatory",
    "replica",
    "services",
    "supervisor",
)
LOGGERS: Final = tuple(sorted((*KINDS, ROOT)))
LEVEL: Final = "log.level"

LEVEL_OF_KIND: Final[Mapping[str, Declaration]] = {
    f"{LEVEL}.{kind}": Declaration(
        name=f"{LEVEL}.{kind}",
        type=ConfigType.STRING,
        default=None,
        choices=LEVELS,
        doc=f"Level from which processes of the kind {kind} log. Without it, log.level counts.",
        effect=Effect.AT_ONCE,
    )
    for kind in KINDS
}
"""What is said of one kind of process while the appliance runs, never in the file."""


def setting_of(logger: str) -> str:
    """Return the name of the setting behind a logger."""
    return LEVEL if logger == ROOT else f"{LEVEL}.{logger}"


def levels(static: str, stored: Mapping[str, str]) -> dict[str, str]:
    """Return logger → level: `root`, and each kind that has its own.

    Args:
        static: `log.level` as the appliance was started.
        stored: what was set on all slots while it runs.
    """
    found = {ROOT: stored.get(LEVEL, static)}
    found |= {kind: stored[setting_of(kind)] for kind in KINDS if setting_of(kind) in stored}
    return found
