"""Slow requests: a line in the log for each that took longer than `log.slow.request.ms`, with its stages.

    slow request: Fetch version 17 of connection 12 from 10.0.0.7:50312 (billing) took 730 ms: answer 12 ms, send
    718 ms, wait 0 ms; 96 bytes

| stage | from | to |
|---|---|---|
| wait | a fetch waits for records, because its client asked for that. It does not count | its answer is made |
| answer | the request has arrived | its answer is made: by workers, followers, coordinators or the controller |
| send | its answer is made | the socket has taken its last byte: earlier answers and a slow client are in here |

JoinGroup and SyncGroup wait for the other members of the group, so they are never slow.

There is one only while the option is above 0; `Traffic` calls it, so a request pays nothing without it. A line has no
byte of a request's body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.clock import NS_PER_MS, Clock
from appliance.protocol.api_versions import ApiKey
from appliance.requests.session import Request

LINES_PER_SECOND: Final = 10
OPEN_MAX: Final = 10_000
"""Requests in flight that are known; the size and the wait of any more are not."""
SWEEP_EVERY: Final = OPEN_MAX // 10
"""While so many are known, requests of sessions that ended are looked for once in so many new ones."""
_WAIT_FOR_OTHERS: Final = frozenset({int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP)})
_NAMES: Final = {int(key): key.name.title().replace("_", "") for key in ApiKey}


class _Known:
    """What is known of a request in flight."""

    __slots__ = ("size_bytes", "waits_since_ns")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.waits_since_ns = 0


class SlowRequests:
    """Logs the slow requests of one network process.

    Args:
        threshold_ms: a request that takes longer is slow.
        say: takes the line.
        clock: whose monotonic time counts.
    """

    __slots__ = ("_clock", "_known", "_say", "_threshold_ns", "_until_sweep")

    def __init__(self, threshold_ms: int, say: Callable[[str], None], clock: Clock) -> None:
        self._threshold_ns = threshold_ms * NS_PER_MS
        self._say = say
        self._clock = clock
        self._known: dict[Request, _Known] = {}
        self._until_sweep = 1

    @property
    def known(self) -> int:
        """Requests in flight that are known."""
        return len(self._known)

    def arrived(self, request: Request, size_bytes: int) -> None:
        """A request begins."""
        if len(self._known) < OPEN_MAX or self._has_room_again():
            self._known[request] = _Known(size_bytes)

    def _has_room_again(self) -> bool:
        """Forget the requests of sessions that ended, and return whether there is room. Most calls look at none."""
        self._until_sweep -= 1
        if self._until_sweep > 0:
            return False
        self._until_sweep = SWEEP_EVERY
        self._known = {known: each for known, each in self._known.items() if not known.session.closed}
        return len(self._known) < OPEN_MAX

    def waits(self, request: Request) -> None:
        """A fetch waits for records from now on; the first call counts."""
        known = self._known.get(request)
        if known is not None and not known.waits_since_ns:
            known.waits_since_ns = self._clock.monotonic_ns()

    def sent(self, request: Request, *, answered_ns: int, now_ns: int) -> None:
        """The answer of a request has left."""
        known = self._known.pop(request, None)
        began_ns = request.arrived_ns
        wait_ns = 0
        if known is not None and known.waits_since_ns:
            wait_ns = max(0, answered_ns - known.waits_since_ns)
        total_ns = now_ns - began_ns - wait_ns
        if total_ns <= self._threshold_ns or request.api_key in _WAIT_FOR_OTHERS:
            return
        size_bytes = 0 if known is None else known.size_bytes
        api = _NAMES.get(request.api_key, str(request.api_key))
        self._say(
            f"slow request: {api} version {request.version} of {request.session} took {_ms(total_ns)} ms:"
            f" answer {_ms(answered_ns - began_ns - wait_ns)} ms, send {_ms(now_ns - answered_ns)} ms,"
            f" wait {_ms(wait_ns)} ms; {size_bytes} bytes"
        )


def _ms(duration_ns: int) -> int:
    return max(0, duration_ns) // NS_PER_MS
