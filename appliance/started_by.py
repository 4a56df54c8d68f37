"""Which process started this one, read before anything else is loaded.

A parent that ends while Python loads the appliance would not be missed otherwise: another process is the parent then.
Standard library only, and nothing that takes time.
"""

from __future__ import annotations

import os
from typing import Final

_PROCESS: Final = os.getpid()
_PARENT: Final = os.getppid()


def parent() -> int:
    """Return the process id of the parent that this process had at first; of a forked process, the one it has now."""
    return _PARENT if os.getpid() == _PROCESS else os.getppid()
