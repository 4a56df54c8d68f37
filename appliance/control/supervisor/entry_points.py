"""Which function each role runs, by name.

The supervisor imports the process wings late, by these names, and knows nothing else of them. Source of
the order: `RoleKind`.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from appliance.channels.roles import RoleKind
from appliance.errors import ApplianceDefect

if TYPE_CHECKING:
    # It brings most of the house along, which is imported when the collector rests (main.py).
    from appliance.channels.child import Child

Main = Callable[["Child"], int]

_logger = logging.getLogger(__name__)

ENTRY_POINTS: Mapping[RoleKind, str] = {
    RoleKind.CONTROLLER: "appliance.control.controller.main:run",
    RoleKind.PURGATORY: "appliance.control.purgatory.main:run",
    RoleKind.IOPROC: "appliance.ioproc.main:run",
    RoleKind.REPLICA: "appliance.replicas.main:run",
    RoleKind.NETPROC: "appliance.netproc.main:run",
    RoleKind.ACCEPTOR: "appliance.netproc.acceptor_main:run",
    RoleKind.COORDINATOR: "appliance.control.coordinator.main:run",
    RoleKind.CLEANER: "appliance.control.cleaner.main:run",
    RoleKind.AUDITOR: "appliance.control.auditor.main:run",
    RoleKind.KEYS: "appliance.control.keys.main:run",
    RoleKind.METRICS: "appliance.metrics.main:run",
    RoleKind.CONSOLE: "appliance.console.main:run",
    RoleKind.SERVICES: "appliance.services.main:run",
}


def load_all(entry_points: Mapping[RoleKind, str], kinds: Collection[RoleKind]) -> dict[RoleKind, Main]:
    """The functions of the kinds of role that will be forked; of the other kinds nothing is loaded.

    Call once, before the first fork: what a parent loads after a fork lies between its children's pages and copies them
    (decisions 0046, 0053). What was loaded is taken from the collector's sight without a collection, which takes long
    and finds next to nothing.

    Raises:
        ApplianceDefect: one of them names nothing that can be called.
    """
    mains = {kind: load(name) for kind, name in entry_points.items() if kind in kinds}
    gc.freeze()
    # With nothing left to look at, it only empties the interpreter's free lists. What is on them lies among all other
    # objects: each child would take from there, or give back to it, and copy those pages.
    gc.collect()
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        _logger.warning(
            "%d threads run before the first fork; a child process may inherit a locked lock", threads
        )
    return mains


def load(entry_point: str) -> Main:
    """Imports `module:function`, and calls the module's `before_fork()` where it has one.

    What a process builds at every start and never changes belongs there (compiled decoders, tables): it is built
    once, its pages are shared, and a restart has it already. It starts no thread and opens nothing.

    Raises:
        ApplianceDefect: it names nothing that can be called.
    """
    name, _, function = entry_point.partition(":")
    module = import_module(name)
    main = getattr(module, function, None)
    if not callable(main):
        raise ApplianceDefect(f"entry point {entry_point} is not a function")
    before_fork: Callable[[], None] | None = getattr(module, "before_fork", None)
    if before_fork is not None:
        before_fork()
    loaded: Main = main
    return loaded
