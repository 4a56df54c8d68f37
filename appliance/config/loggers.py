"""Loggers of BROKER_LOGGER (KIP-412): one for each kind of process, and `root`; and from which level each logs.

A level is a setting that all slots share: `log.level` of all processes, `log.level.<kind>` of one kind. DescribeConfigs
and IncrementalAlterConfigs show and change the same as levels of BROKER_LOGGER. The processes of a kind have one level,
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
    "console",
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


def place_of_levels(slots: int) -> str:
    """Return where a change of BROKER_LOGGER is stored: at the only broker, or at all of them."""
    return "0" if slots == 1 else ""
