"""Which function each role runs, by name.

The supervisor imports the process wings late, by these names, and knows nothing else of them. A place stands
here for every role there will be; `roles.NOT_BUILT_YET` says which are not forked yet. Source of the order: `RoleKind`.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
}


LATER = frozenset({RoleKind.COORDINATOR, RoleKind.CLEANER})
"""Kinds of role that the first record does not wait for: their code is loaded when the others have been forked."""


class Mains(Mapping[RoleKind, Main]):
    """The functions by kind of role, loaded in two parts: what the first record waits for, then, one by one, the rest.

    The first part is loaded as one, before the first fork: what a parent loads after a fork lies between its children's
    pages, and copies them (decision 0046). What was loaded is taken from the collector's sight without a collection,
    which takes long and finds next to nothing.

    Args:
        entry_points: kind of role → `module:function`.
        kinds: those of the roles that will be forked.
    """

    def __init__(self, entry_points: Mapping[RoleKind, str], kinds: Iterable[RoleKind]) -> None:
        wanted = set(kinds)
        self._entry_points = {kind: name for kind, name in entry_points.items() if kind in wanted}
        self._loaded: dict[RoleKind, Main] = {}

    def __getitem__(self, kind: RoleKind) -> Main:
        """Raises ApplianceDefect where its entry point names nothing that can be called."""
        if kind not in self._loaded:
            first = [each for each in self._entry_points if each not in LATER]
            for each in [kind] if kind in LATER else first:
                self._loaded[each] = load(self._entry_points[each])
            gc.freeze()
            _warn_of_threads(kind)
        return self._loaded[kind]

    def __iter__(self) -> Iterator[RoleKind]:
        return iter(self._entry_points)

    def __len__(self) -> int:
        return len(self._entry_points)


def _warn_of_threads(kind: RoleKind) -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        _logger.warning("%d threads run before %s is forked: it may start with a lock held", threads, kind)


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
