"""Quotas in one network process: a meter while there are some, and the sessions that are throttled.

A throttled session is muted: no further request of it is taken until its time is up. One timer serves all of them. It
is set for TIMER_MS at most, so that the session of a client that has left keeps nothing behind for longer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

from sortedcontainers import SortedList

from appliance.channels.wiring import Attachment
from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import ClientQuotas
from appliance.ipc.agent import Timers
from appliance.ipc.rate_samples import RateSamples
from appliance.ipc.shared_memory import Region
from appliance.requests.meter import Meter
from appliance.requests.session import Session

TIMER_MS: Final = 1_000

_Place = tuple[int, int, Session]


class Metering:
    """Made when the first quota is there.

    Args:
        mute: called when a session is throttled that was not.
        resume: called when its time is up.
    """

    def __init__(
        self,
        attachment: Attachment,
        *,
        timers: Timers,
        clock: Clock,
        mute: Callable[[Session], None],
        resume: Callable[[Session], None],
    ) -> None:
        wiring = attachment.wiring
        self._region = Region.open(wiring.samples_name)
        samples = RateSamples(self._region.view, attachment.role.index)
        self.meter = Meter(samples, secret=wiring.hash_secret, clock=clock, mute=self._throttle)
        self._timers = timers
        self._clock = clock
        self._mute = mute
        self._resume = resume
        self._order = count()
        # By the end of their time. A session that is throttled for longer meanwhile moves when its place is due.
        self._throttled: SortedList = SortedList()
        self._places: dict[Session, _Place] = {}
        self._timer_due_ns = 0

    def set_quotas(self, quotas: tuple[ClientQuotas, ...]) -> None:
        """Go by these quotas from now on. A session that is throttled stays so."""
        self.meter.set_quotas(quotas)

    def ended(self, session: Session) -> None:
        """Forget a session."""
        self.meter.ended(session)
        place = self._places.pop(session, None)
        if place is not None:
            self._throttled.remove(place)

    def _throttle(self, session: Session, delay_ms: int) -> None:
        now_ns = self._clock.monotonic_ns()
        until_ns = now_ns + delay_ms * NS_PER_MS
        if until_ns <= session.throttled_until_ns:
            return
        session.throttled_until_ns = until_ns
        if session in self._places:
            return
        self._put(session, until_ns)
        self._wake_for(now_ns)
        self._mute(session)

    def _put(self, session: Session, until_ns: int) -> None:
        place = self._places[session] = (until_ns, next(self._order), session)
        self._throttled.add(place)

    def _wake_for(self, now_ns: int) -> None:
        if self._throttled:
            due_ns = min(self._throttled[0][0], now_ns + TIMER_MS * NS_PER_MS)
            if not self._timer_due_ns or due_ns < self._timer_due_ns:
                self._timer_due_ns = due_ns
                self._timers.add(due_ns, self._due)

    def _due(self) -> None:
        self._timer_due_ns = 0
        now_ns = self._clock.monotonic_ns()
        over: list[Session] = []
        while self._throttled and self._throttled[0][0] <= now_ns:
            _, _, session = self._throttled.pop(0)
            if remaining_ms := self.meter.remaining_ms(session):
                until_ns = now_ns + remaining_ms * NS_PER_MS
                session.throttled_until_ns = max(session.throttled_until_ns, until_ns)
            if session.throttled_until_ns > now_ns:
                self._put(session, session.throttled_until_ns)
            else:
                del self._places[session]
                session.throttled_until_ns = 0
                over.append(session)
        self._wake_for(now_ns)
        for session in over:
            if not session.closed:
                self._resume(session)

    def close(self) -> None:
        """Let go of the shared memory."""
        self._region.close()

    def statistics(self) -> dict[str, int]:
        """What the meter says, and how many sessions are throttled now."""
        return {**self.meter.statistics(), "muted": len(self._places)}
