"""The levels of delayed delivery: a delay is raised to the next level, and each level has an internal topic.

    levels 5s 10s 30s      a delay of 3 s waits on 5s, of 17 s on 30s
                           a delay of 50 s waits on 30s, and then 20 s are left, which wait on 30s again
All records of a level wait for the same time, so each partition of its topic is in due order.

Exact delays have levels of their own, where each record waits until it is due:

    exact 1m 1h            a delay of 17 s waits for 17 s on exact_1m
                           a delay of 90 min waits on exact_1h, and then for 30 min on exact_1h again

Their topics are not in due order; the services process has an index. A topic needs the disk for what is younger than
its level at most. So there are several, and a record that waits for a month does not hold the log of those that wait
for a second.

Beside the levels there are two places with topics of their own, where no record waits for a time:

    transactions   records whose transaction is open; when it is committed, they go to a level, or to their topic
    cancels        what cancels delayed records
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.cluster import DELAYED_CANCELS, DELAYED_PREFIX, DELAYED_TRANSACTIONS
from appliance.config.sections.services import level_delays_ms

EXACT: Final = "exact_"
"""The names of exact levels begin with it."""
TRANSACTIONS: Final = DELAYED_TRANSACTIONS.removeprefix(DELAYED_PREFIX)
CANCELS: Final = DELAYED_CANCELS.removeprefix(DELAYED_PREFIX)


class Levels:
    """All levels in ascending order, behind them the exact ones, and the places `transactions` and `cancels`.

    `names`, `delays_ms` and `topics` go by the number of the place. The delay of the last two is 0.

    Args:
        names: such as `5s` or `2h`; the names of the internal topics end with them.
        exact_names: those of the exact levels, without EXACT.

    Raises:
        ConfigurationError: a name is no duration, or they do not ascend.
    """

    __slots__ = (
        "_exact_ms",
        "_level_ms",
        "cancels",
        "delays_ms",
        "names",
        "topics",
        "transactions",
    )

    def __init__(self, names: Sequence[str], exact_names: Sequence[str] = ("1h",)) -> None:
        self._level_ms = level_delays_ms("delivery.delay.levels", names)
        self._exact_ms = level_delays_ms("delivery.delay.exact.levels", exact_names)
        self.transactions = len(names) + len(exact_names)
        self.cancels = self.transactions + 1
        self.delays_ms = (*self._level_ms, *self._exact_ms, 0, 0)
        self.names = (*names, *(f"{EXACT}{name}" for name in exact_names), TRANSACTIONS, CANCELS)
        self.topics = tuple(f"{DELAYED_PREFIX}{name}" for name in self.names)

    def of(self, delay_ms: int, *, is_exact: bool = False) -> int:
        """Return the number of the level on which a record waits that is due in `delay_ms`, from 0.

        Args:
            is_exact: on the first exact level that is not shorter. A longer delay takes the largest one, and the rest
                of it follows.
        """
        level_ms = self._exact_ms if is_exact else self._level_ms
        place = 0
        last = len(level_ms) - 1
        while place < last and level_ms[place] < delay_ms:  # compiled, quicker than a call of `bisect_left`
            place += 1
        return place + len(self._level_ms) if is_exact else place

    def is_exact(self, level: int) -> bool:
        """Return whether a number is that of an exact level."""
        return len(self._level_ms) <= level < self.transactions


def exact_delay_ms(topic: str) -> int:
    """Return the delay of an exact level by the name of its internal topic.

    Raises:
        ConfigurationError: it is no such name.
    """
    (delay_ms,) = level_delays_ms(topic, (topic.removeprefix(f"{DELAYED_PREFIX}{EXACT}"),))
    return delay_ms
