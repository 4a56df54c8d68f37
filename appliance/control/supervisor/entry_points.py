"""Which function each role runs, by name.

The supervisor imports the process wings late, by these names, and knows nothing else of them. A place stands
here for every role there will be; `roles.NOT_BUILT_YET` says which are not forked yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from appliance.channels.roles import RoleKind
from appliance.errors import ApplianceDefect

if TYPE_CHECKING:
    # It brings numpy along, which is imported only once the supervisor has said how (main.py).
    from appliance.channels.child import Child

Main = Callable[["Child"], int]

ENTRY_POINTS: Mapping[RoleKind, str] = {
    RoleKind.CONTROLLER: "appliance.control.controller.main:run",
    RoleKind.PURGATORY: "appliance.control.purgatory.main:run",
    RoleKind.IOPROC: "appliance.ioproc.main:run",
    RoleKind.REPLICA: "appliance.replicas.main:run",
    RoleKind.COORDINATOR: "appliance.control.coordinator.main:run",
    RoleKind.CLEANER: "appliance.control.cleaner.main:run",
    RoleKind.NETPROC: "appliance.netproc.main:run",
    RoleKind.ACCEPTOR: "appliance.netproc.acceptor_main:run",
}


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
