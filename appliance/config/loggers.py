"""The loggers that DescribeConfigs lists for BROKER_LOGGER (KIP-412): one for each kind of process, and `root`.

All have one level, and it stays what it was at the start: a change would have to reach each process.
"""

from __future__ import annotations

from typing import Final

ROOT: Final = "root"
LOGGERS: Final = (
    "acceptor",
    "cleaner",
    "controller",
    "coordinator",
    "ioproc",
    "netproc",
    "purgatory",
    "replica",
    ROOT,
    "supervisor",
)
LEVEL: Final = "INFO"
"""Source: `appliance.journal.start`."""
