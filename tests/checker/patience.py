"""How long a run waits for progress before it says that something is stuck.

The bound is one for a machine that leaves its processors to the appliance. Where others compute beside it, each step of
a transaction takes longer, and a writer needs many steps for a commit. Therefore the bound grows by as much as the
machine takes longer for something in which the appliance has no part (`tests.support.pace`), at most to SLOWER_MAX
times STUCK_S. What is really stuck is found then, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tests.support.pace import slowness

STUCK_S: Final = 60.0
SLOWER_MAX: Final = 5.0

_Late = TypeVar("_Late")


def await_patiently(
    await_progress: Callable[[float], list[_Late]],
    *,
    slowness: Callable[[], float] = slowness,
    clock: Callable[[], float] = time.monotonic,
) -> list[_Late]:
    """Return what made no progress in time.

    Args:
        await_progress: waits for a number of seconds at most, and returns what is late. If it returns something
            earlier, there is nothing to wait for any more.
        slowness: how many times as long this machine takes now as an idle desk.
    """
    began, slower = clock(), 1.0
    while True:
        until = began + STUCK_S * slower
        late = await_progress(until - clock())
        if not late or clock() < until:
            return late
        slower = max(slower, min(slowness(), SLOWER_MAX))
        if clock() >= began + STUCK_S * slower:
            return late
