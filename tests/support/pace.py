"""What a bound on time means on the machine as it is now.

A promise such as "served again within a second" is one about a machine of its own that is as quick as a desk. Where the
tests run, others compute beside them, and a hypervisor takes processors away. So the same moment also measures how
long something takes in which the appliance has no part, and the bound grows by as much as that took longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

BARE_START_S: Final = 0.1
"""What `appliance --version` takes on an idle desk: a fork, an exec and some imports."""


class Pace:
    """Measures the machine when it is made, and again when a bound is checked."""

    def __init__(self) -> None:
        self._bare_start_s = bare_start_s()
        self._stolen_s = stolen_s()

    def check(self, took_s: float, *, within_s: float) -> None:
        """Asserts that what took so long since this was made would have taken less than `within_s` on an idle desk."""
        stolen = stolen_s() - self._stolen_s
        slower = max(self._bare_start_s / BARE_START_S, slowness())
        assert took_s - stolen < within_s * slower, (
            f"took {took_s:.2f} s, {stolen:.2f} s of them stolen; allowed {within_s:g} s on a desk, "
            f"and this machine takes {slower:.1f} times as long now"
        )


def slowness() -> float:
    """How many times as long as an idle desk this machine takes now; at least 1."""
    return max(1.0, bare_start_s() / BARE_START_S)


def bare_start_s() -> float:
    """Seconds that the command takes now to do nothing."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "appliance", "--version"], check=True, stdout=subprocess.DEVNULL, timeout=60
    )
    return time.monotonic() - began


def stolen_s() -> float:
    """Seconds of processor time that the hypervisor has kept for itself since it started (proc(5), `steal`)."""
    return int(Path("/proc/stat").read_text().split(None, 9)[8]) / os.sysconf("SC_CLK_TCK")
