"""When the keys are fetched. Without I/O; moments are CLOCK_MONOTONIC nanoseconds, so no clock that is set moves them.

    start ──→ fetch ── good ──→ again after `refresh`
                    └─ failed ─→ again after the back-off: doubled each time, up to its maximum, and without an end
    asked (a token has an unknown key) ──→ at once; the next time EXPEDITED_PAUSE_MS later at the earliest

Kafka bounds what unknown keys cost by each key id, so tokens with made-up ids can have the keys fetched without a
pause. Here all of them together have one bound. A request that comes too early is not dropped: it waits.
"""

from __future__ import annotations

from typing import Final

from appliance.clock import NS_PER_MS

EXPEDITED_PAUSE_MS: Final = 10_000


class RefreshSchedule:
    """The next moment to fetch.

    Args:
        refresh_ms: from a good fetch to the next one.
        backoff_ms: from the first failed fetch to the next one.
        backoff_max_ms: the longest such pause.
        now_ns: the first fetch is due.
    """

    __slots__ = (
        "_asked",
        "_backoff_max_ms",
        "_backoff_ms",
        "_expedite_ns",
        "_refresh_ms",
        "due_ns",
        "failures",
    )

    def __init__(self, *, refresh_ms: int, backoff_ms: int, backoff_max_ms: int, now_ns: int) -> None:
        self._refresh_ms = refresh_ms
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = backoff_max_ms
        self._asked = False
        self._expedite_ns = now_ns
        self.due_ns = now_ns
        self.failures = 0
        """How many fetches have failed since the last good one."""

    def asked(self, now_ns: int) -> None:
        """A token has an unknown key."""
        self._asked = True
        self.due_ns = min(self.due_ns, max(now_ns, self._expedite_ns))

    def began(self, now_ns: int) -> None:
        """A fetch begins. Until it is done, `due_ns` means nothing."""
        if self._asked:
            self._asked = False
            self._expedite_ns = now_ns + EXPEDITED_PAUSE_MS * NS_PER_MS

    def succeeded(self, now_ns: int) -> None:
        self.failures = 0
        self._done(now_ns, self._refresh_ms)

    def failed(self, now_ns: int) -> int:
        """Return the pause until the next attempt, in milliseconds."""
        pause_ms = min(self._backoff_ms << min(self.failures, 32), self._backoff_max_ms)
        self.failures += 1
        self._done(now_ns, pause_ms)
        return pause_ms

    def _done(self, now_ns: int, pause_ms: int) -> None:
        self.due_ns = now_ns + pause_ms * NS_PER_MS
        if self._asked:
            # The keys may have changed after the endpoint had written its answer.
            self.asked(now_ns)
