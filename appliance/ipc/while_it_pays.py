"""Something that is tried ahead of time, which pays or was in vain: how often, while it is in vain.

in vain: 1 → the next 1 is skipped, 2 → 3, 3 → 7, … 6 and more → 63 are skipped;   it pays: all is forgotten
"""

from __future__ import annotations

from typing import Final

VAIN_MAX: Final = 6


class WhileItPays:
    """Counts what was in vain. Where nothing pays, the trying costs about one per cent of itself."""

    __slots__ = ("_skip", "_vain")

    def __init__(self) -> None:
        self._skip = 0
        self._vain = 0

    def skips(self) -> bool:
        """Whether this time is one of those that are let pass."""
        if self._skip:
            self._skip -= 1
            return True
        return False

    def paid(self) -> None:
        """It was worth it: the next is not skipped."""
        self._vain = self._skip = 0

    def was_in_vain(self) -> None:
        """It was not: the next ones become rarer."""
        self._vain = min(self._vain + 1, VAIN_MAX)
        self._skip = (1 << self._vain) - 1
