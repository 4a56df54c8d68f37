"""Memory ordering: what x86-64 promises, and the one fence that it leaves to us.

x86-64 keeps stores in order and loads in order (total store order). So a message written before the tail word
is visible before it, and no ring and no sequence lock here needs a barrier. One reordering remains: a store
may still sit in the processor's store buffer while a *later load of another word* is already done. That
breaks exactly one pattern, announce-then-check:

    reader: sleeping = 1;  is the ring empty?            writer: tail = n + 1;  does the reader sleep?

Without a fence between the two halves both may read the old value: the reader sleeps on a full ring, nobody
rings. `full_fence` stands between them on both sides. CPython has no fence of its own; taking and giving back
an uncontended lock executes lock-prefixed instructions, which drain the store buffer. Figures, the
disassembly and what was refused: docs/decisions/0002-memory-ordering-fence.md.
"""

from __future__ import annotations

import platform
from threading import Lock
from typing import Final

from appliance.ipc.errors import UnsupportedProcessor

_MACHINES: Final = frozenset({"x86_64", "amd64"})

_lock: Final = Lock()
_acquire: Final = _lock.acquire
_release: Final = _lock.release


def full_fence() -> None:
    """Every store before this call is visible to all processors before any load after it. About 70 ns.

    For a process's one thread only: the lock must be uncontended, or the fence would wait.
    """
    _acquire()
    _release()


def require_total_store_order(machine: str | None = None) -> None:
    """Refuses processors whose stores may pass each other.

    Raises:
        UnsupportedProcessor: anything but x86-64.
    """
    found = machine if machine is not None else platform.machine()
    if found.lower() not in _MACHINES:
        raise UnsupportedProcessor(
            f"this processor is {found}; the appliance's shared-memory rings rely on x86-64 keeping stores in"
            " order and have no barrier for others yet"
        )
