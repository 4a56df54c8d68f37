"""The changes on their way, and the deadline of each. What one of them waits for, and what it answers: `wave`.

A deadline counts from the last answer to a wave, so a large change that goes on is not cut short.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Final

from appliance.channels.roles import Role
from appliance.control.controller.alarms import Alarm, Alarms
from appliance.control.controller.copies import PIECE
from appliance.control.controller.wave import Wave

ASSIGN_TIMEOUT_MS = 5_000

OPENING_MS = 5
"""What a partition adds to that which is opened before there is an answer: its share of a busy host's time."""

FIRST_WAVE: Final = 1
"""It shows the topics that there are, once all workers have answered."""

_logger = logging.getLogger(__name__)


class Waves:
    """The waves of one controller, by number. `alarms`: for their deadlines."""

    __slots__ = ("_alarm_of", "_alarms", "_last", "_waves")

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._waves: dict[int, Wave] = {}
        self._alarm_of: dict[int, Alarm] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waves)

    def __iter__(self) -> Iterator[Wave]:
        return iter(self._waves.values())

    def next_number(self) -> int:
        """Return the number for a new wave."""
        self._last += 1
        return self._last

    def begin(self, wave: Wave) -> None:
        """Keep a wave until it is over."""
        self._waves[wave.number] = wave
        if wave.waiting:
            self.extend(wave)

    def extend(self, wave: Wave) -> None:
        """Let the deadline of a wave count from now."""
        if (alarm := self._alarm_of.pop(wave.number, None)) is not None:
            alarm.cancel()
        opened = sum(len(topic.partitions) for topic in wave.appearing.values())
        if wave.number != FIRST_WAVE:
            opened = min(opened, PIECE)
        self._alarm_of[wave.number] = self._alarms(
            ASSIGN_TIMEOUT_MS + OPENING_MS * opened, lambda: _overdue(wave)
        )

    def get(self, number: int) -> Wave | None:
        """Return the wave of that number, unless it is over."""
        return self._waves.get(number)

    def waiting_for(self, half: Role) -> tuple[int, ...]:
        """Return the numbers of the waves that wait for an answer of a process."""
        return tuple(number for number, wave in self._waves.items() if half in wave.waiting)

    def take_over(self, deletions: Collection[str], *, is_shown: bool) -> list[Wave]:
        """Return the waves that can be answered, and forget them.

        Args:
            deletions: the topics that the store has not forgotten yet.
            is_shown: whether there is an image already. The first image is whole, so that no client sees a cluster
                without its topics. Therefore no wave is over before the first one.
        """
        over = [wave for wave in self._waves.values() if wave.is_over(deletions)]
        if not is_shown and FIRST_WAVE not in {wave.number for wave in over}:
            return []
        for wave in over:
            del self._waves[wave.number]
            if (alarm := self._alarm_of.pop(wave.number, None)) is not None:
                alarm.cancel()
        return over


def _overdue(wave: Wave) -> None:
    wave.overdue = True
    late = ", ".join(sorted(str(worker) for worker in wave.waiting))
    _logger.warning("these processes did not confirm their assignments in time: %s", late)
