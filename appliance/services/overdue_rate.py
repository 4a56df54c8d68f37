"""How many overdue records a services process delivers in a second (`delivery.delay.overdue.rate.max`). No I/O.

After a long stop, or when somebody sets the clock forward, many records are due at once. A consumer may not bear all of
them at the speed of the log. What is due now is not counted, unless it has to wait behind overdue records.

    allowance ─ grows by the rate, up to BURST_S of it ─→ one for each overdue record
"""

from __future__ import annotations

from typing import Final

from appliance.clock import NS_PER_MS, Clock

OVERDUE_MS: Final = 1_000
"""A record is overdue when it is later than this."""
BURST_S: Final = 0.2
WAIT_MAX_MS: Final = 200
_NS_PER_S: Final = 1_000 * NS_PER_MS


class OverdueRate:
    """One for all forwarders of a process.

    Args:
        per_second: records; above 0.
    """

    __slots__ = ("_allowance", "_at_ns", "_burst", "_clock", "_per_second")

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._burst = max(1.0, per_second * BURST_S)
        self._allowance = 0.0
        self._at_ns = clock.monotonic_ns()

    def take(self, late_ms: int) -> bool:
        """Return whether a record that is so late may be delivered now, and count it."""
        if late_ms <= OVERDUE_MS:
            return True
        now_ns = self._clock.monotonic_ns()
        grown = (now_ns - self._at_ns) * self._per_second / _NS_PER_S
        self._at_ns = now_ns
        self._allowance = min(self._burst, self._allowance + grown)
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True

    def wait_ms(self) -> int:
        """Return when to try again after a refusal: there is half a burst by then."""
        wanted = max(1.0, self._burst / 2) - self._allowance
        return min(int(wanted * 1_000 / self._per_second) + 1, WAIT_MAX_MS)
