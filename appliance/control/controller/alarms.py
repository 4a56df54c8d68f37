"""How the controller is called when a time is over; who waits is the duty cycle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Alarm(Protocol):
    """A call that is due; see `appliance.ipc.agent.Timer`."""

    def cancel(self) -> None: ...


Alarms = Callable[[int, Callable[[], None]], Alarm]
"""Sets an alarm: in so many milliseconds, call that."""
