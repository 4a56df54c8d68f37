"""The levels of delayed delivery: a delay is raised to the next level, and each level has an internal topic.

    levels 5s 10s 30s      a delay of 3 s waits on 5s, of 17 s on 30s
                           a delay of 50 s waits on 30s, and then 20 s are left, which wait on 30s again

All records of a level wait for the same time, so each partition of its topic is in due order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from appliance.cluster import DELAYED_PREFIX
from appliance.errors import ConfigurationError

LEVELS_MAX: Final = 32
LEVEL_MS_MAX: Final = 7 * 24 * 3_600_000
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Levels:
    """The levels in ascending order.

    Args:
        names: such as `5s` or `2h`; the names of the internal topics end with them.

    Raises:
        ConfigurationError: a name is no duration, or they do not ascend.
    """

    __slots__ = ("delays_ms", "names", "topics")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.delays_ms = tuple(map(_duration_ms, names))
        self.topics = tuple(f"{DELAYED_PREFIX}{name}" for name in names)
        if not 0 < len(names) <= LEVELS_MAX:
            raise ConfigurationError(
                f"delivery.delay.levels: {len(names)} levels; there must be 1 to {LEVELS_MAX}"
            )
        if any(later <= earlier for earlier, later in zip(self.delays_ms, self.delays_ms[1:], strict=False)):
            raise ConfigurationError(
                f"delivery.delay.levels = {','.join(names)!r}: each must be above the one before"
            )

    def of(self, delay_ms: int) -> int:
        """Return the number of the level on which a record waits that is due in `delay_ms`, from 0."""
        return min(bisect_left(self.delays_ms, delay_ms), len(self.delays_ms) - 1)


def _duration_ms(name: str) -> int:
    digits = name.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit_ms = _UNITS_MS.get(name[len(digits) :])
    if unit_ms is None or not (digits.isascii() and digits.isdigit()) or digits[0] == "0" or len(digits) > 9:
        raise ConfigurationError(f"delivery.delay.levels: {name!r} is no duration such as 500ms, 5s, 10m, 2h")
    duration_ms = int(digits) * unit_ms
    if duration_ms > LEVEL_MS_MAX:
        raise ConfigurationError(f"delivery.delay.levels: {name!r} is longer than seven days")
    return duration_ms
