"""How long a session with a distant store surely lives, by this host's own clock.

The server ends a session that it has not heard of for its timeout. It heard a request no sooner than it was
sent, so a session whose request was answered lives until *sent* + timeout at the least, whatever the network
did to the answer:

    sent ────► server hears ──────────── timeout ────────────► the server may end it
      └─────────── timeout, less the part that clocks may differ ──► held() is False from here

Only answered requests count: one that was sent and lost proves nothing. CLOCK_MONOTONIC does not run while the
host is suspended; whoever suspends a host relies on the controller epoch alone.

Source: leases (Gray and Cheriton, 1989). ZooKeeper's `SessionTrackerImpl`
rounds a timeout up to its next tick, which is to our advantage.
"""

from __future__ import annotations

from appliance.clock import NS_PER_MS, Clock

_DRIFT_PERCENT = 10


class SessionLease:
    """Confirmed by answers, read by whoever wants to act as the session's owner. Safe from several threads:
    one word is written."""

    __slots__ = ("_clock", "_confirmed_ns", "timeout_ms")

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._confirmed_ns = 0
        self.timeout_ms = timeout_ms

    def confirm(self, sent_ns: int) -> None:
        """A request sent at `sent_ns` (monotonic) was answered within this session."""
        self._confirmed_ns = max(self._confirmed_ns, sent_ns)

    def held(self) -> bool:
        """Whether the server cannot have ended the session yet."""
        return self.left_ms() > 0

    def left_ms(self) -> int:
        """Milliseconds that the session surely lives from now on; 0 when that is over."""
        if not self._confirmed_ns:
            return 0
        safe_ns = self.timeout_ms * NS_PER_MS * (100 - _DRIFT_PERCENT) // 100
        left_ns = self._confirmed_ns + safe_ns - self._clock.monotonic_ns()
        return max(0, left_ns // NS_PER_MS)
