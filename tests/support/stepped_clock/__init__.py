"""A broker whose wall clock a test can set. Its monotonic clock goes on, as after `settimeofday`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from appliance.testing import wall_clock


class SteppedClock:
    """Args:
    path: of a file that the broker's processes map.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ahead_s = 0.0
        self.set_forward_ms: list[int] = []
        """When it was set forward, in ms of the host's clock."""
        self.set_ahead(0)

    def wrapper(self) -> tuple[str, ...]:
        """Return what the command of the broker must be started with."""
        here = str(Path(__file__).parent)
        modules = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        return ("env", f"PYTHONPATH={modules}", f"STEPPED_CLOCK={self._path}")

    def set_ahead(self, seconds: float) -> None:
        """Set the broker's clock ahead of the host's by so many seconds; negative ones set it back."""
        if seconds > self._ahead_s:
            self.set_forward_ms.append(int(time.time() * 1000))
        self._ahead_s = seconds
        wall_clock.make(self._path)
        wall_clock.set_ahead(self._path, seconds)
