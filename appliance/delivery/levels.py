"""The levels of delayed delivery: a delay is raised to the next level, and each level has an internal topic.

    levels 5s 10s 30s      a delay of 3 s waits on 5s, of 17 s on 30s
                           a delay of 50 s waits on 30s, and then 20 s are left, which wait on 30s again
    exact 1s 2s            a topic with exact delays uses these levels, too: 17 s wait on 10s, 5s and 2s

All records of a level wait for the same time, so each partition of its topic is in due order.

Beside the levels there are two places with topics of their own, where no record waits for a time:

    transactions   records whose transaction is open; when it is committed, they go to a level, or to their topic
    cancels        what cancels delayed records
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from appliance.cluster import DELAYED_CANCELS, DELAYED_PREFIX, DELAYED_TRANSACTIONS
from appliance.config.sections.services import level_delays_ms

TRANSACTIONS: Final = DELAYED_TRANSACTIONS.removeprefix(DELAYED_PREFIX)
CANCELS: Final = DELAYED_CANCELS.removeprefix(DELAYED_PREFIX)


class Levels:
    """All levels in ascending order, and behind them the places `transactions` and `cancels`, whose delay is 0.

    `names`, `delays_ms` and `topics` go by the number of the place.

    Args:
        names: such as `5s` or `2h`; the names of the internal topics end with them.
        exact_names: further levels, for topics with exact delays only.

    Raises:
        ConfigurationError: a name is no duration, or they do not ascend.
    """

    __slots__ = (
        "_level_ms",
        "_places",
        "_raised_ms",
        "cancels",
        "delays_ms",
        "names",
        "topics",
        "transactions",
    )

    def __init__(self, names: Sequence[str], exact_names: Sequence[str] = ()) -> None:
        raised_ms = level_delays_ms("delivery.delay.levels", names)
        exact_ms = level_delays_ms("delivery.delay.exact.levels", exact_names)
        known = {**dict(zip(exact_ms, exact_names, strict=True)), **dict(zip(raised_ms, names, strict=True))}
        self._level_ms = tuple(sorted(known))
        self._raised_ms = raised_ms
        self._places = tuple(map(self._level_ms.index, raised_ms))
        self.transactions = len(known)
        self.cancels = self.transactions + 1
        self.delays_ms = (*self._level_ms, 0, 0)
        self.names = (*(known[delay_ms] for delay_ms in self._level_ms), TRANSACTIONS, CANCELS)
        self.topics = tuple(f"{DELAYED_PREFIX}{name}" for name in self.names)

    def of(self, delay_ms: int, *, is_exact: bool = False) -> int:
        """Return the number of the level on which a record waits that is due in `delay_ms`, from 0.

        Args:
            is_exact: wait on the last level that is not longer, because the rest of the delay follows on others. What
                is left below the smallest level waits there.
        """
        if is_exact:
            return max(bisect_right(self._level_ms, delay_ms) - 1, 0)
        return self._places[min(bisect_left(self._raised_ms, delay_ms), len(self._places) - 1)]
