"""The garbage collector in PySpark's processes.

PySpark's daemon collects after every task, and after every step of planning: 40 ms over the heap that Arrow and numba
bring, 1 ms where that heap is out of the collector's sight. A step of planning is answered before, so nobody waits for
its collection; but it takes a core from the query, which goes on meanwhile.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Final

_DAEMON: Final = "pyspark.daemon"
_frozen: list[bool] = []


def spare_the_collector() -> None:
    """Takes what is loaded by now out of the collector's sight, once in a process.

    At the end of the first task, because only then everything is loaded.
    """
    if not _frozen:
        _frozen.append(True)
        gc.collect()
        gc.freeze()


def spare_the_collector_of_planning() -> None:
    """The same for a process that PySpark plans in, where somebody waits for an answer; in no other process.

    What a driver of its own has loaded is its own affair.
    """
    main: Any = sys.modules.get("__main__")
    if not _frozen and getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON:
        _frozen.append(True)
        gc.freeze()
